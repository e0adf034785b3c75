"""PPO and A2C with memory against torch's LSTM and GRU, Linear layers, distributions and Adam, in double precision.

Rollouts come from the collector. The reference reads only observations, actions, rewards, masks and episode ends from
them, and keeps the hidden states of its own networks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from conftest import HELPERS
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal

from rl_training.algorithms.a2c import A2CAlgorithm, A2CConfig
from rl_training.algorithms.base import Resources
from rl_training.algorithms.ppo import PPOAlgorithm, PPOConfig
from rl_training.envs.factory import make_vector_env
from rl_training.replay.rollout_buffer import RolloutBuffer
from rl_training.replay.transitions import Transitions
from rl_training.runtime.collector import Collector
from rl_training.runtime.trainer import TrainerState

NUM_STEPS, NUM_ENVS, LENGTH = 12, 3, 4
ENV = f"{HELPERS / 'masked_envs.py'}:RandomMasks"
ACTIONS = {"discrete": [5], "multi_discrete": [3, 4], "box": []}
OWN_NETWORKS = {"actor_hidden_sizes": (6,), "critic_hidden_sizes": (7, 5)}
OWN_RATES = {"actor_learning_rate": 2e-3, "critic_learning_rate": 5e-3}
for_every_action_space = pytest.mark.parametrize("action", list(ACTIONS))
for_both_kinds = pytest.mark.parametrize("kind", ["lstm", "gru"])
for_every_network = pytest.mark.parametrize(
    "settings",
    [{}, OWN_NETWORKS, OWN_RATES, {**OWN_NETWORKS, **OWN_RATES}],
    ids=["one_network", "own_sizes", "own_rates", "own_sizes_and_rates"],
)


class Run:
    """An algorithm, environments and a rollout buffer, as a training run has them."""

    def __init__(
        self, name: str, action: str = "discrete", kind: str = "lstm", **settings: Any
    ) -> None:
        algorithm_class, config_class = {
            "ppo": (PPOAlgorithm, PPOConfig),
            "a2c": (A2CAlgorithm, A2CConfig),
        }[name]
        own = {"update_epochs": 2, "minibatch_size": 3 * LENGTH} if name == "ppo" else {}
        values = {
            "hidden_sizes": (6, 5),
            "learning_rate": 3e-3,
            "ent_coef": 0.02,
            "gamma": 0.9,
            **own,
            **settings,
        }
        memory = {"kind": kind, "size": 4, "sequence_length": LENGTH}
        config = config_class(num_steps=NUM_STEPS, memory=memory, **values)
        self.envs = make_vector_env(ENV, {"action": action, "permitted": 0.6}, num_envs=NUM_ENVS)
        self.spaces, device = self.envs.spaces, torch.device("cpu")
        assert self.spaces.has_masks is (action != "box")
        resources = Resources(device, torch.Generator().manual_seed(0), NUM_ENVS)
        self.algorithm = algorithm_class(config, self.spaces, resources)
        shake(self.algorithm.policy)
        first = self.algorithm.initial_state(NUM_ENVS)
        self.collector = Collector(self.envs, self.spaces, device, first)
        self.buffer = RolloutBuffer(
            self.spaces, NUM_STEPS, NUM_ENVS, device, self.algorithm.step_fields()
        )
        self.states: list[Tensor] = []
        """The states that `act` was given."""
        self.collector.reset([1, 2, 3])

    def collect(self) -> Transitions:
        """The next rollout, of which the buffer keeps nothing."""

        def act(obs: Tensor, state: Tensor | None, mask: Tensor | None) -> Any:
            assert state is not None
            self.states.append(state.clone())
            return self.algorithm.act(obs, state, explore=True, mask=mask)

        self.collector.collect(act, self.buffer, NUM_STEPS, TrainerState(None, None))  # type: ignore[arg-type]
        return Transitions.from_tensors(
            {k: v.clone() for k, v in self.buffer.rollout().tensors().items()}
        )


@contextlib.contextmanager
def running(*args: Any, **settings: Any) -> Iterator[Run]:
    run = Run(*args, **settings)
    try:
        yield run
    finally:
        run.envs.close()


def shake(policy: nn.Module) -> None:
    """Move away from the initial weights, whose policy is almost uniform."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)


class Branch(nn.Module):
    """A memory and the layers after it."""

    def __init__(self, policy: Any, member: int, kind: str) -> None:
        super().__init__()
        is_stacked = len(policy.memories) == 1
        memory, row = (policy.memories[0], member) if is_stacked else (policy.memories[member], 0)
        num_inputs, size = memory.input_weight.shape[1], memory.recurrent_weight.shape[1]
        self.memory = (nn.LSTM if kind == "lstm" else nn.GRU)(num_inputs, size)
        self.memory.weight_ih_l0.data = memory.input_weight[row].T.clone()
        self.memory.weight_hh_l0.data = memory.recurrent_weight[row].T.clone()
        self.memory.bias_ih_l0.data = memory.bias[row, 0].clone()
        if kind == "gru":
            self.memory.bias_hh_l0.data = memory.recurrent_bias[row, 0].clone()
        else:  # both biases are added to the same numbers, so the network has only one
            self.memory.bias_hh_l0.data.zero_()
            self.memory.bias_hh_l0.requires_grad_(False)
        part = (
            policy.networks
            if is_stacked
            else (policy.networks.policy, policy.networks.value)[member]
        )
        weights = [weight[member].T if is_stacked else weight for weight in part.weights]
        biases = [bias[member, 0] if is_stacked else bias for bias in part.biases]
        if member == 1:  # of the value function's outputs only the first is used
            weights[-1], biases[-1] = weights[-1][:1], biases[-1][:1]
        layers: list[nn.Module] = []
        for weight, bias in zip(weights, biases, strict=True):
            linear = nn.Linear(weight.shape[1], weight.shape[0])
            linear.weight.data, linear.bias.data = weight.detach().clone(), bias.detach().clone()
            layers += [linear, nn.Tanh()]
        self.layers = nn.Sequential(*layers[:-1])
        self.double()

    def forward(self, obs: Tensor, parts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Outputs [L, out] and the state after one sequence [L, in]; the state is one or two vectors [size]."""
        packed = tuple(part.view(1, 1, -1) for part in parts)
        outputs, after = self.memory(obs.unsqueeze(1), packed if len(packed) == 2 else packed[0])
        return self.layers(outputs[:, 0]), [
            part.view(-1) for part in (after if len(packed) == 2 else (after,))
        ]

    def zeros(self) -> list[Tensor]:
        return [torch.zeros(self.memory.hidden_size).double()] * (
            2 if isinstance(self.memory, nn.LSTM) else 1
        )


class Reference(nn.Module):
    """The same policy and value function, and the hidden states that they have in each environment."""

    def __init__(self, run: Run, action: str, kind: str) -> None:
        super().__init__()
        policy = run.algorithm.policy
        self.branches = nn.ModuleList(Branch(policy, member, kind) for member in (0, 1))
        self.choices = ACTIONS[action]
        head = getattr(policy.head, "log_std", None)
        self.log_std = None if head is None else nn.Parameter(head.detach().double().clone())
        self.config, self.states = run.algorithm.config, [self.zeros() for _ in range(NUM_ENVS)]
        config = self.config
        rates = [config.actor_learning_rate, config.critic_learning_rate]
        actor_rate, critic_rate = (config.learning_rate if rate is None else rate for rate in rates)
        actor = [*self.branches[0].parameters(), *([] if self.log_std is None else [self.log_std])]
        groups = [
            {"params": actor, "lr": actor_rate},
            {"params": self.branches[1].parameters(), "lr": critic_rate},
        ]
        self.optimizer = torch.optim.Adam(groups, eps=config.adam_eps)

    def zeros(self) -> list[list[Tensor]]:
        return [branch.zeros() for branch in self.branches]

    def run_over(
        self, obs: Tensor, states: list[list[Tensor]]
    ) -> tuple[Tensor, Tensor, list[list[Tensor]]]:
        """Policy outputs [L, out], values [L] and the states after one sequence."""
        (outputs, policy_state), (values, value_state) = (
            branch(obs.double(), state) for branch, state in zip(self.branches, states, strict=True)
        )
        return outputs, values[:, 0], [policy_state, value_state]

    def distribution(self, outputs: Tensor, masks: Tensor | None) -> list[Any]:
        if self.log_std is not None:
            return [Independent(Normal(outputs, self.log_std.exp()), 1)]
        if masks is not None:
            outputs = torch.where(masks, outputs, -torch.inf)
        return [Categorical(probs=part.softmax(-1)) for part in outputs.split(self.choices, -1)]

    def log_prob_and_entropy(
        self, outputs: Tensor, masks: Tensor | None, actions: Tensor
    ) -> tuple[Tensor, Tensor]:
        parts = self.distribution(outputs, masks)
        columns = [actions] if len(parts) == 1 else actions.unbind(-1)
        log_probs = [part.log_prob(column) for part, column in zip(parts, columns, strict=True)]
        return sum(log_probs), sum(part.entropy() for part in parts)  # type: ignore[return-value]

    @torch.no_grad()
    def walk(self, rollout: Transitions) -> dict[str, Any]:
        """Log-probabilities, values and next values [T, N], and the states before each step, one step at a time."""
        found: dict[str, Any] = {
            key: torch.zeros(NUM_STEPS, NUM_ENVS).double() for key in ("log_probs", "values")
        }
        found |= {"next_values": torch.zeros(NUM_STEPS, NUM_ENVS).double(), "states": {}}
        for env in range(NUM_ENVS):
            for t in range(NUM_STEPS):
                found["states"][t, env] = self.states[env]
                outputs, value, after = self.run_over(
                    rollout.obs[t, env].unsqueeze(0), self.states[env]
                )
                masks = None if rollout.masks is None else rollout.masks[t, env].unsqueeze(0)
                log_prob, _ = self.log_prob_and_entropy(
                    outputs, masks, rollout.actions[t, env].unsqueeze(0)
                )
                found["log_probs"][t, env], found["values"][t, env] = log_prob[0], value[0]
                if not rollout.terminated[
                    t, env
                ]:  # of the observation that follows in this episode
                    found["next_values"][t, env] = self.run_over(
                        rollout.next_obs[t, env].unsqueeze(0), after
                    )[1][0]
                self.states[env] = self.zeros() if rollout.dones[t, env] else after
        return found

    def advantages(self, rollout: Transitions, found: dict[str, Any]) -> Tensor:
        config, advantages = self.config, torch.zeros(NUM_STEPS + 1, NUM_ENVS).double()
        for t in reversed(range(NUM_STEPS)):
            for env in range(NUM_ENVS):
                target = (
                    rollout.rewards[t, env].double() + config.gamma * found["next_values"][t, env]
                )
                later = (
                    0.0
                    if rollout.dones[t, env]
                    else config.gamma * config.gae_lambda * advantages[t + 1, env]
                )
                advantages[t, env] = target - found["values"][t, env] + later
        return advantages[:-1]

    def sequence(
        self, rollout: Transitions, states: Any, number: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, entropies and values [L] of a sequence, from the states that were its first ones."""
        first, env = number // NUM_ENVS * LENGTH, number % NUM_ENVS
        state, parts = states[first, env], []
        ends = [t + 1 for t in range(first, first + LENGTH - 1) if rollout.dones[t, env]]
        for begin, end in pairwise([first, *ends, first + LENGTH]):
            outputs, values, _ = self.run_over(
                rollout.obs[begin:end, env], state if begin == first else self.zeros()
            )
            masks = None if rollout.masks is None else rollout.masks[begin:end, env]
            parts.append(
                (
                    *self.log_prob_and_entropy(outputs, masks, rollout.actions[begin:end, env]),
                    values,
                )
            )
        log_probs, entropies, values = (torch.cat(part) for part in zip(*parts, strict=True))
        return log_probs, entropies, values

    def steps_of(self, number: int) -> tuple[slice, int]:
        first = number // NUM_ENVS * LENGTH
        return slice(first, first + LENGTH), number % NUM_ENVS

    def update(
        self, rollout: Transitions, minibatches: list[list[int]], *, clip: float | None
    ) -> list[list[float]]:
        """Gradient steps on minibatches of sequences; returns policy loss, value loss, entropy and gradient norm."""
        found = self.walk(rollout)
        advantages = self.advantages(rollout, found)
        returns, metrics = advantages + found["values"], []
        for numbers in minibatches:
            parts = [self.sequence(rollout, found["states"], number) for number in numbers]
            log_probs, entropies, values = (torch.cat(part) for part in zip(*parts, strict=True))
            places = [self.steps_of(number) for number in numbers]
            chosen, targets, old = (
                torch.cat([field[place] for place in places])
                for field in (advantages, returns, found["log_probs"])
            )
            if self.config.normalize_advantage:
                chosen = (chosen - chosen.mean()) / (chosen.std() + 1e-8)
            if clip is None:
                policy_loss = -(chosen * log_probs).mean()
            else:
                ratio = (log_probs - old).exp()
                policy_loss = -torch.minimum(
                    ratio * chosen, ratio.clip(1 - clip, 1 + clip) * chosen
                ).mean()
            value_loss, entropy = (values - targets).square().mean(), entropies.mean()
            loss = policy_loss + self.config.vf_coef * value_loss - self.config.ent_coef * entropy
            self.optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.parameters(), self.config.max_grad_norm)
            self.optimizer.step()
            metrics.append([policy_loss.item(), value_loss.item(), entropy.item(), norm.item()])
        return metrics


def coming_minibatches(algorithm: Any) -> list[list[int]]:
    """The sequences of each minibatch of the next update."""
    generator, count = torch.Generator(), NUM_STEPS // LENGTH * NUM_ENVS
    generator.set_state(algorithm.generator.get_state())
    if isinstance(algorithm, A2CAlgorithm):
        return [list(range(count))]
    orders = [
        torch.randperm(count, generator=generator) for _ in range(algorithm.config.update_epochs)
    ]
    return [
        part.tolist()
        for order in orders
        for part in order.split(algorithm.config.minibatch_size // LENGTH)
    ]


def assert_same_weights(policy: Any, reference: Reference, kind: str) -> None:
    expected = {name: value for name, value in reference.named_parameters() if value.requires_grad}
    for member in (0, 1):
        copied = Branch(policy, member, kind)
        for name, value in copied.named_parameters():
            if value.requires_grad:
                wanted = expected[f"branches.{member}.{name}"]
                torch.testing.assert_close(
                    value, wanted, rtol=0, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}"
                )
    if reference.log_std is not None:
        torch.testing.assert_close(
            policy.head.log_std.double(), reference.log_std, rtol=0, atol=1e-5
        )


def check_updates(name: str, action: str, kind: str, **settings: Any) -> None:
    """Three rollouts with an update after each: log-probabilities, values, metrics and weights equal the reference."""
    with running(name, action, kind, **settings) as run:
        reference, ends = Reference(run, action, kind), np.zeros(2)
        for _ in range(3):
            rollout = run.collect()
            ends += [rollout.terminated.sum().item(), rollout.truncated.sum().item()]
            before = [
                [part.clone() for part in branch] for state in reference.states for branch in state
            ]
            found = reference.walk(rollout)
            torch.testing.assert_close(
                rollout.extras["values"].double(), found["values"], rtol=0, atol=1e-5
            )
            flat = iter(before)
            reference.states = [[next(flat), next(flat)] for _ in range(NUM_ENVS)]
            minibatches = coming_minibatches(run.algorithm)
            metrics = run.algorithm.update(rollout).metrics
            expected = reference.update(rollout, minibatches, clip=0.2 if name == "ppo" else None)
            actual = [
                metrics[key].item() for key in ("policy_loss", "value_loss", "entropy", "grad_norm")
            ]
            np.testing.assert_allclose(actual, np.mean(expected, 0), rtol=1e-4, atol=1e-5)
            assert_same_weights(run.algorithm.policy, reference, kind)
        assert ends.min() >= 2


@for_every_action_space
@for_both_kinds
def test_ppo_with_memory_equals_torch(action: str, kind: str) -> None:
    check_updates("ppo", action, kind)


@for_every_action_space
def test_a2c_with_memory_equals_torch(action: str) -> None:
    check_updates("a2c", action, "lstm")


@for_every_network
def test_policy_and_value_function_of_their_own_sizes_and_rates_equal_torch(
    settings: dict[str, Any],
) -> None:
    check_updates("ppo", "discrete", "gru", **settings)


@pytest.mark.parametrize("name", ["ppo", "a2c"])
@for_both_kinds
def test_states_are_zeros_after_an_episode_and_continue_across_rollouts(
    name: str, kind: str
) -> None:
    with running(name, kind=kind) as run:
        before, ended = (
            torch.zeros_like(run.algorithm.initial_state(NUM_ENVS)),
            torch.ones(NUM_ENVS, dtype=torch.bool),
        )
        seen = 0
        for _ in range(3):
            run.states.clear()
            rollout = run.collect()
            stored = rollout.extras["states"]
            assert torch.equal(stored, torch.stack(run.states))
            for t in range(NUM_STEPS):
                assert not stored[t][ended].any()
                assert torch.equal(stored[t][~ended], before[~ended])
                assert stored[t][~ended].any(1).all()
                seen += int(ended.sum())
                before = run.algorithm.act(rollout.obs[t], stored[t], explore=False).state
                ended = rollout.dones[t]
        assert seen > 2 * NUM_ENVS


def test_without_a_state_an_episode_begins() -> None:
    with running("ppo") as run:
        obs = torch.randn(NUM_ENVS, 3)
        zeros = run.algorithm.act(obs, run.algorithm.initial_state(NUM_ENVS), explore=False)
        assert torch.equal(run.algorithm.act(obs, explore=False).state, zeros.state)
        assert not run.algorithm.initial_state(NUM_ENVS).any()


def test_an_action_without_exploration_leaves_no_fields_and_draws_nothing() -> None:
    with running("ppo") as run:
        before = run.algorithm.generator.get_state()
        acted = run.algorithm.act(torch.randn(NUM_ENVS, 3), explore=False)
        assert not acted.fields
        assert torch.equal(before, run.algorithm.generator.get_state())
