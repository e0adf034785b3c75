"""Settings of an SB3 model, read from its plain JSON: a table has one row for each algorithm."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from rl_training.errors import CheckpointError
from rl_training.importers.files import Archive

Plain = Mapping[str, Any]
MAX_STEPS = 10**12
"""Larger counts of steps are not believed."""
ACTIVATIONS = {"Tanh": "tanh", "ReLU": "relu", "SiLU": "silu", "GELU": "gelu", "ELU": "elu"}
EXTRACTORS = {"FlattenExtractor", "NatureCNN", "CombinedExtractor"}
NUMBER = r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?"
CONSTANT = re.compile(rf"ConstantSchedule\(val=({NUMBER})\)")
CLASS_NAME = re.compile(r"<class '([\w.]+)\.(\w+)'>")


@dataclass(frozen=True)
class Row:
    """An algorithm of SB3."""

    package: str
    """Package of its policies."""
    title: str
    """Name of its class."""
    keys: dict[str, str]
    """Names of its settings here."""
    left: dict[str, tuple[Any, str]] = field(default_factory=dict)
    """Settings without a counterpart: the value at which they change nothing, and the reason."""
    activation: str = "ReLU"
    """Default of its networks."""
    acts_on_values: bool = False
    """Whether the policy is the largest Q-value."""
    is_model: Callable[[Plain], bool] = lambda settings: True
    """Whether it is this algorithm, and not a later one of the same package."""


def _same(names: str) -> dict[str, str]:
    """Settings that have the same name here."""
    return {name: name for name in names.split()}


POLICY_KWARGS = _same(
    "activation_fn batch_norm batch_norm_eps batch_norm_momentum clip_mean device"
    " features_extractor_class features_extractor_kwargs full_std log_std_init lr_schedule n_critics"
    " n_quantiles net_arch normalize_images optimizer_class optimizer_kwargs ortho_init"
    " renorm_warmup_steps sde_net_arch share_features_extractor squash_output use_expln use_sde"
    " :type:"
).keys()
"""Keys that are read here, show in the weights, or matter in training only."""


def _is_ddpg(settings: Plain) -> bool:
    return settings.get("policy_delay") == 1 and settings.get("target_noise_clip") == 0


ON_POLICY = {
    **_same("gamma gae_lambda ent_coef vf_coef max_grad_norm normalize_advantage"),
    "n_steps": "num_steps",
}
OFF_POLICY = {
    **_same("gamma batch_size learning_starts"),
    "buffer_size": "buffer_capacity",
    "n_steps": "n_step",
}
DQN = {
    **OFF_POLICY,
    **_same("target_update_interval exploration_fraction max_grad_norm"),
    "exploration_initial_eps": "epsilon_start",
    "exploration_final_eps": "epsilon_end",
}
CROSSQ = {**OFF_POLICY, "target_entropy": "target_entropy"}
SAC = {**CROSSQ, "tau": "tau"}
TD3 = {
    **OFF_POLICY,
    **_same("tau policy_delay"),
    "target_policy_noise": "policy_noise",
    "target_noise_clip": "noise_clip",
}
PPO = {
    **ON_POLICY,
    "batch_size": "minibatch_size",
    "n_epochs": "update_epochs",
    "target_kl": "target_kl",
}
WHOLE_COPIES = {"tau": (1.0, "target networks are copied as a whole here")}
EVERY_UPDATE = {"target_update_interval": (1, "target networks follow at every update here")}
TOGETHER = {"policy_delay": (1, "the actor is updated with the critics here")}
ACTOR_CRITICS = "stable_baselines3.common"
ALGORITHMS = {
    "ppo": Row(
        ACTOR_CRITICS,
        "PPO",
        PPO,
        activation="Tanh",
        is_model=lambda settings: "clip_range" in settings,
    ),
    "a2c": Row(ACTOR_CRITICS, "A2C", ON_POLICY, activation="Tanh"),
    "dqn": Row("stable_baselines3.dqn", "DQN", DQN, WHOLE_COPIES, acts_on_values=True),
    "qrdqn": Row("sb3_contrib.qrdqn", "QRDQN", DQN, WHOLE_COPIES, acts_on_values=True),
    "sac": Row("stable_baselines3.sac", "SAC", SAC, EVERY_UPDATE),
    "tqc": Row(
        "sb3_contrib.tqc",
        "TQC",
        {**SAC, "top_quantiles_to_drop_per_net": "quantiles_to_drop"},
        EVERY_UPDATE,
    ),
    "crossq": Row("sb3_contrib.crossq", "CrossQ", CROSSQ, TOGETHER),
    "ddpg": Row("stable_baselines3.td3", "DDPG", TD3, is_model=_is_ddpg),
    "td3": Row("stable_baselines3.td3", "TD3", TD3),
}
LEFT_OF_ALL: dict[str, tuple[Any, str]] = {
    "clip_range_vf": (None, "the value function is not clipped here"),
    "use_sde": (False, "gSDE has no counterpart: exploration begins at exp(log_std_init)"),
}
RMSPROPS = ("RMSprop", "RMSpropTFLike")
HINDSIGHT = "stable_baselines3.her.her_replay_buffer"
MAX_ENVS = 64


@dataclass
class Report:
    """What an import took from a model, and what it left: rows of the part, and what became of it."""

    taken: list[tuple[str, str]] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)

    def take(self, part: str, where: object) -> None:
        """Record that a part was taken."""
        self.taken.append((part, str(where)))

    def leave(self, part: str, reason: str) -> None:
        """Record that a part was left."""
        self.left.append((part, reason))

    def as_dict(self) -> dict[str, Any]:
        """Both lists, JSON-compatible."""
        return {
            name: [{"part": part, "detail": text} for part, text in rows]
            for name, rows in vars(self).items()
        }


@dataclass(frozen=True)
class PolicySettings:
    """How the policy was built: `policy_kwargs`, and what follows from them."""

    values: Plain
    activation: str

    def get(self, key: str, default: float) -> float:
        """A number of policy_kwargs."""
        value = self.values.get(key, default)
        return float(value) if is_number(value) else default


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a JSON value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def whole(value: Any) -> int:
    """A count of steps; 0 where it is none."""
    return int(value) if is_number(value) and 1 <= value <= MAX_STEPS else 0


def part_of(settings: Plain, key: str) -> Plain:
    """A setting that is an object; empty where it is none."""
    value = settings.get(key)
    return value if isinstance(value, dict) else {}


def class_name(value: Any) -> str | None:
    """The name in a text such as `<class 'torch.nn.modules.activation.ReLU'>`; None without one."""
    match = CLASS_NAME.search(value) if isinstance(value, str) else None
    if match is None:
        return None
    is_known = match[1].split(".")[0] in ("torch", "stable_baselines3", "sb3_contrib")
    return match[2] if is_known else f"{match[1]}.{match[2]}"


def numbers_in(text: Any) -> list[float]:
    """The numbers in a text."""
    return [float(number) for number in re.findall(NUMBER, str(text))]


def find_algorithm(archive: Archive) -> str:
    """Our name of the model's algorithm, or a `CheckpointError` that says why it is not imported."""
    settings = archive.settings
    module = part_of(settings, "policy_class").get("__module__")
    found = [
        name
        for name, row in ALGORITHMS.items()
        if f"{row.package}.policies" == module and row.is_model(settings)
    ]
    if not found:
        known = "PPO, A2C, DQN, QR-DQN, SAC, TQC, CrossQ, TD3 and DDPG"
        raise CheckpointError(
            f"the policy of '{archive.path}' is of the module {module!r:.100}: only the policies of SB3 itself are"
            f" imported, for {known}, since another may act differently"
        )
    if "cg_max_steps" in settings:
        raise CheckpointError(f"'{archive.path}' is a model of TRPO, which has no counterpart here")
    return found[0]


def read_policy_settings(archive: Archive, algo: str) -> PolicySettings:
    """Read `policy_kwargs`; a key that may change how the policy acts is refused."""
    values = part_of(archive.settings, "policy_kwargs")
    for key in values.keys() - POLICY_KWARGS:
        raise CheckpointError(
            f"policy_kwargs of '{archive.path}' has {key!r:.80}, which may change how it acts"
        )
    if values.get("squash_output") is True and "clip_range" in archive.settings:
        raise CheckpointError(
            "the policy squashes its actions (squash_output), which ppo does not do here"
        )
    extractor = class_name(values.get("features_extractor_class"))
    if extractor is not None and extractor not in EXTRACTORS:
        raise CheckpointError(
            f"the policy reads observations with {extractor:.80}, a class of its own"
        )
    name = class_name(values.get("activation_fn")) or ALGORITHMS[algo].activation
    if name not in ACTIVATIONS:
        raise CheckpointError(
            f"the policy's activation {name:.80} is none of {', '.join(ACTIVATIONS)}"
        )
    return PolicySettings(values, ACTIVATIONS[name])


def read_hyperparameters(archive: Archive, algo: str, step: int, report: Report) -> dict[str, Any]:
    """Settings of our algorithm that have a counterpart; what has none is reported."""
    settings, row = archive.settings, ALGORITHMS[algo]
    values: dict[str, Any] = {}
    for theirs, ours in row.keys.items():
        value = settings.get(theirs)
        is_off = value is None and theirs == "max_grad_norm" and theirs in settings
        if is_number(value) or isinstance(value, bool) or is_off:
            values[ours] = value
    values |= _learning_rate(archive, report)
    if "clip_range" in settings:
        values |= _clip_range(settings, report)
    values |= _optimizer(archive, report)
    if "buffer_size" in settings:
        values |= _update_ratio(settings, report)
    if "target_entropy" in settings:
        values["alpha"] = settings["ent_coef"] if is_number(settings.get("ent_coef")) else "auto"
    if "target_policy_noise" in row.keys:
        values |= _noise(settings, report)
    if part_of(settings, "replay_buffer_class").get("__module__") == HINDSIGHT:
        values["replay"] = _hindsight(part_of(settings, "replay_buffer_kwargs"))
    for key, (neutral, reason) in {**LEFT_OF_ALL, **row.left}.items():
        if settings.get(key, neutral) != neutral:
            report.leave(key, reason)
    if row.acts_on_values:
        # A Q-network acts on what the last update changed: updated from few transitions of one policy, it loses that
        # policy. So as many steps are collected before the first update as the model's replay buffer held.
        held = min(step, int(values.get("buffer_capacity", step)))
        needed = max(held, int(values.get("learning_starts", 0)))
        values["learning_starts"] = needed
        effect = "the replay buffer is refilled before the first update"
        report.take("learning_starts", f"{needed:,}: {effect}")
    return values


def read_num_envs(archive: Archive, report: Report) -> int:
    """Number of environments; one where it cannot be believed."""
    count = archive.settings.get("n_envs")
    if isinstance(count, int) and 1 <= count <= MAX_ENVS:
        return count
    report.leave("n_envs", f"{count!r:.20} is not from 1 to {MAX_ENVS}: one environment here")
    return 1


def _learning_rate(archive: Archive, report: Report) -> dict[str, Any]:
    """The learning rate; of a schedule, which is stored as code, the last value."""
    rate = archive.settings.get("learning_rate")
    if is_number(rate) and rate > 0:
        return {"learning_rate": rate}
    for state in archive.optimizers.values():
        for group in state["param_groups"]:
            last = group.get("lr") if isinstance(group, dict) else None
            if is_number(last) and last > 0:
                reason = f"stored as code; the last value {last:g} is constant here"
                report.leave("learning_rate schedule", reason)
                return {"learning_rate": last}
    reason = "a schedule that ended at 0, or is not known: the default here"
    report.leave("learning_rate", reason)
    return {}


def _clip_range(settings: Plain, report: Report) -> dict[str, Any]:
    """The clip range: a number, or a constant schedule."""
    clip = settings["clip_range"]
    match = CONSTANT.search(str(part_of(settings, "clip_range").get("value_schedule")))
    if match or is_number(clip):
        return {"clip_coef": float(match[1]) if match else clip}
    report.leave("clip_range", "stored as code: the default here")
    return {}


def _update_ratio(settings: Plain, report: Report) -> dict[str, Any]:
    """Updates, and environment steps between them: both as SB3 had them, or else one update per step."""
    found, updates = settings.get("train_freq"), settings.get("gradient_steps")
    frequency, unit = found if isinstance(found, list) and len(found) == 2 else (found, "step")
    steps, num_updates = whole(frequency) * whole(settings.get("n_envs")), whole(updates)
    if unit == "step" and steps and num_updates:
        return {"train_frequency": steps, "gradient_steps": num_updates}
    if updates != -1:  # as many as steps
        given = f"train_freq is {frequency!r:.20} {unit!s:.20}s"
        if found is None:
            given = "train_freq is stored as code"
        remedy = "import with algo_kwargs.train_frequency and gradient_steps for another ratio"
        report.leave("train_freq, gradient_steps", f"{given}: one update per step here; {remedy}")
    return {"train_frequency": 1, "gradient_steps": 1}


def _noise(settings: Plain, report: Report) -> dict[str, Any]:
    """Standard deviation of Gaussian exploration noise; other noise is left."""
    if settings.get("action_noise") is None:
        return {"exploration_noise": 0.0}
    noise = part_of(settings, "action_noise")
    name, sigmas = class_name(noise.get(":type:")), set(numbers_in(noise.get("_sigma")))
    if name == "NormalActionNoise" and len(sigmas) == 1:
        return {"exploration_noise": sigmas.pop()}
    report.leave("action_noise", f"{name or 'noise'} has no counterpart: Gaussian noise here")
    return {}


def _hindsight(given: Plain) -> dict[str, Any]:
    """HER's replay, which is a kind of replay here."""
    values: dict[str, Any] = {"kind": "her"}
    if is_number(given.get("n_sampled_goal")):
        values["goals_per_step"] = given["n_sampled_goal"]
    match = re.search(
        r"future|final|episode", str(given.get("goal_selection_strategy", "future")).lower()
    )
    return {**values, "strategy": match[0]} if match else values


def _optimizer(archive: Archive, report: Report) -> dict[str, Any]:
    """Adam's or RMSprop's betas, epsilon and weight decay; RMSprop is Adam with beta1 = 0."""
    name = class_name(part_of(archive.settings, "policy_kwargs").get("optimizer_class")) or "Adam"
    states = [archive.optimizers[key] for key in ("policy", "actor") if key in archive.optimizers]
    group: Any = next(iter(states[0]["param_groups"]), {}) if states else {}
    if name not in ("Adam", "AdamW", *RMSPROPS) or not isinstance(group, dict):
        report.leave("optimizer", f"{name} has no counterpart: Adam here, which begins anew")
        return {}
    numbers = {"adam_eps": group.get("eps")}
    betas = group.get("betas")
    if name in RMSPROPS:
        betas = (0.0, group.get("alpha"))
        report.take("optimizer", f"{name}, which is Adam with beta1 = 0")
    if isinstance(betas, (tuple, list)) and len(betas) == 2 and all(map(is_number, betas)):
        numbers |= {"adam_beta1": betas[0], "adam_beta2": betas[1]}
    decay = group.get("weight_decay")
    if name == "AdamW" and decay:
        numbers["weight_decay"] = decay
    elif is_number(decay) and decay:
        reason = "Adam adds it to the gradient, which has no counterpart here"
        report.leave("weight_decay", reason)
    values = {key: number for key, number in numbers.items() if is_number(number)}
    if name == "RMSpropTFLike" and "adam_eps" in values:
        values["adam_eps"] **= 0.5  # it is added within the square root there
    return values


def read_bounds(settings: Plain) -> tuple[list[float], list[float]] | None:
    """Bounds of the model's actions, if its text shows all of them."""
    texts = [part_of(settings, "action_space").get(name) for name in ("low", "high")]
    if not all(isinstance(text, str) and "..." not in text for text in texts):
        return None
    low, high = map(numbers_in, texts)
    return (low, high) if len(low) == len(high) else None


def read_shape(settings: Plain) -> tuple[int, ...] | None:
    """Shape of the model's observations, if it is an array."""
    space = part_of(settings, "observation_space")
    shape = space.get("_shape") or space.get("shape")
    if isinstance(shape, list) and all(type(size) is int for size in shape):
        return tuple(shape)
    return None
