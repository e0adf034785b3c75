"""Evaluation depends on the policy and the seeds alone, and outlives the faults of its environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import HELPERS, small_config
from run_tools import StopAt

from rl_training.cli import main
from rl_training.envs.factory import EnvSource
from rl_training.errors import EnvError, NonFiniteError
from rl_training.evaluation import evaluator
from rl_training.evaluation.evaluator import Evaluator
from rl_training.experiment.logs import read_metrics
from rl_training.runtime.run import run_training
from rl_training.runtime.run_utils import RunSeeds
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training

FAULTY = f"{HELPERS / 'faulty_envs.py'}"
EVAL_SEEDS = RunSeeds.from_seed(1).eval_seeds(3)
Results = tuple[list[float], list[int], list[bool | None]]


@pytest.fixture
def _fixed_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        evaluator, "act_in", lambda algorithm, active, obs: (obs[:, 0] > 0).astype(np.int64)
    )


def run_episodes(evaluator: Evaluator) -> Results:
    return evaluator.run_episodes(None, lambda num_done: None)  # type: ignore[arg-type]


def failing(fault: str, **options: Any) -> dict[str, Any]:
    return {"fault": fault, "seeds": EVAL_SEEDS[1:2], "worker_timeout": 1.0, **options}


@pytest.mark.usefixtures("_fixed_policy")
@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("name", ["Remembering", "GlobalChance", "Curriculum"])
def test_an_evaluation_does_not_depend_on_earlier_ones(name: str, backend: str) -> None:
    seeds = list(range(10))  # more than there are places
    evaluator, other = (
        Evaluator(EnvSource.parse(f"{FAULTY}:{name}", {"backend": backend}), seeds)
        for _ in range(2)
    )
    first = run_episodes(evaluator)
    np.random.seed(1)
    assert not evaluator.reports_success()
    assert run_episodes(evaluator) == first
    assert run_episodes(other) == first
    evaluator.close()
    other.close()


def test_an_evaluation_leaves_the_global_generators_where_they_were() -> None:
    np.random.seed(3)
    expected = np.random.RandomState(3).random_sample(2).tolist()
    evaluator = Evaluator(EnvSource.parse(f"{FAULTY}:GlobalChance", {}), [1, 2])
    evaluator.reports_success()
    assert np.random.random_sample(2).tolist() == expected


def test_eval_gives_what_training_logged_whatever_the_environment_remembers(tmp_path: Path) -> None:
    config = small_config(
        "dqn", tmp_path, env_id=f"{FAULTY}:Remembering", algo_kwargs={"eval_interval": 32}
    )
    whole = run_training(config, run_suffix="whole")
    stopped = run_training(config, run_suffix="stopped", callbacks=[StopAt(70, "collect")])
    resumed = resume_training(stopped.run_dir)
    logged = whole.metrics["eval_return_mean"]
    assert resumed.metrics["eval_return_mean"] == logged
    assert evaluate_checkpoint(whole.run_dir)["eval_return_mean"] == logged


@pytest.mark.usefixtures("_fixed_policy")
@pytest.mark.parametrize(
    ("backend", "fault"),
    [
        ("sync", "raise"),
        ("sync", "exit"),
        ("async", "raise"),
        ("async", "crash"),
        ("async", "hang"),
        ("sync", "shape"),
    ],
)
def test_an_episode_that_failed_by_accident_is_run_again_with_the_same_result(
    backend: str, fault: str, tmp_path: Path
) -> None:
    options = {"backend": backend, "once": str(tmp_path / "failed")}
    healthy, hurt = (
        Evaluator(
            EnvSource.parse(f"{FAULTY}:FailsOnSeed", failing(fault, **options, **more)), EVAL_SEEDS
        )
        for more in ({"seeds": []}, {"max_restarts": 1})
    )
    assert run_episodes(hurt) == run_episodes(healthy)
    assert (hurt.num_restarts, healthy.num_restarts) == (1, 0)
    healthy.close()
    hurt.close()


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_run_outlives_an_evaluation_episode_that_always_fails(
    backend: str, tmp_path: Path
) -> None:
    fault = "raise" if backend == "sync" else "crash"
    kwargs = failing(fault, backend=backend, max_restarts=20)
    changes = {
        "env_id": f"{FAULTY}:FailsOnSeed",
        "env_kwargs": kwargs,
        "algo_kwargs": {"eval_interval": 64},
    }
    config = small_config("dqn", tmp_path, **changes)
    result = run_training(config)
    assert result.metrics["eval_episodes"] == 2
    assert result.metrics["env_restarts"] >= 4
    assert (
        list(read_metrics(result.run_dir / "metrics.jsonl"))[-1]["env_restarts"]
        == result.metrics["env_restarts"]
    )
    assert (
        evaluate_checkpoint(result.run_dir)["eval_return_mean"]
        == result.metrics["eval_return_mean"]
    )


def test_restarts_of_evaluations_are_counted_over_a_resume(tmp_path: Path) -> None:
    kwargs = failing("raise", once=str(tmp_path / "failed"), max_restarts=1)
    config = small_config("dqn", tmp_path, env_id=f"{FAULTY}:FailsOnSeed", env_kwargs=kwargs)
    stopped = run_training(config, callbacks=[StopAt(70, "collect")])
    assert stopped.metrics["env_restarts"] == 1
    (tmp_path / "failed").unlink()
    with pytest.raises(EnvError, match=r"restarts used: 1 of 1"):
        resume_training(stopped.run_dir)


@pytest.mark.usefixtures("_fixed_policy")
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "nan observation",
            r"the observation of evaluation episode \d+ \(seed \d+\) is not finite after 3 steps",
        ),
        ("nan reward", r"the reward of evaluation episode \d+ \(seed \d+\) is nan at step 3"),
    ],
)
def test_an_evaluation_with_nan_gives_no_score(fault: str, message: str) -> None:
    evaluator = Evaluator(EnvSource.parse(f"{FAULTY}:FailsOnSeed", failing(fault)), EVAL_SEEDS)
    with pytest.raises(NonFiniteError, match=message):
        run_episodes(evaluator)
    evaluator.close()


@pytest.mark.parametrize("fault", ["raise", "exit", "shape"])
def test_a_fault_in_an_evaluation_is_named_with_its_episode(
    fault: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [
        "train",
        "dqn",
        f"{FAULTY}:FailsOnSeed",
        f"fault={fault}",
        "--output-dir",
        str(tmp_path),
    ]
    settings = [
        f"env_kwargs.fault={fault}",
        f"env_kwargs.seeds={EVAL_SEEDS[1:2]}",
        "seed=1",
        "total_timesteps=20",
    ]
    assert main([*words[:3], *words[4:], *settings]) == 2
    error = capfd.readouterr().err
    assert f"the environment of evaluation episode 1 (seed {EVAL_SEEDS[1]}) failed" in error
    assert {
        "raise": "exploded",
        "exit": "SystemExit: 0",
        "shape": "has shape (3,), its space (2,)",
    }[fault] in error
    assert '"status": "failed"' in next(tmp_path.glob("*/metadata.json")).read_text()
