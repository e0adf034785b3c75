"""Which metrics a page draws, in which section, and how each is read. Metrics that no run logged are left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

EVALUATIONS, UPDATES, TIMES = "evaluations", "updates", "times"
"""The three tables of a run's curves."""
ESTIMATE = "eval_discounted_estimate"
"""Realised return, discounted: computed for the page."""


@dataclass(frozen=True)
class Chart:
    """One metric on a page."""

    metric: str
    title: str
    note: str = ""
    reference: str | None = None
    """A second metric, drawn dashed: the mean over the runs."""


LEARNING = (
    Chart(
        "eval_return_mean", "Evaluation return", "Mean raw return of each evaluation, with the deterministic policy."
    ),
    Chart(
        "train_return_mean", "Training return", "Mean raw return of the last 100 training episodes, with exploration."
    ),
)
EPISODES = (
    Chart("eval_success_rate", "Success rate", "Fraction of evaluation episodes that reported success."),
    Chart("eval_length_mean", "Episode length in evaluations", "Mean, in environment steps."),
    Chart("train_length_mean", "Episode length in training", "Mean of the last 100 episodes, in environment steps."),
    Chart("env_restarts", "Restarted environments", "Environments that failed and were recreated, so far."),
)
HEALTH = (
    Chart(
        "approx_kl",
        "KL divergence",
        "Between the policy that collected and the updated one. Usual: 0.001 to 0.03; much more is too large a step.",
    ),
    Chart(
        "clip_fraction",
        "Clip fraction",
        "Fraction of samples whose probability ratio was clipped. Usual: 0.05 to 0.3; at 0, clipping never acts.",
    ),
    Chart(
        "explained_variance",
        "Explained variance",
        "1 is a perfect value function; 0 is no better than a constant; below 0 is worse.",
    ),
    Chart("entropy", "Entropy of the policy", "A fast fall to its lowest value is an early end of exploration."),
    Chart(
        "q_mean",
        "Predicted value and realised return",
        "Solid: mean Q-value of the batch's actions. Dashed, where rewards are not transformed: the evaluation return,"
        " discounted as if its reward were spread evenly over the episode (per-step rewards are not recorded). Q-values"
        " far above it are overestimates; states late in an episode and entropy bonuses move Q a little.",
        reference=ESTIMATE,
    ),
    Chart("alpha", "Entropy temperature (alpha)", "Weight of the entropy; it falls as the policy reaches its target."),
    Chart("conservative_gap", "Conservative gap", "Soft maximum of Q over actions minus Q of the dataset's action."),
    Chart("advantage_mean", "Advantage", "Mean advantage of the dataset's actions."),
    Chart("grad_norm", "Gradient norm", "Before clipping."),
    Chart("critic_grad_norm", "Gradient norm of the critics", "Before clipping."),
    Chart("actor_grad_norm", "Gradient norm of the actor", "Before clipping."),
    Chart("value_grad_norm", "Gradient norm of the state value", "Before clipping."),
    Chart("policy_loss", "Policy loss"),
    Chart("value_loss", "Value loss", "Squared error of the state value; IQL: its expectile loss."),
    Chart("critic_loss", "Critic loss", "Summed over the critics."),
    Chart("actor_loss", "Actor loss"),
    Chart(
        "imitation_loss", "Imitation loss", "Mean squared difference between the policy's and the dataset's actions."
    ),
    Chart("learning_rate", "Learning rate"),
)
SPEED = (Chart("steps_per_second", "Steps per second", "Since the line before; evaluations and checkpoints included."),)
TOLD = {"eval_return_std", "eval_normalized_score", ESTIMATE}
"""Metrics that a table shows, or another chart."""
TIME_PARTS = ("collect", "update", "eval", "save")
"""Parts of a run's time in `timing.jsonl`: `collect_seconds`, and so on."""


def chosen(charts: Iterable[Chart], logged: Iterable[str]) -> list[Chart]:
    """The charts whose metric was logged."""
    names = set(logged)
    return [chart for chart in charts if chart.metric in names]


def others(logged: Iterable[str]) -> list[Chart]:
    """A chart for each logged metric that has no place elsewhere."""
    known = {chart.metric for chart in (*LEARNING, *EPISODES, *HEALTH, *SPEED)} | TOLD
    return [Chart(name, name.replace("_", " ")) for name in sorted(set(logged) - known)]


def metric_label(metric: str) -> str:
    """A metric in words, for the axis of a picture."""
    titles = {chart.metric: chart.title for chart in (*LEARNING, *EPISODES, *HEALTH, *SPEED)}
    title = titles.get(metric, metric.replace("_", " "))
    return title if title.startswith("KL") else title[0].lower() + title[1:]


def table_of(metric: str) -> str:
    """The table of a run that has the metric."""
    if metric == "steps_per_second":
        return TIMES
    return EVALUATIONS if metric.startswith("eval_") else UPDATES
