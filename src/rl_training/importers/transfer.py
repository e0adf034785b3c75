"""Puts the tensors of a model into an algorithm of ours: networks, Adam's moments, temperature, counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.optim import Adam
from rl_training.importers.files import Archive, Weights
from rl_training.importers.networks import Model, Networks, Part, Placement
from rl_training.importers.settings import Report, whole
from rl_training.models.normalizer import RewardNormalizer


@dataclass(frozen=True)
class Transfer:
    """The model, the algorithm that gets its tensors, and the report of it."""

    archive: Archive
    model: Model
    networks: Networks
    members: Mapping[str, Any]
    """Networks and optimizers of the algorithm."""
    report: Report

    def load(self) -> int:
        """Load networks and optimizers; returns the gradient steps that the optimizers count."""
        unfit = self.networks.unfit_critics(self.model)
        used: set[str] = set()
        steps = [0]
        for part in self.networks.parts:
            if unfit and "critic" in part.member:
                continue
            placed = part.place(self.model)
            used |= self._load_network(part, placed)
            if part.optimizer is not None:
                steps.append(self._load_moments(part, placed))
        if unfit:
            self.report.leave("critic", unfit)
        self.networks.refuse_unused(self.model, used)
        return max(*steps, self._load_temperature())

    def _load_network(self, part: Part, placed: list[Placement]) -> set[str]:
        """Load one network; returns the names of its tensors."""
        weights, network = self.model.weights, self.members[part.member]
        state = network.state_dict()
        for one in placed:
            one.put(weights[one.source] * one.scale + one.offset, state)
        network.load_state_dict(state)
        sources = {one.source for one in placed}
        given = [tensor for name, tensor in self.archive.weights.items() if name in sources]
        self.report.take(part.member, f"{sum(map(torch.numel, given)):,} numbers")
        return sources

    def _load_moments(self, part: Part, placed: list[Placement]) -> int:
        """Load Adam's moments and step count; returns the count."""
        what, optimizer = f"optimizer of {part.member}", self.members[str(part.optimizer)]
        if self.model.is_rewritten and part is self.networks.parts[0]:
            if part.source_optimizer in self.archive.optimizers:
                self.report.leave(what, "its layers differ here: Adam begins anew")
            return 0
        found = self._moments_of(part)
        if found is None or not isinstance(optimizer, Adam):
            reason = "its state is not Adam's, or does not fit"
            self.report.leave(what, f"{reason}: Adam begins anew")
            return 0
        step, moments = found
        loaded = []
        for power, moment in enumerate(moments, start=1):  # of gradients, and of their squares
            parameters = self.members[part.member].named_parameters()
            zeros = {name: torch.zeros_like(parameter) for name, parameter in parameters}
            for one in placed:
                if one.source in moment:
                    one.put(moment[one.source] * (1.0 / one.scale) ** power, zeros)
            loaded.append(list(zeros.values()))
        _set_moments(optimizer, loaded, step)
        self.report.take(what, f"Adam's moments, {step:,} steps")
        return step

    def _moments_of(self, part: Part) -> tuple[int, tuple[Weights, Weights]] | None:
        """Step count and both moments by the names of SB3's parameters; None unless all of them fit."""
        state = self.archive.optimizers.get(part.source_optimizer, {"param_groups": []})
        match state["param_groups"]:
            case [{"params": list(keys)}]:
                entries = [
                    state["state"].get(key) if isinstance(key, int) else None for key in keys
                ]
            case _:
                return None
        first, second, steps = {}, {}, set()
        for name, entry in zip(self.model.trained(part.trained), entries, strict=False):
            if entry is None:
                continue
            weight = self.model.weights[name]
            mean = entry.get("exp_avg", torch.zeros_like(weight))  # RMSprop has none
            square = entry.get("exp_avg_sq", entry.get("square_avg"))
            if not _are_tensors((mean, square), weight.shape):
                return None
            first[name], second[name] = mean, square
            steps.add(_step_of(entry))
        return (steps.pop(), (first, second)) if len(steps) == 1 else None

    def _load_temperature(self) -> int:
        """The entropy temperature and its optimizer, whose step count it returns."""
        log_alpha = self.archive.variables.get("log_ent_coef")
        if "temperature" not in self.members or log_alpha is None or log_alpha.numel() != 1:
            return 0
        self.members["temperature"].load_state_dict({"log_alpha": log_alpha.reshape(())})
        self.report.take("temperature", f"alpha {float(log_alpha.exp()):.4g}")
        state = self.archive.optimizers.get("ent_coef", {"state": {}})
        entry: dict[str, Any] = next(iter(state["state"].values()), {})
        moments: Any = [entry.get(name) for name in ("exp_avg", "exp_avg_sq")]
        if not _are_tensors(moments, log_alpha.shape):
            return 0
        step = _step_of(entry)
        _set_moments(
            self.members["alpha_optimizer"], [[moment.reshape(())] for moment in moments], step
        )
        return step


def load_normalizers(algorithm: Algorithm[Any], found: Mapping[str, Weights]) -> None:
    """Load statistics of observations and returns, by the setting that switches the normalizer on."""
    members: dict[str, Any] = algorithm.stateful_members()
    if "normalize_obs" in found:
        owner = members.get("preprocessor") or members["policy"].preprocessor
        owner.normalizer.load_state_dict(found["normalize_obs"])
    rewards = members.get("reward_normalizer")
    if "normalize_reward" in found and isinstance(rewards, RewardNormalizer):
        rewards.statistics.load_state_dict(found["normalize_reward"])


def set_counters(algorithm: Algorithm[Any], step: int, num_updates: int) -> None:
    """Continue the counters of target copies and delayed updates where SB3 stopped."""
    algorithm.global_step = step
    interval = getattr(algorithm.config, "target_update_interval", None)
    values = {"updates": num_updates, "target_copies": 0 if interval is None else step // interval}
    algorithm.counters |= {name: values[name] for name in algorithm.counters.keys() & values.keys()}


def _are_tensors(values: Any, shape: torch.Size) -> bool:
    return all(isinstance(one, Tensor) and one.shape == shape for one in values)


def _set_moments(optimizer: Adam, moments: list[list[Tensor]], step: int) -> None:
    first, second = moments
    values = {"first": first, "second": second, "step": torch.tensor(float(step))}
    optimizer.load_state_dict({**optimizer.state_dict(), **values})


def _step_of(entry: Mapping[str, Any]) -> int:
    """Adam's step count, which older versions keep as a number and newer ones as a tensor."""
    step = entry.get("step", 0)
    return whole(float(step) if isinstance(step, Tensor) and step.numel() == 1 else step)
