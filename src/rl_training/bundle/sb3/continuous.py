"""The networks of SB3's algorithms for continuous actions: TD3 and DDPG; SAC, TQC and CrossQ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rl_training.bundle.sb3.layouts import (
    Inputs,
    Layout,
    critic_sizes,
    critics_of,
    hidden_sizes,
    place_critics,
)
from rl_training.bundle.sb3.networks import (
    ALL,
    Part,
    Placement,
    Weights,
    folded_norms,
    norms_of,
    parameters_of,
    place_cnn,
    place_layer,
    place_layers,
    scale_inputs,
    stems_of,
    widths,
)
from rl_training.bundle.sb3.settings import PolicySettings
from rl_training.errors import CheckpointError
from rl_training.models.critics import EPSILON
from rl_training.spaces.spec import Spaces

SDE_CLIP = 2.0
"""Default bound of the mean of a policy with gSDE."""


class TD3Layout(Layout):
    """TD3 and DDPG: a deterministic actor, critics, and the targets of both."""

    acting = "actor."
    cnn = "actor.features_extractor."

    def __init__(self, weights: Weights, settings: PolicySettings) -> None:
        super().__init__(weights, settings)
        self.stems = stems_of(weights, "actor.mu.")
        if not self.stems:
            raise CheckpointError("'policy.pth' of the model has no actor")

    def sizes(self, spaces: Spaces) -> dict[str, Any]:
        """Hidden layers, and the number of critics."""
        sizes = hidden_sizes(widths(self.weights, self.stems[:-1]), critic_sizes(self.weights))
        return {**sizes, "num_critics": len(critics_of(self.weights, "critic."))}

    def parts(self, spaces: Spaces, inputs: Inputs) -> list[Part]:
        """Actor, critics and their targets."""
        count = spaces.action.num_components
        parts = []
        for ours, theirs, trained in (("", "", True), ("target_", "_target", False)):
            actor, critic = f"actor{theirs}.", f"critic{theirs}."
            placed = place_cnn(self.weights, f"{actor}features_extractor.", inputs.pixel_scale)
            stems = [stem.replace("actor.", actor, 1) for stem in self.stems]
            placed = scale_inputs([*placed, *place_layers(stems, "network")], inputs.of_policy)
            critics = place_critics(self.weights, critic, inputs, count)
            names = ("actor_optimizer", "critic_optimizer") if trained else (None, None)
            lists = (parameters_of(self.weights, actor), parameters_of(self.weights, critic))
            parts.append(Part(f"{ours}actor", placed, (), names[0], "actor", lists[0]))
            parts.append(Part(f"{ours}critic", critics, (), names[1], "critic", lists[1]))
        return parts


class SACLayout(Layout):
    """SAC and TQC: a squashed Gaussian policy, critics and their targets."""

    acting = "actor."
    ignored: tuple[str, ...] = ("actor.log_std",)
    cnn = "actor.features_extractor."
    has_targets = True
    num_critics: int | None = 2
    """Number of our critics; None: it is a setting."""

    def __init__(self, weights: Weights, settings: PolicySettings) -> None:
        super().__init__(weights, settings)
        self.latent = stems_of(weights, "actor.latent_pi.")
        self.has_sde = "actor.log_std" in weights
        self.mean = next((name for name in ("actor.mu.0", "actor.mu") if f"{name}.weight" in weights), None)
        if self.mean is None or (not self.has_sde and "actor.log_std.weight" not in weights):
            raise CheckpointError("'policy.pth' of the model has no squashed Gaussian policy")
        count = len(critics_of(weights, "critic."))
        if self.num_critics not in (None, count):
            self.left = {"critic": f"{count} critics, but {self.num_critics} here: they begin with random weights"}
        self.clip = float(settings.get("clip_mean", SDE_CLIP)) if self.mean == "actor.mu.0" else 0.0
        if self.clip and settings.activation != "relu":
            raise CheckpointError(
                f"the mean of this gSDE policy is clipped to ±{self.clip:g}, which is imported for the activation relu"
                f" only, not for {settings.activation}"
            )

    def sizes(self, spaces: Spaces) -> dict[str, Any]:
        """Hidden layers; of TQC also the numbers of critics and quantiles. A clipped mean is one more layer."""
        latent = widths(self.weights, self.latent)
        num_actions = len(self.weights[f"{self.mean}.weight"])
        actor = (*latent, 2 * num_actions) if self.clip else latent
        return hidden_sizes(actor, critic_sizes(self.weights))

    def parts(self, spaces: Spaces, inputs: Inputs) -> list[Part]:
        """Actor, critics and the critics' targets."""
        count = spaces.action.num_components
        placed = place_cnn(self.weights, self.cnn, inputs.pixel_scale)
        head, constants = self._place_head(count)
        placed = scale_inputs([*placed, *place_layers(self.latent, "network"), *head], inputs.of_policy)
        trained = parameters_of(self.weights, "actor.")
        optimizer = None if self.has_sde else "actor_optimizer"
        parts = [Part("actor", placed, constants, optimizer, "actor", trained)]
        if self.left:
            return parts
        names = parameters_of(self.weights, "critic.")
        critics = place_critics(self.weights, "critic.", inputs, count)
        parts.append(Part("critic", critics, (), "critic_optimizer", "critic", names))
        if self.has_targets:
            parts.append(Part("target_critic", place_critics(self.weights, "critic_target.", inputs, count)))
        return parts

    def _place_head(self, count: int) -> tuple[list[Placement], list[Any]]:
        """The mean and the logarithm of the standard deviation, which are the two halves of our outputs."""
        number, mean, rest = len(self.latent), slice(0, count), slice(count, None)
        stem = str(self.mean)
        if not self.has_sde:
            log_std = place_layer("actor.log_std", "network", number, outputs=rest)
            return [*place_layer(stem, "network", number, outputs=mean), *log_std], []
        log_std_init = float(self.settings.get("log_std_init", -3.0))
        if not self.clip:
            zeros = [(f"network.weight_{number}", (rest,), 0.0), (f"network.bias_{number}", (rest,), log_std_init)]
            return place_layer(stem, "network", number, outputs=mean), zeros
        # clip(m, -c, c) = relu(m + c) - relu(m - c) - c
        placed = place_layer(stem, "network", number, outputs=mean, offset=self.clip)
        placed += place_layer(stem, "network", number, outputs=rest, offset=-self.clip)
        weight = torch.zeros(2 * count, 2 * count)
        weight[:count] = torch.cat([torch.eye(count), -torch.eye(count)], 1)
        bias = torch.cat([torch.full((count,), -self.clip), torch.full((count,), log_std_init)])
        return placed, [(f"network.weight_{number + 1}", (ALL,), weight), (f"network.bias_{number + 1}", (ALL,), bias)]


class TQCLayout(SACLayout):
    """SAC's policy with critics that have several outputs."""

    num_critics = None

    def sizes(self, spaces: Spaces) -> dict[str, Any]:
        """Also the numbers of critics and quantiles."""
        critics = critics_of(self.weights, "critic.")
        last = stems_of(self.weights, critics[0])[-1] if critics else ""
        sizes = super().sizes(spaces)
        return {**sizes, "num_critics": len(critics), "num_quantiles": len(self.weights[f"{last}.weight"])}


class CrossQLayout(SACLayout):
    """SAC's policy and critics with batch normalization before each layer, without targets.

    Our actor has none: with its running statistics it is an affine map, and becomes a part of the layer that follows.
    """

    has_targets = False

    def __init__(self, weights: Weights, settings: PolicySettings) -> None:
        self.eps = float(settings.get("batch_norm_eps", EPSILON))
        norms, latent = norms_of(weights, "actor.latent_pi."), stems_of(weights, "actor.latent_pi.")
        self.folded = bool(norms)
        if norms:
            heads = [name for name in ("actor.mu.0", "actor.mu", "actor.log_std") if f"{name}.weight" in weights]
            weights = folded_norms(weights, norms, [*([stem] for stem in latent), heads], self.eps)
        super().__init__(weights, settings)
        self.ignored = (*self.ignored, *(f"{norm}." for norm in norms))
        if not all(norms_of(weights, critic) for critic in critics_of(weights, "critic.")):
            self.left = {"critic": "critics without batch normalization: ours begin with random weights"}

    def parts(self, spaces: Spaces, inputs: Inputs) -> list[Part]:
        """The actor without batch normalization, and the critics with theirs."""
        actor, *_ = super().parts(spaces, inputs)
        actor = replace(actor, optimizer=None) if self.folded else actor
        if self.left:
            return [actor]
        critic = super().parts(spaces, Inputs())[1]
        placed, scale = list(critic.placements), inputs.of_critic(spaces.action.num_components)
        for member, prefix in enumerate(critics_of(self.weights, "critic.")):
            for number, norm in enumerate(norms_of(self.weights, prefix)):
                placed += self._place_norm(norm, f"networks.norms.{number}", member, 1.0 if number else scale)
        return [actor, replace(critic, placements=placed)]

    def _place_norm(self, norm: str, target: str, member: int, scale: Tensor | float) -> list[Placement]:
        """A batch normalization of inputs of ours that are SB3's over `scale`."""
        power, offset = scale**-2, self.eps * scale**-2 - EPSILON
        return [
            Placement(f"{norm}.scale", f"{target}.scale", (member, 0)),
            Placement(f"{norm}.bias", f"{target}.offset", (member, 0)),
            Placement(f"{norm}.ra_mean", f"{target}.mean", (member, 0), scale=1.0 / scale),
            Placement(f"{norm}.ra_var", f"{target}.variance", (member, 0), False, power, offset),
        ]
