"""Settings of an SB3 model, read from its plain JSON: algorithm, hyperparameters, and how the policy is built."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from rl_training.bundle.sb3.archive import Archive
from rl_training.bundle.sb3.report import Report
from rl_training.errors import CheckpointError

Plain = Mapping[str, Any]
ACTIVATIONS = {"Tanh": "tanh", "ReLU": "relu", "SiLU": "silu", "GELU": "gelu", "ELU": "elu"}
EXTRACTORS = {"FlattenExtractor", "NatureCNN", "CombinedExtractor"}
UNCHANGED = {"net_arch", "ortho_init", "n_critics", "n_quantiles", "device", "use_sde", "share_features_extractor"}
"""Keys of policy_kwargs that show in the weights, or only in their initial values."""
OF_TRAINING = {"optimizer_class", "optimizer_kwargs", "full_std", "use_expln", "batch_norm_momentum", "batch_norm"}
OF_LAYOUT = {"log_std_init", "clip_mean", "batch_norm_eps", "renorm_warmup_steps", "features_extractor_kwargs"}
RMSPROPS = ("RMSprop", "RMSpropTFLike")
MAX_STEPS = 10**12
"""Larger counts of steps are not believed."""
NUMBER = r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?"
CONSTANT = re.compile(rf"ConstantSchedule\(val=({NUMBER})\)")
CLASS_NAME = re.compile(r"<class '([\w.]+)\.(\w+)'>")
ON_POLICY = {
    "gamma": "gamma",
    "n_steps": "num_steps",
    "gae_lambda": "gae_lambda",
    "ent_coef": "ent_coef",
    "vf_coef": "vf_coef",
    "max_grad_norm": "max_grad_norm",
    "normalize_advantage": "normalize_advantage",
}
OFF_POLICY = {
    "gamma": "gamma",
    "buffer_size": "buffer_capacity",
    "batch_size": "batch_size",
    "learning_starts": "learning_starts",
    "n_steps": "n_step",
}
DQN = {
    **OFF_POLICY,
    "target_update_interval": "target_update_interval",
    "exploration_initial_eps": "epsilon_start",
    "exploration_final_eps": "epsilon_end",
    "exploration_fraction": "exploration_fraction",
    "max_grad_norm": "max_grad_norm",
}
SAC = {**OFF_POLICY, "target_entropy": "target_entropy", "tau": "tau"}
TD3 = {
    **OFF_POLICY,
    "tau": "tau",
    "policy_delay": "policy_delay",
    "target_policy_noise": "policy_noise",
    "target_noise_clip": "noise_clip",
}
CROSSQ = {key: name for key, name in SAC.items() if key != "tau"}
KEYS = {
    "ppo": {**ON_POLICY, "batch_size": "minibatch_size", "n_epochs": "update_epochs", "target_kl": "target_kl"},
    "a2c": ON_POLICY,
    "dqn": DQN,
    "qrdqn": DQN,
    "sac": SAC,
    "tqc": {**SAC, "top_quantiles_to_drop_per_net": "quantiles_to_drop"},
    "crossq": CROSSQ,
    "td3": TD3,
    "ddpg": TD3,
}
"""Settings of each algorithm of SB3, and their names here."""
MODULES = {
    "stable_baselines3.common.policies": ("a2c", "ppo"),
    "stable_baselines3.dqn.policies": ("dqn", "dqn"),
    "stable_baselines3.sac.policies": ("sac", "sac"),
    "stable_baselines3.td3.policies": ("td3", "ddpg"),
    "sb3_contrib.qrdqn.policies": ("qrdqn", "qrdqn"),
    "sb3_contrib.tqc.policies": ("tqc", "tqc"),
    "sb3_contrib.crossq.policies": ("crossq", "crossq"),
}
"""Module of the policy's class, and the algorithms that use it: the second where `_is_second` holds."""
NO_COUNTERPART: dict[str, tuple[Any, str]] = {
    "clip_range_vf": (None, "the value function is not clipped here"),
    "use_sde": (False, "gSDE has no counterpart: exploration begins at exp(log_std_init)"),
}
SAC_LIKE: dict[str, tuple[Any, str]] = {"target_update_interval": (1, "target networks follow at every update here")}
DQN_LIKE: dict[str, tuple[Any, str]] = {"tau": (1.0, "target networks are copied as a whole here")}
CROSSQ_LIKE: dict[str, tuple[Any, str]] = {"policy_delay": (1, "the actor is updated with the critics here")}
LEFT: dict[str, dict[str, tuple[Any, str]]] = {
    "sac": SAC_LIKE,
    "tqc": SAC_LIKE,
    "dqn": DQN_LIKE,
    "qrdqn": DQN_LIKE,
    "crossq": CROSSQ_LIKE,
}
"""Settings without a counterpart: the value at which they change nothing, and the reason."""


@dataclass(frozen=True)
class PolicySettings:
    """How the policy was built: `policy_kwargs`, and what follows from them."""

    values: Plain
    activation: str
    normalize_images: bool

    def get(self, key: str, default: float) -> float:
        """A number of policy_kwargs."""
        value = self.values.get(key, default)
        return float(value) if is_number(value) else default


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a JSON value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: Any) -> TypeGuard[float]:
    """Whether a JSON value is a number of at least 1."""
    return is_number(value) and 1 <= value <= MAX_STEPS


def find_algorithm(archive: Archive) -> str:
    """Our name of the model's algorithm, or a `CheckpointError` that says why it is not imported."""
    settings = archive.settings
    policy_class = settings.get("policy_class")
    module = policy_class.get("__module__") if isinstance(policy_class, dict) else None
    if module not in MODULES:
        known = "PPO, A2C, DQN, QR-DQN, SAC, TQC, CrossQ, TD3 and DDPG"
        raise CheckpointError(
            f"the policy of '{archive.path}' is of the module {module!r:.100}: only the policies of SB3 itself are"
            f" imported, for {known}, since another may act differently"
        )
    if "cg_max_steps" in settings:
        raise CheckpointError(f"'{archive.path}' is a model of TRPO, which has no counterpart here")
    return MODULES[module][_is_second(settings)]


def _is_second(settings: Plain) -> bool:
    """Whether it is PPO and not A2C, or DDPG and not TD3."""
    return "clip_range" in settings or (settings.get("policy_delay") == 1 and settings.get("target_noise_clip") == 0)


def read_policy_settings(archive: Archive, algo: str) -> PolicySettings:
    """Read `policy_kwargs`; a key that may change how the policy acts is refused."""
    values = archive.settings.get("policy_kwargs") or {}
    values = {key: value for key, value in values.items() if key != ":type:"} if isinstance(values, dict) else {}
    known = UNCHANGED | OF_TRAINING | OF_LAYOUT | {"activation_fn", "normalize_images", "features_extractor_class"}
    known |= {"squash_output", "lr_schedule", "sde_net_arch"}
    for key in values.keys() - known:
        raise CheckpointError(f"policy_kwargs of '{archive.path}' has {key!r:.80}, which may change how it acts")
    if values.get("squash_output") is True and "clip_range" in archive.settings:
        raise CheckpointError("the policy squashes its actions (squash_output), which ppo does not do here")
    extractor = class_name(values.get("features_extractor_class"))
    if extractor is not None and extractor not in EXTRACTORS:
        raise CheckpointError(f"the policy reads observations with {extractor:.80}, a class of its own")
    default = "Tanh" if KEYS[algo].get("gae_lambda") else "ReLU"
    name = class_name(values.get("activation_fn")) or default
    if name not in ACTIVATIONS:
        raise CheckpointError(f"the policy's activation {name:.80} is none of {', '.join(ACTIVATIONS)}")
    return PolicySettings(values, ACTIVATIONS[name], values.get("normalize_images", True) is not False)


def class_name(value: Any) -> str | None:
    """The name in a text such as `<class 'torch.nn.modules.activation.ReLU'>`; None without one."""
    match = CLASS_NAME.search(value) if isinstance(value, str) else None
    if match is None:
        return None
    is_known = match[1].split(".")[0] in ("torch", "stable_baselines3", "sb3_contrib")
    return match[2] if is_known else f"{match[1]}.{match[2]}"


def read_hyperparameters(archive: Archive, algo: str, report: Report) -> dict[str, Any]:
    """Settings of our algorithm that have a counterpart; what has none is reported."""
    settings = archive.settings
    values: dict[str, Any] = {}
    for theirs, ours in KEYS[algo].items():
        value = settings.get(theirs)
        if is_number(value) or isinstance(value, bool) or (value is None and theirs in settings):
            values[ours] = value
    values = {name: value for name, value in values.items() if value is not None or name in ("max_grad_norm",)}
    values |= _schedules(archive, report)
    values |= _update_ratio(settings, report) if "buffer_size" in settings else {}
    values |= _entropy(settings) if "target_entropy" in settings else {}
    values |= _noise(settings, report) if KEYS[algo].get("target_policy_noise") else {}
    values |= _hindsight(settings)
    for key, (neutral, reason) in {**NO_COUNTERPART, **LEFT.get(algo, {})}.items():
        if key in settings and settings[key] != neutral:
            report.leave(key, reason)
    return values


def _schedules(archive: Archive, report: Report) -> dict[str, Any]:
    """Learning rate and clip range: numbers, constant schedules, or the last value of a function."""
    settings, values = archive.settings, {}
    rate = settings.get("learning_rate")
    if is_number(rate) and rate > 0:
        values["learning_rate"] = rate
    else:
        groups = [group for state in archive.optimizers.values() for group in state["param_groups"]]
        rates = [group["lr"] for group in groups if isinstance(group, dict) and is_number(group.get("lr"))]
        if rates and rates[0] > 0:
            values["learning_rate"] = rates[0]
            report.leave("learning_rate schedule", f"stored as code; the last value {rates[0]:g} is constant here")
        else:
            report.leave("learning_rate", "a schedule that ended at 0, or is not known: the default here")
    if "clip_range" in settings:
        clip = settings["clip_range"]
        match = CONSTANT.search(str(clip.get("value_schedule"))) if isinstance(clip, dict) else None
        if match or is_number(clip):
            values["clip_coef"] = float(match[1]) if match else clip
        else:
            report.leave("clip_range", "stored as code: the default here")
    return values


def _update_ratio(settings: Plain, report: Report) -> dict[str, Any]:
    """Updates, and environment steps between them: both as SB3 had them, or else one update per step."""
    found, updates, num_envs = settings.get("train_freq"), settings.get("gradient_steps"), settings.get("n_envs")
    frequency, unit = found if isinstance(found, list) and len(found) == 2 else (found, "step")
    if updates == -1:  # as many as steps
        return {"train_frequency": 1, "gradient_steps": 1}
    if unit == "step" and is_count(frequency) and is_count(updates) and is_count(num_envs):
        return {"train_frequency": int(frequency * num_envs), "gradient_steps": int(updates)}
    given = "train_freq is stored as code" if found is None else f"train_freq is {frequency!r:.20} {unit!s:.20}s"
    remedy = "set algo_kwargs.train_frequency and gradient_steps for another ratio"
    report.leave("train_freq, gradient_steps", f"{given}: one update per step here; {remedy}")
    return {"train_frequency": 1, "gradient_steps": 1}


def _entropy(settings: Plain) -> dict[str, Any]:
    """The temperature: a number, or learned."""
    coefficient = settings.get("ent_coef")
    return {"alpha": coefficient} if is_number(coefficient) else {"alpha": "auto"}


def _noise(settings: Plain, report: Report) -> dict[str, Any]:
    """Standard deviation of Gaussian exploration noise; other noise is left."""
    noise = settings.get("action_noise")
    if noise is None:
        return {"exploration_noise": 0.0}
    name = class_name(noise.get(":type:")) if isinstance(noise, dict) else None
    sigmas = [float(text) for text in re.findall(NUMBER, str(noise.get("_sigma")))] if name else []
    if name == "NormalActionNoise" and sigmas and len(set(sigmas)) == 1:
        return {"exploration_noise": sigmas[0]}
    report.leave("action_noise", f"{name or 'noise'} has no counterpart: Gaussian noise here")
    return {}


def _hindsight(settings: Plain) -> dict[str, Any]:
    """HER's replay, which is a kind of replay here."""
    replay = settings.get("replay_buffer_class")
    module = replay.get("__module__") if isinstance(replay, dict) else None
    if module != "stable_baselines3.her.her_replay_buffer":
        return {}
    given = settings.get("replay_buffer_kwargs")
    given = given if isinstance(given, dict) else {}
    values: dict[str, Any] = {"kind": "her"}
    if is_number(given.get("n_sampled_goal")):
        values["goals_per_step"] = given["n_sampled_goal"]
    match = re.search(r"future|final|episode", str(given.get("goal_selection_strategy", "future")).lower())
    return {"replay": {**values, "strategy": match[0]} if match else values}


def read_optimizer_settings(archive: Archive, report: Report) -> dict[str, Any]:
    """Adam's betas, epsilon and weight decay; another optimizer is reported."""
    kwargs = archive.settings.get("policy_kwargs")
    kwargs = kwargs if isinstance(kwargs, dict) else {}
    name = class_name(kwargs.get("optimizer_class")) or "Adam"
    states = [archive.optimizers[key] for key in ("policy", "actor") if key in archive.optimizers]
    group = states[0]["param_groups"][0] if states and states[0]["param_groups"] else {}
    if name not in ("Adam", "AdamW", *RMSPROPS) or not isinstance(group, dict):
        report.leave("optimizer", f"{name} has no counterpart: Adam here, which begins anew")
        return {}
    values: dict[str, Any] = {"adam_eps": group["eps"]} if is_number(group.get("eps")) else {}
    betas = group.get("betas")
    if name in RMSPROPS:
        betas = (0.0, group.get("alpha"))
        report.take("optimizer", f"{name}, which is Adam with beta1 = 0")
        if name == RMSPROPS[1] and values:
            values["adam_eps"] **= 0.5  # it is added within the square root there
    if isinstance(betas, (tuple, list)) and len(betas) == 2 and all(map(is_number, betas)):
        values |= dict(zip(("adam_beta1", "adam_beta2"), betas, strict=True))
    decay = group.get("weight_decay")
    if is_number(decay) and decay:
        if name == "AdamW":
            values["weight_decay"] = decay
        else:
            report.leave("weight_decay", "Adam adds it to the gradient, which has no counterpart here")
    return values


def read_bounds(settings: Plain) -> tuple[list[float], list[float]] | None:
    """Bounds of the model's actions, if its text shows all of them."""
    space = settings.get("action_space")
    texts = [space.get(name) for name in ("low", "high")] if isinstance(space, dict) else [None]
    if not all(isinstance(text, str) and "..." not in text for text in texts):
        return None
    low, high = ([float(number) for number in re.findall(NUMBER, str(text))] for text in texts)
    return (low, high) if len(low) == len(high) else None


def read_shape(settings: Plain) -> tuple[int, ...] | None:
    """Shape of the model's observations, if it is an array."""
    space = settings.get("observation_space")
    shape = (space.get("_shape") or space.get("shape")) if isinstance(space, dict) else None
    is_shape = isinstance(shape, (list, tuple)) and all(type(size) is int for size in shape)
    return tuple(shape) if is_shape and shape is not None else None
