"""Loads the states of SB3's optimizers, and the entropy temperature with its own, into ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.algorithms.optim import Adam
from rl_training.bundle.sb3.archive import Archive
from rl_training.bundle.sb3.networks import Part
from rl_training.bundle.sb3.report import Report
from rl_training.bundle.sb3.settings import MAX_STEPS, is_number


def load_moments(part: Part, optimizer: Any, module: nn.Module, archive: Archive, report: Report) -> int:
    """Load Adam's moments and step count; returns the count."""
    found = _moments_of(part, archive)
    what = f"optimizer of {part.member}"
    if found is None or not isinstance(optimizer, Adam):
        report.leave(what, "its state is not Adam's, or does not fit: Adam begins anew")
        return 0
    step, *both = found
    moments = [
        part.moments({name: torch.zeros_like(one) for name, one in module.named_parameters()}, one, power)
        for power, one in enumerate(both, start=1)
    ]
    first, second = (list(moment.values()) for moment in moments)
    state = optimizer.state_dict()
    optimizer.load_state_dict({**state, "first": first, "second": second, "step": torch.tensor(float(step))})
    report.take(what, f"Adam's moments, {step:,} steps")
    return step


def _moments_of(part: Part, archive: Archive) -> tuple[int, dict[str, Tensor], dict[str, Tensor]] | None:
    """Step count and both moments by the names of SB3's parameters; None unless all of them fit."""
    state = archive.optimizers.get(part.source_optimizer)
    groups = state["param_groups"] if state else []
    keys = groups[0].get("params") if len(groups) == 1 and isinstance(groups[0], dict) else None
    if state is None or not isinstance(keys, list):
        return None
    first, second, steps = {}, {}, set()
    for name, key in zip(part.parameters, keys, strict=False):
        entry = state["state"].get(key) if isinstance(key, int) else None
        if entry is None:
            continue
        shape = archive.weights[name].shape
        mean = entry.get("exp_avg", torch.zeros(shape))  # RMSprop has none
        moments = [mean, entry.get("exp_avg_sq", entry.get("square_avg"))]
        if not all(isinstance(moment, Tensor) and moment.shape == shape for moment in moments):
            return None
        first[name], second[name] = moments
        steps.add(_step_of(entry))
    return (steps.pop(), first, second) if len(steps) == 1 else None


def _step_of(entry: Mapping[str, Any]) -> int:
    """Adam's step count, which older versions keep as a number and newer ones as a tensor."""
    step = entry.get("step", 0)
    step = float(step) if isinstance(step, Tensor) and step.numel() == 1 else step
    return int(step) if is_number(step) and 0 <= step <= MAX_STEPS else 0


def load_temperature(members: dict[str, Any], archive: Archive, report: Report, steps: list[int]) -> None:
    """The entropy temperature and its optimizer."""
    log_alpha = archive.variables.get("log_ent_coef")
    if "temperature" not in members or log_alpha is None or log_alpha.numel() != 1:
        return
    members["temperature"].load_state_dict({"log_alpha": log_alpha.reshape(())})
    report.take("temperature", f"alpha {float(log_alpha.exp()):.4g}")
    state = archive.optimizers.get("ent_coef")
    entry: dict[str, Any] = next(iter(state["state"].values()), {}) if state else {}
    moments = [entry.get(kind) for kind in ("exp_avg", "exp_avg_sq")]
    if all(isinstance(moment, Tensor) and moment.numel() == 1 for moment in moments):
        first, second = ([moment.reshape(())] for moment in moments if moment is not None)
        step = _step_of(entry)
        optimizer = members["alpha_optimizer"]
        values = {"first": first, "second": second, "step": torch.tensor(float(step))}
        optimizer.load_state_dict({**optimizer.state_dict(), **values})
        steps.append(step)
