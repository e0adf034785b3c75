"""Scores of runs, the verdict of a comparison, and looks that were planned in advance."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finished_studies import write_finished_study

from rl_training.errors import ConfigError
from rl_training.studies.comparison.looks import LookPlan, PlannedComparison, StudyArm
from rl_training.studies.comparison.run_scores import ScoreRule, ScoreTable, score_arms
from rl_training.studies.comparison.verdict import Comparison, Verdict, compare_arms
from rl_training.studies.groups import RunGroup, group_of_word
from rl_training.studies.launching.study import Study

TASK = "CartPole-v1"
LOW = {seed: 100.0 + seed for seed in range(6)}
HIGH = {seed: 200.0 + seed for seed in range(6)}
Reopen = Callable[[], list[RunGroup]]


def arms_of(folder: Path, *scores: Any, **base: Any) -> list[RunGroup]:
    """Studies of finished runs with these scores, named `first`, `second` and `third`."""
    names = ("first", "second", "third")[: len(scores)]
    for name, of_seeds in zip(names, scores, strict=True):
        write_finished_study(folder / name, of_seeds, **base)
    return [group_of_word(str(folder / name)) for name in names]


@pytest.fixture
def reopened(tmp_path: Path) -> Reopen:
    """The arms `first` with the scores LOW and `second` with HIGH, as their files are when they are asked for."""
    arms_of(tmp_path, LOW, HIGH)
    return lambda: [group_of_word(str(tmp_path / name)) for name in ("first", "second")]


def run_of(folder: Path, arm: str, seed: int) -> Path:
    return folder / arm / f"ppo__{TASK}__seed{seed}__run"


def end_run(run_dir: Path, status: str, reason: str = "loss is NaN") -> None:
    """Change how a run ended."""
    path = run_dir / "metadata.json"
    values = json.loads(path.read_text()) | {"status": status, "stop_reason": reason}
    path.write_text(json.dumps(values))


def scored(arms: list[RunGroup], **rule: Any) -> ScoreTable:
    return score_arms(arms, ScoreRule(**rule))


def compared(arms: list[RunGroup], *, mode: Any = "max", **level: float) -> Comparison:
    found = compare_arms(arms, ScoreRule(mode=mode), **level)  # type: ignore[arg-type]
    assert isinstance(found, Comparison)
    return found


class TestScores:
    def test_the_default_is_the_last_evaluation_of_each_run(self, tmp_path: Path) -> None:
        table = scored(arms_of(tmp_path, {0: [9, 5, 1], 1: [9, 9, 2]}, {3: [0, 4], 5: [0, 8]}))
        assert [arm.values for arm in table.arms] == [{TASK: [1, 2]}, {TASK: [4, 8]}]
        assert list(table.arms[0].runs) == [f"ppo__{TASK}__seed{seed}__run" for seed in (0, 1)]
        assert table.budgets == {TASK: 10_000}
        assert table.notes == ()

    @pytest.mark.parametrize(
        ("rule", "values"),
        [
            ({"measure": "best"}, [30, 9]),
            ({"measure": "best", "mode": "min"}, [10, 7]),
            # Evaluations at 5,000 and 10,000: 10 until the first, then a line from 10 to 30.
            ({"measure": "auc"}, [15, 8.5]),
        ],
    )
    def test_other_measures(
        self, tmp_path: Path, rule: dict[str, str], values: list[float]
    ) -> None:
        table = scored(arms_of(tmp_path, {0: [10, 30], 1: [9, 7]}, LOW), **rule)
        assert table.arms[0].values == {TASK: values}
        assert any("biased" in note for note in table.notes) == (rule["measure"] == "best")

    @pytest.mark.parametrize(
        ("budgets", "end", "curve", "score"),
        [
            ((1000, 2000), 1000, [3, 4, 5, 6], 4),
            # Rollouts end after the budget: 1,100 steps end at 1,280, where the longer run was evaluated too.
            ((1100, 2560), 1280, [5, 6], 5),
        ],
    )
    def test_a_longer_run_is_scored_where_the_shorter_ended(
        self, tmp_path: Path, budgets: tuple[int, int], end: int, curve: list[int], score: int
    ) -> None:
        arms_of(tmp_path, {0: [1, 2], 1: [1, 2]}, total_timesteps=budgets[0])
        for file in (tmp_path / "first").glob("ppo*/*s.jsonl"):
            file.write_text(file.read_text().replace(str(budgets[0]), str(end)))
        write_finished_study(tmp_path / "second", {0: curve, 1: curve}, total_timesteps=budgets[1])
        table = scored([group_of_word(str(tmp_path / name)) for name in ("first", "second")])
        assert table.arms[1].values == {TASK: [score, score]}
        assert table.budgets == {TASK: budgets[0]}
        (note,) = table.notes
        assert f"planned for {budgets[1]:,} steps and is scored at {budgets[0]:,}" in note

    def test_a_longer_run_without_an_evaluation_near_the_budget_is_refused(
        self, tmp_path: Path
    ) -> None:
        (short,) = arms_of(tmp_path, LOW, total_timesteps=1000)
        write_finished_study(tmp_path / "long", {0: [3], 1: [3]}, total_timesteps=2000)
        with pytest.raises(ConfigError, match="no eval_return_mean near step 1,000"):
            scored([short, group_of_word(str(tmp_path / "long"))])

    def test_other_steps_and_early_ends_are_told(self, tmp_path: Path, reopened: Reopen) -> None:
        run = run_of(tmp_path, "first", 2)
        end_run(run, "stopped", "target reached")
        for name in ("metrics.jsonl", "evaluations.jsonl"):
            (run / name).write_text("".join((run / name).read_text().splitlines(keepends=True)[:4]))
        notes = scored(reopened()).notes
        assert "1 of 6 runs stopped early by their own rule" in notes[0]
        assert "first at step 4,000 to 10,000, second at step 10,000" in notes[1]

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda text: text[:-30], "metrics.jsonl has eval_return_mean up to step 9,000 only"),
            (lambda text: text.replace("102.0", '"102"'), "is damaged"),
            (lambda text: text[: text.rfind("102.0")] + "NaN}\n", "not finite"),
        ],
    )
    def test_damaged_metrics_are_no_score(
        self, tmp_path: Path, reopened: Reopen, damage: Callable[[str], str], message: str
    ) -> None:
        path = run_of(tmp_path, "first", 2) / "metrics.jsonl"
        path.write_text(damage(path.read_text()))
        with pytest.raises(ConfigError, match=message):
            scored(reopened())

    def test_an_unknown_metric_names_what_there_is(self, reopened: Reopen) -> None:
        with pytest.raises(
            ConfigError, match=r"never logged 'eval_return_men'.*did you mean 'eval_return_mean'"
        ):
            scored(reopened(), metric="eval_return_men")

    @pytest.mark.parametrize("key", ["measure", "mode", "failed"])
    def test_an_unknown_choice_is_refused(self, key: str) -> None:
        with pytest.raises(ConfigError, match=f"bad value 'middle' for --{key}: use"):
            ScoreRule(**{key: "middle"})  # type: ignore[arg-type]


class TestIncompleteRuns:
    def test_a_failed_run_is_refused_or_counts_as_the_worst_of_all(
        self, tmp_path: Path, reopened: Reopen
    ) -> None:
        end_run(run_of(tmp_path, "second", 3), "failed")
        arms = reopened()
        with pytest.raises(
            ConfigError, match=r"seed3__run' failed \(loss is NaN\): give --failed worst"
        ):
            scored(arms)
        table = scored(arms, failed="worst")
        # The worst score is one of the other arm.
        assert table.arms[1].values[TASK] == [200, 201, 202, 100, 204, 205]
        assert "seed3__run failed and count as the worst" in table.notes[0]
        smallest = scored(arms, failed="worst", mode="min")
        assert smallest.arms[1].values[TASK][3] == 205

    def test_an_unfinished_run_is_never_dropped(self, tmp_path: Path, reopened: Reopen) -> None:
        end_run(run_of(tmp_path, "first", 2), "started")
        with pytest.raises(ConfigError, match=r"seed2__run' is not finished \(dead at step"):
            scored(reopened(), failed="worst")

    def test_a_planned_run_that_never_started_is_named(
        self, tmp_path: Path, reopened: Reopen
    ) -> None:
        shutil.rmtree(run_of(tmp_path, "first", 2))
        with pytest.raises(ConfigError, match=r"never started: seed 2; train them first"):
            scored(reopened())

    def test_one_run_cannot_be_in_two_arms(self, reopened: Reopen) -> None:
        with pytest.raises(ConfigError, match="is in two arms"):
            scored([reopened()[0]] * 2)

    def test_arms_of_other_environments_are_refused(self, tmp_path: Path) -> None:
        (first,) = arms_of(tmp_path, LOW)
        write_finished_study(tmp_path / "second", HIGH, env_id="Acrobot-v1")
        with pytest.raises(ConfigError, match="on CartPole-v1 and 'second' on Acrobot-v1"):
            scored([first, group_of_word(str(tmp_path / "second"))])


class TestVerdict:
    def test_the_higher_mean_is_better(self, reopened: Reopen) -> None:
        found = compared(reopened())
        assert found.verdict is Verdict.B_BETTER
        assert found.sentence == "second is better than first"
        assert found.judgement.difference == -100
        low, high = found.judgement.interval
        assert low < -100 < high < 0
        # 6 against 6 without overlap: the two most extreme of 924 labelings.
        assert found.judgement.p_value == pytest.approx(2 / 924)
        assert found.prob_a_beats_b == 0
        assert found.more_seeds is None

    def test_the_lower_mean_is_better_where_smaller_is(self, reopened: Reopen) -> None:
        found = compared(reopened(), mode="min")
        assert found.verdict is Verdict.A_BETTER
        assert found.judgement.difference == -100
        assert found.prob_a_beats_b == 1

    def test_a_difference_within_the_margin_is_equal(self, tmp_path: Path) -> None:
        arms = arms_of(tmp_path, LOW, {seed: 101.0 + seed for seed in range(6)})
        found = compared(arms, margin=20.0)
        assert found.verdict is Verdict.EQUIVALENT
        assert found.sentence == "first and second are equal within 20"
        assert compared(arms).verdict is Verdict.UNDECIDED
        assert compared(arms, margin=1.0).verdict is Verdict.UNDECIDED

    def test_an_undecided_comparison_advises_a_number_of_seeds(self, tmp_path: Path) -> None:
        second = {0: 102.0, 1: 100.0, 2: 105.0, 3: 101.0, 4: 106.0, 5: 104.0}
        found = compared(arms_of(tmp_path, LOW, second), margin=2.0)
        assert found.verdict is Verdict.UNDECIDED
        assert found.more_seeds is not None
        assert 3 <= found.more_seeds <= 20
        assert found.sentence == (
            f"first and second are not distinguishable: about {found.more_seeds} more seeds each would decide a"
            " difference of 2 (80 %)"
        )

    def test_three_against_three_can_decide_nothing(self, tmp_path: Path) -> None:
        few = [{seed: scores[seed] for seed in range(3)} for scores in (LOW, HIGH)]
        found = compared(arms_of(tmp_path, *few))
        assert found.verdict is Verdict.UNDECIDED
        assert found.judgement.p_value == pytest.approx(0.1)
        smallest = "nothing can be decided at 5 %, the smallest possible p-value is 0.1"
        assert smallest in found.sentence
        assert found.as_dict()["interval"] == [None, None]

    def test_one_run_is_no_sample(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="'first' has one run on CartPole-v1"):
            compared(arms_of(tmp_path, {0: 1.0}, HIGH))

    def test_equal_scores_of_both_arms_have_nothing_to_advise(self, tmp_path: Path) -> None:
        arms = arms_of(tmp_path, *[dict.fromkeys(range(5), 500.0)] * 2)
        found = compared(arms)
        assert found.judgement.p_value == 1
        assert "not distinguishable: the means are equal; give --margin" in found.sentence
        assert found.more_seeds is None
        assert compared(arms, margin=5.0).verdict is Verdict.EQUIVALENT

    def test_several_environments_are_joined_in_units_of_their_spread(self, tmp_path: Path) -> None:
        starts = {
            ("ppo", TASK): 400.0,
            ("ppo", "Acrobot-v1"): -90.0,
            ("a2c", TASK): 300.0,
            ("a2c", "Acrobot-v1"): -95.0,
        }
        scores = {
            f"{algo} {env_id}": {seed: start + seed / 10 for seed in range(4)}
            for (algo, env_id), start in starts.items()
        }
        vary = [{"algo": algo, "env_id": env_id} for algo, env_id in starts]
        write_finished_study(tmp_path / "both", scores, vary=vary)  # type: ignore[arg-type]
        found = compared([group_of_word(f"{tmp_path}/both:{algo}") for algo in ("ppo", "a2c")])
        assert found.verdict is Verdict.A_BETTER
        assert 1 < found.judgement.difference < 3  # standard deviations, not 50 points
        assert len(found.a.runs) == 8

    def test_more_than_two_arms_have_adjusted_p_values(self, tmp_path: Path) -> None:
        arms = arms_of(tmp_path, LOW, HIGH, {seed: 100.5 + seed for seed in range(6)})
        result = compare_arms(arms, ScoreRule())
        verdicts = {(pair.a.name, pair.b.name): pair.verdict for pair in result.pairs}
        assert verdicts == {
            ("first", "second"): Verdict.B_BETTER,
            ("first", "third"): Verdict.UNDECIDED,
            ("second", "third"): Verdict.A_BETTER,
        }
        alone = compared(arms[:2]).judgement
        assert result.pairs[0].judgement.p_value >= alone.p_value


class TestPlannedLooks:
    def planned(
        self, folder: Path, looks: int = 3, rule: ScoreRule | None = None, **options: Any
    ) -> PlannedComparison:
        place = folder / "comparisons" / "one"
        arms = [
            StudyArm(name, Study.open(folder / name), [""]).planned(looks * 4, place)
            for name in ("first", "second")
        ]
        plan = LookPlan(
            *arms, rule or ScoreRule(), {TASK: 10_000}, looks=looks, seeds_per_look=4, **options
        )
        found = PlannedComparison(place, plan)
        found.begin()
        return found

    @pytest.fixture
    def equal_arms(self, tmp_path: Path) -> Path:
        """A folder with two studies of twelve runs, whose scores have the same distribution."""
        generator = np.random.default_rng(3)
        arms_of(
            tmp_path / "here",
            *({seed: float(generator.normal()) for seed in range(12)} for _ in range(2)),
        )
        return tmp_path / "here"

    def test_a_look_uses_the_seeds_up_to_it(self, equal_arms: Path) -> None:
        planned = self.planned(equal_arms)
        assert [len(planned.look(look).a.runs) for look in (1, 2, 3)] == [4, 8, 12]
        assert [line["look"] for line in planned.recorded()] == [1, 2, 3]

    def test_the_plan_takes_the_seeds_that_the_study_has_and_then_new_ones(
        self, tmp_path: Path
    ) -> None:
        arms_of(tmp_path, {3: 1.0, 1: 1.0, 7: 1.0})
        arm = StudyArm("first", Study.open(tmp_path / "first"), [""])
        assert arm.planned(5, tmp_path).seeds == [1, 3, 7, 8, 9]

    def test_a_great_difference_is_decided_at_the_first_look_that_can(self, tmp_path: Path) -> None:
        arms_of(
            tmp_path,
            dict.fromkeys(range(8), 1.0) | {0: 1.5},
            dict.fromkeys(range(8), 9.0) | {1: 9.5},
        )
        planned = self.planned(tmp_path, looks=2)
        # 4 against 4: at least 2/70, more than 0.025
        assert planned.look(1).verdict is Verdict.UNDECIDED
        assert planned.look(2).verdict is Verdict.B_BETTER

    def test_a_failed_run_gets_the_worst_score_of_all_looks_so_far(self, tmp_path: Path) -> None:
        second = {seed: (50.0 if seed < 4 else 90.0) + seed for seed in range(8)}
        arms_of(tmp_path, {seed: 100.0 + seed for seed in range(8)}, second)
        end_run(run_of(tmp_path, "first", 5), "failed")
        found = self.planned(tmp_path, 2, ScoreRule(failed="worst")).look(2)
        assert found.a.runs["ppo__CartPole-v1__seed5__run"] == 50  # of the first look

    def test_a_repeated_look_gives_the_same_and_is_recorded_once_also_elsewhere(
        self, tmp_path: Path, equal_arms: Path
    ) -> None:
        planned = self.planned(equal_arms)
        first = [planned.look(look).as_dict() for look in (1, 2)]
        equal_arms.rename(tmp_path / "there")
        again = PlannedComparison.open(tmp_path / "there" / "comparisons" / "one")
        assert again is not None
        assert again.plan == planned.plan
        assert [again.look(look).as_dict() for look in (1, 2)] == first
        assert len(again.recorded()) == 2

    def test_runs_that_changed_after_their_look_are_refused(self, equal_arms: Path) -> None:
        planned = self.planned(equal_arms)
        planned.look(1)
        path = run_of(equal_arms, "first", 2) / "metrics.jsonl"
        path.write_text(path.read_text().replace('"eval_return_mean": ', '"eval_return_mean": 1'))
        with pytest.raises(
            ConfigError, match=r"look 1 was recorded with score .* for run '.*seed2__run'"
        ):
            planned.look(2)

    def test_an_edited_plan_is_refused(self, equal_arms: Path) -> None:
        planned = self.planned(equal_arms)
        file = planned.folder / "plan.yaml"
        file.write_text(file.read_text().replace("alpha: 0.05", "alpha: 0.25"))
        with pytest.raises(ConfigError, match="was edited"):
            PlannedComparison.open(planned.folder)

    def test_equivalence_also_ends_the_looks(self, equal_arms: Path) -> None:
        assert self.planned(equal_arms, margin=50.0).look(2).verdict is Verdict.EQUIVALENT

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"alpha": 0.0}, "for --alpha"),
            ({"margin": -1.0}, "for --margin"),
            ({"looks": 0}, "0 looks of 4 seeds each can decide nothing"),
        ],
    )
    def test_an_impossible_plan_is_refused(
        self, equal_arms: Path, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            self.planned(equal_arms, **options)
        assert not (equal_arms / "comparisons").exists()
