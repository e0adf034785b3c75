"""Models of Stable-Baselines3 act after the import as NumPy says that they did; settings, optimizers, statistics."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
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
    pickled_frequency,
    ppo_weights,
    sequential,
    settings_of,
    vecnormalize_file,
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
PENDULUM_OBS, CARTPOLE_OBS = (RNG.normal(size=(40, n)).astype(np.float32) for n in (3, 4))
ACTIONS = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
PI = ["mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net"]
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


def actions_of(conversion: Conversion, obs: Any) -> Any:
    return np.asarray(predict(conversion.algorithm, obs))


def assert_close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(torch.as_tensor(found).detach(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("pi", "vf", "shared"),
    [((8, 6), (8, 6), 0), ((8,), (5, 7), 0), ((8,), (8,), 6)],
    ids=["stacked", "two networks", "shared layers"],
)
@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_discrete_actor_critic(algo: str, pi: Any, vf: Any, shared: int, tmp_path: Path) -> None:
    weights, rng = ppo_weights(shared or 4, 2, pi=pi, vf=vf), torch.Generator().manual_seed(3)
    shared_sizes = (4, shared) if shared else ()
    first = sequential(weights, "mlp_extractor.shared_net.", shared_sizes, rng)
    conversion = imported(tmp_path, algo, weights, CARTPOLE)
    expected = []
    for name, sizes, head in (("policy", pi, "action_net"), ("value", vf, "value_net")):
        stems = [f"mlp_extractor.{name}_net.{2 * number}" for number in range(len(sizes))]
        expected.append(forward(weights, [*first, *stems, head], CARTPOLE_OBS, "tanh"))
    assert (actions_of(conversion, CARTPOLE_OBS) == expected[0].argmax(1)).all()
    outputs, values = conversion.algorithm.policy(torch.from_numpy(CARTPOLE_OBS))
    assert_close(outputs, expected[0])
    assert_close(values, expected[1][:, 0])


def test_a_gaussian_policy_keeps_its_units_clips_and_density(tmp_path: Path) -> None:
    weights = {"log_std": torch.tensor([-0.7]), **ppo_weights(3, 1)}
    weights["action_net.weight"] *= 5.0
    conversion = imported(tmp_path, "ppo", weights, PENDULUM)
    mean = forward(weights, PI, PENDULUM_OBS, "tanh")
    assert_close(actions_of(conversion, PENDULUM_OBS), mean.clip(-2.0, 2.0))
    assert (np.abs(mean) > 2.0).any()
    # The environment's actions are twice those of the model, so the density of the latter is twice as large.
    policy, action = conversion.algorithm.policy, torch.full((40, 1), 0.25)
    outputs, _ = policy(torch.from_numpy(PENDULUM_OBS))
    density, _ = policy.head.log_prob_and_entropy(outputs, action)
    scaled = (0.5 - mean[:, 0]) / np.exp(-0.7)
    assert_close(density, -0.5 * scaled**2 + 0.7 - 0.5 * np.log(2 * np.pi) + np.log(2.0))


def test_activation_and_hyperparameters_are_read_from_plain_json(tmp_path: Path) -> None:
    activation = "<class 'torch.nn.modules.activation.ReLU'>"
    kwargs = {":type:": "<class 'dict'>", "activation_fn": activation}
    clip = {":type:": "<class 'FloatSchedule'>", "value_schedule": "ConstantSchedule(val=0.3)"}
    weights, settings = ppo_weights(4, 2), {"policy_kwargs": kwargs, "clip_range": clip}
    conversion = imported(tmp_path, "ppo", weights, CARTPOLE, n_envs=3, **settings)
    logits = forward(weights, PI, CARTPOLE_OBS, "relu")
    assert (actions_of(conversion, CARTPOLE_OBS) == logits.argmax(1)).all()
    expected = {
        "num_steps": 32, "minibatch_size": 16, "update_epochs": 3, "clip_coef": 0.3, "activation": "relu",
        "gamma": 0.97, "learning_rate": 0.002,
    }  # fmt: skip
    config = conversion.config
    assert expected.items() <= config.algo_kwargs.items()
    assert (config.num_envs, config.total_timesteps, conversion.global_step) == (3, 4000, 4000)


@pytest.mark.parametrize(
    ("frequency", "updates", "num_envs", "ratio"),
    [
        (pickled_frequency(64, "step"), 32, 1, (64, 32)),
        (pickled_frequency(8, "step"), 4, 2, (16, 4)),
        (4, 1, 1, (4, 1)),
        (pickled_frequency(1, "episode"), -1, 1, (1, 1)),
        (pickled_frequency(1, "episode"), 50, 1, (1, 1)),
        ({":serialized:": PICKLE_OF_A_SHELL_COMMAND.decode()}, 128, 1, (1, 1)),
    ],
)
def test_both_numbers_of_the_update_ratio_are_taken_or_neither(
    frequency: Any, updates: int, num_envs: int, ratio: Any, tmp_path: Path
) -> None:
    settings = {"train_freq": frequency, "gradient_steps": updates, "n_envs": num_envs}
    conversion = imported(tmp_path, "sac", continuous_weights(3, 1), PENDULUM, **settings)
    values = conversion.config.algo_kwargs
    assert (values["train_frequency"], values["gradient_steps"]) == ratio


@pytest.mark.parametrize(
    ("algo", "name", "quantiles"), [("dqn", "q_net", 1), ("qrdqn", "quantile_net", 5)]
)
def test_q_network_and_its_target(algo: str, name: str, quantiles: int, tmp_path: Path) -> None:
    rng, weights = torch.Generator().manual_seed(4), {}
    sizes = (4, 8, 6, 2 * quantiles)
    both = [sequential(weights, f"{name}{end}.{name}.", sizes, rng) for end in ("", "_target")]
    conversion = imported(tmp_path, algo, weights, CARTPOLE)
    algorithm, obs = conversion.algorithm, torch.from_numpy(CARTPOLE_OBS)
    # SB3's outputs are [batch, quantiles, actions].
    expected = [
        forward(weights, stems, CARTPOLE_OBS, "relu").reshape(40, quantiles, 2) for stems in both
    ]
    for network, outputs in zip(
        (algorithm.network, algorithm.target_network), expected, strict=True
    ):
        assert_close(network(obs), outputs.mean(1))
        if quantiles > 1:
            assert_close(network.distribution(obs), outputs.transpose(0, 2, 1))
    assert (actions_of(conversion, CARTPOLE_OBS) == expected[0].mean(1).argmax(1)).all()
    assert algorithm.counters["target_copies"] == 40


@pytest.mark.parametrize(("algo", "outputs", "critics"), [("sac", 1, 2), ("tqc", 6, 3)])
def test_squashed_gaussian_policy_and_critics(
    algo: str, outputs: int, critics: int, tmp_path: Path
) -> None:
    weights = continuous_weights(3, 1, num_critics=critics, critic_outputs=outputs)
    variables = {"log_ent_coef": torch.tensor([-1.5])}
    conversion = imported(tmp_path, algo, weights, PENDULUM, variables=variables)
    mean, log_std = (
        forward(weights, [*LATENT, f"actor.{head}"], PENDULUM_OBS, "relu")
        for head in ("mu", "log_std")
    )
    assert_close(actions_of(conversion, PENDULUM_OBS), 2.0 * np.tanh(mean))
    algorithm = conversion.algorithm
    found = algorithm.actor._gaussian(torch.from_numpy(PENDULUM_OBS))
    assert_close(found[1], log_std.clip(-20, 2))
    check_critics(conversion, weights, critics)
    assert float(algorithm.temperature.alpha) == pytest.approx(np.exp(-1.5))


def check_critics(conversion: Conversion, weights: Weights, num_critics: int) -> None:
    inputs = np.hstack([PENDULUM_OBS, ACTIONS])
    for name in ("critic", "target_critic"):
        critic = getattr(conversion.algorithm, name)
        found = critic(torch.from_numpy(PENDULUM_OBS), torch.from_numpy(ACTIONS))
        prefix = "critic_target" if name == "target_critic" else name
        for member in range(num_critics):
            stems = [f"{prefix}.qf{member}.{2 * number}" for number in range(3)]
            expected = forward(weights, stems, inputs, "relu")
            assert_close(found[member].reshape(expected.shape), expected)


@pytest.mark.parametrize(("algo", "critics"), [("td3", 2), ("ddpg", 1)])
def test_deterministic_policy_targets_and_critics(algo: str, critics: int, tmp_path: Path) -> None:
    weights = continuous_weights(3, 1, num_critics=critics, is_deterministic=True)
    kind = "<class 'stable_baselines3.common.noise.NormalActionNoise'>"
    noise = {":type:": kind, "_sigma": "[0.15]"}
    conversion = imported(tmp_path, algo, weights, PENDULUM, action_noise=noise)
    assert conversion.config.algo == algo
    assert conversion.config.algo_kwargs["exploration_noise"] == 0.15
    actor, target = (
        np.tanh(forward(weights, [f"{name}.mu.{n}" for n in (0, 2, 4)], PENDULUM_OBS, "relu"))
        for name in ("actor", "actor_target")
    )
    assert_close(actions_of(conversion, PENDULUM_OBS), 2.0 * actor)
    found = conversion.algorithm.target_actor.mode(torch.from_numpy(PENDULUM_OBS))
    assert_close(found, target)
    check_critics(conversion, weights, critics)


def test_batch_normalization_of_crossq(tmp_path: Path) -> None:
    weights, rng = {}, torch.Generator().manual_seed(6)

    def norm(stem: str, size: int) -> None:
        for name, least in (("scale", 0.5), ("bias", -0.5), ("ra_mean", -0.5), ("ra_var", 0.1)):
            weights[f"{stem}.{name}"] = torch.rand(size, generator=rng) + least
        weights[f"{stem}.steps"] = torch.tensor(7)

    def normed(prefix: str, sizes: list[int]) -> None:
        for number, (num_inputs, num_outputs) in enumerate(pairwise(sizes)):
            norm(f"{prefix}{3 * number}", num_inputs)
            linear(weights, f"{prefix}{3 * number + 1}", num_inputs, num_outputs, rng)

    def apply(x: Any, norms: list[str], stems: list[str]) -> Any:
        for number, (name, stem) in enumerate(zip(norms, stems, strict=True)):
            mean, variance, scale, bias = (
                weights[f"{name}.{part}"].numpy() for part in ("ra_mean", "ra_var", "scale", "bias")
            )
            x = (x - mean) / np.sqrt(variance + 1e-3) * scale + bias
            x = forward(weights, [stem], x, "relu")
            x = np.maximum(x, 0) if number < len(stems) - 1 else x
        return x

    normed("actor.latent_pi.", [3, 8, 6])
    norm("actor.latent_pi.6", 6)
    for head in ("mu", "log_std"):
        linear(weights, f"actor.{head}", 6, 1, rng)
    for member in range(2):
        normed(f"critic.qf{member}.", [4, 7, 5, 1])
    conversion = imported(tmp_path, "crossq", weights, PENDULUM)
    latent = [f"actor.latent_pi.{n}" for n in (0, 3, 6)]
    mean = apply(PENDULUM_OBS, latent, ["actor.latent_pi.1", "actor.latent_pi.4", "actor.mu"])
    assert_close(actions_of(conversion, PENDULUM_OBS), 2.0 * np.tanh(mean))
    critic = conversion.algorithm.critic
    found = critic(torch.from_numpy(PENDULUM_OBS), torch.from_numpy(ACTIONS))
    for member in range(2):
        names = [[f"critic.qf{member}.{3 * n + offset}" for n in range(3)] for offset in (0, 1)]
        expected = apply(np.hstack([PENDULUM_OBS, ACTIONS]), *names)[:, 0]
        assert_close(found[member], expected)


def test_a_clipped_mean_of_gsde_is_kept(tmp_path: Path) -> None:
    weights = continuous_weights(3, 1)
    del weights["actor.log_std.weight"], weights["actor.log_std.bias"]
    for part in ("weight", "bias"):
        weights[f"actor.mu.0.{part}"] = 5.0 * weights.pop(f"actor.mu.{part}")
    weights["actor.log_std"] = torch.zeros(6, 1)
    settings = {"use_sde": True, "policy_kwargs": {"log_std_init": -2}}
    conversion = imported(tmp_path, "sac", weights, PENDULUM, **settings)
    mean = forward(weights, [*LATENT, "actor.mu.0"], PENDULUM_OBS, "relu")
    assert (np.abs(mean) > 2.0).any()
    assert_close(actions_of(conversion, PENDULUM_OBS), 2.0 * np.tanh(mean.clip(-2.0, 2.0)))
    log_std = conversion.algorithm.actor._gaussian(torch.from_numpy(PENDULUM_OBS))[1]
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
    shapes = [
        ("cnn.0", (32, 3, 8, 8)), ("cnn.2", (64, 32, 4, 4)), ("cnn.4", (64, 64, 3, 3)), ("linear.0", (512, 128)),
    ]  # fmt: skip
    for prefix in ("q_net.", "q_net_target."):
        for stem, shape in shapes:
            name, scale = f"{prefix}features_extractor.{stem}", (2.0 / np.prod(shape[1:])) ** 0.5
            weights[f"{name}.weight"] = torch.randn(shape, generator=rng) * scale
            weights[f"{name}.bias"] = torch.randn(shape[0], generator=rng) * 0.1
        linear(weights, f"{prefix}q_net.0", 512, 4, rng)
    env_id = TrainConfig(algo="dqn", env_id=Pictures).env_id
    kwargs = {"normalize_images": normalize}
    conversion = imported(tmp_path, "dqn", weights, {"env_id": env_id}, policy_kwargs=kwargs)
    obs = torch.from_numpy(RNG.integers(0, 256, (20, 40, 44, 3)).astype(np.uint8))
    x = obs.permute(0, 3, 1, 2).float() / (255.0 if normalize else 1.0)
    part = {key.removeprefix("q_net.features_extractor."): one for key, one in weights.items()}
    for (stem, _), stride in zip(shapes, (4, 2, 1), strict=False):
        x = torch.conv2d(x, part[f"{stem}.weight"], part[f"{stem}.bias"], stride).relu()
    last = ["q_net.features_extractor.linear.0", "q_net.q_net.0"]
    expected = forward(weights, last, x.flatten(1).numpy(), "relu")
    found = conversion.algorithm.network(obs).detach()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("bounded", [False, True], ids=["CartPole", "Pendulum"])
def test_adams_moments_follow_their_weights(bounded: bool, tmp_path: Path) -> None:
    """Moments that equal the weights stay equal to them, except where a weight was rescaled."""
    weights, where = ppo_weights(4, 2), CARTPOLE
    if bounded:
        weights, where = GAUSSIAN, PENDULUM
    moments = [one.clone() for one in weights.values()]
    optimizers = {"policy": adam_state(moments, [one.square() for one in moments], 77)}
    conversion = imported(tmp_path, "ppo", weights, where, optimizers=optimizers)
    state = conversion.algorithm.optimizer.state_dict()
    own = dict(conversion.algorithm.policy.named_parameters())
    for name, first, second in zip(own, state["first"], state["second"], strict=True):
        np.testing.assert_allclose(second, first.square(), rtol=1e-5)
        if name.endswith("_2"):  # output layers: member 0 is the policy's
            factor = 4.0 if bounded else 1.0  # half of the weights, twice of their gradients
            np.testing.assert_allclose(first[0], own[name][0].detach() * factor, rtol=1e-5)
            np.testing.assert_allclose(first[1, :, 0], own[name][1, :, 0].detach(), rtol=1e-5)
        elif name != "head.log_std":
            np.testing.assert_allclose(first, own[name].detach(), rtol=1e-5)
    assert (float(state["step"]), conversion.num_updates) == (77.0, 77)
    assert adam_settings(conversion) == (0.8, 0.99, 1e-6)


def adam_settings(conversion: Conversion) -> tuple[float, ...]:
    names = ("adam_beta1", "adam_beta2", "adam_eps")
    return tuple(conversion.config.algo_kwargs[name] for name in names)


@pytest.mark.parametrize(
    ("name", "eps"),
    [("torch.optim.rmsprop.RMSprop", 0.01), ("stable_baselines3.x.RMSpropTFLike", 0.1)],
)
def test_rmsprop_goes_on_as_adam_without_a_mean(name: str, eps: float, tmp_path: Path) -> None:
    weights = ppo_weights(4, 2)
    entries = {n: {"step": 9, "square_avg": one.square()} for n, one in enumerate(weights.values())}
    group = {"lr": 0.002, "alpha": 0.95, "eps": 0.01, "weight_decay": 0, "params": list(entries)}
    optimizers = {"policy": {"state": entries, "param_groups": [group]}}
    kwargs = {"optimizer_class": f"<class '{name}'>"}
    conversion = imported(
        tmp_path, "a2c", weights, CARTPOLE, optimizers=optimizers, policy_kwargs=kwargs
    )
    state = conversion.algorithm.optimizer.state_dict()
    assert adam_settings(conversion) == (0.0, 0.95, eps)
    assert not any(one.any() for one in state["first"])
    parameters = dict(conversion.algorithm.policy.named_parameters())
    np.testing.assert_allclose(
        state["second"][0], parameters["networks.weight_0"].detach().square(), rtol=1e-5
    )


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_vecnormalize_is_read_as_data(protocol: int, tmp_path: Path) -> None:
    state = read_vecnormalize(vecnormalize_file(tmp_path / "v.pkl", protocol))
    assert state.obs[""].mean.tolist() == [0.5, -0.2, 1.0]
    assert state.obs[""].variance.tolist() == [0.3, 0.4, 9.0]
    assert state.returns is not None
    assert (float(state.returns.variance), state.obs[""].count) == (25.0, 1000.0001)
    assert state.gamma == 0.97
    assert not any(name.startswith("stable_baselines3.common") for name in sys.modules)


@pytest.mark.parametrize(("clip", "epsilon"), [(10.0, 1e-8), (0.8, 0.01)])
def test_normalized_observations(clip: float, epsilon: float, tmp_path: Path) -> None:
    file = vecnormalize_file(tmp_path / "v.pkl", 4, clip_obs=clip, epsilon=epsilon)
    weights = continuous_weights(3, 1)
    conversion = imported(tmp_path, "sac", weights, PENDULUM, read_vecnormalize(file))
    scale = np.sqrt(np.array([0.3, 0.4, 9.0]) + epsilon)
    obs = ((PENDULUM_OBS - np.array([0.5, -0.2, 1.0])) / scale).clip(-clip, clip)
    mean = forward(weights, [*LATENT, "actor.mu"], obs, "relu")
    assert_close(actions_of(conversion, PENDULUM_OBS), 2.0 * np.tanh(mean))
    assert ("clip_obs" in dict(conversion.report.left)) is (clip != 10.0)
    rewards = conversion.algorithm.reward_normalizer.scaled(torch.ones(1))
    assert float(rewards) == pytest.approx(1.0 / np.sqrt(25.0 + epsilon))


GAUSSIAN = {"log_std": torch.tensor([-0.7]), **ppo_weights(3, 1)}
DISCRETE = ppo_weights(4, 2)
UNKNOWN = {**DISCRETE, "attention.weight": torch.zeros(3)}
LEAKY = "<class 'torch.nn.modules.activation.LeakyReLU'>"
ARRAY = {":type:": "<class 'numpy.ndarray'>"}


@pytest.mark.parametrize(
    ("weights", "changes", "settings", "message"),
    [
        *(
            (DISCRETE, CARTPOLE, settings, message)
            for settings, message in [
                ({"policy_class": {"__module__": "__main__"}}, "only the policies of SB3 itself"),
                ({"cg_max_steps": 15}, "TRPO"),
                ({"_last_original_obs": ARRAY}, "--vecnormalize FILE"),
                ({"policy_kwargs": {"activation_fn": LEAKY}}, "LeakyReLU"),
                ({"policy_kwargs": {"features_extractor_class": "<class 'x.Mine'>"}}, "x.Mine"),
                ({"policy_kwargs": {"surprise": 1}}, "surprise"),
                ({"policy_kwargs": {"squash_output": True}}, "squash_output"),
                ({"observation_space": {"_shape": [9]}}, "env_kwargs.wrappers"),
                ({"gamma": 7.0}, "gamma"),
            ]
        ),
        *(
            (DISCRETE, {**CARTPOLE, "algo_kwargs": {key: True}}, {}, f"'algo_kwargs.{key}' follows")
            for key in ("activation", "layer_norm", "normalize_obs")
        ),
        (DISCRETE, {"env_id": "Acrobot-v1"}, {}, "check --env"),
        (GAUSSIAN, PENDULUM, {"action_space": {"low": "[-1.]", "high": "[1.]"}}, "bounded by"),
        (UNKNOWN, CARTPOLE, {}, "attention"),
    ],
)
def test_a_policy_that_would_act_differently_is_refused(
    weights: Weights, changes: Any, settings: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises((CheckpointError, ConfigError), match=message):
        imported(tmp_path, "ppo", weights, changes, **settings)


def test_statistics_of_another_model_are_refused(tmp_path: Path) -> None:
    statistics = read_vecnormalize(vecnormalize_file(tmp_path / "v.pkl", 4))
    settings = {"_last_obs": ARRAY, "_last_original_obs": None}
    with pytest.raises(CheckpointError, match="was trained without VecNormalize"):
        imported(tmp_path, "ppo", DISCRETE, CARTPOLE, statistics, **settings)
