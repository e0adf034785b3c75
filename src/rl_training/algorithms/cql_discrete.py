"""Conservative Q-learning, CQL (Kumar et al. 2020), on double DQN for Discrete actions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_training.algorithms.base import ActResult, Resources, UpdateResult
from rl_training.algorithms.cql import CQLAlgorithm, CQLConfig
from rl_training.algorithms.optim import descend, polyak
from rl_training.algorithms.replay import Batch, ReplayAlgorithm
from rl_training.errors import ConfigError
from rl_training.models.actions import masked
from rl_training.models.critics import QNetwork
from rl_training.models.mlp import frozen_copy
from rl_training.spaces.spec import Spaces

BOX_ONLY = (
    *("actor_hidden_sizes", "critic_hidden_sizes", "actor_learning_rate", "critic_learning_rate"),
    *("num_cql_samples", "lagrange_threshold", "alpha", "target_entropy", "backup_entropy", "backup_mean"),
)


class DiscreteCQLAlgorithm(ReplayAlgorithm[CQLConfig]):
    """CQL for Discrete actions: double DQN with the conservative penalty."""

    obeys_masks = True

    def __init__(self, config: CQLConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        _refuse_box_settings(config)
        self.network = QNetwork(spaces, self.mlp_spec).to(self.device)
        self.target_network = frozen_copy(self.network)
        self.optimizer = self.make_optimizer(self.network.parameters())

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """Checked by `CQLAlgorithm`."""
        CQLAlgorithm.check_spaces(spaces)

    @torch.no_grad()
    def act(self, obs: Tensor, state: Tensor | None = None, *, explore: bool, mask: Tensor | None = None) -> ActResult:
        """The valid action of the largest Q-value."""
        return ActResult(masked(self.network(self.preprocess(obs)), mask).argmax(-1))

    def gradient_step(self, batch: Batch) -> UpdateResult:
        """One step on the TD loss and the conservative penalty."""
        values = self.network(batch.obs)  # [B, num_actions]
        data_values = values.gather(1, batch.actions.unsqueeze(1)).squeeze(1)
        td_loss = F.smooth_l1_loss(data_values, self._targets(batch))
        gap = (masked(values, batch.masks).logsumexp(1) - data_values).mean()  # CQL eq. 4
        critic_loss = td_loss + self.config.cql_alpha * gap
        grad_norm = descend(critic_loss, self.optimizer)
        polyak(self.network, self.target_network, self.config.tau)
        return UpdateResult(
            {
                "td_loss": td_loss,
                "conservative_gap": gap,
                "critic_loss": critic_loss,
                "critic_grad_norm": grad_norm,
                "q_mean": data_values.mean(),
            }
        )

    @torch.no_grad()
    def _targets(self, batch: Batch) -> Tensor:
        next_values = masked(self.network(batch.next_obs), batch.next_masks)
        best = next_values.argmax(1, keepdim=True)  # Double DQN, eq. 4
        return batch.targets(self.target_network(batch.next_obs).gather(1, best).squeeze(1))


def _refuse_box_settings(config: CQLConfig) -> None:
    defaults = CQLConfig()
    for name in BOX_ONLY:
        value = getattr(config, name)
        if value != getattr(defaults, name):
            raise ConfigError(f"algo_kwargs.{name} of cql is {value}, but Discrete actions do not use it: remove it")
