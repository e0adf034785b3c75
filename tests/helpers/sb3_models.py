"""Files in the layout of Stable-Baselines3 with random weights, written without SB3, and their actions by NumPy."""

from __future__ import annotations

import base64
import io
import json
import pickle
import sys
import zipfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

Weights = dict[str, Tensor]
PICKLE_OF_A_SHELL_COMMAND = b"cos\nsystem\n(S'touch hostile'\ntR."
ACTIVATIONS = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0.0)}
MODULES = {
    "ppo": "stable_baselines3.common",
    "a2c": "stable_baselines3.common",
    "dqn": "stable_baselines3.dqn",
    "sac": "stable_baselines3.sac",
    "td3": "stable_baselines3.td3",
    "ddpg": "stable_baselines3.td3",
    "qrdqn": "sb3_contrib.qrdqn",
    "tqc": "sb3_contrib.tqc",
    "crossq": "sb3_contrib.crossq",
}
COMMON = {
    "num_timesteps": 4000,
    "n_envs": 1,
    "gamma": 0.97,
    "learning_rate": 0.002,
    "use_sde": False,
}
OFF_POLICY = {
    **COMMON, "buffer_size": 500, "batch_size": 16, "learning_starts": 100, "gradient_steps": 1, "tau": 0.01,
}  # fmt: skip
DQN = {**OFF_POLICY, "tau": 1.0, "target_update_interval": 100, "exploration_final_eps": 0.1}
SAC = {**OFF_POLICY, "ent_coef": "auto", "target_entropy": -1.0}
TD3 = {**OFF_POLICY, "policy_delay": 2, "target_policy_noise": 0.2, "target_noise_clip": 0.5}
ON_POLICY = {**COMMON, "gae_lambda": 0.9}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {**ON_POLICY, "n_steps": 32, "batch_size": 16, "n_epochs": 3, "clip_range": 0.1},
    "a2c": {**ON_POLICY, "n_steps": 8},
    "dqn": DQN,
    "qrdqn": DQN,
    "sac": SAC,
    "tqc": {**SAC, "top_quantiles_to_drop_per_net": 1},
    "crossq": {**SAC, "policy_delay": 3},
    "td3": TD3,
    "ddpg": {**TD3, "policy_delay": 1, "target_noise_clip": 0.0},
}


def settings_of(algo: str, **changes: Any) -> dict[str, Any]:
    """The JSON of a model; every pickle in it is a shell command, which nothing may run."""
    command = base64.b64encode(PICKLE_OF_A_SHELL_COMMAND).decode()
    pickled = {":type:": "<class 'function'>", ":serialized:": command}
    policy_class = {**pickled, "__module__": f"{MODULES[algo]}.policies", "__doc__": "text"}
    given = {"policy_class": policy_class, "lr_schedule": pickled}
    return {**given, **SETTINGS[algo], **changes}


def linear(
    weights: Weights, stem: str, num_inputs: int, num_outputs: int, rng: torch.Generator
) -> None:
    """Add a random layer."""
    weights[f"{stem}.weight"] = (
        torch.randn(num_outputs, num_inputs, generator=rng) / num_inputs**0.5
    )
    weights[f"{stem}.bias"] = torch.randn(num_outputs, generator=rng) * 0.3


def sequential(
    weights: Weights, prefix: str, sizes: Sequence[int], rng: torch.Generator
) -> list[str]:
    """Add the layers of an `nn.Sequential` with an activation after each; returns their names."""
    stems = []
    for number, (num_inputs, num_outputs) in enumerate(pairwise(sizes)):
        stems.append(f"{prefix}{2 * number}")
        linear(weights, stems[-1], num_inputs, num_outputs, rng)
    return stems


def forward(weights: Weights, stems: Sequence[str], x: Any, activation: str) -> Any:
    """The outputs of consecutive layers, by NumPy."""
    for number, stem in enumerate(stems):
        x = x @ weights[f"{stem}.weight"].numpy().T + weights[f"{stem}.bias"].numpy()
        if number < len(stems) - 1:
            x = ACTIVATIONS[activation](x)
    return x


def torch_bytes(values: Any) -> bytes:
    """What torch.save writes."""
    buffer = io.BytesIO()
    torch.save(values, buffer)
    return buffer.getvalue()


def adam_state(first: Sequence[Tensor], second: Sequence[Tensor], step: int) -> dict[str, Any]:
    """The state of torch's Adam."""
    count = torch.tensor(float(step))
    state = {
        number: {"step": count, "exp_avg": mean, "exp_avg_sq": square}
        for number, (mean, square) in enumerate(zip(first, second, strict=True))
    }
    group = {"lr": 0.002, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0}
    return {"state": state, "param_groups": [{**group, "params": list(state)}]}


def write_model(
    path: Path,
    settings: Mapping[str, Any],
    weights: Weights,
    optimizers: Mapping[str, Any] | None = None,
    variables: Weights | None = None,
) -> Path:
    """Write a model's zip file."""
    members = {
        "data": json.dumps(settings).encode(),
        "policy.pth": torch_bytes(weights),
        "pytorch_variables.pth": torch_bytes(variables or {}),
        "_stable_baselines3_version": b"2.9.2",
        "system_info.txt": b"OS: any",
    }
    members |= {
        f"{name}.optimizer.pth": torch_bytes(state) for name, state in (optimizers or {}).items()
    }
    return write_members(path, members)


def write_members(
    path: Path, members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED
) -> Path:
    """Write a zip file with these members."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def ppo_weights(
    num_inputs: int, num_outputs: int, *, pi: Sequence[int] = (8, 6), vf: Sequence[int] = (8, 6)
) -> Weights:
    """A policy of PPO or A2C for vectors."""
    rng = torch.Generator().manual_seed(1)
    weights: Weights = {}
    sequential(weights, "mlp_extractor.policy_net.", (num_inputs, *pi), rng)
    sequential(weights, "mlp_extractor.value_net.", (num_inputs, *vf), rng)
    linear(weights, "action_net", (num_inputs, *pi)[-1], num_outputs, rng)
    linear(weights, "value_net", (num_inputs, *vf)[-1], 1, rng)
    return weights


def continuous_weights(
    num_inputs: int,
    num_actions: int,
    *,
    num_critics: int = 2,
    critic_outputs: int = 1,
    is_deterministic: bool = False,
) -> Weights:
    """A policy of SAC or TQC, or of TD3 or DDPG, with different layers of actor and critics."""
    rng = torch.Generator().manual_seed(2)
    weights: Weights = {}
    if is_deterministic:
        for actor in ("actor.", "actor_target."):
            sequential(weights, f"{actor}mu.", (num_inputs, 8, 6, num_actions), rng)
    else:
        sequential(weights, "actor.latent_pi.", (num_inputs, 8, 6), rng)
        linear(weights, "actor.mu", 6, num_actions, rng)
        linear(weights, "actor.log_std", 6, num_actions, rng)
    sizes = (num_inputs + num_actions, 7, 5, critic_outputs)
    for critics in ("critic.", "critic_target."):
        for member in range(num_critics):
            sequential(weights, f"{critics}qf{member}.", sizes, rng)
    return weights


def pickled_frequency(count: int, unit: str) -> dict[str, str]:
    """SB3's TrainFreq, as cloudpickle writes it."""
    module = b"stable_baselines3.common.type_aliases"
    data = b"\x80\x02c%b\nTrainFreq\nK%cc%b\nTrainFrequencyUnit\n" % (module, count, module)
    data += b"X" + len(unit).to_bytes(4, "little") + unit.encode() + b"\x85R\x86\x81."
    return {":type:": "<class 'TrainFreq'>", ":serialized:": base64.b64encode(data).decode()}


def vecnormalize_file(path: Path, protocol: int, **changes: Any) -> Path:
    """What VecNormalize.save writes, with classes that go by the names of SB3's."""
    classes = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, class_name in (
            ("stable_baselines3", ""),
            ("stable_baselines3.common", ""),
            ("stable_baselines3.common.vec_env", ""),
            ("stable_baselines3.common.vec_env.vec_normalize", "VecNormalize"),
            ("stable_baselines3.common.running_mean_std", "RunningMeanStd"),
        ):
            module = ModuleType(name)
            classes[class_name] = type(class_name, (), {"__module__": name})
            setattr(module, class_name, classes[class_name])
            patch.setitem(sys.modules, name, module)

        def statistics(mean: Any, variance: Any) -> Any:
            one = classes["RunningMeanStd"]()
            one.mean, one.var, one.count = np.asarray(mean), np.asarray(variance), 1000.0001
            return one

        one = classes["VecNormalize"]()
        vars(one).update(
            norm_obs=True, norm_reward=True, clip_obs=10.0, clip_reward=10.0, gamma=0.97, epsilon=1e-8, training=True,
            obs_rms=statistics([0.5, -0.2, 1.0], [0.3, 0.4, 9.0]), ret_rms=statistics(-3.0, np.float64(25.0)),
            observation_space=gym.spaces.Box(-1.0, 1.0, (3,)), old_reward=np.zeros(2), num_envs=2,
        )  # fmt: skip
        vars(one).update(changes)
        path.write_bytes(pickle.dumps(one, protocol))
    return path
