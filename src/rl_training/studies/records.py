"""Finished and running runs as plain objects: settings, curves and scores, read from their folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, RLTrainingError, install_extra
from rl_training.experiment.config import leaves
from rl_training.experiment.logs import TIMES, TIMING_NAME, read_lines, read_metrics
from rl_training.studies.catalog import RunInfo, RunReader, find_run_folders


class RunRecord:
    """One run: `info` (state, step, scores), `settings` (its configuration) and `curves` (its metrics)."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        reader = RunReader(run_dir)
        self.info: RunInfo = reader.info()
        self.settings: Mapping[str, Any] = reader.config
        """The configuration, as in `config.yaml`."""

    def __repr__(self) -> str:
        score = "no evaluation" if self.score is None else f"score {self.score:g}"
        return f"<run {self.run_dir.name}: {self.info.state} at step {self.info.step:,}, {score}>"

    @property
    def seed(self) -> int | None:
        """Seed of the run."""
        return self.info.seed

    @property
    def score(self) -> float | None:
        """Mean return of the last evaluation."""
        return self.info.last_eval

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`, as far as they can be read, each with its times from `timing.jsonl`."""
        lines, _ = self._logged
        for line, times in zip(lines, read_lines(self.run_dir / TIMING_NAME), strict=False):
            if times.get("global_step") == line.get("global_step"):
                known = {name: times[name] for name in TIMES if isinstance(times.get(name), (int, float))}
                line.update({**known, **line})  # a metric of the same name stays
        return lines

    @property
    def damage(self) -> str | None:
        """Why `metrics.jsonl` cannot be read to its end; None if it can."""
        return self._logged[1]

    @cached_property
    def _logged(self) -> tuple[list[dict[str, Any]], str | None]:
        """The lines of `metrics.jsonl` up to the first that cannot be read, and why it cannot."""
        lines: list[dict[str, Any]] = []
        path = self.run_dir / "metrics.jsonl"
        try:
            lines.extend(read_metrics(path) if path.is_file() else ())
        except (OSError, RLTrainingError) as error:
            return lines, str(error)
        return lines, None

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Steps and values of a metric; both empty if it was never logged."""
        lines = [line for line in self.metrics if line.get(metric) is not None and line.get("global_step") is not None]
        points = [(line["global_step"], line[metric]) for line in lines]
        return [step for step, _ in points], [value for _, value in points]

    @property
    def curves(self) -> dict[str, tuple[list[int], list[float]]]:
        """Every metric's curve by its name."""
        names = dict.fromkeys(name for line in self.metrics for name in line if name != "global_step")
        return {name: self.curve(name) for name in names}


class RunRecords(Sequence[RunRecord]):
    """Runs in the order of their folders' names."""

    def __init__(self, runs: Sequence[RunRecord]) -> None:
        self._runs = list(runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, index: Any) -> Any:
        """One run, or a part of the runs."""
        return RunRecords(self._runs[index]) if isinstance(index, slice) else self._runs[index]

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self._runs))}]"

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row for each logged line: the run, its seed and settings, and the metrics."""
        try:
            import pandas
        except ImportError:
            raise RLTrainingError(f"to_pandas needs pandas: {install_extra('pandas')}") from None
        rows = [
            {"run": run.run_dir.name, **_columns(run.settings), **line} for run in self._runs for line in run.metrics
        ]
        return pandas.DataFrame(rows)


def load_runs(path: str | Path) -> RunRecords:
    """The runs in a folder (of one run, of a study, or of many) as plain objects; torch is not imported."""
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigError(f"'{path}' is not a folder (looked from {Path.cwd()})")
    return RunRecords([RunRecord(run_dir) for run_dir in find_run_folders(folder)])


def _columns(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as columns with dotted names; lists as text."""
    return {
        key: value if isinstance(value, (str, int, float, type(None))) else str(value)
        for key, value in leaves(settings)
        if value != {}
    }
