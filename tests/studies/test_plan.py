"""From a study file or Python values to the runs of a study: grids, labels, folder names, and mistakes in them."""

from __future__ import annotations

import dataclasses
import json
import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from run_tools import assert_identical

from rl_training import TrainConfig
from rl_training.errors import ConfigError
from rl_training.experiment.config import resolve_config
from rl_training.experiment.run_folder import safe_name
from rl_training.experiment.yaml_text import dump_yaml, parse_yaml
from rl_training.studies.launching.orders import worker_values
from rl_training.studies.plan import (
    Plan,
    PlannedRun,
    is_extension,
    make_plan,
    plan_differences,
    read_study_file,
)
from rl_training.studies.variation import expand, labels_of, nested, suffixes_of

BASE = {"algo": "ppo", "env_id": "CartPole-v1"}
GAMMA = "algo_kwargs.gamma"
FOLDER = Path("runs", "x")
LONGEST_NAME = 143
"""Bytes of a file's name that every file system allows, encrypted ones included."""


def plan_of(vary: Any = (), seeds: Any = 0, **base: Any) -> Plan:
    return make_plan("x", [{**BASE, **base}], vary=vary, seeds=seeds)


def runs_of(vary: Any, seeds: Any = 0, **base: Any) -> list[PlannedRun]:
    return plan_of(vary, seeds, **base).runs(FOLDER)


WriteStudy = Callable[..., Path]


@pytest.fixture
def write_study(tmp_path: Path) -> WriteStudy:
    """Write a study file."""

    def write(**values: Any) -> Path:
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump({"name": "x", "base": BASE, **values}))
        return path

    return write


class TestSettings:
    def test_a_grid_combines_every_value_with_every_other(self) -> None:
        settings = expand({GAMMA: [0.9, 0.99], "num_envs": [1, 2, 4]})
        assert settings == [
            {GAMMA: gamma, "num_envs": number} for gamma in (0.9, 0.99) for number in (1, 2, 4)
        ]

    def test_a_list_of_settings_is_taken_as_it_is(self) -> None:
        settings = [{GAMMA: 0.9, "num_envs": 2}, {"algo_kwargs.ent_coef": 0.1}]
        assert expand(settings) == settings

    def test_nested_and_dotted_keys_are_the_same(self) -> None:
        for vary in (
            *({"algo_kwargs": {"gamma": [0.9]}}, {GAMMA: [0.9]}, {"gamma": [0.9]}),
            *([{"algo_kwargs": {"gamma": 0.9}}], [{"gamma": 0.9}]),
        ):
            assert expand(vary) == [{GAMMA: 0.9}]
        assert expand({"early_stopping": {"patience": [3]}}) == [
            {"algo_kwargs.early_stopping.patience": 3}
        ]
        deep = {"env_kwargs": {"wrappers": {"frame_stack": [2, 4]}}}
        assert expand(deep) == expand({"env_kwargs.wrappers.frame_stack": [2, 4]})

    @pytest.mark.parametrize("values", [[1, 2], (1, 2), range(1, 3), np.arange(1, 3)])
    def test_a_grid_takes_what_is_like_a_list(self, values: Any) -> None:
        assert expand({"num_envs": values}) == [{"num_envs": 1}, {"num_envs": 2}]

    @pytest.mark.parametrize("vary", [(), {}, []])
    def test_a_study_that_varies_nothing_has_one_setting(self, vary: Any) -> None:
        assert expand(vary) == [{}]

    def test_a_value_that_is_a_mapping_or_a_list_is_one_value(self) -> None:
        schedule = {"kind": "linear", "start": 1e-3, "end": 0.0}
        settings = expand(
            {"algo_kwargs.learning_rate": [schedule, 3e-4], "algo_kwargs.hidden_sizes": [[8, 8]]}
        )
        assert [setting["algo_kwargs.learning_rate"] for setting in settings] == [schedule, 3e-4]
        assert {len(setting["algo_kwargs.hidden_sizes"]) for setting in settings} == {2}

    def test_dotted_keys_become_nested_mappings(self) -> None:
        values = nested({GAMMA: 0.9, "algo_kwargs.replay.kind": "uniform", "num_envs": 2})
        assert values == {
            "algo_kwargs": {"gamma": 0.9, "replay": {"kind": "uniform"}},
            "num_envs": 2,
        }

    @pytest.mark.parametrize(
        ("vary", "message"),
        [
            (
                {"total_timestep": [1]},
                "'total_timestep' for 'vary' of the study: did you mean 'tot",
            ),
            ({"algo_kwarg.gamma": [1]}, "key 'algo_kwarg.gamma' .* did you mean 'algo_kwargs'"),
            ([{"gama": 0.9}], r"unknown key 'gama' .*: did you mean gamma\?"),
            ({"zzz": [8]}, r"'zzz' .*\(`rl-training algos NAME` lists the settings of an algo"),
            ({"": [1]}, "empty key '' in 'vary'"),
            ([{"seed": 1}], "'seed' cannot be varied: the seeds of a study are in its key seeds"),
            ({"output_dir": ["a"]}, "'output_dir' cannot be varied: the runs of a study are in it"),
            ({GAMMA: 0.9}, r"bad value 0.9 for 'vary.algo_kwargs.gamma' .*: write a .*: \[0.9\]"),
            ({"env_id": "A-v1"}, r"bad value 'A-v1' for 'vary.env_id' .*: \[A-v1\]"),
            (5, "bad value 5 for 'vary' of the study"),
            ([5], "bad value 5 for 'vary' of the study: each setting is a mapping"),
            ({GAMMA: []}, "'vary.algo_kwargs.gamma' of the study is empty: give it values, or le"),
            ({"algo_kwargs": {}}, "'vary.algo_kwargs' of the study is empty"),
            ({GAMMA: [0.9], "gamma": [0.8]}, "'algo_kwargs.gamma' in 'vary' .* is given twice"),
            ({GAMMA: [0.9], "algo_kwargs": {"gamma": [0.8]}}, "gamma' .* is given twice: remove"),
            ([{GAMMA: 0.9, "algo_kwargs": {"gamma": 0.8}}], "gamma' .* is given twice: remove one"),
            (
                {"num_envs": [1, 2, 1]},
                "'vary' of the study has the setting {\"num_envs\": 1} twice",
            ),
            ([{"num_envs": 1, GAMMA: 0.9}, {GAMMA: 0.9, "num_envs": 1}], "twice: remove one"),
            ([{GAMMA: 0.9}, {"algo_kwargs": {"gamma": 0.9}}], "twice: remove one"),
        ],
    )
    def test_mistakes_are_named(self, vary: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            expand(vary)

    def test_a_key_within_one_that_has_a_value_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"env_kwargs\.wrappers"):
            runs_of([{"env_kwargs.wrappers": None, "env_kwargs.wrappers.frame_stack": 4}])

    def test_the_settings_are_left_unchanged(self) -> None:
        settings = [{"algo_kwargs.replay": {"kind": "uniform"}, "algo_kwargs.replay.alpha": 0.5}]
        before = json.dumps(settings)
        nested(settings[0])
        assert json.dumps(settings) == before


class TestRuns:
    def test_each_setting_meets_each_seed_seeds_in_the_outer_loop(self) -> None:
        runs = runs_of({GAMMA: [0.9, 0.99]}, "0..2", total_timesteps=500)
        values = [(run.config.seed, run.config.algo_kwargs["gamma"], run.setting) for run in runs]
        assert values == [(s, g, f"gamma={g}") for s in (0, 1, 2) for g in (0.9, 0.99)]
        assert {run.config.total_timesteps for run in runs} == {500}
        assert {run.config.output_dir for run in runs} == {FOLDER}
        assert runs[0].run_dir == FOLDER / "ppo__CartPole-v1__seed0__gamma-0.9"
        assert runs[0].label == "gamma=0.9 seed 0"

    def test_a_study_of_seeds_alone_has_plain_labels(self) -> None:
        runs = runs_of((), [3, 7])
        assert [run.label for run in runs] == ["seed 3", "seed 7"]
        assert [run.run_dir.name for run in runs] == [
            f"ppo__CartPole-v1__seed{seed}__run" for seed in (3, 7)
        ]

    def test_a_setting_replaces_only_its_own_key_of_the_base(self) -> None:
        (run,) = runs_of({GAMMA: [0.9]}, algo_kwargs={"gamma": 0.5, "ent_coef": 0.1})
        assert run.config.algo_kwargs == {"gamma": 0.9, "ent_coef": 0.1}

    def test_a_part_of_a_schedule_can_be_varied(self) -> None:
        schedule = {"kind": "linear", "start": 1e-3, "end": 0.0}
        runs = runs_of(
            {"algo_kwargs.learning_rate.start": [1e-2, 1e-4]},
            algo_kwargs={"learning_rate": schedule},
        )
        rates = [run.config.algo_kwargs["learning_rate"] for run in runs]
        assert rates == [{**schedule, "start": 1e-2}, {**schedule, "start": 1e-4}]

    def test_algorithms_and_environments_can_be_varied(self) -> None:
        runs = runs_of({"algo": ["ppo", "dqn"], "env_id": ["CartPole-v1", "Acrobot-v1"]})
        assert [run.setting for run in runs] == [
            f"{a} {e}" for a in ("ppo", "dqn") for e in ("CartPole-v1", "Acrobot-v1")
        ]
        assert len({run.run_dir for run in runs}) == 4

    def test_a_wrong_value_names_its_setting(self) -> None:
        with pytest.raises(
            ConfigError, match=r"setting total_timesteps=-1: bad value -1 for 'total_timesteps'"
        ):
            runs_of({"total_timesteps": [100, -1]})

    def test_a_wrong_value_of_the_base_is_named_without_a_setting(self) -> None:
        with pytest.raises(ConfigError) as caught:
            runs_of((), total_timesteps=-1)
        assert str(caught.value).startswith("bad value -1 for 'total_timesteps'")

    def test_fixed_threads_belong_to_the_settings(self) -> None:
        plan = dataclasses.replace(plan_of({GAMMA: [0.9, 0.99]}, "0..1"), threads=(1, 3))
        assert [run.config.num_threads for run in plan.runs(FOLDER)] == [1, 3, 1, 3]

    def test_too_many_runs_are_refused_before_they_are_validated(self) -> None:
        with pytest.raises(
            ConfigError,
            match=r"the study has 200,000 runs, more than 100,000",
        ):
            runs_of({"num_envs": [1, 2]}, "0..99999")


VALUES = st.recursive(
    st.one_of(st.integers(-3, 3), st.floats(-2, 2), st.booleans(), st.none(), st.text(max_size=4)),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


class TestNames:
    def test_a_label_has_the_last_part_of_each_key_that_varies(self) -> None:
        settings = expand({GAMMA: [0.9, 0.99], "num_envs": [1, 2], "total_timesteps": [500]})
        labels = [
            "gamma=0.9 num_envs=1",
            "gamma=0.9 num_envs=2",
            "gamma=0.99 num_envs=1",
            "gamma=0.99 num_envs=2",
        ]
        assert labels_of(settings) == labels
        assert labels_of([{GAMMA: 0.9}, {}, {"num_envs": 2}]) == ["gamma=0.9", "", "num_envs=2"]

    def test_keys_that_tell_nothing_more_are_left_out(self) -> None:
        settings = [
            {"algo": "ppo", "algo_kwargs.num_steps": 8},
            {"algo": "dqn", "algo_kwargs.batch_size": 16},
        ]
        assert labels_of(settings) == ["ppo", "dqn"]

    def test_keys_that_end_alike_are_written_in_full(self) -> None:
        settings = expand({"algo_kwargs.replay.kind": ["a", "b"], "env_kwargs.kind": ["c", "d"]})
        assert labels_of(settings)[0] == "replay.kind=a env_kwargs.kind=c"

    def test_lists_and_mappings_are_written_without_brackets(self) -> None:
        assert labels_of(expand({"hidden_sizes": [[64, 64], [8], {"kind": "small"}]})) == [
            "hidden_sizes=64,64",
            "hidden_sizes=8",
            "hidden_sizes=kind:small",
        ]

    @pytest.mark.parametrize(
        "values",
        [
            ["a/b", "a-b", "a b-", "../a", "a\\b", "a:b", "a\nb"],
            ["ü", "é", "日本", "-", "..", ""],
            [0.1, -0.1, 1e-05, 100000, True, None],
            [[8], [8, 8], 8.0],
            ["x" * 200, "x" * 201, "x" * 300],
            ["A", "a"],
            *([1, "1"], ["a b", "ab"], [[[6], [6]], [6, 6]], [True, "true"], ["[x]", "x"]),
        ],
    )
    def test_folder_names_are_unique_safe_and_short(self, values: list[Any]) -> None:
        runs = runs_of({"env_kwargs.key": values}, 2**63 - 1)
        names = {run.run_dir.name for run in runs}
        assert len(names) == len({run.setting for run in runs}) == len(values)
        for name in names:
            assert safe_name(name) == name
            assert len(name.encode()) <= LONGEST_NAME

    def test_the_suffix_of_a_study_of_seeds_stands_before_the_label(self) -> None:
        assert suffixes_of([{}], "night") == ["night"]
        assert suffixes_of([{GAMMA: 0.9}], "night") == ["night-gamma-0.9"]
        assert suffixes_of([{}], None) == ["run"]

    @settings(deadline=None, database=None, derandomize=True)
    @given(st.lists(VALUES, min_size=2, max_size=6, unique_by=lambda value: json.dumps(value)))
    def test_folder_names_of_any_settings_are_unique(self, values: list[Any]) -> None:
        suffixes = suffixes_of([{"env_kwargs.key": value} for value in values], None)
        assert len(set(suffixes)) == len(values)
        assert {*"".join(suffixes)} <= {*string.ascii_letters, *string.digits, *"._-"}

    @pytest.mark.parametrize(
        "settings",
        [
            [{"algo_kwargs.a": "x-b-2"}, {"algo_kwargs.a": "x", "algo_kwargs.b": 2}],
            [{"env_kwargs.a/b": 1}, {"env_kwargs.a b": 1}],
            [{"algo_kwargs.num_envs": 2}, {"num_envs": 2}],
        ],
    )
    def test_settings_of_several_keys_never_share_a_folder(
        self, settings: list[dict[str, Any]]
    ) -> None:
        assert len({run.run_dir for run in runs_of(settings)}) == len(settings)


class TestStudyFile:
    def test_a_file_is_read_and_its_folder_is_named_after_it(self, write_study: WriteStudy) -> None:
        path = write_study(name="grid-1", vary={GAMMA: [0.9, 0.99]}, seeds="0..2", output_dir="out")
        plan, folder = read_study_file(path)
        assert folder == Path("out", "grid-1")
        assert plan == make_plan("grid-1", [BASE], vary={GAMMA: [0.9, 0.99]}, seeds="0..2")

    @pytest.mark.parametrize(
        ("seeds", "expected"), [({"seeds": [2, 5]}, (2, 5)), ({"seeds": "0,7"}, (0, 7)), ({}, (0,))]
    )
    def test_seeds_are_written_as_text_or_a_list_and_are_zero_if_left_out(
        self, write_study: WriteStudy, seeds: dict[str, Any], expected: tuple[int, ...]
    ) -> None:
        assert read_study_file(write_study(**seeds))[0].seeds == expected

    def test_dotted_keys_of_the_base_are_merged_with_nested_ones(
        self, write_study: WriteStudy
    ) -> None:
        base = {**BASE, "algo_kwargs": {"gamma": 0.9}, "algo_kwargs.ent_coef": 0.1}
        assert read_study_file(write_study(base=base))[0].base["algo_kwargs"] == {
            "gamma": 0.9,
            "ent_coef": 0.1,
        }

    @pytest.mark.parametrize(("preset", "num_steps"), [(None, None), (False, None), (True, 32)])
    def test_a_preset_is_the_start_of_the_base_or_named(
        self, write_study: WriteStudy, tmp_path: Path, preset: bool | None, num_steps: int | None
    ) -> None:
        (tmp_path / "shared.yaml").write_text(
            dump_yaml({} if preset is None else {"preset": preset})
        )
        base = {**BASE, "algo_kwargs": {"gamma": 0.5}}
        plan, _ = read_study_file(write_study(config="shared.yaml", base=base))
        assert plan.base["algo_kwargs"]["gamma"] == 0.5
        assert plan.base["algo_kwargs"].get("num_steps") == num_steps
        assert (plan.hint is None) == (preset is not None)

    def test_a_study_without_a_preset_of_its_own_says_so(self, write_study: WriteStudy) -> None:
        with pytest.raises(
            ConfigError,
            match=r"'preset: true' of study 'x': there is no preset for its algo and env_id",
        ):
            read_study_file(write_study(preset=True, base={**BASE, "env_id": "Unheard-v0"}))
        with pytest.raises(ConfigError, match="unknown algorithm 'ppp': did you mean 'ppo'"):
            read_study_file(write_study(preset=True, base={**BASE, "algo": "ppp"}))

    def test_a_configuration_file_is_found_beside_the_study_file(
        self, write_study: WriteStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        (tmp_path / "parts").mkdir()
        (tmp_path / "parts" / "common.yaml").write_text(
            "algo: dqn\nenv_id: CartPole-v1\nnum_envs: 4\n"
        )
        plan, _ = read_study_file(write_study(config="parts/common.yaml", base={"algo": "ppo"}))
        assert plan.base == {"algo": "ppo", "env_id": "CartPole-v1", "num_envs": 4}
        plan, _ = read_study_file(write_study(config="parts/common.yaml", base={}))
        assert plan.base["algo"] == "dqn"

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            (
                {"vary": {}},
                "the grid 'vary' of the study is empty: give it values, or leave the ke",
            ),
            ({"vary": None}, "the grid 'vary' of the study is empty"),
            ({"base": {}}, "missing key 'base' for the study"),
            ({"base": 5}, "bad value 5 for 'base' of the study: should be a mapping"),
            ({"base": {**BASE, "seed": 3}}, "'seed' of the base has no effect: the seeds of a st"),
            ({"base": {**BASE, "output_dir": "out"}}, "'output_dir' of the base has no effect"),
            ({"bases": BASE}, "unknown key 'bases' for the study: did you mean 'base'"),
            ({"seeds": True}, "bad value True for 'seeds' of the study"),
            ({"seeds": None}, "bad value None for seeds"),
            ({"name": 5}, "bad value 5 for 'name' of the study"),
            ({"name": ""}, "bad value '' for 'name' of the study: use letters, digits"),
            ({"name": "../x"}, "bad value '../x' for 'name' of the study: use letters, digits"),
            ({"config": "missing.yaml"}, "config file '.*missing.yaml' does not exist"),
        ],
    )
    def test_mistakes_are_named(
        self, write_study: WriteStudy, values: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            read_study_file(write_study(**values))

    def test_a_missing_file_and_one_that_is_no_mapping_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="does not exist"):
            read_study_file(tmp_path / "study.yaml")
        (tmp_path / "study.yaml").write_text("- 1\n")
        with pytest.raises(ConfigError, match="must be a mapping of keys to values, not list"):
            read_study_file(tmp_path / "study.yaml")

    def test_a_key_that_is_not_text_is_refused(self, write_study: WriteStudy) -> None:
        path = write_study()
        path.write_text(f"{path.read_text()}1: 2\n")
        with pytest.raises(ConfigError, match="1"):
            read_study_file(path)


class TestBase:
    @pytest.mark.parametrize(
        "layers",
        [
            [{"algo_kwargs": {"gamma": 0.9}, "num_envs": 2}, {"algo_kwargs": {"ent_coef": 0.1}}],
            [
                {"algo_kwargs": {"learning_rate": {"kind": "linear", "start": 1.0, "end": 0.5}}},
                {"algo_kwargs": {"learning_rate": {"kind": "constant", "value": 0.1}}},
            ],
            [{"env_kwargs": {"a": {"x.y": {"b": 1}}}}, {"env_kwargs": {"a": {"x.y": {"c": 2}}}}],
        ],
    )
    def test_layers_are_merged_as_those_of_a_single_run(
        self, layers: Sequence[Mapping[str, Any]]
    ) -> None:
        before = json.dumps(layers)
        (run,) = make_plan("x", [BASE, *layers]).runs(FOLDER)
        assert json.dumps(layers) == before
        alone = resolve_config([("base", BASE), *(("layer", layer) for layer in layers)]).config
        assert run.config == alone.replace(output_dir=FOLDER)


class TestStoredPlan:
    @pytest.mark.parametrize(
        "plan",
        [
            plan_of(),
            plan_of({GAMMA: [0.9, 0.99], "num_envs": [1, 2]}, "0..3,9", total_timesteps=500),
            plan_of([{"algo_kwargs.hidden_sizes": (8, 8)}, {"env_kwargs.day": "2026-01-02"}, {}]),
            plan_of(env_kwargs={"sizes": {"a": (2, 3)}, "text": "yes", "number": "010"}),
            dataclasses.replace(
                plan_of(), plugins=("a.py",), callbacks=("b.py:C",), suffix="night", threads=(2,)
            ),
        ],
    )
    def test_a_plan_is_the_same_after_it_was_written_and_read(self, plan: Plan) -> None:
        read = Plan.from_values(parse_yaml(dump_yaml(plan.values()), "the plan"))
        assert read == plan
        assert_identical(read.base, plan.base)
        assert_identical([*read.vary], [*plan.vary])
        assert plan_differences(plan, read) == []
        assert [run.run_dir for run in read.runs(FOLDER)] == [
            run.run_dir for run in plan.runs(FOLDER)
        ]

    @pytest.mark.parametrize("key", ["name", "base", "vary", "seeds", "threads", "plugins"])
    def test_a_stored_plan_without_a_key_is_damaged(self, key: str) -> None:
        values = plan_of().values()
        del values[key]
        with pytest.raises(ConfigError, match=f"the stored plan is damaged: '{key}'"):
            Plan.from_values(values)

    @pytest.mark.parametrize(
        "change", [{"vary": [5]}, {"threads": ["x"]}, {"base": 5}, {"seeds": "x"}, {"vary": None}]
    )
    def test_a_stored_plan_of_other_types_is_refused(self, change: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=r"damaged|bad value"):
            Plan.from_values({**plan_of().values(), **change})


class TestDifferences:
    @pytest.mark.parametrize(
        ("old", "new", "expected"),
        [
            (plan_of(seeds="0..1"), plan_of(seeds="0..2"), ["seeds was 0..1 and is 0..2"]),
            (plan_of(), plan_of(num_envs=4), ["base.num_envs was not set and is 4"]),
            (
                plan_of(algo_kwargs={"gamma": 0.9, "ent_coef": 0.1}),
                plan_of(algo_kwargs={"gamma": 0.8, "ent_coef": 0.1}),
                ["base.algo_kwargs.gamma was 0.9 and is 0.8"],
            ),
            (
                plan_of({GAMMA: [0.9, 0.99]}),
                plan_of({GAMMA: [0.9, 0.95]}),
                ["vary changed: removed gamma=0.99, added gamma=0.95"],
            ),
            (
                plan_of({GAMMA: [0.8, 0.9]}),
                plan_of({GAMMA: [0.8, 0.9, 0.95]}),
                ["vary changed: added gamma=0.95"],
            ),
            (
                plan_of({GAMMA: [0.9, 0.8]}),
                plan_of({GAMMA: [0.8, 0.9]}),
                ["vary changed: another order"],
            ),
            (
                plan_of(seeds=1, env_id="A-v1"),
                plan_of(seeds=2, env_id="B-v1"),
                ['base.env_id was "A-v1" and is "B-v1"', "seeds was 1 and is 2"],
            ),
        ],
    )
    def test_what_differs_is_said_in_words(self, old: Plan, new: Plan, expected: list[str]) -> None:
        assert plan_differences(old, new) == expected

    @pytest.mark.parametrize(
        ("old", "new"),
        [({"flag": 1}, {"flag": True}), ({"flag": None}, {}), ({"a": 1}, {"a": 1.0})],
    )
    def test_an_argument_of_the_environment_that_changes_its_type_is_a_difference(
        self, old: dict[str, Any], new: dict[str, Any]
    ) -> None:
        plans = [plan_of(env_kwargs={"other": 0, **values}) for values in (old, new)]
        assert plan_differences(*plans) != []

    def test_the_code_to_import_and_the_number_of_threads_are_no_difference(self) -> None:
        other = dataclasses.replace(
            plan_of(), plugins=("a.py",), callbacks=("b.py:C",), threads=(4,)
        )
        assert plan_differences(plan_of(), other) == []

    @pytest.mark.parametrize(
        "new",
        [
            plan_of({GAMMA: [0.9, 0.99]}, "0..2"),
            plan_of({GAMMA: [0.9, 0.99, 0.999]}, "0..1"),
            plan_of({GAMMA: [0.5, 0.99, 0.9]}, "5,1,0"),
            plan_of([{GAMMA: 0.9}, {GAMMA: 0.99}, {GAMMA: 0.99, "num_envs": 2}], "0..1"),
        ],
    )
    def test_further_seeds_and_settings_are_an_extension(self, new: Plan) -> None:
        old = plan_of({GAMMA: [0.9, 0.99]}, "0..1")
        assert is_extension(old, new)
        assert {run.run_dir for run in old.runs(FOLDER)} < {run.run_dir for run in new.runs(FOLDER)}

    @pytest.mark.parametrize(
        "new",
        [
            plan_of({GAMMA: [0.9]}, "0..3"),
            plan_of({GAMMA: [0.9, 0.99]}, "1..3"),
            plan_of({GAMMA: [0.9, 0.99]}, "0..3", num_envs=2),
            plan_of({GAMMA: [0.9, 0.99], "num_envs": [1, 2]}, "0..3"),
        ],
    )
    def test_a_plan_that_lacks_or_renames_a_run_is_no_extension(self, new: Plan) -> None:
        assert not is_extension(plan_of({GAMMA: [0.9, 0.99]}, "0..1"), new)

    def test_a_setting_that_would_rename_a_folder_is_no_extension(self) -> None:
        old = plan_of([{"env_kwargs.key": "a-b"}, {"env_kwargs.key": "c"}])
        new = plan_of(
            [{"env_kwargs.key": "a-b"}, {"env_kwargs.key": "c"}, {"env_kwargs.key": "a/b"}]
        )
        is_kept = {*old.suffixes()} < {*new.suffixes()}
        assert is_extension(old, new) == is_kept


class TestWorkerValues:
    @pytest.mark.parametrize(
        "env_kwargs",
        [
            {},
            {"text": "yes", "number": "010", "nothing": None, "many": [1, 2.5, float("inf"), "ü"]},
        ],
    )
    def test_a_configuration_reaches_the_worker_unchanged(
        self, env_kwargs: dict[str, Any], tmp_path: Path
    ) -> None:
        config = TrainConfig(
            **BASE, seed=2**63 - 1, output_dir=tmp_path, tags=("a", "b"), env_kwargs=env_kwargs
        )
        received = TrainConfig(**json.loads(json.dumps(worker_values(config))))
        filled = config.replace(
            log_interval=config.log_every_steps, checkpoint_interval=config.checkpoint_every_steps
        )
        assert received == filled
        assert_identical(received.env_kwargs, config.env_kwargs)

    def test_the_workers_folder_is_absolute(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert worker_values(TrainConfig(**BASE, output_dir=Path("out")))["output_dir"] == str(
            tmp_path / "out"
        )
