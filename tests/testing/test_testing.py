"""`check_algorithm`: every built-in algorithm passes, and each kind of fault in a plugin fails its check."""

from __future__ import annotations

import importlib
import random
import re
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from conftest import TESTS, env_of
from torch import Tensor, nn

from rl_training import TrainConfig, testing
from rl_training.algorithms.base import ActResult, Algorithm, Resources, UpdateResult
from rl_training.algorithms.config import (
    AlgorithmConfig,
    OfflineConfig,
    OfflineToOnlineConfig,
    OffPolicyConfig,
    OnPolicyConfig,
)
from rl_training.algorithms.optim import Adam, descend
from rl_training.algorithms.replay import Batch, ReplayAlgorithm, bootstrap_discounts
from rl_training.errors import CheckpointError, ConfigError, EnvError
from rl_training.experiment import registry
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.logs import read_metrics
from rl_training.experiment.registry import (
    AlgorithmSpec,
    Loop,
    get_algorithm_spec,
    list_algorithm_specs,
    registered,
)
from rl_training.replay.transitions import Transitions
from rl_training.runtime.metrics import MetricAccumulator
from rl_training.runtime.run import run_training
from rl_training.runtime.session import Session
from rl_training.runtime.workflows import resume_training
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces
from rl_training.testing import (
    CHECKS,
    AlgorithmCase,
    AlgorithmCheckError,
    check_algorithm,
    check_evaluation,
    check_gradient_steps,
    check_metrics,
    check_resume,
    check_seed,
)

CONFIGS: dict[Loop, type[AlgorithmConfig]] = {
    Loop.ON_POLICY: OnPolicyConfig,
    Loop.OFF_POLICY: OffPolicyConfig,
    Loop.OFFLINE: OfflineToOnlineConfig,
}


class Sound(Algorithm[Any]):
    """A one-step Q-learner without fault, for every loop."""

    def __init__(self, config: AlgorithmConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.network = self.mlp_spec.make(spaces.obs.num_features, spaces.action.choices[0])
        self.optimizer: Any = Adam(self.network.parameters(), 1e-3)
        self.prepare()

    def prepare(self) -> None:
        """Where the faults below are made."""

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        if spaces.action.kind is not ActionKind.DISCRETE:
            raise EnvError("a Discrete action space is needed")

    def greedy(self, obs: Tensor) -> Tensor:
        return self.network(obs).argmax(-1)

    def explored(self, actions: Tensor) -> Tensor:
        return self.replace_at_random(actions, 0.3)

    @torch.no_grad()
    def act(
        self, obs: Tensor, state: Tensor | None = None, *, explore: bool, mask: Tensor | None = None
    ) -> ActResult:
        actions = self.greedy(obs)
        return ActResult(self.explored(actions) if explore else actions)

    def bootstrap(self, batch: Transitions) -> Tensor:
        return bootstrap_discounts(batch, self.config.gamma)

    def loss(self, batch: Transitions) -> Tensor:
        values = self.network(batch.obs).gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            next_values = self.network(batch.next_obs).amax(-1)
        return (values - batch.rewards - self.bootstrap(batch) * next_values).square().mean()

    def update(self, batch: Transitions) -> UpdateResult:
        loss = self.loss(batch)
        descend(loss, self.optimizer)
        return self.report(loss.detach())

    def report(self, loss: Tensor) -> UpdateResult:
        return UpdateResult({"critic_loss": loss})


class TorchOptimizer(Sound):
    """A list of networks, an optimizer and a scheduler of torch, and a network in a plain object."""

    def prepare(self):
        self.network = None
        sizes = self.spaces.obs.num_features, self.spaces.action.choices[0]
        self.networks = [self.mlp_spec.make(*sizes), self.mlp_spec.make(*sizes)]
        self.targets = SimpleNamespace(network=self.mlp_spec.make(*sizes), owner=self)
        self.optimizer = torch.optim.AdamW(
            [p for net in self.networks for p in net.parameters()], lr=1e-2
        )
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)

    def greedy(self, obs):
        return sum(network(obs) for network in (*self.networks, self.targets.network)).argmax(-1)

    def update(self, batch):
        rewards, target = batch.rewards, self.targets.network
        loss = sum(
            ((net(batch.obs).amax(-1) - rewards - target(batch.next_obs).amax(-1)) ** 2).mean()
            for net in self.networks
        )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        for own, source in zip(target.parameters(), self.networks[0].parameters(), strict=True):
            own.data.lerp_(source.data, 0.1)
        return self.report(loss.detach())


class OwnStateDict(Sound):
    """A plain attribute that the algorithm saves by itself."""

    def prepare(self):
        self.average = 1.0

    def update(self, batch):
        self.average *= 0.9
        return super().update(batch)

    def state_dict(self):
        return {**super().state_dict(), "average": self.average}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.average = state["average"]


class Alternating(Sound):
    """Metrics that not every update reports, as numbers and as tensors of shape [1]."""

    def prepare(self):
        self.counters["updates"] = 0

    def report(self, loss):
        self.counters["updates"] += 1
        if self.counters["updates"] % 2:
            return UpdateResult({"both": torch.tensor([9.0]), "odd": torch.tensor([1.0])})
        return UpdateResult({"even": 2, "both": 0.0})


class ThreeSteps(Sound):
    """Three gradient steps per update."""

    def update(self, batch):
        for _ in range(2):
            super().update(batch)
        return UpdateResult(super().update(batch).metrics, gradient_steps=3)


@pytest.mark.parametrize("algo", [spec.name for spec in list_algorithm_specs()])
def test_every_built_in_algorithm_passes(algo: str) -> None:
    spec = get_algorithm_spec(algo)
    check_algorithm(spec.algorithm_class(), spec.config_class(), spec.loop, env_id=env_of(algo))


@pytest.mark.parametrize(
    ("algorithm_class", "loop"),
    [
        (Sound, Loop.ON_POLICY),
        (TorchOptimizer, Loop.OFF_POLICY),
        (OwnStateDict, Loop.OFF_POLICY),
        (Alternating, Loop.OFF_POLICY),
        (ThreeSteps, Loop.OFF_POLICY),
        (ThreeSteps, Loop.OFFLINE),
    ],
)
def test_a_sound_plugin_passes(algorithm_class: type[Algorithm[Any]], loop: Loop) -> None:
    check_algorithm(algorithm_class, CONFIGS[loop], loop)


class PlainTensor(Sound):
    def prepare(self):
        self.scale = torch.ones(1)


class LateTensor(Sound):
    def update(self, batch):
        self.last_rewards = batch.rewards
        return super().update(batch)


class SecondGenerator(Sound):
    def prepare(self):
        self.noise = torch.Generator()


class NumpyGenerator(Sound):
    def prepare(self):
        self.rngs = [np.random.default_rng(0)]


class GlobalInit(Sound):
    def prepare(self):
        self.head = nn.Linear(2, 2)


class FloatCounter(Sound):
    def prepare(self):
        self.counters["average"] = 0.5


class PlainCounter(Sound):
    def prepare(self):
        self.num_updates = 0

    def report(self, loss):
        self.num_updates += 1
        return super().report(loss)


class PlainObject(Sound):
    def prepare(self):
        self.noise = SimpleNamespace(state=np.zeros(2), scale=1.0)

    def explored(self, actions):
        self.noise.state = self.noise.state + 1.0
        return super().explored(actions)


class CounterInModule(Sound):
    def prepare(self):
        self.network.calls = 0

    def report(self, loss):
        self.network.calls += 1
        return super().report(loss)


class History(Sound):
    def prepare(self):
        self.losses = []

    def report(self, loss):
        self.losses.append(float(loss))
        return super().report(loss)


class LateMember(Sound):
    def prepare(self):
        self.second = None

    def update(self, batch):
        self.second = self.second or Adam(self.network.parameters(), 1e-3)
        descend(self.loss(batch), self.second)
        return super().update(batch)


class IncompleteState(Sound):
    """A member whose `state_dict` is not all of its state."""

    def prepare(self):
        self.hidden = SimpleNamespace(
            state_dict=dict, load_state_dict=lambda state: None, values={"count": 0}
        )

    def report(self, loss):
        self.hidden.values["count"] += 1
        return UpdateResult({"critic_loss": loss, "count": self.hidden.values["count"]})


class DrawsWithoutExplore(Sound):
    def greedy(self, obs):
        return self.explored(super().greedy(obs))


class DrawsGlobally(Sound):
    def report(self, loss):
        random.random()
        np.random.rand()
        return super().report(loss)


class WrongDtype(Sound):
    def greedy(self, obs):
        return super().greedy(obs).float()


class WrongShape(Sound):
    def greedy(self, obs):
        return super().greedy(obs).unsqueeze(-1)


class OutOfRange(Sound):
    def greedy(self, obs):
        return super().greedy(obs) + 2


class ModifiesObs(Sound):
    def greedy(self, obs):
        return super().greedy(obs.clamp_(-0.01, 0.01))


class ModifiesBatch(Sound):
    def update(self, batch):
        batch.rewards.mul_(0.1)
        return super().update(batch)


class CutByTruncation(Sound):
    def bootstrap(self, batch):
        return 0.99 * ~batch.dones


class AcceptsAll(Sound):
    @classmethod
    def check_spaces(cls, spaces):
        pass


class WrongError(Sound):
    @classmethod
    def check_spaces(cls, spaces):
        if spaces.action.kind is ActionKind.MULTI_DISCRETE:
            raise ValueError("unsuitable")
        super().check_spaces(spaces)


class WithGradient(Sound):
    def update(self, batch):
        loss = self.loss(batch)
        super().update(batch)
        return self.report(loss)


class VectorMetric(Sound):
    def report(self, loss):
        return UpdateResult({"critic_loss": loss.expand(3)})


class InfiniteMetric(Sound):
    def report(self, loss):
        return UpdateResult({"critic_loss": loss, "ratio": torch.tensor(float("inf"))})


class HalfStep(Sound):
    def report(self, loss):
        return UpdateResult({"critic_loss": loss}, gradient_steps=0.5)


class LearnsNothing(Sound):
    def update(self, batch):
        return UpdateResult({"critic_loss": torch.zeros(())})


class ReservedMetric(Sound):
    def report(self, loss):
        return UpdateResult({"critic_loss": loss, "global_step": torch.tensor(5.0)})


class ClassCounter(Sound):
    """State that every object of the class shares."""

    calls: ClassVar[int] = 0

    def bootstrap(self, batch):
        ClassCounter.calls += 1
        return super().bootstrap(batch) * (0.999**ClassCounter.calls)


HOLD = "that no checkpoint would hold: make it a buffer"
KEEP = "changes in act or update, and no checkpoint holds it: keep everything that changes in self.counters"
FAULTS = [
    (PlainTensor, "check_construction", f"attribute 'scale' of PlainTensor is a Tensor {HOLD}"),
    (
        SecondGenerator,
        "check_construction",
        f"attribute 'noise' of SecondGenerator is a Generator {HOLD}",
    ),
    (
        NumpyGenerator,
        "check_construction",
        f"attribute 'rngs.0' of NumpyGenerator is a Generator {HOLD}",
    ),
    (
        GlobalInit,
        "check_construction",
        "the constructor draws from the global generator of torch, which no",
    ),
    (
        FloatCounter,
        "check_construction",
        "self.counters['average'] of FloatCounter is 0.5, not an int: keep it in a",
    ),
    (
        DrawsWithoutExplore,
        "check_act",
        "act draws from self.generator without explore: return the deterministic",
    ),
    (WrongDtype, "check_act", "act returns torch.float32: return torch.int64"),
    (WrongShape, "check_act", "act returns shape (1, 1) for 1 observations: return shape (1,)"),
    (OutOfRange, "check_act", "return model actions, from 0 to [1]"),
    (
        AcceptsAll,
        "check_spaces",
        "check_spaces accepts Box(-2.0, 2.0, (2,), float32) actions, but with them IndexError",
    ),
    (
        WrongError,
        "check_spaces",
        "raises ValueError (unsuitable) for MultiDiscrete([2 3]) actions: raise an EnvError",
    ),
    (LateTensor, "check_update", f"attribute 'last_rewards' of LateTensor is a Tensor {HOLD}"),
    (
        DrawsGlobally,
        "check_update",
        "update draws from the global generator of numpy and Python, which",
    ),
    (
        WithGradient,
        "check_update",
        "metric 'critic_loss' has a gradient: report critic_loss.detach()",
    ),
    (
        VectorMetric,
        "check_update",
        "metric 'critic_loss' is a tensor of shape (3,): report scalar tensors or numbers",
    ),
    (InfiniteMetric, "check_update", "metric 'ratio' is inf"),
    (
        HalfStep,
        "check_update",
        "gradient_steps is 0.5: report the optimizer steps of the update, an int",
    ),
    (
        ClassCounter,
        "check_update",
        "two objects with the same seed learn differently from the same batches, at state/",
    ),
    (LearnsNothing, "check_update", "3 updates change no parameter"),
    (
        ModifiesObs,
        "check_inputs",
        "act modifies the observations in place: work on a copy: obs.clone()",
    ),
    (
        ModifiesBatch,
        "check_inputs",
        "update modifies batch.rewards in place: work on a copy: batch.rewards.clone()",
    ),
    (
        CutByTruncation,
        "check_truncation",
        "use bootstrap_discounts(batch, gamma) or batch.terminated, not batch.dones",
    ),
    (PlainCounter, "check_state", f"attribute 'num_updates' {KEEP}"),
    (PlainObject, "check_state", f"attribute 'noise.state' {KEEP}"),
    (CounterInModule, "check_state", f"attribute 'network.calls' {KEEP}"),
    (History, "check_state", f"attribute 'losses' {KEEP}"),
    (
        LateMember,
        "check_state",
        "saved member 'second' is not in a new LateMember: create it in __init__",
    ),
    (
        IncompleteState,
        "check_state",
        "act and update continue differently, at state/metrics/count: keep everything",
    ),
    (
        ReservedMetric,
        "check_seed",
        "metric 'global_step' of an update has the name of a value that the run logs: rename",
    ),
]


@pytest.mark.parametrize(
    ("algorithm_class", "check", "message"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS]
)
def test_a_faulty_plugin_fails_the_check_that_names_the_fault(
    algorithm_class: type[Algorithm[Any]], check: str, message: str
) -> None:
    with pytest.raises(AlgorithmCheckError, match=re.escape(message)) as caught:
        check_algorithm(algorithm_class, OffPolicyConfig, Loop.OFF_POLICY)
    assert str(caught.value).startswith(f"{algorithm_class.__name__} fails {check}: ")


class Biased(Sound):
    """An unsaved attribute that decides the actions."""

    def prepare(self):
        self.bias = 0

    def greedy(self, obs):
        return (super().greedy(obs) + self.bias) % 2

    def report(self, loss):
        self.bias = 1
        return super().report(loss)


class Constant(Sound):
    def prepare(self):
        for parameter in self.network.parameters():
            nn.init.zeros_(parameter)

    update = LearnsNothing.update


@pytest.mark.parametrize(
    ("algorithm_class", "check", "message"),
    [
        (Biased, check_resume, r"was stopped .* and resumed differs .* was not, at run/"),
        (
            Biased,
            check_evaluation,
            r"evaluate_checkpoint gives eval_return_mean .*, the run logged",
        ),
        (ClassCounter, check_seed, r"with the same seed differ at run/algorithm/members/"),
        (Constant, check_seed, "Constant fails check_seed: runs with two seeds learn the same"),
    ],
)
def test_runs_find_lost_state_and_seeds_without_effect_by_themselves(
    algorithm_class: type[Sound], check: Any, message: str
) -> None:
    with pytest.raises(AlgorithmCheckError, match=message):
        check(AlgorithmCase(algorithm_class, OffPolicyConfig, Loop.OFF_POLICY))


@pytest.mark.parametrize("algo", ["ppo", "a2c", "dqn", "td3_bc"])
def test_a_resumed_run_follows_the_schedules_of_the_one_that_was_never_stopped(algo: str) -> None:
    spec = get_algorithm_spec(algo)
    schedule = {"learning_rate": {"kind": "linear", "start": 1e-2, "end": 0.0}}
    check_resume(
        AlgorithmCase(
            spec.algorithm_class(), spec.config_class(), spec.loop, env_of(algo), schedule
        )
    )


def test_wrong_means_in_the_log_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    collect = MetricAccumulator.collect
    monkeypatch.setattr(
        MetricAccumulator, "collect", lambda self: {k: 2 * v for k, v in collect(self).items()}
    )
    with pytest.raises(
        AlgorithmCheckError, match=r"the log line has 18\.0 for metric 'both', whose mean is 9\.0:"
    ):
        check_metrics(AlgorithmCase(Alternating, OnPolicyConfig, Loop.ON_POLICY))


def test_wrong_counts_in_the_log_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    updated = Session.updated

    def count_once(session: Session, result: UpdateResult) -> None:
        before = session.state.update_count
        updated(session, result)
        session.state.update_count = before + 1

    monkeypatch.setattr(Session, "updated", count_once)
    with pytest.raises(
        AlgorithmCheckError, match=r"step 32 has gradient_steps 1: .*: their sum is 3"
    ):
        check_gradient_steps(AlgorithmCase(ThreeSteps, OnPolicyConfig, Loop.ON_POLICY))


class ThreeGraphSteps(ReplayAlgorithm[Any]):
    """Three gradient steps per `gradient_step`."""

    def __init__(self, config: Any, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.network = self.mlp_spec.make(spaces.obs.num_features, spaces.action.choices[0])
        self.optimizer = Adam(self.network.parameters(), 1e-3)

    check_spaces, greedy, explored, act = (
        Sound.check_spaces,
        Sound.greedy,
        Sound.explored,
        Sound.act,
    )

    def gradient_step(self, batch: Batch) -> UpdateResult:
        for _ in range(3):
            loss = (self.network(batch.obs).amax(-1) - batch.rewards).square().mean()
            descend(loss, self.optimizer)
        return UpdateResult({"critic_loss": loss}, gradient_steps=3)


@pytest.mark.parametrize(
    ("algorithm_class", "loop", "num_updates"),
    [
        (ThreeSteps, Loop.OFF_POLICY, 72),
        (ThreeSteps, Loop.OFFLINE, 32 + 72),
        (ThreeGraphSteps, Loop.OFF_POLICY, 72),
    ],
)
def test_updates_of_three_gradient_steps_keep_the_ratio_of_updates(
    algorithm_class: type[Algorithm[Any]], loop: Loop, num_updates: int, tmp_path: Path
) -> None:
    """A run of 96 steps has 2 * 36 updates off-policy; offline 32, and then 2 * 36."""
    case = AlgorithmCase(algorithm_class, CONFIGS[loop], loop)
    with registered(case.spec):
        result = run_training(case.train_config(tmp_path))
    last = list(read_metrics(result.run_dir / "metrics.jsonl"))[-1]
    assert last["gradient_steps"] == 3 * num_updates


@pytest.mark.parametrize(
    ("config_class", "loop", "base"),
    [
        (OnPolicyConfig, Loop.OFF_POLICY, "OffPolicyConfig"),
        (OfflineConfig, Loop.ON_POLICY, "OnPolicyConfig"),
        (OffPolicyConfig, Loop.OFFLINE, "OfflineConfig"),
    ],
)
def test_a_config_class_of_another_loop_is_refused(
    config_class: type[AlgorithmConfig], loop: Loop, base: str
) -> None:
    message = f"config class {config_class.__name__} does not inherit {base}, which {loop} reads: derive it from {base}"
    with pytest.raises(ConfigError, match=message):
        check_algorithm(Sound, config_class, loop)


def test_wrong_settings_and_environments_are_config_errors() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'batchsize'.*did you mean 'batch_size'"):
        check_algorithm(Sound, OffPolicyConfig, Loop.OFF_POLICY, algo_kwargs={"batchsize": 3})
    with pytest.raises(
        ConfigError,
        match="check_spaces of Sound does not accept Pendulum-v1: pass the env_id of one",
    ):
        check_algorithm(Sound, OffPolicyConfig, Loop.OFF_POLICY, env_id="Pendulum-v1")


def test_a_check_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before, threads = dict(registry._SPECS), torch.get_num_threads()
    case = AlgorithmCase(Sound, OnPolicyConfig, Loop.ON_POLICY)
    for check in CHECKS:
        check(case)
    with pytest.raises(AlgorithmCheckError):
        check_algorithm(ReservedMetric, OnPolicyConfig, Loop.ON_POLICY)
    assert before == registry._SPECS
    assert torch.get_num_threads() == threads
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_registered_algorithm_can_be_checked_and_stays_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
    spec = AlgorithmSpec("sound", "a user's own", Sound, OnPolicyConfig, Loop.ON_POLICY)
    with registered(spec):
        check_algorithm(Sound, OnPolicyConfig, Loop.ON_POLICY)
        assert get_algorithm_spec("sound") is spec
        with pytest.raises(ConfigError, match="'sound' is already registered"), registered(spec):
            pass
    with pytest.raises(ConfigError, match="unknown algorithm 'sound'"):
        get_algorithm_spec("sound")


def test_a_member_made_after_construction_is_refused_on_resume(tmp_path: Path) -> None:
    case = AlgorithmCase(LateMember, OnPolicyConfig, Loop.ON_POLICY)
    with registered(case.spec):
        config: TrainConfig = case.train_config(tmp_path)
        result = run_training(config)
        with pytest.raises(
            CheckpointError, match="saved member 'second' is not in a new LateMember: create it in"
        ):
            resume_training(result.run_dir, total_timesteps=2 * config.total_timesteps)


COSTS = """
import gymnasium as gym


class Costs(gym.Wrapper):
    def step(self, action):
        *answer, info = self.env.step(action)
        return *answer, {**info, "cost": 2.0 * action}


def make():
    return Costs(gym.make("CartPole-v1"))
"""


def test_the_examples_of_the_documentation_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (TESTS.parent / "docs" / "extending.md").read_text()
    found = re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in found] == ["my_algorithm", "soft_q", "drqn", "cost_q", "test_mine"]
    for name, text in found:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
    tests = importlib.import_module("test_mine")
    tests.test_reinforce()
    tests.test_soft_q_with_prioritized_replay()
    tests.test_drqn_with_action_masks()
    assert {"reinforce", "soft_q", "drqn"} <= set(registry._SPECS)
    (tmp_path / "costs.py").write_text(COSTS)
    example = importlib.import_module("cost_q").CostQ
    config = importlib.import_module("soft_q").SoftQConfig
    env_id = f"{tmp_path}/costs.py:make"
    check_algorithm(example, config, Loop.OFF_POLICY, env_id=env_id)
    case = AlgorithmCase(example, config, Loop.OFF_POLICY, env_id, {"n_step": 1})
    with registered(case.spec):
        result = run_training(case.train_config(tmp_path))
    rows = load_checkpoint(result.checkpoint_path).buffer_state["segments"][0].arrays
    np.testing.assert_array_equal(rows["cost"], 2.0 * rows["actions"])


def test_the_page_lists_every_check() -> None:
    page = (TESTS.parent / "docs" / "extending.md").read_text()
    names = [check.__name__ for check in CHECKS]
    assert re.findall(r"^\| `(check_\w+)` \|", page, re.MULTILINE) == names
    assert re.findall(r"^- `(check_\w+)`:", testing.__doc__ or "", re.MULTILINE) == names
