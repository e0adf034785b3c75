"""Tuning: search spaces, the trials of a search, pruning, the race and the verdict; the same after any death."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import optuna
import pytest
from tune_tools import BASE, SMALL, Death, InlineLauncher, open_journal, outcome, request

from rl_training.algorithms.config import AlgorithmConfig
from rl_training.algorithms.tune import Tune
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, load_config_file
from rl_training.experiment.presets import list_presets
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs
from rl_training.studies.tuning import journal
from rl_training.studies.tuning.journal import (
    Pruning,
    mean_evaluations,
    read_evaluations,
    repair,
)
from rl_training.studies.tuning.ranges import search_spaces, spaces_of
from rl_training.studies.tuning.search_space import (
    TunedKey,
    encode,
    parse_asked,
    parse_space,
    resolve_space,
)
from rl_training.studies.tuning.stages import verdict_of, warn_of_few_seeds
from rl_training.studies.tuning.tune_plan import TunePlan, find_plan, open_tuning, store_tuning
from rl_training.studies.tuning.tuner import Tuning
from rl_training.views.studies import tune_result_lines

ALGOS = [spec.name for spec in list_algorithm_specs()]
PAY = "env_kwargs.pay"
LOW, HIGH = [float(seed) for seed in range(5)], [100.0 + seed for seed in range(5)]


def run(path: Path, wanted: TunePlan, dies_at: int = -1) -> tuple[list[str], Any]:
    """Run or continue a tuning in this process; returns the runs that were started, and the result."""
    launcher = InlineLauncher(dies_at)
    return launcher.started, Tuning(find_plan(wanted, path), path).run(launcher)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], Any]:
    """A small tuning from begin to end."""
    path = tmp_path_factory.mktemp("finished") / "small"
    return path, *run(path, request())


# Search spaces


@pytest.mark.parametrize("algo", ALGOS)
def test_every_algorithm_has_search_spaces_whose_values_are_valid(algo: str) -> None:
    spec = get_algorithm_spec(algo)
    spaces = spaces_of(spec.config_class())
    by_default = {name for name, space in spaces.items() if not space.by_name}
    assert "learning_rate" in by_default
    assert len(by_default) >= 3
    keys = defaults_of(algo, {}, spaces)
    for key in keys:
        for value in key.space.choices or [key.space.low, key.space.high, key.default]:
            spec.parse_kwargs({key.name: key.setting(encode(value))})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    chosen = [key for key in keys if key.name in by_default]
    for _ in range(30):
        params = study.ask({key.name: key.distribution() for key in chosen}).params
        spec.parse_kwargs({key.name: key.setting(key.rounded(params[key.name])) for key in chosen})


@pytest.mark.parametrize(
    "preset", list_presets(), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_the_default_of_every_preset_lies_in_the_search_space(preset: Path) -> None:
    values = load_config_file(preset)
    given = values.get("algo_kwargs", {})
    keys = defaults_of(values["algo"], given)
    assert keys
    kwargs = dict(given)
    for key in keys:
        param, distribution = encode(key.default), key.distribution()
        assert distribution._contains(distribution.to_internal_repr(param))
        kwargs[key.name] = key.setting(param)
    spec = get_algorithm_spec(values["algo"])
    assert spec.parse_kwargs(kwargs) == spec.parse_kwargs(given)


def defaults_of(
    algo: str, algo_kwargs: dict[str, Any], names: Iterable[str] = ()
) -> tuple[TunedKey, ...]:
    """The keys of an algorithm to tune; no names: those that are tuned by default."""
    config = TrainConfig(algo=algo, env_id="Any-v0", algo_kwargs=algo_kwargs, total_timesteps=10**9)
    return resolve_space({f"algo_kwargs.{name}": None for name in names}, config)


def test_a_subclass_keeps_replaces_or_removes_the_space_of_a_field() -> None:
    class Base(AlgorithmConfig):
        own: Annotated[float, Tune(0.0, 1.0)] = 0.5
        """A number."""

    class Kept(Base):
        own: float = 0.25
        """Another default."""

    class Gone(Base):
        own: Annotated[float, Tune()] = 0.5
        """Not tuned."""

    assert spaces_of(Kept)["own"] == Tune(0.0, 1.0)
    assert spaces_of(Gone).keys() == spaces_of(Kept).keys() - {"own"}


def test_rollouts_of_more_than_a_tenth_of_the_run_are_not_tried() -> None:
    config = get_algorithm_spec("ppo").parse_kwargs({"num_steps": 32})
    assert search_spaces(config, 100_000, 8)["num_steps"].choices == (32, 64, 128, 256, 512, 1024)
    assert search_spaces(config, 5_000, 1)["num_steps"].choices == (32, 64, 128, 256)
    assert "num_steps" not in search_spaces(config, 1_000, 8)  # only its default is left
    assert Tune(1, 100).up_to(10) == Tune(1, 10)
    assert Tune(1, 100).up_to(1).is_empty


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ((2.0, 1.0), "low should be less than high"),
        ((0.0, 1.0, True), "low should be positive"),
        ((None, 1.0), "finite numbers"),
        ((0.0, float("inf")), "finite numbers"),
        ((0.0, 1.0, False, 2.0), "step should be positive"),
        ((0.0, 1.0, False, None, (1, 2)), "not both"),
        ((None, None, False, None, (1,)), "the only choice"),
        ((None, None, False, None, (1, 1)), "given twice"),
        (("a", 1.0), r"bad search space \? to 1: low and high should be finite numbers"),
    ],
)
def test_an_impossible_space_is_refused(arguments: tuple[Any, ...], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        Tune(*arguments)


@pytest.mark.parametrize(
    ("tuned", "fault"),
    [
        ("gamma=0.9..2", "bad value 2.0 for 'gamma' of dqn: should be less than or equal to 1"),
        (
            "gamma=-1..0.5",
            "bad value -1.0 for 'gamma' of dqn: should be greater than or equal to 0",
        ),
        ("gamma=a,b", "bad value 'a' for 'gamma' of dqn: should be a valid number"),
        (
            "num_envs=1,0",
            "bad value 0 for 'num_envs' of the configuration: should be greater than 0",
        ),
        ("batch_size=10.0..64.0", "for 'batch_size' of dqn: should be a whole number"),
        (
            "learning_rate=-0.1..0.1",
            "for 'learning_rate.start' of dqn: should be greater than or equal to 0",
        ),
        ("replay.alpha=-1.0..0.5", "bad value -1.0 for 'replay.alpha' of dqn"),
    ],
)
def test_a_value_that_is_never_valid_is_refused_with_its_key(tuned: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(fault)):
        resolved(tuned)


def resolved(*tuned: str) -> dict[str, TunedKey]:
    """The search space of DQN, whose learning rate falls."""
    rate = {"kind": "linear", "start": 0.001, "end": 0.0}
    config = TrainConfig(algo="dqn", env_id="Any-v0", algo_kwargs={"learning_rate": rate})
    return {key.name: key for key in resolve_space(parse_asked(tuned), config)}


def test_values_that_do_not_fit_others_are_left_to_the_trials() -> None:
    # Of another kind of replay.
    assert resolved("replay.alpha=0.1..0.9")["replay.alpha"].space.low == 0.1
    assert set(resolved()) >= {"learning_rate", "gamma"}


def test_a_choice_may_be_a_whole_schedule() -> None:
    choices = "learning_rate=0.01,{kind: linear, start: 0.001, end: 0.0},{kind: cosine, start: 0.1, end: 0.0}"
    rate = resolved(choices)["learning_rate"]
    assert (len(rate.space.choices), rate.schedule, rate.default["kind"]) == (3, None, "linear")
    settings = [rate.setting(encode(choice)) for choice in rate.space.choices]
    assert settings == list(rate.space.choices)
    assert resolved("learning_rate=0.01,0.1")["learning_rate"].setting(0.1)["kind"] == "linear"


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("1e-5..1e-2:log", Tune(1e-5, 1e-2, log=True)),
        ("1..8", Tune(1, 8)),
        ("-2..0.5", Tune(-2, 0.5)),
        (".5..1.", Tune(0.5, 1.0)),
        ("[64, 64],[8]", Tune(choices=([64, 64], [8]))),
        ("auto,0.1", Tune(choices=("auto", 0.1))),
    ],
)
def test_spaces_are_read_from_text(text: str, space: Tune) -> None:
    assert repr(parse_space(text, "lr")) == repr(space)  # 1 and 1.0 differ
    assert repr(Tune.from_dict(space.as_dict())) == repr(space)


@pytest.mark.parametrize("text", ["1..", "a..b", "5", "", "1..2..3", "2..1"])
def test_text_that_is_no_space_is_refused_with_its_key(text: str) -> None:
    with pytest.raises(ConfigError, match="lr"):
        parse_space(text, "lr")


def test_a_default_outside_of_its_space_widens_it_and_a_schedule_is_tuned_by_its_start() -> None:
    schedule = {"kind": "linear", "start": 0.05, "end": 0.0}
    given = {"learning_rate": schedule, "update_epochs": 7}
    keys = {key.name: key for key in defaults_of("ppo", given)}
    rate = keys["learning_rate"]
    assert (rate.space.high, rate.default) == (0.05, 0.05)
    assert rate.setting(0.001) == {"kind": "linear", "start": 0.001, "end": 0.0}
    assert keys["update_epochs"].space.choices == (7, 3, 5, 10, 20)
    assert rate.rounded(0.00123456) == 0.001235
    message = r"default null of 'algo_kwargs.max_grad_norm'.*not a number"
    with pytest.raises(ConfigError, match=message):
        defaults_of("ppo", {"max_grad_norm": None}, ["max_grad_norm"])


# Trials


def test_trial_zero_is_the_default_and_every_trial_is_an_ordinary_run(finished: Any) -> None:
    path, started, result = finished
    trials = open_journal(path).trials
    assert [trial.number for trial in trials] == list(range(SMALL["trials"]))
    assert trials[0].params == {PAY: 1.0}
    assert started[0].endswith("__seed0__default")
    for trial in trials:
        (run_dir,) = (path / "search").glob(f"*seed0__{trial.user_attrs['name']}")
        assert load_config_file(run_dir / "config.yaml")["env_kwargs"]["pay"] == trial.params[PAY]
        assert trial.value == pytest.approx(2 * trial.params[PAY], abs=0.03)
        expected = set(range(8, 65, 8)) if trial.state.name == "COMPLETE" else {8, 16, 24}
        assert set(trial.intermediate_values) == expected
    assert result.count("COMPLETE") >= SMALL["batch"]


def test_the_best_race_on_fresh_seeds_and_the_winner_meets_the_default_on_others(
    finished: Any,
) -> None:
    path, _, result = finished
    best = max(result.search_scores, key=lambda name: result.search_scores[name])
    assert (set(result.race), result.winner) == ({"default", best}, best)
    seeds = [{int(seed) for seed in stage[best]} for stage in (result.race, result.final)]
    assert seeds == [{1000}, {2000, 2001}]
    assert open_tuning(path).seeds("search") == (0,)
    pay = result.settings[best][PAY]
    assert load_config_file(path / "best.yaml") == BASE  # not better: the default is kept
    assert result.verdict.comparison.difference == pytest.approx(2 * (pay - 1.0), abs=0.05)
    assert result.verdict.kind == "undecided"  # two seeds can decide nothing
    assert "so few can decide nothing" in result.verdict.sentence


def test_a_tuning_that_died_before_a_run_continues_with_the_same_trials(
    tmp_path: Path, finished: Any
) -> None:
    path = tmp_path / "small"
    with pytest.raises(Death):
        run(path, request(), dies_at=3)
    started, _ = run(path, request())
    assert len(started) == len(finished[1]) - 3
    assert outcome(path) == outcome(finished[0])


def test_a_journal_whole_cut_torn_damaged_or_lost_anywhere_is_found_again_from_the_runs(
    tmp_path: Path, finished: Any
) -> None:
    first, _, result = finished
    text = (first / "journal.log").read_bytes()
    lines = text.splitlines(keepends=True)
    contents = {
        f"cut {count}": b"".join(lines[:count]) + lines[count][:count]
        for count in range(0, len(lines), 3)
    }
    contents["whole"] = text
    contents["torn"] = text + lines[-1][:20]
    contents["middle"] = b"".join([*lines[:4], b'{"op_code": oops}\n', *lines[5:]])
    path = tmp_path / "small"
    shutil.copytree(first, path)
    log = path / "journal.log"
    for name, content in {**contents, "lost": None}.items():
        log.unlink()
        if content is not None:
            log.write_bytes(content)
        (path / "journal.log.lock").symlink_to(log)  # of a process that died
        started, again = run(path, request())
        assert started == [], name
        assert outcome(path) == outcome(first), name
        assert (again.verdict, again.final) == (result.verdict, result.final), name
        assert (path / "journal.damaged.log").exists() == (name in ("middle", "lost")), name


def test_a_changed_plan_is_refused_and_an_edited_one_too(tmp_path: Path) -> None:
    path = tmp_path / "small"
    store_tuning(find_plan(request(), path), path)
    before = sorted(file.name for file in path.iterdir())
    for other, words in [
        (request(trials=7), "--trials was 4 and is 7"),
        (request("env_kwargs.pay=0.5..3.0"), "--tune was"),
        (request(base={"total_timesteps": 128}), "base.total_timesteps was 64 and is 128"),
        (request().fix({"gamma": 0.9}), "base.algo_kwargs.gamma was not set and is 0.9"),
    ]:
        with pytest.raises(ConfigError, match=words):
            find_plan(other, path)
    file = path / "tune.yaml"
    file.write_text(file.read_text().replace("trials: 4", "trials: 9"))
    with pytest.raises(ConfigError, match="was edited"):
        find_plan(request(), path)
    assert sorted(file.name for file in path.iterdir()) == before
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "notes.txt").touch()
    with pytest.raises(ConfigError, match="is not a tuning"):
        find_plan(request(name="foreign"), foreign)


def test_a_failed_trial_has_its_reason_and_a_repeated_setting_is_not_trained_again(
    tmp_path: Path,
) -> None:
    length = "env_kwargs.max_episode_steps"
    base = {"env_kwargs": {"pay": 1.0, "nan_above": 1.6, "max_episode_steps": 5}}
    wanted = request(
        f"{PAY}=1.0,2.0", f"{length}=5,0", base=base, trials=10, batch=10, final_seeds=1
    )
    started, result = run(tmp_path / "small", wanted)
    firsts: dict[str, Any] = {}
    for trial in result.trials:
        first = firsts.setdefault(str(trial.params), trial)
        if trial is not first:
            assert trial.user_attrs["same_as"] == first.user_attrs["name"]
            assert (trial.state, trial.value) == (first.state, first.value)
    assert 2 < len(firsts) < len(result.trials)
    lines = tune_result_lines(result)[1]
    assert f"10 trials ({result.count('COMPLETE')} trained, " in lines[0]
    assert lines[0].endswith(f" failed, {10 - len(firsts)} repeat an earlier one)")
    assert result.count("COMPLETE") + result.count("FAIL") == result.num_settings == len(firsts)
    assert any(f"chosen among {len(firsts)} settings" in line for line in lines)
    for trial in firsts.values():
        reason = trial.user_attrs.get("reason", "")
        is_right = trial.params == {PAY: 1.0, length: 5}
        assert trial.state.name == ("COMPLETE" if is_right else "FAIL")
        if trial.params[length] == 0:  # refused before it is trained
            assert "bad value 0 for 'max_episode_steps'" in reason
        elif not is_right:
            assert "nan" in reason.lower()
    trained = [name for name in started if "seed0__" in name]
    assert len(trained) == sum(trial.params[length] == 5 for trial in firsts.values())
    assert (result.winner, set(result.final)) == ("default", {"default"})
    assert "the default won the race" in result.verdict.sentence


def test_the_median_prunes_after_a_third_of_the_budget_and_pruned_runs_are_not_resumed(
    tmp_path: Path,
) -> None:
    wanted = request(f"{PAY}=0.1..2.0", trials=6, batch=3, seeds_per_trial=2, final_seeds=1, seed=2)
    started, result = run(tmp_path / "small", wanted)
    pruned = [trial for trial in result.trials if trial.state.name == "PRUNED"]
    complete = result.trials[:3]
    assert pruned
    assert {trial.state.name for trial in complete} == {"COMPLETE"}
    for trial in result.trials:
        assert trial.value == pytest.approx(2 * trial.params[PAY], abs=0.03)
    for trial in pruned:
        # The first evaluation after a third of 64 steps.
        assert max(trial.intermediate_values) == 24
        assert trial.value == trial.intermediate_values[24]
        assert trial.value < sorted(other.intermediate_values[24] for other in complete)[1]
    seeds = [name.split("__seed")[1].split("__")[0] for name in started]
    # Each run once.
    assert Counter(seeds) == {"20000": 6, "20001": 6, "21000": 2, "22000": 2}


@pytest.mark.parametrize("kind", ["median", "hyperband"])
def test_a_pruner_decides_by_earlier_batches_and_by_evaluations_in_order(kind: str) -> None:
    space = {"x": optuna.distributions.FloatDistribution(0.0, 1.0)}
    trials = [
        optuna.trial.create_trial(
            params={"x": number / 10},
            distributions=space,
            value=float(number),
            intermediate_values={30 * part: float(number) for part in (1, 2, 3)},
            system_attrs={"completed_rung_0": float(number)} if kind == "hyperband" else {},
        )
        for number in range(6)
    ]

    def decide(number: int, values: dict[int, float], kind: str = kind) -> int | None:
        return Pruning(kind, 90, 4).decide("study", trials, 4, number, values).step

    low, high = {30: -1.0}, {30: 9.0, 60: 9.0}
    decisions = {number: decide(number, low) for number in (4, 5)}
    # Hyperband judges one of its two brackets at a third of the budget, the other one at two thirds.
    assert set(decisions.values()) == ({30} if kind == "median" else {30, None})
    later = {decide(number, {30: -1.0, 60: -1.0}) for number in (4, 5)}
    assert later == ({30} if kind == "median" else {30, 60})
    for number, step in decisions.items():
        assert decide(number, high) is None
        # What comes later does not change a decision.
        assert decide(number, {**low, 60: 99.0, 90: 99.0}) == step
    assert decide(4, {20: -5.0}) is None  # not before a third
    assert decide(4, low, "none") is None


def test_evaluations_are_compared_at_the_step_at_which_they_were_due(tmp_path: Path) -> None:
    lines = ['{"global_step": 1024, "returns": [1, 3]}', '{"global_step": 2048, "returns": [NaN]}']
    lines += ['{"global_step": 3072, "returns": [5]}', '{"global_step": 4096, "retu']
    (tmp_path / "evaluations.jsonl").write_text("\n".join(lines))
    assert read_evaluations(tmp_path, 1000) == {1000: 2.0, 3000: 5.0}
    assert read_evaluations(tmp_path / "none", 1000) == {}
    assert mean_evaluations([{1: 2.0, 2: 4.0}, {1: 4.0}]) == {1: 3.0}


@pytest.mark.parametrize(
    ("winner", "default", "kind", "words"),
    [
        (HIGH, LOW, "better", "better than the default on 5 untouched seeds: +100.0 ["),
        (LOW, HIGH, "worse", "keep the default"),
        (LOW, LOW, "undecided", "keep the default"),
        ([5.0] * 5, [5.0] * 5, "undecided", "not distinguishable"),
    ],
)
def test_the_verdict_names_better_worse_and_undecided(
    winner: list[float], default: list[float], kind: str, words: str
) -> None:
    final = {
        name: {str(seed): score for seed, score in enumerate(scores)}
        for name, scores in (("trial-1", winner), ("default", default))
    }
    verdict = verdict_of("trial-1", final)
    assert verdict.kind == kind
    assert words in verdict.sentence


@pytest.mark.parametrize(("count", "smallest"), [(1, "1"), (2, "0.33"), (3, "0.1")])
def test_too_few_final_seeds_are_known_before_they_are_trained(count: int, smallest: str) -> None:
    words = f"of {count} against {count} runs is {smallest}; give --final-seeds 4 or more"
    assert words in str(warn_of_few_seeds(count))
    assert warn_of_few_seeds(4) is None


@pytest.mark.parametrize(
    ("content", "kept"),
    [(b"", b""), (b"{}\n{}\n", b"{}\n{}\n"), (b"{}\n{", b"{}\n"), (b"\0\0\0", b"")],
)
def test_repair_leaves_a_whole_journal_alone(tmp_path: Path, content: bytes, kept: bytes) -> None:
    path = tmp_path / "journal.log"
    path.write_bytes(content)
    repair(path)
    assert path.read_bytes() == kept


def test_each_change_of_a_journal_is_checked_first(tmp_path: Path) -> None:
    path, answers = tmp_path / "journal.log", iter([None])  # the study is created, nothing more
    study = journal.open_journal(path, "study", lambda: next(answers))
    before = path.read_bytes()
    with pytest.raises(StopIteration):
        study.set_user_attr("race", {})
    assert path.read_bytes() == before


def test_the_process_that_tunes_imports_no_torch() -> None:
    code = (
        "import sys; import rl_training.studies.tuning.tuner; from rl_training.studies.tuning.journal import *;"
        "optuna = import_optuna(); optuna.samplers.TPESampler(seed=1); print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "False\n"
