"""Models of Stable-Baselines3 act after the import as NumPy says that they did; settings, optimizers, statistics."""

from __future__ import annotations

import base64
import pickle
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from sb3_models import (
    PICKLE_OF_A_SHELL_COMMAND,
    Weights,
    adam_state,
    continuous_weights,
    forward,
    linear,
    ppo_weights,
    sequential,
    settings_of,
    write_model,
)

from rl_training.errors import CheckpointError, ConfigError
from rl_training.evaluation.prediction import predict
from rl_training.experiment.config import TrainConfig
from rl_training.importers.files import read_archive
from rl_training.importers.normalization import VecNormalizeState, read_vecnormalize
from rl_training.importers.sb3 import Conversion, convert

PENDULUM, CARTPOLE = {"env_id": "Pendulum-v1"}, {"env_id": "CartPole-v1"}
RNG = np.random.default_rng(0)
OBS = {
    "Pendulum-v1": RNG.normal(size=(40, 3)).astype(np.float32),
    "CartPole-v1": RNG.normal(size=(40, 4)).astype("f4"),
}
PI = ["mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net"]
VF = ["mlp_extractor.value_net.0", "mlp_extractor.value_net.2", "value_net"]
LATENT = ["actor.latent_pi.0", "actor.latent_pi.2"]


def imported(
    folder: Path,
    algo: str,
    weights: Weights,
    changes: dict[str, Any],
    statistics: VecNormalizeState | None = None,
    optimizers: dict[str, Any] | None = None,
    variables: Weights | None = None,
    **settings: Any,
) -> Conversion:
    path = write_model(
        folder / "model.zip", settings_of(algo, **settings), weights, optimizers, variables
    )
    return convert(read_archive(path), statistics, changes)


def actions_of(conversion: Conversion) -> Any:
    return np.asarray(predict(conversion.algorithm, OBS[str(conversion.config.env_id)]))


def assert_close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(torch.as_tensor(found).detach(), expected, rtol=1e-4, atol=1e-5)


def tensor_obs(conversion: Conversion) -> torch.Tensor:
    return torch.from_numpy(OBS[str(conversion.config.env_id)])


@pytest.mark.parametrize(
    "sizes", [((8, 6), (8, 6)), ((8,), (5, 7))], ids=["stacked", "two networks"]
)
@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_discrete_actor_critic(algo: str, sizes: Any, tmp_path: Path) -> None:
    weights = ppo_weights(4, 2, pi=sizes[0], vf=sizes[1])
    stems = [
        [f"{kind}_net.{2 * n}" for n in range(len(s))]
        for kind, s in zip(("policy", "value"), sizes, strict=True)
    ]
    pi, vf = ([f"mlp_extractor.{stem}" for stem in part] for part in stems)
    conversion = imported(tmp_path, algo, weights, CARTPOLE)
    logits = forward(weights, [*pi, "action_net"], OBS["CartPole-v1"], "tanh")
    assert (actions_of(conversion) == logits.argmax(1)).all()
    outputs, values = conversion.algorithm.policy(tensor_obs(conversion))
    assert_close(outputs, logits)
    expected = forward(weights, [*vf, "value_net"], OBS["CartPole-v1"], "tanh")[:, 0]
    assert_close(values, expected)


def test_a_gaussian_policy_keeps_its_units_clips_and_density(tmp_path: Path) -> None:
    weights = {"log_std": torch.tensor([-0.7]), **ppo_weights(3, 1)}
    weights["action_net.weight"] *= 5.0
    conversion = imported(tmp_path, "ppo", weights, PENDULUM)
    mean = forward(weights, PI, OBS["Pendulum-v1"], "tanh")
    assert_close(actions_of(conversion), mean.clip(-2.0, 2.0))
    assert (np.abs(mean) > 2.0).any()
    # The environment's actions are twice those of the model, so the density of the latter is twice as large.
    policy, action = conversion.algorithm.policy, torch.full((40, 1), 0.25)
    density, _ = policy.head.log_prob_and_entropy(policy(tensor_obs(conversion))[0], action)
    scaled = (0.5 - mean[:, 0]) / np.exp(-0.7)
    expected = -0.5 * scaled**2 + 0.7 - 0.5 * np.log(2 * np.pi) + np.log(2.0)
    np.testing.assert_allclose(density.detach(), expected, rtol=1e-4, atol=1e-4)


def test_layers_that_policy_and_value_function_share_are_copied_into_both(tmp_path: Path) -> None:
    weights = ppo_weights(6, 2, pi=(8,), vf=(8,))
    shared = sequential(
        weights, "mlp_extractor.shared_net.", (4, 6), torch.Generator().manual_seed(3)
    )
    conversion = imported(tmp_path, "ppo", weights, CARTPOLE)
    for stem, index in (("policy", 0), ("value", 1)):
        head = "action_net" if stem == "policy" else "value_net"
        expected = forward(
            weights, [*shared, f"mlp_extractor.{stem}_net.0", head], OBS["CartPole-v1"], "tanh"
        )
        found = conversion.algorithm.policy(tensor_obs(conversion))[index].detach()
        assert_close(found, expected if index == 0 else expected[:, 0])


def test_activation_and_hyperparameters_are_read_from_plain_json(tmp_path: Path) -> None:
    kwargs = {
        ":type:": "<class 'dict'>",
        "activation_fn": "<class 'torch.nn.modules.activation.ReLU'>",
    }
    clip = {":type:": "<class 'FloatSchedule'>", "value_schedule": "ConstantSchedule(val=0.3)"}
    weights = ppo_weights(4, 2)
    conversion = imported(
        tmp_path, "ppo", weights, CARTPOLE, policy_kwargs=kwargs, clip_range=clip, n_envs=3
    )
    logits = forward(weights, PI, OBS["CartPole-v1"], "relu")
    assert (actions_of(conversion) == logits.argmax(1)).all()
    config = conversion.config
    settings = {
        "num_steps": 32,
        "minibatch_size": 16,
        "update_epochs": 3,
        "clip_coef": 0.3,
        "activation": "relu",
    }
    assert settings.items() <= config.algo_kwargs.items()
    assert (config.algo_kwargs["gamma"], config.algo_kwargs["learning_rate"], config.num_envs) == (
        0.97,
        0.002,
        3,
    )
    assert config.total_timesteps == conversion.global_step == 4000


def pickled_frequency(count: int, unit: str) -> dict[str, str]:
    """SB3's TrainFreq, as cloudpickle writes it."""
    module = b"stable_baselines3.common.type_aliases"
    data = (
        b"\x80\x02c"
        + module
        + b"\nTrainFreq\nK"
        + bytes([count])
        + b"c"
        + module
        + b"\nTrainFrequencyUnit\n"
    )
    data += b"X" + len(unit).to_bytes(4, "little") + unit.encode() + b"\x85R\x86\x81."
    return {":type:": "<class 'TrainFreq'>", ":serialized:": base64.b64encode(data).decode()}


@pytest.mark.parametrize(
    ("settings", "ratio"),
    [
        ({"train_freq": pickled_frequency(64, "step"), "gradient_steps": 32}, (64, 32)),
        ({"train_freq": pickled_frequency(8, "step"), "gradient_steps": 4, "n_envs": 2}, (16, 4)),
        ({"train_freq": 4, "gradient_steps": 1}, (4, 1)),
        ({"train_freq": pickled_frequency(1, "episode"), "gradient_steps": -1}, (1, 1)),
        ({"train_freq": pickled_frequency(1, "episode"), "gradient_steps": 50}, (1, 1)),
        (
            {
                "train_freq": {":serialized:": PICKLE_OF_A_SHELL_COMMAND.decode()},
                "gradient_steps": 128,
            },
            (1, 1),
        ),
    ],
)
def test_both_numbers_of_the_update_ratio_are_taken_or_neither(
    settings: Any, ratio: Any, tmp_path: Path
) -> None:
    conversion = imported(tmp_path, "sac", continuous_weights(3, 1), PENDULUM, **settings)
    values = conversion.config.algo_kwargs
    assert (values["train_frequency"], values["gradient_steps"]) == ratio


def test_dqn_and_its_target(tmp_path: Path) -> None:
    rng, weights = torch.Generator().manual_seed(4), {}
    stems = [
        sequential(weights, f"{name}.q_net.", (4, 8, 6, 2), rng)
        for name in ("q_net", "q_net_target")
    ]
    conversion = imported(tmp_path, "dqn", weights, CARTPOLE)
    algorithm, obs = conversion.algorithm, tensor_obs(conversion)
    for network, names in zip((algorithm.network, algorithm.target_network), stems, strict=True):
        expected = forward(weights, names, OBS["CartPole-v1"], "relu")
        assert_close(network(obs), expected)
    assert (
        actions_of(conversion) == forward(weights, stems[0], OBS["CartPole-v1"], "relu").argmax(1)
    ).all()
    assert algorithm.counters["target_copies"] == 40


def test_quantiles_are_transposed(tmp_path: Path) -> None:
    rng, weights = torch.Generator().manual_seed(5), {}
    stems = sequential(weights, "quantile_net.quantile_net.", (4, 8, 2 * 5), rng)
    sequential(weights, "quantile_net_target.quantile_net.", (4, 8, 2 * 5), rng)
    conversion = imported(tmp_path, "qrdqn", weights, CARTPOLE)
    expected = forward(weights, stems, OBS["CartPole-v1"], "relu").reshape(
        40, 5, 2
    )  # [batch, quantiles, actions]
    found = conversion.algorithm.network.distribution(tensor_obs(conversion)).detach()
    assert_close(found, expected.transpose(0, 2, 1))
    assert (actions_of(conversion) == expected.mean(1).argmax(1)).all()


@pytest.mark.parametrize(("algo", "outputs", "critics"), [("sac", 1, 2), ("tqc", 6, 3)])
def test_squashed_gaussian_policy_and_critics(
    algo: str, outputs: int, critics: int, tmp_path: Path
) -> None:
    weights = continuous_weights(3, 1, num_critics=critics, critic_outputs=outputs)
    conversion = imported(
        tmp_path, algo, weights, PENDULUM, variables={"log_ent_coef": torch.tensor([-1.5])}
    )
    obs = OBS["Pendulum-v1"]
    mean, log_std = (
        forward(weights, [*LATENT, f"actor.{head}"], obs, "relu") for head in ("mu", "log_std")
    )
    assert_close(actions_of(conversion), 2.0 * np.tanh(mean))
    algorithm = conversion.algorithm
    found = algorithm.actor._gaussian(tensor_obs(conversion))
    assert_close(found[1], log_std.clip(-20, 2))
    check_critics(conversion, weights, critics)
    assert float(algorithm.temperature.alpha) == pytest.approx(np.exp(-1.5))


def check_critics(conversion: Conversion, weights: Weights, num_critics: int) -> None:
    algorithm, obs = conversion.algorithm, OBS["Pendulum-v1"]
    actions = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
    for critic, prefix in (
        (algorithm.critic, "critic"),
        (algorithm.target_critic, "critic_target"),
    ):
        found = critic(torch.from_numpy(obs), torch.from_numpy(actions)).detach().numpy()
        for member in range(num_critics):
            stems = [f"{prefix}.qf{member}.{2 * number}" for number in range(3)]
            expected = forward(weights, stems, np.hstack([obs, actions]), "relu")
            assert_close(found[member].reshape(expected.shape), expected)


@pytest.mark.parametrize(("algo", "critics"), [("td3", 2), ("ddpg", 1)])
def test_deterministic_policy_targets_and_critics(algo: str, critics: int, tmp_path: Path) -> None:
    weights = continuous_weights(3, 1, num_critics=critics, is_deterministic=True)
    noise = {
        ":type:": "<class 'stable_baselines3.common.noise.NormalActionNoise'>",
        "_sigma": "[0.15]",
    }
    conversion = imported(tmp_path, algo, weights, PENDULUM, action_noise=noise)
    assert conversion.config.algo == algo
    assert conversion.config.algo_kwargs["exploration_noise"] == 0.15
    expected = np.tanh(
        forward(weights, [f"actor.mu.{n}" for n in (0, 2, 4)], OBS["Pendulum-v1"], "relu")
    )
    assert_close(actions_of(conversion), 2.0 * expected)
    target = np.tanh(
        forward(weights, [f"actor_target.mu.{n}" for n in (0, 2, 4)], OBS["Pendulum-v1"], "relu")
    )
    found = conversion.algorithm.target_actor.mode(tensor_obs(conversion)).detach()
    assert_close(found, target)
    check_critics(conversion, weights, critics)


def test_batch_normalization_of_crossq(tmp_path: Path) -> None:
    weights, rng = {}, torch.Generator().manual_seed(6)

    def norm(stem: str, size: int) -> None:
        weights[f"{stem}.scale"] = torch.rand(size, generator=rng) + 0.5
        weights[f"{stem}.bias"] = torch.randn(size, generator=rng)
        weights[f"{stem}.ra_mean"] = torch.randn(size, generator=rng)
        weights[f"{stem}.ra_var"] = torch.rand(size, generator=rng) + 0.1
        weights[f"{stem}.steps"] = torch.tensor(7)

    def normed(prefix: str, sizes: list[int]) -> None:
        for number, (num_inputs, num_outputs) in enumerate(pairwise(sizes)):
            norm(f"{prefix}{3 * number}", num_inputs)
            linear(weights, f"{prefix}{3 * number + 1}", num_inputs, num_outputs, rng)

    normed("actor.latent_pi.", [3, 8, 6])
    norm("actor.latent_pi.6", 6)
    for head in ("mu", "log_std"):
        linear(weights, f"actor.{head}", 6, 1, rng)
    for member in range(2):
        normed(f"critic.qf{member}.", [4, 7, 5, 1])

    def apply(x: Any, norms: list[str], stems: list[str]) -> Any:
        for number, (name, stem) in enumerate(zip(norms, stems, strict=True)):
            parts = [
                weights[f"{name}.{part}"].numpy() for part in ("ra_mean", "ra_var", "scale", "bias")
            ]
            x = (x - parts[0]) / np.sqrt(parts[1] + 1e-3) * parts[2] + parts[3]
            x = x @ weights[f"{stem}.weight"].numpy().T + weights[f"{stem}.bias"].numpy()
            x = np.maximum(x, 0) if number < len(stems) - 1 else x
        return x

    conversion = imported(tmp_path, "crossq", weights, PENDULUM)
    obs, latent = OBS["Pendulum-v1"], [f"actor.latent_pi.{n}" for n in (0, 3, 6)]
    mean = apply(obs, latent, ["actor.latent_pi.1", "actor.latent_pi.4", "actor.mu"])
    assert_close(actions_of(conversion), 2.0 * np.tanh(mean))
    actions = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
    found = conversion.algorithm.critic(torch.from_numpy(obs), torch.from_numpy(actions)).detach()
    for member in range(2):
        names = [[f"critic.qf{member}.{3 * n + offset}" for n in range(3)] for offset in (0, 1)]
        expected = apply(np.hstack([obs, actions]), *names)[:, 0]
        assert_close(found[member], expected)


def test_a_clipped_mean_of_gsde_is_kept(tmp_path: Path) -> None:
    weights = continuous_weights(3, 1)
    del weights["actor.log_std.weight"], weights["actor.log_std.bias"]
    for part in ("weight", "bias"):
        weights[f"actor.mu.0.{part}"] = 5.0 * weights.pop(f"actor.mu.{part}")
    weights["actor.log_std"] = torch.zeros(6, 1)
    conversion = imported(
        tmp_path, "sac", weights, PENDULUM, use_sde=True, policy_kwargs={"log_std_init": -2}
    )
    mean = forward(weights, [*LATENT, "actor.mu.0"], OBS["Pendulum-v1"], "relu")
    assert (np.abs(mean) > 2.0).any()
    assert_close(actions_of(conversion), 2.0 * np.tanh(mean.clip(-2.0, 2.0)))
    log_std = conversion.algorithm.actor._gaussian(tensor_obs(conversion))[1]
    assert (log_std == -2.0).all()
    assert "use_sde" in dict(conversion.report.left)


class Bits(gym.Env[Any, Any]):
    """Bytes in, bits out."""

    observation_space: gym.spaces.Box = gym.spaces.Box(0, 255, (5,), np.uint8)
    action_space: gym.Space[Any] = gym.spaces.MultiBinary(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, True, {}


class Pictures(Bits):
    """Images with channels last, which SB3 transposes."""

    observation_space = gym.spaces.Box(0, 255, (40, 44, 3), np.uint8)
    action_space = gym.spaces.Discrete(4)


@pytest.mark.parametrize("pi", [(8, 6), ()], ids=["hidden layers", "linear"])
def test_bytes_are_not_scaled_and_bits_are_independent(pi: Any, tmp_path: Path) -> None:
    weights = ppo_weights(5, 3, pi=pi)
    stems = [*PI[: len(pi)], "action_net"]
    weights[f"{stems[0]}.weight"] /= 100.0
    env_id = TrainConfig(algo="ppo", env_id=Bits).env_id
    conversion = imported(tmp_path, "ppo", weights, {"env_id": env_id})
    obs = RNG.integers(0, 256, (40, 5)).astype(np.uint8)
    logits = forward(weights, stems, obs.astype(np.float32), "tanh")
    assert (np.asarray(predict(conversion.algorithm, obs)) == (logits > 0)).all()
    assert 0 < (logits > 0).mean() < 1


@pytest.mark.parametrize("normalize", [True, False])
def test_images(normalize: bool, tmp_path: Path) -> None:
    weights, rng = {}, torch.Generator().manual_seed(7)
    shapes = {
        "cnn.0": (32, 3, 8, 8),
        "cnn.2": (64, 32, 4, 4),
        "cnn.4": (64, 64, 3, 3),
        "linear.0": (512, 128),
    }
    for prefix in ("q_net.", "q_net_target."):
        for stem, shape in shapes.items():
            name = f"{prefix}features_extractor.{stem}"
            weights[f"{name}.weight"] = (
                torch.randn(shape, generator=rng) * (2.0 / np.prod(shape[1:])) ** 0.5
            )
            weights[f"{name}.bias"] = torch.randn(shape[0], generator=rng) * 0.1
        linear(weights, f"{prefix}q_net.0", 512, 4, rng)
    env_id = TrainConfig(algo="dqn", env_id=Pictures).env_id
    kwargs = {"normalize_images": normalize}
    conversion = imported(tmp_path, "dqn", weights, {"env_id": env_id}, policy_kwargs=kwargs)
    obs = torch.from_numpy(RNG.integers(0, 256, (20, 40, 44, 3)).astype(np.uint8))
    x = obs.permute(0, 3, 1, 2).float() / (255.0 if normalize else 1.0)
    part = {key.removeprefix("q_net.features_extractor."): one for key, one in weights.items()}
    for stem, stride in (("cnn.0", 4), ("cnn.2", 2), ("cnn.4", 1)):
        x = torch.conv2d(x, part[f"{stem}.weight"], part[f"{stem}.bias"], stride).relu()
    x = (x.flatten(1) @ part["linear.0.weight"].T + part["linear.0.bias"]).relu()
    expected = x @ weights["q_net.q_net.0.weight"].T + weights["q_net.q_net.0.bias"]
    found = conversion.algorithm.network(obs).detach()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.parametrize("bounded", [False, True], ids=["CartPole", "Pendulum"])
def test_adams_moments_follow_their_weights(bounded: bool, tmp_path: Path) -> None:
    """Moments that equal the weights stay equal to them, except where a weight was rescaled."""
    weights = (
        {"log_std": torch.tensor([-0.7]), **ppo_weights(3, 1)} if bounded else ppo_weights(4, 2)
    )
    moments = [one.clone() for one in weights.values()]
    optimizers = {"policy": adam_state(moments, [one.square() for one in moments], 77)}
    conversion = imported(
        tmp_path, "ppo", weights, PENDULUM if bounded else CARTPOLE, optimizers=optimizers
    )
    algorithm = conversion.algorithm
    state = algorithm.optimizer.state_dict()
    names = [name for name, _ in algorithm.policy.named_parameters()]
    own = dict(algorithm.policy.state_dict())
    for name, first, second in zip(names, state["first"], state["second"], strict=True):
        np.testing.assert_allclose(second, first.square(), rtol=1e-5)
        if name.endswith(
            "_2"
        ):  # member 0 is the policy's output layer, member 1 the value function's first output
            factor = (
                4.0 if bounded else 1.0
            )  # Pendulum: half of the weights, twice of their gradients
            np.testing.assert_allclose(first[0], own[name][0] * factor, rtol=1e-5)
            np.testing.assert_allclose(first[1, :, 0], own[name][1, :, 0], rtol=1e-5)
        elif name != "head.log_std":
            np.testing.assert_allclose(first, own[name], rtol=1e-5)
    assert (float(state["step"]), conversion.num_updates) == (77.0, 77)
    settings = conversion.config.algo_kwargs
    assert (settings["adam_beta1"], settings["adam_beta2"], settings["adam_eps"]) == (
        0.8,
        0.99,
        1e-6,
    )


@pytest.mark.parametrize(
    ("name", "eps"),
    [("torch.optim.rmsprop.RMSprop", 0.01), ("stable_baselines3.x.RMSpropTFLike", 0.1)],
)
def test_rmsprop_goes_on_as_adam_without_a_mean(name: str, eps: float, tmp_path: Path) -> None:
    weights = ppo_weights(4, 2)
    entries = {
        number: {"step": 9, "square_avg": one.square()}
        for number, one in enumerate(weights.values())
    }
    group = {"lr": 0.002, "alpha": 0.95, "eps": 0.01, "weight_decay": 0, "params": list(entries)}
    optimizers, kwargs = (
        {"policy": {"state": entries, "param_groups": [group]}},
        {"optimizer_class": f"<class '{name}'>"},
    )
    conversion = imported(
        tmp_path, "a2c", weights, CARTPOLE, optimizers=optimizers, policy_kwargs=kwargs
    )
    settings, state = conversion.config.algo_kwargs, conversion.algorithm.optimizer.state_dict()
    assert (settings["adam_beta1"], settings["adam_beta2"], settings["adam_eps"]) == (
        0.0,
        0.95,
        eps,
    )
    assert not any(one.any() for one in state["first"])
    parameters = dict(conversion.algorithm.policy.named_parameters())
    np.testing.assert_allclose(
        state["second"][0], parameters["networks.weight_0"].detach().square(), rtol=1e-5
    )


def vecnormalize_file(path: Path, protocol: int, **changes: Any) -> Path:
    """What VecNormalize.save writes, with classes that go by the names of SB3's."""
    module = ModuleType("stable_baselines3.common.vec_env.vec_normalize")
    running = ModuleType("stable_baselines3.common.running_mean_std")
    normalize_class = type("VecNormalize", (), {"__module__": module.__name__})
    running_class = type("RunningMeanStd", (), {"__module__": running.__name__})
    module.VecNormalize, running.RunningMeanStd = normalize_class, running_class  # type: ignore[attr-defined]
    names = ["stable_baselines3", "stable_baselines3.common", "stable_baselines3.common.vec_env"]
    fakes = {
        **{name: ModuleType(name) for name in names},
        module.__name__: module,
        running.__name__: running,
    }

    def statistics(mean: Any, variance: Any) -> Any:
        one = running_class()
        one.mean, one.var, one.count = np.asarray(mean), np.asarray(variance), 1000.0001
        return one

    one = normalize_class()
    vars(one).update(
        norm_obs=True, norm_reward=True, clip_obs=10.0, clip_reward=10.0, gamma=0.97, epsilon=1e-8, training=True,
        obs_rms=statistics([0.5, -0.2, 1.0], [0.3, 0.4, 9.0]), ret_rms=statistics(-3.0, np.float64(25.0)),
        observation_space=gym.spaces.Box(-1.0, 1.0, (3,)), old_reward=np.zeros(2), num_envs=2,
    )  # fmt: skip
    vars(one).update(changes)
    with pytest.MonkeyPatch.context() as patch:
        for name, fake in fakes.items():
            patch.setitem(sys.modules, name, fake)
        path.write_bytes(pickle.dumps(one, protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_vecnormalize_is_read_as_data(protocol: int, tmp_path: Path) -> None:
    state = read_vecnormalize(vecnormalize_file(tmp_path / "v.pkl", protocol))
    assert state.obs[""].mean.tolist() == [0.5, -0.2, 1.0]
    assert state.obs[""].variance.tolist() == [0.3, 0.4, 9.0]
    assert state.returns is not None
    assert (float(state.returns.variance), state.obs[""].count, state.gamma) == (
        25.0,
        1000.0001,
        0.97,
    )
    assert not any(name.startswith("stable_baselines3.common") for name in sys.modules)


@pytest.mark.parametrize(("clip", "epsilon"), [(10.0, 1e-8), (0.8, 0.01)])
def test_normalized_observations(clip: float, epsilon: float, tmp_path: Path) -> None:
    statistics = read_vecnormalize(
        vecnormalize_file(tmp_path / "v.pkl", 4, clip_obs=clip, epsilon=epsilon)
    )
    weights = continuous_weights(3, 1)
    conversion = imported(tmp_path, "sac", weights, PENDULUM, statistics)
    obs = (OBS["Pendulum-v1"] - np.array([0.5, -0.2, 1.0])) / np.sqrt(
        np.array([0.3, 0.4, 9.0]) + epsilon
    )
    mean = forward(weights, [*LATENT, "actor.mu"], obs.clip(-clip, clip), "relu")
    assert_close(actions_of(conversion), 2.0 * np.tanh(mean))
    assert ("clip_obs" in dict(conversion.report.left)) is (clip != 10.0)
    rewards = conversion.algorithm.reward_normalizer.scaled(torch.ones(1))
    assert float(rewards) == pytest.approx(1.0 / np.sqrt(25.0 + epsilon))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy_class": {"__module__": "__main__"}}, "only the policies of SB3 itself"),
        ({"cg_max_steps": 15}, "TRPO"),
        ({"_last_original_obs": {":type:": "<class 'numpy.ndarray'>"}}, "--vecnormalize FILE"),
        (
            {"policy_kwargs": {"activation_fn": "<class 'torch.nn.modules.activation.LeakyReLU'>"}},
            "LeakyReLU",
        ),
        (
            {"policy_kwargs": {"features_extractor_class": "<class '__main__.Mine'>"}},
            "__main__.Mine",
        ),
        ({"policy_kwargs": {"surprise": 1}}, "surprise"),
        ({"policy_kwargs": {"squash_output": True}}, "squash_output"),
        ({"observation_space": {"_shape": [9]}}, "env_kwargs.wrappers"),
        ({"gamma": 7.0}, "gamma"),
    ],
)
def test_a_policy_that_would_act_differently_is_refused(
    changes: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises((CheckpointError, ConfigError), match=message):
        imported(tmp_path, "ppo", ppo_weights(4, 2), CARTPOLE, **changes)


GAUSSIAN = {"log_std": torch.tensor([-0.7]), **ppo_weights(3, 1)}
UNKNOWN = {**ppo_weights(4, 2), "attention.weight": torch.zeros(3)}


@pytest.mark.parametrize(
    ("changes", "weights", "settings", "message"),
    [
        *(
            (
                {**CARTPOLE, "algo_kwargs": {key: value}},
                ppo_weights(4, 2),
                {},
                f"'algo_kwargs.{key}' follows from the model",
            )
            for key, value in {
                "activation": "relu",
                "layer_norm": True,
                "normalize_obs": True,
            }.items()
        ),
        ({"env_id": "Acrobot-v1"}, ppo_weights(4, 2), {}, "check --env"),
        (PENDULUM, GAUSSIAN, {"action_space": {"low": "[-1.]", "high": "[1.]"}}, "bounded by"),
        (CARTPOLE, UNKNOWN, {}, "attention"),
    ],
)
def test_other_settings_spaces_and_tensors_are_refused(
    changes: Any, weights: Weights, settings: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises((CheckpointError, ConfigError), match=message):
        imported(tmp_path, "ppo", weights, changes, **settings)


def test_statistics_of_another_model_are_refused(tmp_path: Path) -> None:
    statistics = read_vecnormalize(vecnormalize_file(tmp_path / "v.pkl", 4))
    array = {":type:": "<class 'numpy.ndarray'>"}
    with pytest.raises(CheckpointError, match="was trained without VecNormalize"):
        imported(
            tmp_path,
            "ppo",
            ppo_weights(4, 2),
            CARTPOLE,
            statistics,
            _last_obs=array,
            _last_original_obs=None,
        )
