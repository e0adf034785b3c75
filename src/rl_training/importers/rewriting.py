"""Parts of SB3's networks that have no counterpart, rewritten as linear layers that act the same."""

from __future__ import annotations

from dataclasses import replace

import torch

from rl_training.errors import CheckpointError
from rl_training.importers.files import Weights
from rl_training.importers.networks import ABSENT, CONSTANT_LOG_STD, Model
from rl_training.models.critics import EPSILON
from rl_training.spaces.actions import ActionKind

SDE_CLIP = 2.0
"""Default bound of the mean of a policy with gSDE."""


def rewrite(model: Model) -> Model:
    """The model with linear layers instead of gSDE, batch normalizations of the actor and single logits of bits."""
    _refuse_two_cnns(model.weights)
    is_rewritten = bool(
        model.norms("actor.latent_pi.")
        or model.stems("mlp_extractor.shared_net.")
        or "actor.log_std" in model.weights
    )
    folded = _fold_norms(model)
    added = _gsde_actor(folded) | _actor_critic_head(model)
    return replace(model, weights={**folded.weights, **added}, is_rewritten=is_rewritten)


def _fold_norms(model: Model) -> Model:
    """Make the running statistics of CrossQ's actor a part of the layers that read their outputs."""
    norms, stems = model.norms("actor.latent_pi."), model.stems("actor.latent_pi.")
    if not norms:
        return model
    weights = dict(model.weights)
    eps = model.settings.get("batch_norm_eps", EPSILON)
    heads = [name for name in ("actor.mu.0", "actor.mu", "actor.log_std") if model.has(name)]
    for norm, followers in zip(norms, [*([stem] for stem in stems), heads], strict=True):
        scale, bias, mean, variance, _ = (
            weights.pop(f"{norm}.{name}")
            for name in ("scale", "bias", "ra_mean", "ra_var", "steps")
        )
        factor = scale * (variance + eps).rsqrt()
        shift = bias - mean * factor
        for stem in followers:
            weight = weights[f"{stem}.weight"]
            weights[f"{stem}.weight"] = weight * factor
            weights[f"{stem}.bias"] = weights[f"{stem}.bias"] + torch.mv(weight, shift)
    return replace(model, weights=weights)


def _gsde_actor(model: Model) -> Weights:
    """The actor of SAC or TQC with gSDE: a constant standard deviation, and the bound of its mean as a layer."""
    weights, settings = model.weights, model.settings
    if "actor.log_std" not in weights:
        return {}
    added: Weights = {}
    clip = settings.get("clip_mean", SDE_CLIP)
    if clip > 0 and model.has("actor.mu.0"):
        if settings.activation != "relu":
            raise CheckpointError(
                f"the mean of this gSDE policy is clipped to ±{clip:g}, which is imported for the activation relu only,"
                f" not for {settings.activation}"
            )
        # clip(m, -c, c) = relu(m + c) - relu(m - c) - c
        weight, bias = weights["actor.mu.0.weight"], weights["actor.mu.0.bias"]
        identity = torch.eye(len(bias))
        added = {
            "actor.mu.0.weight": torch.cat([weight, weight]),
            "actor.mu.0.bias": torch.cat([bias + clip, bias - clip]),
            "actor.mu.weight": torch.cat([identity, -identity], 1),
            "actor.mu.bias": torch.full_like(bias, -clip),
        }
    mean = {**weights, **added}
    log_std = settings.get("log_std_init", -3.0)
    return {
        **added,
        "actor.log_std.weight": torch.zeros_like(mean["actor.mu.weight"]),
        "actor.log_std.bias": torch.full_like(mean["actor.mu.bias"], log_std),
    }


def _actor_critic_head(model: Model) -> Weights:
    """Of PPO and A2C: a constant standard deviation for gSDE; for MultiBinary, logits 0 for the absence of each bit."""
    weights, action = model.weights, model.spaces.action
    if not model.has("action_net"):
        return {}
    bias = weights["action_net.bias"]
    if "log_std" in weights and weights["log_std"].dim() > 1:
        log_std = model.settings.get("log_std_init", 0.0)
        return {CONSTANT_LOG_STD: torch.full_like(bias, log_std)}
    if action.kind is ActionKind.MULTI_DISCRETE and len(bias) == action.num_components:
        zeros = torch.zeros_like(weights["action_net.weight"])
        return {f"{ABSENT}.weight": zeros, f"{ABSENT}.bias": torch.zeros_like(bias)}
    return {}


def _refuse_two_cnns(weights: Weights) -> None:
    """Refuse an actor-critic whose policy and value function read images with two CNNs."""
    for name, tensor in weights.items():
        alias = name.removeprefix("vf_")
        if alias != name and alias in weights and not torch.equal(tensor, weights[alias]):
            raise CheckpointError(
                "policy and value function read images with two CNNs: no counterpart"
            )
