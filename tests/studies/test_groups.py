"""Groups of runs by the words of a command: runs, prefixes, studies and their settings, folders, patterns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rl_training.errors import ConfigError
from rl_training.experiment.yaml_text import dump_yaml
from rl_training.studies.groups import find_groups, group_of_word
from rl_training.studies.plan import make_plan, store_plan

BASE = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 100}


def make_run(path: Path, *, seed: int = 0, **config: Any) -> Path:
    """A run folder with settings, as far as the catalog reads it."""
    (path / "checkpoints" / "step-1").mkdir(parents=True)
    (path / "config.yaml").write_text(dump_yaml({**BASE, "seed": seed, **config}))
    created = f"2026-01-01T00:00:{seed:02d}+00:00"
    (path / "metadata.json").write_text(json.dumps({"created": created}))
    return path


GAMMAS = {"algo_kwargs.gamma": [0.9, 0.99], "algo_kwargs.learning_rate": [0.001]}


def make_study(
    name: str = "gammas", vary: Any = GAMMAS, seeds: str = "0..1", begun: int = 99
) -> Path:
    """A study in `runs` of which the first `begun` runs have folders."""
    study = store_plan(make_plan(name, [BASE], vary=vary, seeds=seeds), Path("runs") / name)
    for run in study.runs()[:begun]:
        config = run.config
        kwargs = dict(config.algo_kwargs)
        make_run(run.run_dir, seed=config.seed, algo=config.algo, algo_kwargs=kwargs)
    return study.path


def found(*words: str) -> list[tuple[str, tuple[int | None, ...]]]:
    """Names and seeds of the groups that words mean."""
    return [(group.name, group.seeds) for group in find_groups(words)]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with runs of three settings in `runs`."""
    monkeypatch.chdir(tmp_path)
    runs = Path("runs")
    for seed in (2, 0, 1):
        folder = runs / f"ppo__CartPole-v1__seed{seed}__a"
        make_run(folder, seed=seed, output_dir=f"elsewhere/{seed}")
    make_run(runs / "ppo__CartPole-v1__seed0__b", algo_kwargs={"gamma": 0.5})
    make_run(runs / "dqn__CartPole-v1__seed7__a", seed=7, algo="dqn")
    return tmp_path


DQN = [("dqn CartPole-v1", (7,))]


class TestRuns:
    def test_runs_that_differ_only_in_the_seed_form_a_group(self) -> None:
        words = [f"runs/ppo__CartPole-v1__seed{seed}__a" for seed in (2, 0)]
        (group,) = find_groups([*words, "ppo__CartPole-v1__seed1"])
        assert (group.name, group.seeds) == ("ppo CartPole-v1", (0, 1, 2))
        assert (group.study, group.missing) == (None, ())

    def test_other_settings_form_other_groups_named_by_what_differs(self) -> None:
        assert found("runs") == [("dqn", (7,)), ("ppo", (0, 1, 2)), ("ppo gamma=0.5", (0,))]

    @pytest.mark.parametrize(
        "word", ["@last", "@last/checkpoints/step-1", "runs/dqn__CartPole-v1__seed7__a/checkpoints"]
    )
    def test_the_last_run_and_a_checkpoint_mean_their_run(self, word: str) -> None:
        assert found(word) == DQN

    def test_a_run_that_is_named_twice_counts_once(self, here: Path) -> None:
        assert found("@last", "dqn", str(here / "runs/dqn__CartPole-v1__seed7__a")) == DQN

    @pytest.mark.parametrize("pattern", ["runs/*__a", "ppo*a", "runs/**/ppo__*seed[0-9]__a"])
    def test_a_pattern_means_the_runs_that_match(self, pattern: str) -> None:
        runs = [run for group in find_groups([pattern]) for run in group.runs]
        assert {0, 1, 2} <= {run.seed for run in runs}
        assert all(run.run_dir.name.endswith("__a") for run in runs)

    def test_an_absolute_pattern(self, here: Path) -> None:
        assert found(f"{here}/runs/dqn*") == DQN

    def test_a_schedule_is_one_value(self) -> None:
        for end in (0.0, 0.5):
            rate = {"kind": "linear", "start": 1.0, "end": end}
            make_run(Path(f"rates/{end}"), algo_kwargs={"learning_rate": rate})
        assert len(find_groups(["rates"])) == 2

    def test_unreadable_settings_make_a_group_of_their_own(self) -> None:
        Path("runs/ppo__CartPole-v1__seed2__a/config.yaml").write_text("[")
        groups = find_groups(["runs/ppo__CartPole-v1__seed*__a"])
        assert sorted(len(group.runs) for group in groups) == [1, 2]


class TestStudies:
    def test_each_setting_is_a_group_with_its_missing_runs(self) -> None:
        path = make_study(begun=3)
        groups = find_groups(["gammas"])
        assert found("gammas") == [("gamma=0.9", (0, 1)), ("gamma=0.99", (0,))]
        assert [group.missing for group in groups] == [(), ("gamma=0.99 seed 1",)]
        assert {group.study for group in groups} == {path}
        assert found(str(path)) == found("gammas")

    @pytest.mark.parametrize(
        "text",
        [
            "gamma=0.99",
            "algo_kwargs.gamma=0.99",
            "gamma=.99,learning_rate=1e-3",
            "gamma=0.99 learning_rate=0.001",
        ],
    )
    def test_a_setting_is_chosen_by_its_label_or_its_values(self, text: str) -> None:
        make_study()
        group = group_of_word(f"gammas:{text}")
        assert (group.setting, group.seeds) == ("gamma=0.99", (0, 1))

    @pytest.mark.parametrize(
        ("word", "setting"),
        [
            ("sizes:dqn", "dqn"),
            ("sizes:hidden_sizes=64,32", "ppo"),
            ("runs/sizes:ppo hidden_sizes=[64,32]", "ppo"),
        ],
    )
    def test_algorithms_and_lists_choose_a_setting(self, word: str, setting: str) -> None:
        vary = [
            {"algo": "ppo", "algo_kwargs.hidden_sizes": [64, 32]},
            {"algo": "dqn", "algo_kwargs.hidden_sizes": [8]},
        ]
        make_study("sizes", vary)
        assert group_of_word(word).setting == setting

    @pytest.mark.parametrize("text", ["gamma=0.5", "learning_rate=0.001", "tau=1", ""])
    def test_another_choice_is_refused_with_the_settings(self, text: str) -> None:
        make_study()
        with pytest.raises(ConfigError, match=r"gammas:gamma=0\.9'.*gammas:gamma=0\.99'"):
            find_groups([f"gammas:{text}"])

    def test_groups_of_several_studies_are_told_apart(self) -> None:
        make_study("one")
        make_study("two")
        make_study("plain", {})
        groups = found("one:gamma=0.9", "two:gamma=0.9", "plain")
        assert [name for name, _ in groups] == ["one: gamma=0.9", "two: gamma=0.9", "plain"]

    def test_a_run_of_a_named_study_is_not_counted_again(self) -> None:
        path = make_study(seeds="0", vary={})
        assert found(str(next(path.glob("ppo*"))), "gammas", "gammas") == [("gammas", (0,))]


class TestOneGroup:
    @pytest.mark.parametrize(
        ("word", "message"),
        [
            ("gammas", r"2 settings.*runs/gammas:gamma=0\.9', 'runs/gammas:gamma=0\.99'"),
            ("runs/*__CartPole-v1__*", r"3 settings, 'dqn', 'ppo', 'ppo gamma=0\.5'"),
        ],
    )
    def test_several_settings_are_refused(self, word: str, message: str) -> None:
        make_study()
        with pytest.raises(ConfigError, match=message):
            group_of_word(word)

    def test_a_pattern_of_one_setting_is_a_group(self) -> None:
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
        self, word: str, message: str
    ) -> None:
        make_study()
        Path("file.txt").touch()
        with pytest.raises(ConfigError, match=message):
            find_groups([word])

    def test_a_damaged_plan_is_named_also_by_a_pattern(self) -> None:
        path = make_study()
        (path / "study.yaml").write_text("name: changed")
        for word in ("gammas", "runs/gam*"):
            with pytest.raises(ConfigError, match="was edited"):
                find_groups([word])
