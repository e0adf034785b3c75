"""Settings of algorithms with an actor and critics: hidden layers and learning rate of each."""

from __future__ import annotations

from typing import Annotated

from rl_training.algorithms.config import SIZES, AlgorithmConfig, HiddenSizes, Scheduled
from rl_training.algorithms.tune import Tune

RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)


class ActorCriticConfig(AlgorithmConfig):
    """Settings of algorithms with an actor and critics; the value functions of PPO, A2C and IQL count as critics."""

    actor_hidden_sizes: Annotated[HiddenSizes | None, Tune(choices=(None, *SIZES), by_name=True)] = None
    """Width of each hidden layer of the actor; null: `hidden_sizes`."""
    critic_hidden_sizes: Annotated[HiddenSizes | None, Tune(choices=(None, *SIZES), by_name=True)] = None
    """Width of each hidden layer of the critics; null: `hidden_sizes`."""
    actor_learning_rate: Annotated[Scheduled | None, Tune(choices=(None, *RATES), by_name=True)] = None
    """Learning rate of the actor and of an entropy temperature: a number or a schedule; null: `learning_rate`."""
    critic_learning_rate: Annotated[Scheduled | None, Tune(choices=(None, *RATES), by_name=True)] = None
    """Learning rate of the critics: a number or a schedule; null: `learning_rate`."""

    def network_sizes(self) -> dict[str, HiddenSizes]:
        """Hidden layers of the actor and of the critics, in this order, by the key that sets them."""
        own = {"actor_hidden_sizes": self.actor_hidden_sizes, "critic_hidden_sizes": self.critic_hidden_sizes}
        shared = ("hidden_sizes", self.hidden_sizes)
        return dict(shared if sizes is None else (key, sizes) for key, sizes in own.items())

    def has_one_size(self) -> bool:
        """Whether the actor and the critics have the same hidden layers."""
        return len(set(self.network_sizes().values())) == 1

    def has_one_learning_rate(self) -> bool:
        """Whether the actor and the critics have the same learning rate."""
        rates = (self.actor_learning_rate, self.critic_learning_rate)
        actor, critic = (self.learning_rate if rate is None else rate for rate in rates)
        return actor == critic
