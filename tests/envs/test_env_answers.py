"""Environments that return something else than they promise: named, with the environment's index and the remedy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import HELPERS, small_config
from wrong_envs import OBSERVATIONS, RESETS, STEPS

from rl_training.envs.factory import EnvSource, make_vector_env
from rl_training.errors import EnvError, NonFiniteError
from rl_training.evaluation import evaluator as evaluation
from rl_training.evaluation.evaluator import Evaluator
from rl_training.experiment.logs import read_metrics
from rl_training.runtime.run import run_training

WRONG = f"{HELPERS / 'wrong_envs.py'}:Wrong"
CASES = [*OBSERVATIONS, *STEPS, *RESETS]


def words_of(case: str) -> str:
    return OBSERVATIONS[case][2] if case in OBSERVATIONS else {**STEPS, **RESETS}[case][1]


def step_until_error(case: str, after: int, backend: str = "sync") -> str:
    envs = make_vector_env(WRONG, {"case": case, "after": after, "backend": backend}, num_envs=2)
    try:
        envs.reset(seed=[3, 4])
        for _ in range(12):
            envs.step(np.zeros(2, np.int64))
    except EnvError as error:
        return str(error)
    finally:
        envs.close()
    return ""


@pytest.mark.parametrize("after", [1, 3, 4])  # at first, within an episode, at its end
@pytest.mark.parametrize("case", CASES)
def test_a_wrong_answer_in_training_is_named(case: str, after: int) -> None:
    message = step_until_error(case, after)
    assert message.startswith("environment 0 of 2 failed in ")
    assert words_of(case) in message
    assert "Traceback" not in message


@pytest.mark.parametrize("case", ["shape", "missing key", "four", "reset none"])
def test_a_wrong_answer_of_a_worker_is_named_alike(case: str) -> None:
    assert step_until_error(case, 3, "async") == step_until_error(case, 3)


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_a_wrong_answer_in_an_evaluation_is_named(
    case: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case in RESETS and after > 1:
        return  # each episode has its own environment, which is reset once
    monkeypatch.setattr(evaluation, "act_in", lambda algorithm, active, obs: np.zeros(1, np.int64))
    evaluator = Evaluator(EnvSource.parse(WRONG, {"case": case, "after": after}), [7])
    with pytest.raises(EnvError) as caught:
        evaluator.run_episodes(None, lambda num_done: None)  # type: ignore[arg-type]
    message = str(caught.value)
    assert message.startswith("the environment of evaluation episode 0 (seed 7) failed ")
    assert words_of(case) in message
    assert "Traceback" not in message


def test_a_wrong_answer_counts_as_a_fault_that_a_restart_mends(tmp_path: Path) -> None:
    kwargs = {"case": "shape", "after": 50, "max_restarts": 9}
    result = run_training(small_config("dqn", tmp_path, env_id=WRONG, env_kwargs=kwargs))
    assert list(read_metrics(result.run_dir / "metrics.jsonl"))[-1]["env_restarts"] >= 2


def test_numbers_that_are_not_finite_are_still_told_as_such(tmp_path: Path) -> None:
    kwargs = {"fault": "nan observation", "after": 1}
    with pytest.raises(NonFiniteError, match="of environment 0 is not finite"):
        run_training(
            small_config(
                "dqn", tmp_path, env_id=f"{HELPERS / 'toy_envs.py'}:FaultyEnv", env_kwargs=kwargs
            )
        )
