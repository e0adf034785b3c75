"""What can be done with a checkpoint: evaluate it, act with it, go on training from it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_training.algorithms.base import Algorithm
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.spaces import ActionKind, Spaces
from rl_training.envs.factory import unknown_code
from rl_training.envs.foreign_paths import refuse_unknown_paths
from rl_training.errors import CheckpointError, ConfigError, EnvError
from rl_training.experiment.checkpoint_folder import CHECKPOINT_NAME
from rl_training.experiment.checkpointing import CheckpointState, load_checkpoint, resolve_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.migrations import upgrade_algo_kwargs
from rl_training.experiment.progress import counter
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.callbacks import AnyCallback, CallbackList
from rl_training.runtime.evaluation import Evaluator, act_on
from rl_training.runtime.offline_evaluation import fitted_q_evaluation
from rl_training.runtime.parts import check_data, make_algorithm, try_to_close
from rl_training.runtime.plugins import check_registered, find_algorithm, find_recorded
from rl_training.runtime.recording import Recording, noisy_policy, record_transitions
from rl_training.runtime.run_utils import RunSeeds, TrainingRun
from rl_training.runtime.saved_state import check_network_size, check_trainer_state, naming_misfits
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.training import Place, choose_execution, run_training
from rl_training.streams import tell


@dataclass(frozen=True)
class ResumePlan:
    """A run that can go on: its new configuration, its state, and the folder it continues in (None: a new one)."""

    config: TrainConfig
    checkpoint_path: Path
    state: CheckpointState
    run: TrainingRun | None

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to do: no step, no update, and no evaluation that a killed process owes."""
        if self.run is not None and self.run.was_cut_short:
            return False
        is_open = self.state.trainer_state["session"].get("is_within_iteration", False)
        return self.global_step >= self.config.total_timesteps and not is_open

    @property
    def global_step(self) -> int:
        """The step at which the run goes on."""
        with naming_misfits():
            return int(self.state.trainer_state["session"]["global_step"])


def load_algorithm(path: str | Path, *, device: str = "auto") -> tuple[TrainConfig, Algorithm[Any], CheckpointState]:
    """The trained algorithm in a checkpoint, ready to act. Neither the buffer nor an environment is touched."""
    state = load_checkpoint(path, include_buffer=False)
    config = _read_config(state, device=device)
    return config, restore_algorithm(config, state.algorithm_state), state


def _read_config(state: CheckpointState, **changes: Any) -> TrainConfig:
    if isinstance(state.config.get("algo"), str):
        find_algorithm(state.config["algo"], state.metadata)
    return TrainConfig(**state.config).replace(**changes)


def restore_algorithm(config: TrainConfig, algorithm_state: dict[str, Any]) -> Algorithm[Any]:
    """An algorithm as its `state_dict` describes it."""
    algo_config = get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
    spaces = _read_spaces(algorithm_state)
    check_network_size(algo_config, spaces, algorithm_state)
    with naming_misfits():
        algorithm = make_algorithm(config, algo_config, spaces)
        algorithm.load_state_dict(algorithm_state)
    return algorithm


def _read_spaces(algorithm_state: dict[str, Any]) -> Spaces:
    with naming_misfits():
        return Spaces.from_state_dict(algorithm_state["spaces"])


def evaluate_checkpoint(path: str | Path, *, num_episodes: int | None = None, device: str = "auto") -> dict[str, float]:
    """Evaluate a checkpoint (or a run folder's last one) as training does.

    With the number of episodes the run was configured with, this gives the number that training logged.
    """
    config, algorithm, state = load_algorithm(path, device=device)
    with choose_execution(config, state).applied():
        metrics = evaluate_algorithm(config, algorithm, num_episodes, state.metadata)
    return {"global_step": stored_step(state), **metrics}


def stored_step(state: CheckpointState) -> int:
    """The step at which a checkpoint was written."""
    step = state.metadata.get("global_step", 0)
    if type(step) is not int or step < 0:
        raise CheckpointError(f"the checkpoint's global_step should be a number of steps, not {step!r:.100}")
    return step


def evaluate_checkpoint_offline(
    path: str | Path, dataset: TransitionDataset, *, num_updates: int = 10_000, device: str = "auto"
) -> dict[str, float]:
    """Judge a checkpoint by recorded transitions alone (fitted Q evaluation), by their raw rewards."""
    config, algorithm, state = load_algorithm(path, device=device)
    check_data(dataset, algorithm.spaces)
    data = dataset.to_model_space(algorithm.spaces)
    with choose_execution(config, state).applied():
        score = fitted_q_evaluation(algorithm, data, num_updates=num_updates, seed=config.seed)
    return {"global_step": stored_step(state), **vars(score)}


def evaluate_algorithm(
    config: TrainConfig,
    algorithm: Algorithm[Any],
    num_episodes: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Evaluate on the seeds that belong to the run. A checkpoint's `metadata` names the plugins that may be missing."""
    if num_episodes is not None and num_episodes < 1:
        raise ConfigError(f"bad value {num_episodes} for the number of evaluation episodes: should be at least 1")
    env_id = config.required_env_id
    refuse_unknown_code(env_id, metadata or {})
    refuse_unknown_paths(config.env_kwargs)
    seeds = RunSeeds.from_seed(config.seed).eval_seeds(num_episodes or config.eval_episodes)
    evaluator = Evaluator(env_id, config.env_kwargs, seeds)
    try:
        if not evaluator.spaces.equals(algorithm.spaces):
            raise EnvError(f"environment '{config.env_id}' has other spaces than the one the policy was trained in")
        with counter(len(seeds), "evaluating", "episodes", counts_calls=True) as show:
            return evaluator.evaluate(algorithm, show)
    finally:
        failure = try_to_close(evaluator)
        if failure is not None:
            tell(f"the evaluation is over, but closing failed: {failure}")


def refuse_unknown_code(env_id: str, metadata: Mapping[str, Any]) -> None:
    """A checkpoint may name code as its environment, but only the user lets code run."""
    check_registered(env_id, metadata)
    code = unknown_code(env_id)
    if code is not None:
        place = find_recorded(env_id, metadata) or code
        raise EnvError(
            f"environment '{env_id}' of this checkpoint would run '{place}', and checkpoints never run code: review it,"
            f" then pass --plugin {shlex.quote(place)} (in Python: rl_training.envs.factory.load_code({place!r}))"
        )


def record_checkpoint(
    path: str | Path, num_steps: int, *, seed: int = 0, epsilon: float = 0.0, noise: float = 0.0
) -> Recording:
    """Record the deterministic policy of a checkpoint in its environment, with the run's `env_kwargs`.

    Actions are random with probability `epsilon`, and Box actions get Gaussian noise of standard deviation `noise`: in
    model space, which is [-1, 1] between finite bounds and the environment's own scale without them.
    """
    config, algorithm, state = load_algorithm(path, device="cpu")
    env_id = config.required_env_id
    refuse_unknown_code(env_id, state.metadata)
    refuse_unknown_paths(config.env_kwargs)
    if noise and algorithm.spaces.action.kind is not ActionKind.CONTINUOUS:
        raise ConfigError("noise is for Box actions: epsilon mixes random ones among an agent's discrete actions")
    env_seed, action_seed = (int(value) for value in np.random.SeedSequence(seed).generate_state(2))
    act = noisy_policy(algorithm, epsilon, noise, action_seed)
    with choose_execution(config, state).applied():
        return record_transitions(env_id, config.env_kwargs, num_steps, env_seed, lambda spaces: act)


def predict_checkpoint(path: str | Path, obs: npt.ArrayLike, *, deterministic: bool = True) -> npt.NDArray[Any]:
    """Action for one observation, or actions for a batch, by the policy in a checkpoint.

    This reads the checkpoint at each call; to act many times, load it once with the algorithm's class.
    """
    _, algorithm, _ = load_algorithm(path)
    return predict(algorithm, obs, deterministic=deterministic)


def predict(algorithm: Algorithm[Any], obs: Any, *, deterministic: bool = True) -> npt.NDArray[Any]:
    """Environment action for one observation, or actions for a batch."""
    spec = algorithm.spaces.obs
    is_batch = spec.is_batch(obs)
    actions = act_on(algorithm, obs if is_batch else spec.as_batch(obs), deterministic=deterministic)
    return actions if is_batch else actions[0]


def plan_resume(path: str | Path, *, fall_back: bool = False, **changes: Any) -> ResumePlan:
    """Read a checkpoint and say how its run would go on: in its own folder, unless `output_dir` is given.

    `changes` are new values of the configuration; None leaves the run's own. With `fall_back`, a damaged checkpoint
    is passed over for the newest one of the run that is whole.
    """
    try:
        checkpoint_path = resolve_checkpoint(path)
        state = load_checkpoint(checkpoint_path)
    except CheckpointError as error:
        if error.fallback is None or not fall_back:
            raise
        checkpoint_path = error.fallback
        state = load_checkpoint(checkpoint_path)
    if state.buffer_state is None:
        raise CheckpointError(f"'{checkpoint_path}' holds a policy only: to go on training, use a run's own checkpoint")
    changes = {key: value for key, value in changes.items() if value is not None}
    run_dir = _run_folder_of(checkpoint_path)
    run = TrainingRun(run_dir) if run_dir is not None and "output_dir" not in changes else None
    if run is not None:
        run.refuse_links()
        wanted = run.wanted_timesteps() if run.was_cut_short else None
        changes = {"total_timesteps": wanted, **changes} if wanted is not None else changes
    elif run_dir is None:
        changes.setdefault("output_dir", Path("runs"))  # where to write is not for a file to say
    config = _read_config(state, **changes)
    config = config.replace(algo_kwargs=upgrade_algo_kwargs(config.algo, config.algo_kwargs))
    if config.env_id is not None:
        refuse_unknown_code(config.env_id, state.metadata)
        refuse_unknown_paths(config.env_kwargs)
    algo_config = get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
    check_network_size(algo_config, _read_spaces(state.algorithm_state), state.algorithm_state)
    check_trainer_state(state.trainer_state, config.num_envs)
    return ResumePlan(config, checkpoint_path, state, run)


def _run_folder_of(checkpoint_path: Path) -> Path | None:
    """The run folder that a checkpoint lies in, as the user wrote it where that is the same folder."""
    real = checkpoint_path.resolve()
    if real.parent.name != "checkpoints" or CHECKPOINT_NAME.fullmatch(real.name) is None:
        return None
    if not (real.parent.parent / "config.yaml").is_file():
        return None
    written = checkpoint_path.parent.parent
    return written if written.resolve() == real.parent.parent else real.parent.parent


def resume_training(
    path: str | Path,
    *,
    total_timesteps: int | None = None,
    output_dir: str | Path | None = None,
    eval_episodes: int | None = None,
    device: str | None = None,
    fall_back: bool = False,
    callbacks: Sequence[AnyCallback] | None = None,
) -> TrainResult:
    """Go on training from a checkpoint or a run folder. A run that has no step left is returned as it is."""
    changes = {"total_timesteps": total_timesteps, "output_dir": output_dir, "eval_episodes": eval_episodes}
    plan = plan_resume(path, fall_back=fall_back, device=device, **changes)
    return run_plan(plan, callbacks=callbacks)


def run_plan(plan: ResumePlan, *, callbacks: Sequence[AnyCallback] | None = None) -> TrainResult:
    """Carry out a resume."""
    callbacks = CallbackList(callbacks).callbacks  # refused also where no step is left
    if plan.is_finished:
        session = plan.state.trainer_state["session"]
        counts = {"global_step": plan.global_step, "gradient_steps": session["update_count"]}
        return TrainResult(plan.checkpoint_path.parent.parent, plan.checkpoint_path, counts | session["last_eval"])
    place = Place(plan.run, plan.checkpoint_path.resolve().name) if plan.run is not None else None
    return run_training(plan.config, checkpoint_state=plan.state, callbacks=callbacks, place=place)
