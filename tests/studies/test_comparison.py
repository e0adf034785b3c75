"""Scores of runs, the verdict of a comparison, and looks that were planned in advance."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from finished_studies import write_finished_study

from rl_training.errors import ConfigError
from rl_training.studies.comparison.looks import LookPlan, PlannedComparison, plan_arm
from rl_training.studies.comparison.run_scores import ScoreRule, ScoreTable, score_arms
from rl_training.studies.comparison.verdict import Comparison, Verdict, compare_many, compare_two
from rl_training.studies.groups import RunGroup, group_of_word
from rl_training.studies.launching.study import Study

LOW = {seed: 100.0 + seed for seed in range(6)}
HIGH = {seed: 200.0 + seed for seed in range(6)}


def arms_of(folder: Path, first: dict, second: dict, **base: object) -> list[RunGroup]:  # type: ignore[type-arg]
    write_finished_study(folder / "first", first, **base)
    write_finished_study(folder / "second", second, **base)
    return [group_of_word(str(folder / name)) for name in ("first", "second")]


def compared(table: ScoreTable, rule: ScoreRule | None = None, **level: float) -> Comparison:
    return compare_two(table, rule or ScoreRule(), np.random.default_rng(0), **level)


class TestScores:
    def test_the_default_is_the_last_evaluation_of_each_run(self, tmp_path: Path) -> None:
        table = score_arms(
            arms_of(tmp_path, {0: [9, 5, 1], 1: [9, 9, 2]}, {3: [0, 4], 5: [0, 8]}), ScoreRule()
        )
        assert [arm.values for arm in table.arms] == [
            {"CartPole-v1": [1, 2]},
            {"CartPole-v1": [4, 8]},
        ]
        assert list(table.arms[0].runs) == [
            "ppo__CartPole-v1__seed0__run",
            "ppo__CartPole-v1__seed1__run",
        ]
        assert table.budgets == {"CartPole-v1": 10_000}

    def test_the_best_evaluation_is_said_to_be_biased(self, tmp_path: Path) -> None:
        arms = arms_of(tmp_path, {0: [9, 5, 1], 1: [3, 9, 2]}, {0: [0, 4], 1: [0, 8]})
        table = score_arms(arms, ScoreRule(measure="best"))
        assert table.arms[0].values == {"CartPole-v1": [9, 9]}
        assert "biased" in table.notes[0]
        assert score_arms(arms, ScoreRule()).notes == ()
        lowest = score_arms(arms, ScoreRule(measure="best", mode="min"))
        assert lowest.arms[0].values == {"CartPole-v1": [1, 2]}

    def test_the_mean_over_steps_counts_the_first_value_from_step_zero(
        self, tmp_path: Path
    ) -> None:
        # Evaluations at 5,000 and 10,000: 10 until the first, then a line from 10 to 30.
        arms = arms_of(tmp_path, {0: [10, 30], 1: [7, 7]}, {0: [1, 1], 1: [1, 1]})
        table = score_arms(arms, ScoreRule(measure="auc"))
        assert table.arms[0].values == {"CartPole-v1": [15, 7]}

    def test_a_longer_run_is_scored_at_the_common_budget(self, tmp_path: Path) -> None:
        write_finished_study(tmp_path / "short", {0: [1, 2], 1: [1, 2]}, total_timesteps=1000)
        write_finished_study(
            tmp_path / "long", {0: [3, 4, 5, 6], 1: [3, 4, 5, 6]}, total_timesteps=2000
        )
        arms = [group_of_word(str(tmp_path / name)) for name in ("short", "long")]
        table = score_arms(arms, ScoreRule())
        assert table.arms[1].values == {"CartPole-v1": [4, 4]}  # at 1,000 of 2,000
        assert table.budgets == {"CartPole-v1": 1000}
        assert "planned for 2,000 steps and is scored at 1,000" in table.notes[0]

    def test_a_longer_run_without_an_evaluation_near_the_budget_is_refused(
        self, tmp_path: Path
    ) -> None:
        write_finished_study(tmp_path / "short", {0: [1, 2], 1: [1, 2]}, total_timesteps=1000)
        write_finished_study(tmp_path / "long", {0: [3], 1: [3]}, total_timesteps=2000)
        with pytest.raises(ConfigError, match="no eval_return_mean near step 1,000"):
            score_arms(
                [group_of_word(str(tmp_path / name)) for name in ("short", "long")], ScoreRule()
            )

    def test_a_longer_run_is_scored_where_the_shorter_ended(self, tmp_path: Path) -> None:
        # Rollouts end after the budget: 1,100 steps end at 1,280, where the longer run was evaluated too.
        write_finished_study(tmp_path / "short", {0: [1, 2], 1: [1, 2]}, total_timesteps=1100)
        for run in (tmp_path / "short").glob("ppo*"):
            for name in ("metrics.jsonl", "evaluations.jsonl"):
                (run / name).write_text((run / name).read_text().replace("1100", "1280"))
        write_finished_study(tmp_path / "long", {0: [5, 6], 1: [5, 6]}, total_timesteps=2560)
        table = score_arms(
            [group_of_word(str(tmp_path / name)) for name in ("short", "long")], ScoreRule()
        )
        assert table.arms[1].values == {"CartPole-v1": [5, 5]}
        assert not [note for note in table.notes if "last evaluations" in note]

    def test_other_steps_and_early_ends_are_told(self, tmp_path: Path) -> None:
        arms_of(tmp_path, LOW, HIGH)
        run = tmp_path / "first" / "ppo__CartPole-v1__seed2__run"
        values = json.loads((run / "metadata.json").read_text())
        (run / "metadata.json").write_text(
            json.dumps({**values, "status": "stopped", "stop_reason": "target reached"})
        )
        for name in ("metrics.jsonl", "evaluations.jsonl"):
            (run / name).write_text("".join((run / name).read_text().splitlines(keepends=True)[:4]))
        notes = score_arms(_reopened(tmp_path), ScoreRule()).notes
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
        self, tmp_path: Path, damage: Callable[[str], str], message: str
    ) -> None:
        arms_of(tmp_path, LOW, HIGH)
        path = tmp_path / "first" / "ppo__CartPole-v1__seed2__run" / "metrics.jsonl"
        path.write_text(damage(path.read_text()))
        with pytest.raises(ConfigError, match=message):
            score_arms(_reopened(tmp_path), ScoreRule())

    def test_an_unknown_metric_names_what_there_is(self, tmp_path: Path) -> None:
        with pytest.raises(
            ConfigError, match=r"never logged 'eval_return_men'.*did you mean 'eval_return_mean'"
        ):
            score_arms(arms_of(tmp_path, LOW, HIGH), ScoreRule(metric="eval_return_men"))

    @pytest.mark.parametrize("key", ["measure", "mode", "failed"])
    def test_an_unknown_choice_is_refused(self, key: str) -> None:
        with pytest.raises(ConfigError, match=f"bad value 'middle' for --{key}: use"):
            ScoreRule(**{key: "middle"})  # type: ignore[arg-type]


class TestIncompleteRuns:
    def fail(self, run_dir: Path, status: str = "failed") -> None:
        path = run_dir / "metadata.json"
        path.write_text(
            json.dumps(
                {**json.loads(path.read_text()), "status": status, "stop_reason": "loss is NaN"}
            )
        )

    def test_a_failed_run_is_refused_or_counts_as_the_worst_of_all(self, tmp_path: Path) -> None:
        arms_of(tmp_path, LOW, HIGH)
        self.fail(tmp_path / "second" / "ppo__CartPole-v1__seed3__run")
        arms = [group_of_word(str(tmp_path / name)) for name in ("first", "second")]
        with pytest.raises(
            ConfigError, match=r"seed3__run' failed \(loss is NaN\): give --failed worst"
        ):
            score_arms(arms, ScoreRule())
        table = score_arms(arms, ScoreRule(failed="worst"))
        assert table.arms[1].values["CartPole-v1"] == [
            200,
            201,
            202,
            100,
            204,
            205,
        ]  # the worst is of the other arm
        assert "seed3__run failed and count as the worst" in table.notes[0]
        assert (
            score_arms(arms, ScoreRule(failed="worst", mode="min")).arms[1].values["CartPole-v1"][3]
            == 205
        )

    def test_an_unfinished_run_is_never_dropped(self, tmp_path: Path) -> None:
        arms_of(tmp_path, LOW, HIGH)
        self.fail(tmp_path / "first" / "ppo__CartPole-v1__seed2__run", "started")
        arms = [group_of_word(str(tmp_path / name)) for name in ("first", "second")]
        with pytest.raises(ConfigError, match=r"seed2__run' is not finished \(dead at step"):
            score_arms(arms, ScoreRule(failed="worst"))

    def test_a_planned_run_that_never_started_is_named(self, tmp_path: Path) -> None:
        import shutil

        arms_of(tmp_path, LOW, HIGH)
        shutil.rmtree(tmp_path / "first" / "ppo__CartPole-v1__seed2__run")
        arms = [group_of_word(str(tmp_path / name)) for name in ("first", "second")]
        with pytest.raises(ConfigError, match=r"never started: seed 2; train them first"):
            score_arms(arms, ScoreRule())

    def test_one_run_cannot_be_in_two_arms(self, tmp_path: Path) -> None:
        arm = arms_of(tmp_path, LOW, HIGH)[0]
        with pytest.raises(ConfigError, match="is in two arms"):
            score_arms([arm, arm], ScoreRule())

    def test_arms_of_other_environments_are_refused(self, tmp_path: Path) -> None:
        write_finished_study(tmp_path / "first", LOW)
        write_finished_study(tmp_path / "second", HIGH, env_id="Acrobot-v1")
        with pytest.raises(ConfigError, match="on CartPole-v1 and 'second' on Acrobot-v1"):
            score_arms(
                [group_of_word(str(tmp_path / name)) for name in ("first", "second")], ScoreRule()
            )


class TestVerdict:
    def test_the_higher_mean_is_better(self, tmp_path: Path) -> None:
        table = score_arms(arms_of(tmp_path, LOW, HIGH), ScoreRule())
        found = compared(table)
        assert found.verdict is Verdict.B_BETTER
        assert found.sentence == "second is better than first"
        assert found.judgement.difference == -100
        low, high = found.judgement.interval
        assert low < -100 < high < 0
        # 6 against 6 without overlap: the two most extreme of 924 labelings.
        assert found.judgement.p_value == pytest.approx(2 / 924)
        assert found.prob_a_beats_b == 0
        assert found.more_seeds is None

    def test_the_lower_mean_is_better_where_smaller_is(self, tmp_path: Path) -> None:
        rule = ScoreRule(mode="min")
        found = compared(score_arms(arms_of(tmp_path, LOW, HIGH), rule), rule)
        assert found.verdict is Verdict.A_BETTER
        assert found.judgement.difference == -100
        assert found.prob_a_beats_b == 1

    def test_a_difference_within_the_margin_is_equal(self, tmp_path: Path) -> None:
        table = score_arms(
            arms_of(tmp_path, LOW, {seed: 101.0 + seed for seed in range(6)}), ScoreRule()
        )
        found = compared(table, margin=20.0)
        assert found.verdict is Verdict.EQUIVALENT
        assert found.sentence == "first and second are equal within 20"
        assert compared(table).verdict is Verdict.UNDECIDED
        assert compared(table, margin=1.0).verdict is Verdict.UNDECIDED

    def test_an_undecided_comparison_advises_a_number_of_seeds(self, tmp_path: Path) -> None:
        second = {0: 102.0, 1: 100.0, 2: 105.0, 3: 101.0, 4: 106.0, 5: 104.0}
        found = compared(score_arms(arms_of(tmp_path, LOW, second), ScoreRule()), margin=2.0)
        assert found.verdict is Verdict.UNDECIDED
        assert found.more_seeds is not None
        assert 3 <= found.more_seeds <= 20
        assert found.sentence == (
            f"first and second are not distinguishable: about {found.more_seeds} more seeds each would decide a"
            " difference of 2 (80 %)"
        )

    def test_three_against_three_can_decide_nothing(self, tmp_path: Path) -> None:
        few = [{seed: scores[seed] for seed in range(3)} for scores in (LOW, HIGH)]
        found = compared(score_arms(arms_of(tmp_path, *few), ScoreRule()))
        assert found.verdict is Verdict.UNDECIDED
        assert found.judgement.p_value == pytest.approx(0.1)
        assert (
            "nothing can be decided at 5 %, the smallest possible p-value is 0.1" in found.sentence
        )
        assert found.as_dict()["interval"] == [None, None]

    def test_one_run_is_no_sample(self, tmp_path: Path) -> None:
        table = score_arms(arms_of(tmp_path, {0: 1.0}, HIGH), ScoreRule())
        with pytest.raises(ConfigError, match="'first' has one run on CartPole-v1"):
            compared(table)

    def test_equal_scores_of_both_arms_have_nothing_to_advise(self, tmp_path: Path) -> None:
        same = dict.fromkeys(range(5), 500.0)
        found = compared(score_arms(arms_of(tmp_path, same, same), ScoreRule()))
        assert found.judgement.p_value == 1
        assert "not distinguishable: the means are equal; give --margin" in found.sentence
        assert found.more_seeds is None
        assert (
            compared(score_arms([*_reopened(tmp_path)], ScoreRule()), margin=5.0).verdict
            is Verdict.EQUIVALENT
        )

    def test_several_environments_are_joined_in_units_of_their_spread(self, tmp_path: Path) -> None:
        vary = [
            {"algo": algo, "env_id": env_id}
            for algo in ("ppo", "a2c")
            for env_id in ("CartPole-v1", "Acrobot-v1")
        ]
        scores = {
            "ppo CartPole-v1": {seed: 400.0 + seed for seed in range(4)},
            "ppo Acrobot-v1": {seed: -90.0 + seed / 10 for seed in range(4)},
            "a2c CartPole-v1": {seed: 300.0 + seed for seed in range(4)},
            "a2c Acrobot-v1": {seed: -95.0 + seed / 10 for seed in range(4)},
        }
        write_finished_study(tmp_path / "both", scores, vary=vary)  # type: ignore[arg-type]
        arms = [group_of_word(f"{tmp_path}/both:{algo}") for algo in ("ppo", "a2c")]
        found = compared(score_arms(arms, ScoreRule()))
        assert found.verdict is Verdict.A_BETTER
        assert 1 < found.judgement.difference < 3  # standard deviations, not 50 points
        assert len(found.a.runs) == 8

    def test_more_than_two_arms_have_adjusted_p_values(self, tmp_path: Path) -> None:
        arms = arms_of(tmp_path, LOW, HIGH)
        write_finished_study(tmp_path / "third", {seed: 100.5 + seed for seed in range(6)})
        arms.append(group_of_word(str(tmp_path / "third")))
        result = compare_many(score_arms(arms, ScoreRule()), ScoreRule(), np.random.default_rng(0))
        verdicts = {(pair.a.name, pair.b.name): pair.verdict for pair in result.pairs}
        assert verdicts == {
            ("first", "second"): Verdict.B_BETTER,
            ("first", "third"): Verdict.UNDECIDED,
            ("second", "third"): Verdict.A_BETTER,
        }
        alone = compared(score_arms(arms[:2], ScoreRule()))
        assert result.pairs[0].judgement.p_value >= alone.judgement.p_value


def _reopened(folder: Path) -> list[RunGroup]:
    return [group_of_word(str(folder / name)) for name in ("first", "second")]


def begun(folder: Path, plan: LookPlan) -> PlannedComparison:
    planned = PlannedComparison(folder, plan)
    planned.begin()
    return planned


class TestPlannedLooks:
    def planned(self, folder: Path, looks: int = 3, **options: object) -> PlannedComparison:
        studies = [Study.open(folder / name) for name in ("first", "second")]
        place = folder / "comparisons" / "one"
        arms = [plan_arm(study.plan.name, study, [""], looks * 4, place) for study in studies]
        plan = LookPlan(
            *arms, ScoreRule(), {"CartPole-v1": 10_000}, looks=looks, seeds_per_look=4, **options
        )  # type: ignore[arg-type]
        return begun(place, plan)

    def equal_arms(self, folder: Path, count: int = 12) -> None:
        generator = np.random.default_rng(3)
        arms_of(
            folder, *({seed: float(generator.normal()) for seed in range(count)} for _ in range(2))
        )

    def test_a_look_uses_the_seeds_up_to_it(self, tmp_path: Path) -> None:
        self.equal_arms(tmp_path)
        planned = self.planned(tmp_path)
        assert [len(planned.look(look).a.runs) for look in (1, 2, 3)] == [4, 8, 12]
        assert [line["look"] for line in planned.recorded()] == [1, 2, 3]

    def test_the_plan_takes_the_seeds_that_the_study_has_and_then_new_ones(
        self, tmp_path: Path
    ) -> None:
        arms_of(tmp_path, {3: 1.0, 1: 1.0, 7: 1.0}, LOW)
        study = Study.open(tmp_path / "first")
        assert plan_arm("first", study, [""], 5, tmp_path).seeds == (1, 3, 7, 8, 9)

    def test_a_great_difference_is_decided_at_the_first_look_that_can(self, tmp_path: Path) -> None:
        arms_of(
            tmp_path,
            dict.fromkeys(range(8), 1.0) | {0: 1.5},
            dict.fromkeys(range(8), 9.0) | {1: 9.5},
        )
        planned = self.planned(tmp_path, looks=2)
        assert (
            planned.look(1).verdict is Verdict.UNDECIDED
        )  # 4 against 4: at least 2/70, more than 0.025
        assert planned.look(2).verdict is Verdict.B_BETTER

    def test_a_failed_run_gets_the_worst_score_of_all_looks_so_far(self, tmp_path: Path) -> None:
        second = {seed: (50.0 if seed < 4 else 90.0) + seed for seed in range(8)}
        arms_of(tmp_path, {seed: 100.0 + seed for seed in range(8)}, second)
        TestIncompleteRuns().fail(tmp_path / "first" / "ppo__CartPole-v1__seed5__run")
        studies = [Study.open(tmp_path / name) for name in ("first", "second")]
        place = tmp_path / "comparisons" / "one"
        arms = [plan_arm(study.plan.name, study, [""], 8, place) for study in studies]
        rule = ScoreRule(failed="worst")
        plan = LookPlan(*arms, rule, {"CartPole-v1": 10_000}, looks=2, seeds_per_look=4)  # type: ignore[arg-type]
        found = begun(place, plan).look(2)
        assert found.a.runs["ppo__CartPole-v1__seed5__run"] == 50  # of the first look

    def test_a_repeated_look_gives_the_same_and_is_recorded_once(self, tmp_path: Path) -> None:
        self.equal_arms(tmp_path)
        planned = self.planned(tmp_path)
        first = [planned.look(look).as_dict() for look in (1, 2)]
        again = PlannedComparison.open(planned.folder)
        assert again is not None
        assert [again.look(look).as_dict() for look in (1, 2)] == first
        assert len(again.recorded()) == 2

    def test_runs_that_changed_after_their_look_are_refused(self, tmp_path: Path) -> None:
        self.equal_arms(tmp_path)
        planned = self.planned(tmp_path)
        planned.look(1)
        path = tmp_path / "first" / "ppo__CartPole-v1__seed2__run" / "metrics.jsonl"
        path.write_text(path.read_text().replace('"eval_return_mean": ', '"eval_return_mean": 1'))
        with pytest.raises(
            ConfigError, match=r"look 1 was recorded with score .* for run '.*seed2__run'"
        ):
            planned.look(2)

    def test_an_edited_plan_is_refused(self, tmp_path: Path) -> None:
        self.equal_arms(tmp_path)
        planned = self.planned(tmp_path)
        file = planned.folder / "plan.yaml"
        file.write_text(file.read_text().replace("alpha: 0.05", "alpha: 0.25"))
        with pytest.raises(ConfigError, match="was edited"):
            PlannedComparison.open(planned.folder)

    def test_the_folder_of_runs_can_be_moved(self, tmp_path: Path) -> None:
        (tmp_path / "here").mkdir()
        self.equal_arms(tmp_path / "here")
        planned = self.planned(tmp_path / "here")
        before = planned.look(1).as_dict()
        (tmp_path / "here").rename(tmp_path / "there")
        moved = PlannedComparison.open(tmp_path / "there" / "comparisons" / "one")
        assert moved is not None
        assert moved.look(1).as_dict() == before

    def test_equivalence_also_ends_the_looks(self, tmp_path: Path) -> None:
        self.equal_arms(tmp_path)
        planned = self.planned(tmp_path, margin=50.0)
        assert planned.look(2).verdict is Verdict.EQUIVALENT

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"alpha": 0.0}, "for --alpha"),
            ({"margin": -1.0}, "for --margin"),
            ({"looks": 0}, "for --looks"),
        ],
    )
    def test_an_impossible_plan_is_refused(
        self, tmp_path: Path, options: dict[str, float], message: str
    ) -> None:
        self.equal_arms(tmp_path)
        with pytest.raises(ConfigError, match=message):
            self.planned(tmp_path, **options)
        assert not (tmp_path / "comparisons").exists()
