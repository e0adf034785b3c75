"""Groups of runs by the words of a command: runs, prefixes, studies and their settings, folders, patterns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rl_training.errors import ConfigError
from rl_training.experiment.yaml_text import dump_yaml
from rl_training.studies.groups import RunGroup, find_groups, group_of_word
from rl_training.studies.plan import make_plan, store_plan

BASE = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 100}


def make_run(
    path: Path, *, seed: int = 0, algo: str = "ppo", algo_kwargs: Any = None, **config: Any
) -> Path:
    """A run folder with settings, as far as the catalog reads it."""
    (path / "checkpoints" / "step-1").mkdir(parents=True)
    values = {**BASE, "algo": algo, "seed": seed, "algo_kwargs": algo_kwargs or {}, **config}
    (path / "config.yaml").write_text(dump_yaml(values))
    (path / "metadata.json").write_text(
        json.dumps({"created": f"2026-01-01T00:00:{seed:02d}+00:00"})
    )
    return path


def make_study(
    folder: Path, name: str = "gammas", vary: Any = None, seeds: str = "0..1", *, begun: int = 99
) -> Path:
    """A study of which the first `begun` runs have folders."""
    vary = (
        {"algo_kwargs.gamma": [0.9, 0.99], "algo_kwargs.learning_rate": [0.001]}
        if vary is None
        else vary
    )
    study = store_plan(make_plan(name, [BASE], vary=vary, seeds=seeds), folder / name)
    for run in study.runs()[:begun]:
        make_run(
            run.run_dir,
            seed=run.config.seed,
            algo=run.config.algo,
            algo_kwargs=dict(run.config.algo_kwargs),
        )
    return study.path


def shape(groups: list[RunGroup]) -> list[tuple[str, tuple[int | None, ...]]]:
    return [(group.name, group.seeds) for group in groups]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with runs of two settings in `runs`."""
    monkeypatch.chdir(tmp_path)
    for seed in (2, 0, 1):
        make_run(
            Path("runs") / f"ppo__CartPole-v1__seed{seed}__a",
            seed=seed,
            output_dir=f"elsewhere/{seed}",
        )
    make_run(Path("runs/ppo__CartPole-v1__seed0__b"), algo_kwargs={"gamma": 0.5})
    make_run(Path("runs/dqn__CartPole-v1__seed7__a"), seed=7, algo="dqn")
    return tmp_path


class TestRuns:
    def test_runs_that_differ_only_in_the_seed_form_a_group(self, here: Path) -> None:
        words = [f"runs/ppo__CartPole-v1__seed{seed}__a" for seed in (2, 0)]
        (group,) = find_groups([*words, "ppo__CartPole-v1__seed1"])
        assert (group.name, group.seeds) == ("ppo CartPole-v1", (0, 1, 2))
        assert (group.study, group.missing) == (None, ())

    def test_other_settings_form_other_groups_named_by_what_differs(self, here: Path) -> None:
        assert shape(find_groups(["runs"])) == [
            ("dqn", (7,)),
            ("ppo", (0, 1, 2)),
            ("ppo gamma=0.5", (0,)),
        ]

    @pytest.mark.parametrize(
        "word", ["@last", "@last/checkpoints/step-1", "runs/dqn__CartPole-v1__seed7__a/checkpoints"]
    )
    def test_the_last_run_and_a_checkpoint_mean_their_run(self, here: Path, word: str) -> None:
        assert shape(find_groups([word])) == [("dqn CartPole-v1", (7,))]

    def test_a_run_that_is_named_twice_counts_once(self, here: Path) -> None:
        assert shape(
            find_groups(["@last", "dqn", str(here / "runs/dqn__CartPole-v1__seed7__a")])
        ) == [("dqn CartPole-v1", (7,))]

    @pytest.mark.parametrize("pattern", ["runs/*__a", "ppo*a", "runs/**/ppo__*seed[0-9]__a"])
    def test_a_pattern_means_the_runs_that_match(self, here: Path, pattern: str) -> None:
        seeds = [seed for group in find_groups([pattern]) for seed in group.seeds]
        assert {0, 1, 2} <= {*seeds}
        assert all(
            run.run_dir.name.endswith("__a")
            for group in find_groups([pattern])
            for run in group.runs
        )

    def test_an_absolute_pattern(self, here: Path) -> None:
        assert shape(find_groups([f"{here}/runs/dqn*"])) == [("dqn CartPole-v1", (7,))]

    def test_a_schedule_is_one_value(self, tmp_path: Path) -> None:
        for seed, end in ((0, 0.0), (0, 0.5)):
            rate = {"kind": "linear", "start": 1.0, "end": end}
            make_run(tmp_path / f"run{end}", seed=seed, algo_kwargs={"learning_rate": rate})
        assert len(find_groups([str(tmp_path)])) == 2

    def test_unreadable_settings_make_a_group_of_their_own(self, here: Path) -> None:
        Path("runs/ppo__CartPole-v1__seed2__a/config.yaml").write_text("[")
        groups = find_groups(["runs/ppo__CartPole-v1__seed*__a"])
        assert sorted(len(group.runs) for group in groups) == [1, 2]


class TestStudies:
    def test_each_setting_is_a_group_with_its_missing_runs(self, here: Path) -> None:
        path = make_study(Path("runs"), begun=3)
        groups = find_groups(["gammas"])
        assert shape(groups) == [("gamma=0.9", (0, 1)), ("gamma=0.99", (0,))]
        assert [group.missing for group in groups] == [(), ("gamma=0.99 seed 1",)]
        assert {group.study for group in groups} == {path}
        assert shape(find_groups([str(path)])) == shape(groups)

    @pytest.mark.parametrize(
        "text",
        [
            "gamma=0.99",
            "algo_kwargs.gamma=0.99",
            "gamma=.99,learning_rate=1e-3",
            "gamma=0.99 learning_rate=0.001",
        ],
    )
    def test_a_setting_is_chosen_by_its_label_or_its_values(self, here: Path, text: str) -> None:
        make_study(Path("runs"))
        group = group_of_word(f"gammas:{text}")
        assert (group.setting, group.seeds) == ("gamma=0.99", (0, 1))

    def test_algorithms_and_lists_choose_a_setting(self, here: Path) -> None:
        vary = [
            {"algo": "ppo", "algo_kwargs.hidden_sizes": [64, 32]},
            {"algo": "dqn", "algo_kwargs.hidden_sizes": [8]},
        ]
        make_study(Path("runs"), "sizes", vary)
        assert group_of_word("sizes:dqn").setting == "dqn"
        assert group_of_word("sizes:hidden_sizes=64,32").setting == "ppo"
        assert group_of_word("runs/sizes:ppo hidden_sizes=[64,32]").setting == "ppo"

    @pytest.mark.parametrize("text", ["gamma=0.5", "learning_rate=0.001", "tau=1", ""])
    def test_another_choice_is_refused_with_the_settings(self, here: Path, text: str) -> None:
        make_study(Path("runs"))
        with pytest.raises(ConfigError, match=r"gammas:gamma=0\.9'.*gammas:gamma=0\.99'"):
            find_groups([f"gammas:{text}"])

    def test_groups_of_several_studies_are_told_apart(self, here: Path) -> None:
        make_study(Path("runs"), "one")
        make_study(Path("runs"), "two")
        make_study(Path("runs"), "plain", {})
        names = [group.name for group in find_groups(["one:gamma=0.9", "two:gamma=0.9", "plain"])]
        assert names == ["one: gamma=0.9", "two: gamma=0.9", "plain"]

    def test_a_run_of_a_named_study_is_not_counted_again(self, here: Path) -> None:
        path = make_study(Path("runs"), seeds="0", vary={})
        assert shape(find_groups([str(next(path.glob("ppo*"))), "gammas", "gammas"])) == [
            ("gammas", (0,))
        ]


class TestOneGroup:
    def test_a_study_with_several_settings_is_refused(self, here: Path) -> None:
        make_study(Path("runs"))
        with pytest.raises(
            ConfigError, match=r"2 settings.*runs/gammas:gamma=0\.9', 'runs/gammas:gamma=0\.99'"
        ):
            group_of_word("gammas")

    def test_runs_with_several_settings_are_refused(self, here: Path) -> None:
        with pytest.raises(ConfigError, match=r"3 settings, 'dqn', 'ppo', 'ppo gamma=0\.5'"):
            group_of_word("runs")

    def test_a_pattern_of_one_setting_is_a_group(self, here: Path) -> None:
        assert group_of_word("runs/ppo*__a").seeds == (0, 1, 2)


class TestNothing:
    @pytest.mark.parametrize(
        ("word", "message"),
        [
            ("gamas", "did you mean 'gammas'"),
            ("dqn__CartPole-v1__seed8__a", "did you mean 'dqn__CartPole-v1__seed7__a'"),
            ("ppo__", "is the beginning of"),
            ("zzz", "rl-training runs"),
            ("zzz*", "no run or study matches"),
            ("runs/zzz", "does not exist"),
            ("file.txt", "is no run folder"),
            ("zzz:gamma=1", "is no run, study or folder"),
            ("x" * 300, "is no run, study or folder"),
        ],
    )
    def test_a_word_that_means_nothing_is_refused_with_the_nearest_name(
        self, here: Path, word: str, message: str
    ) -> None:
        make_study(Path("runs"))
        Path("file.txt").touch()
        with pytest.raises(ConfigError, match=message):
            find_groups([word])

    def test_a_damaged_plan_is_named_also_by_a_pattern(self, here: Path) -> None:
        path = make_study(Path("runs"))
        (path / "study.yaml").write_text("name: changed")
        for word in ("gammas", "runs/gam*"):
            with pytest.raises(ConfigError, match="was edited"):
                find_groups([word])
