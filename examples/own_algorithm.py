"""An algorithm of your own: Munchausen DQN (Vieillard et al. 2020), checked, trained, and compared with DQN.

python examples/own_algorithm.py
rl-training train munchausen_dqn CartPole-v1 --plugin examples/own_algorithm.py    # the same algorithm by name
"""

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from rl_training import DQN
from rl_training.algorithms.base import UpdateResult
from rl_training.algorithms.dqn import DQNAlgorithm, DQNConfig
from rl_training.algorithms.optim import descend
from rl_training.algorithms.replay import Batch
from rl_training.api.agent import AlgorithmAPI
from rl_training.experiment.registry import AlgorithmSpec, Loop, register_algorithm
from rl_training.models.actions import masked
from rl_training.testing import check_algorithm

SETTINGS: dict[str, Any] = {"learning_rate": 1e-3, "target_update_interval": 200, "learning_starts": 1000}


class MunchausenConfig(DQNConfig):
    """Settings of DQN and three more; the line under each is its help text in `rl-training algos`."""

    munchausen_alpha: float = 0.9
    """Weight of the log-policy in the reward."""
    temperature: float = 0.03
    """Entropy temperature of the policy softmax(Q / temperature)."""
    lowest_log_policy: float = -1.0
    """Lower bound of temperature * log-policy; without it, improbable actions would give huge penalties."""


class MunchausenDQN(DQNAlgorithm):
    """Adds the log-probability of the taken action to the reward, and bootstraps with the soft value."""

    config: MunchausenConfig
    name = "munchausen_dqn"

    def gradient_step(self, batch: Batch) -> UpdateResult:
        """DQN's step with another target; acting, replay, schedules and checkpoints are inherited."""
        actions = batch.actions.unsqueeze(1)
        values = self.network(batch.obs).gather(1, actions).squeeze(1)
        with torch.no_grad():
            tau = self.config.temperature
            log_policy = (masked(self.target_network(batch.obs), batch.masks) / tau).log_softmax(1)
            bonus = (tau * log_policy.gather(1, actions).squeeze(1)).clamp(self.config.lowest_log_policy, 0.0)
            # Sum over a of pi(a|s') (Q(s', a) - tau log pi(a|s')) equals tau logsumexp(Q(s', .) / tau).
            next_values = masked(self.target_network(batch.next_obs), batch.next_masks) / tau
            soft_targets = batch.targets(tau * next_values.logsumexp(1))  # no bootstrap where the episode terminated
            targets = soft_targets + self.config.munchausen_alpha * bonus  # eq. 2
        loss = batch.mean(F.smooth_l1_loss(values, targets, reduction="none"))  # weighted in prioritized replay
        grad_norm = descend(loss, self.optimizer, self.config.max_grad_norm)
        metrics = {"critic_loss": loss, "q_mean": values.mean(), "bonus_mean": bonus.mean(), "grad_norm": grad_norm}
        return UpdateResult(metrics, td_errors=batch.td_errors(values, targets))


SPEC = AlgorithmSpec("munchausen_dqn", "Munchausen DQN", MunchausenDQN, MunchausenConfig, Loop.OFF_POLICY)
register_algorithm(SPEC)  # from here on it has a name, for `algo:` in files and for the command line


class Munchausen(AlgorithmAPI, algo="munchausen_dqn"):
    """The registered algorithm as a class like `DQN`: learn, evaluate, predict, save, load."""


def main() -> None:
    """Check the algorithm, then train it and its parent on the same seeds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--total-timesteps", type=int, default=15_000)
    parser.add_argument("--output-dir", type=Path, default=Path("runs"))
    settings = SETTINGS | vars(parser.parse_args())

    check_algorithm(MunchausenDQN, MunchausenConfig, Loop.OFF_POLICY)  # raises, with the fault and the remedy
    print("check_algorithm: shapes, seeding, state and exact resume are right")
    for agent_class in (DQN, Munchausen):
        scores = []
        for seed in range(3):
            # Without presets, both algorithms have the same settings.
            agent = agent_class("CartPole-v1", preset=False, progress=False, seed=seed, **settings)
            if agent.learn().was_interrupted:  # by Ctrl-C: learn() has saved the run, and returns
                raise SystemExit("stopped")
            scores.append(agent.evaluate(num_episodes=20)["eval_return_mean"])
        print(f"{agent_class.__name__:<12}" + "".join(f"{score:8.1f}" for score in scores))
    print("Three seeds are an impression; examples/study_and_comparison.py shows a test.")


if __name__ == "__main__":
    main()
