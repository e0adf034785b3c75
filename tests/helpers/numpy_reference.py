"""What tests of update rules share: small algorithms and batches, and their networks again in numpy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from rl_training.algorithms.base import Resources
from rl_training.replay.transitions import Transitions
from rl_training.spaces.spec import describe_spaces

BATCH = 48
LEARNING_RATE = 1e-3
GAMMA = 0.9
NUM_OBS = 3
NUM_ACTIONS = 2


def small(config_class, **settings):
    """tanh, because numeric gradients need a smooth network."""
    values = {
        "hidden_sizes": (7, 6),
        "activation": "tanh",
        "gamma": GAMMA,
        "learning_rate": LEARNING_RATE,
    }
    return config_class(**{**values, **settings})


def make_algorithm(algorithm_class, config, *, action_space=None, compile=False):
    """An algorithm each of whose networks, targets too, has weights of its own."""
    action_space = action_space or Box(-2.0, 1.0, (NUM_ACTIONS,))
    spaces = describe_spaces(Box(-np.inf, np.inf, (NUM_OBS,)), action_space)
    resources = Resources(torch.device("cpu"), torch.Generator().manual_seed(0), compile=compile)
    algorithm = algorithm_class.for_spaces(spaces)(config, spaces, resources)
    generator = torch.Generator().manual_seed(1)
    for part in algorithm.stateful_members().values():
        if isinstance(part, torch.nn.Module):
            for parameter in part.parameters():
                parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return algorithm


def make_batch(action_space=None, seed=2):
    rng = np.random.default_rng(seed)
    terminated, truncated = rng.random((2, BATCH)) < 0.3
    if action_space is None:
        actions = torch.tensor(rng.uniform(-1, 1, (BATCH, NUM_ACTIONS)), dtype=torch.float32)
        actions[:4] = torch.tensor(
            [[1.0, -1.0], [-1.0, 1.0], [1.0, 1.0], [-1.0, 0.5]]
        )  # data lies at the bounds too
    else:
        choices = (
            [action_space.n] if isinstance(action_space, Discrete) else list(action_space.nvec)
        )
        columns = [torch.from_numpy(rng.integers(0, n, BATCH)) for n in choices]
        actions = columns[0] if isinstance(action_space, Discrete) else torch.stack(columns, -1)
    fields = {
        "obs": rng.normal(0.5, 2.0, (BATCH, NUM_OBS)),
        "rewards": rng.normal(size=BATCH),
        "next_obs": rng.normal(0.5, 2.0, (BATCH, NUM_OBS)),
    }
    return Transitions(
        **{name: torch.tensor(value, dtype=torch.float32) for name, value in fields.items()},
        actions=actions,
        terminated=torch.from_numpy(terminated),
        truncated=torch.from_numpy(truncated),
    )


def doubles(batch):
    """The batch as numpy numbers of double precision; `discounts` are 0 where the episode terminated."""
    fields = {name: value.numpy() for name, value in batch.tensors().items()}
    numbers = {
        name: value if value.dtype.kind == "i" else value.astype(np.float64)
        for name, value in fields.items()
    }
    return SimpleNamespace(**numbers, discounts=GAMMA * (1.0 - numbers["terminated"]))


def arrays(module):
    return [parameter.detach().double().numpy().copy() for parameter in module.parameters()]


def coming_normals(algorithm, *shapes):
    """The standard normal numbers the next update will draw, in order."""
    generator = torch.Generator()
    generator.set_state(algorithm.generator.get_state())
    return [torch.empty(shape).normal_(generator=generator).double().numpy() for shape in shapes]


def mlp(params, x):
    """Weight [out, in] and bias of each layer alternate."""
    for weight, bias in zip(params[:-2:2], params[1:-2:2], strict=True):
        x = np.tanh(x @ weight.T + bias)
    return x @ params[-2].T + params[-1]


def critic(params, obs, actions):
    """Weight [member, in, out] and bias of each layer alternate; the result is [member, B]."""
    inputs = np.concatenate([obs, actions], -1)
    values = []
    for member in range(len(params[0])):
        x = inputs
        for layer in range(3):
            x = x @ params[2 * layer][member] + params[2 * layer + 1][member]
            x = np.tanh(x) if layer < 2 else x
        values.append(x[..., 0])
    return np.stack(values)


def gaussian_log_density(mean, log_std, actions):
    std = np.exp(log_std)
    return np.log(np.exp(-0.5 * ((actions - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))).sum(-1)


def numeric_gradient(loss, params, step=1e-6):
    gradients = [np.zeros_like(param) for param in params]
    for param, gradient in zip(params, gradients, strict=True):
        for index in np.ndindex(param.shape):
            middle = param[index]
            param[index] = middle + step
            above = loss(params)
            param[index] = middle - step
            gradient[index] = (above - loss(params)) / (2 * step)
            param[index] = middle
    return gradients


class StepWatch:
    """Keeps the gradients as they reach an optimizer: Adam's first step shows little more than their signs."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self._step = optimizer, optimizer.step
        self._before = [parameter.detach().clone() for parameter in optimizer.parameters]
        self.gradients: list[Any] = []
        optimizer.step = self._watched_step

    def _watched_step(self, gradients: Any, scale: Any = None) -> None:
        self.gradients.extend(gradient.detach().clone() for gradient in gradients)
        self._step(gradients, scale)

    def assert_stepped_down(
        self, loss: Any, params: Any, norm: Any, learning_rate: float = LEARNING_RATE
    ) -> None:
        """One step of Adam along the gradient of `loss` at `params`, whose norm was reported."""
        expected = numeric_gradient(loss, params)
        for gradient, wanted in zip(self.gradients, expected, strict=True):
            np.testing.assert_allclose(gradient, wanted, atol=1e-5)
        length = np.sqrt(sum((gradient**2).sum() for gradient in expected))
        np.testing.assert_allclose(norm, length, rtol=1e-4, atol=1e-5)
        for parameter, old, gradient in zip(
            self._optimizer.parameters, self._before, self.gradients, strict=True
        ):
            step = learning_rate * gradient / (gradient.abs() + 1e-8)
            np.testing.assert_allclose(parameter.detach(), old - step, rtol=0, atol=1e-6)


def assert_moved_by_tau(before, after, towards, tau):
    for old, new, goal in zip(before, after, towards, strict=True):
        np.testing.assert_allclose(new, old + tau * (goal - old), rtol=0, atol=1e-7)


def assert_compiled_equals_plain(algorithm_class, config, *, action_space=None):
    """Four updates as a compiled graph and as they stand: enough to meet every kind of update."""
    plain, compiled = (
        make_algorithm(algorithm_class, config, action_space=action_space, compile=flag)
        for flag in (False, True)
    )
    for seed in range(4):
        batch = make_batch(action_space, seed)
        expected = plain.update(batch).metrics
        actual = compiled.update(batch).metrics
        for name, value in expected.items():
            torch.testing.assert_close(actual[name], value, rtol=1e-4, atol=1e-5, msg=name)
    for name, part in plain.stateful_members().items():
        if isinstance(part, torch.nn.Module):
            for key, value in part.state_dict().items():
                other = compiled.stateful_members()[name].state_dict()[key]
                torch.testing.assert_close(other, value, rtol=1e-3, atol=1e-5, msg=f"{name}/{key}")
