"""Metrics of a run: their means between two lines, checks that they and the parameters are finite, and their files."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm
from rl_training.errors import ConfigError, NonFiniteError
from rl_training.experiment.codec import tensors_in
from rl_training.experiment.logs import (
    TIMING_NAME,
    EvaluationFile,
    JsonlSink,
    MetricSink,
    PhaseTimes,
    TensorboardSink,
    TimingFile,
    latest_metrics,
)
from rl_training.experiment.run_folder import TrainingRun
from rl_training.experiment.tracking.tracking import Tracking
from rl_training.runtime.assembly import RunSetup
from rl_training.terminal.progress import ProgressView

EPISODE_WINDOW = 100
RESERVED = (
    "global_step",
    "gradient_steps",
    "env_restarts",
    "train_return_mean",
    "train_length_mean",
    "eval_",
    "best_eval_",
)
"""Names, or their beginnings, that a log line has besides the metrics of updates."""
Names = tuple[str, ...]


class MetricAccumulator:
    """Means of each metric over the updates that reported it since the last log line, and of the last 100 episodes.

    Values stay tensors until `collect`: converting them earlier would synchronize the device. Updates that report the
    same metrics share one sum vector and one count; `collect` joins them by name.
    """

    def __init__(self) -> None:
        self._sums: dict[Names, Tensor] = {}
        self._counts: dict[Names, int] = {}
        self._returns: deque[float] = deque(maxlen=EPISODE_WINDOW)
        self._lengths: deque[int] = deque(maxlen=EPISODE_WINDOW)
        self.is_deferred = False
        """Whether metrics live on a device where they are checked only by `find_non_finite`."""

    def add_update(self, metrics: Mapping[str, Tensor]) -> bool:
        """Add the metrics of one update; returns whether one of them is seen to be non-finite.

        On the CPU they are checked at once. Elsewhere that would synchronize the device, so only `find_non_finite`,
        which is called at the end of an iteration, checks them.
        """
        names = tuple(metrics)
        if not names:
            return False
        try:
            values = torch.stack(tuple(metrics.values())).detach()
        except (TypeError, RuntimeError):
            values = _stack_any(metrics)
        if values.dim() != 1:
            values = _stack_any(metrics)
        if names not in self._sums:
            _check_names(names)
            self._sums[names] = torch.zeros(len(names), dtype=torch.float64, device=values.device)
            self._counts[names] = 0
        self._sums[names] += values
        self._counts[names] += 1
        if values.device.type != "cpu":
            self.is_deferred = True
            return False
        return not math.isfinite(values.sum().item())

    def find_non_finite(self) -> tuple[str, float] | None:
        """Name and sum of the first metric since the last log line that is NaN or infinite."""
        for names, sums in self._sums.items():
            for name, total in zip(names, sums.tolist(), strict=True):
                if not math.isfinite(total):
                    return name, total
        return None

    def check(self, step: int, gradient_step: int) -> None:
        """Raise a `NonFiniteError` if a metric since the last log line is NaN or infinite."""
        found = self.find_non_finite()
        if found is not None:
            name, value = found
            what = "the gradient" if name.endswith("grad_norm") else name
            raise NonFiniteError(
                f"{what} is not finite at step {step:,}, gradient step {gradient_step:,}: {name} is {value}"
            )

    def add_episodes(self, returns: Sequence[float], lengths: Sequence[int]) -> None:
        """Add finished training episodes."""
        self._returns.extend(returns)
        self._lengths.extend(lengths)

    def collect(self) -> dict[str, float]:
        """The means; the sums of the updates start again from zero."""
        totals: dict[str, float] = {}
        counts: dict[str, int] = {}
        for names, sums in self._sums.items():
            for name, total in zip(names, sums.tolist(), strict=True):
                totals[name] = totals.get(name, 0.0) + total
                counts[name] = counts.get(name, 0) + self._counts[names]
        means = {name: total / counts[name] for name, total in totals.items()}
        if self._returns:
            means["train_return_mean"] = sum(self._returns) / len(self._returns)
            means["train_length_mean"] = sum(self._lengths) / len(self._lengths)
        self._sums.clear()
        self._counts.clear()
        return means

    def state_dict(self) -> dict[str, Any]:
        """The sums and counts so far, and the last episodes."""
        return {
            "sums": [{"names": list(names), "sums": sums} for names, sums in self._sums.items()],
            "counts": list(self._counts.values()),
            "returns": list(self._returns),
            "lengths": list(self._lengths),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._sums = {tuple(group["names"]): group["sums"].clone() for group in state["sums"]}
        self._counts = dict(zip(self._sums, state["counts"], strict=True))
        self._returns = deque(state["returns"], maxlen=EPISODE_WINDOW)
        self._lengths = deque(state["lengths"], maxlen=EPISODE_WINDOW)


def _check_names(names: Names) -> None:
    """Raise a `ConfigError` for a metric that would replace a value of the log line."""
    for name in names:
        if name in RESERVED or name.startswith(
            tuple(start for start in RESERVED if start.endswith("_"))
        ):
            raise ConfigError(
                f"metric '{name}' of an update has the name of a value that the run logs: rename it"
            )


def _stack_any(metrics: Mapping[str, Any]) -> Tensor:
    """Stack metrics that are not all scalar tensors: numbers are converted, anything else is named in an error."""
    values = []
    for name, value in metrics.items():
        is_scalar = isinstance(value, (int, float)) or (
            isinstance(value, Tensor) and value.numel() == 1
        )
        if not is_scalar:
            shape = (
                f"tensor of shape {tuple(value.shape)}"
                if isinstance(value, Tensor)
                else type(value).__name__
            )
            raise ConfigError(
                f"metric '{name}' of an update is a {shape}: report scalar tensors or numbers"
            )
        values.append(torch.as_tensor(value, dtype=torch.float32).reshape(()).detach())
    device = next((value.device for value in values), torch.device("cpu"))
    return torch.stack([value.to(device) for value in values])


class ParameterGuard:
    """Checks that every trained parameter is finite.

    A non-finite parameter spoils the metrics of the next update, which are checked first. This finds the rest, such as
    an infinite weight behind a saturated unit.
    """

    def __init__(self, algorithm: Algorithm[Any]) -> None:
        self._algorithm = algorithm
        modules = [
            member
            for member in algorithm.stateful_members().values()
            if isinstance(member, nn.Module)
        ]
        trained = [
            parameter
            for module in modules
            for parameter in module.parameters()
            if parameter.requires_grad
        ]
        self._flat = [parameter.detach().view(-1) for parameter in trained]
        # On an accelerator each check would synchronize the device, so there only `check_all` checks, before a save.
        self._is_cheap = all(flat.device.type == "cpu" for flat in self._flat)

    def check(self, step: int) -> None:
        """Raise a `NonFiniteError` if a parameter is NaN or infinite."""
        # The sum of squares is the cheapest number that any NaN or infinity spoils.
        if self._is_cheap and not math.isfinite(sum(flat.dot(flat).item() for flat in self._flat)):
            self.check_all(step)

    def check_all(self, step: int) -> None:
        """Raise a `NonFiniteError` that names the first bad tensor of the networks and optimizers."""
        states = {
            name: member.state_dict() for name, member in self._algorithm.stateful_members().items()
        }
        for path, tensor in tensors_in(states):
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise NonFiniteError(f"parameter '{path[1:]}' is not finite at step {step:,}")


class RunLog:
    """Writes the metrics and evaluations of a run to its files and trackers, once `opened`."""

    def __init__(
        self, setup: RunSetup, folder: TrainingRun, view: ProgressView, tracking: Tracking
    ) -> None:
        self._setup, self._folder, self._view, self._tracking = setup, folder, view, tracking
        self._metrics: JsonlSink | None = None
        self._evaluations: EvaluationFile | None = None
        self._sinks: list[MetricSink] = []
        self.times = PhaseTimes()
        """Where the time goes."""
        self.latest: dict[str, float] = {}
        """Last value of each metric that was logged, also before a resume."""

    @contextlib.contextmanager
    def opened(self, kept: Mapping[str, Any], first_step: int) -> Iterator[None]:
        """Open the files, cut to the lines that `kept`, the trainer state of the restored checkpoint, counts."""
        run_dir, workspace, config = (
            self._folder.run_dir,
            self._folder.workspace,
            self._setup.config,
        )
        metrics_bytes, evaluations_bytes = (
            kept.get("metrics_bytes", 0),
            kept.get("evaluations_bytes", 0),
        )
        all_settings = self._setup.algo_config.model_dump(mode="json")
        trackers = self._tracking.open(all_settings, metrics_bytes, first_step)
        with contextlib.ExitStack() as stack:
            self._metrics = JsonlSink(run_dir / "metrics.jsonl", metrics_bytes, workspace)
            stack.callback(self._metrics.close)
            self._evaluations = EvaluationFile(
                run_dir / "evaluations.jsonl", evaluations_bytes, workspace
            )
            stack.callback(self._evaluations.close)
            timing = TimingFile(run_dir / TIMING_NAME, self._metrics.path, first_step, workspace)
            stack.callback(timing.close)
            self._sinks = [self._metrics, timing]
            if "tensorboard" in config.loggers:
                tensorboard = TensorboardSink(
                    run_dir / "tensorboard", first_step, workspace, lambda: timing.latest
                )
                stack.callback(tensorboard.close)
                self._sinks.append(tensorboard)
            self._sinks += trackers
            self._report_lost_lines()
            self.times = timing.times
            self.latest |= latest_metrics(self._metrics.path)
            yield

    def write(self, metrics: Mapping[str, float]) -> None:
        """Write one line of metrics."""
        for sink in self._sinks:
            sink.write(metrics)
        self.latest |= metrics

    def write_evaluation(self, step: int, seeds: Sequence[int], *episodes: Any) -> None:
        """Write the returns, lengths and successes of an evaluation's episodes."""
        if self._evaluations is not None:
            self._evaluations.write(step, seeds, *episodes)

    def sync(self) -> None:
        """Flush the files to the disk."""
        for file in self._files():
            file.sync()

    def num_bytes(self) -> dict[str, int]:
        """Lengths of the files, to which a resumed run cuts them."""
        metrics, evaluations = self._files()
        return {"metrics_bytes": metrics.num_bytes, "evaluations_bytes": evaluations.num_bytes}

    def _files(self) -> tuple[JsonlSink, EvaluationFile]:
        assert self._metrics is not None
        assert self._evaluations is not None
        return self._metrics, self._evaluations

    def _report_lost_lines(self) -> None:
        lost = [
            f"{file.path.name} ({file.num_lost_bytes:,} bytes)"
            for file in self._files()
            if file.num_lost_bytes
        ]
        if lost:
            self._view.message(
                f"shorter than at the checkpoint: {' and '.join(lost)}; the run resumes without the missing lines"
            )
