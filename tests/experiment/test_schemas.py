"""Stored checkpoints of each schema: they load, act as when they were written, and can be resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import FAULTY, TESTS, as_observation
from run_tools import assert_equal

from rl_training.experiment.checkpointing import SCHEMA_VERSION, load_checkpoint, save_checkpoint
from rl_training.runtime.workflows import (
    evaluate_checkpoint,
    load_algorithm,
    predict_checkpoint,
    resume_training,
)

FIXTURES = TESTS / "fixtures"
EXPECTED = sorted(FIXTURES.glob("schema_*/*.json"))
CURRENT = f"schema_{SCHEMA_VERSION}"
every_fixture = pytest.mark.parametrize(
    "expected", EXPECTED, ids=lambda path: f"{path.parent.name}-{path.stem}"
)


def test_there_are_fixtures_of_the_current_schema() -> None:
    """A new schema needs them: run tests/fixtures/make.py."""
    assert {path.stem for path in EXPECTED if path.parent.name == CURRENT} == set(FAULTY)


@every_fixture
def test_it_predicts_what_it_predicted(expected: Path) -> None:
    values = json.loads(expected.read_text())
    _, algorithm, _ = load_algorithm(expected.with_suffix(""), device="cpu")
    obs = as_observation(algorithm.spaces.obs, np.array(values["obs"]))
    actions = predict_checkpoint(expected.with_suffix(""), obs)
    np.testing.assert_allclose(actions, values["actions"], rtol=0, atol=1e-6)
    metrics = evaluate_checkpoint(expected.with_suffix(""), num_episodes=1, device="cpu")
    assert metrics["global_step"] == values["global_step"]


@every_fixture
def test_it_goes_on_to_its_end_the_same_way_each_time(expected: Path, tmp_path: Path) -> None:
    ends = []
    for name in ("one", "other"):
        checkpoint = shutil.copytree(
            expected.with_suffix(""), tmp_path / name / "step_000000000072"
        )
        result = resume_training(checkpoint, output_dir=tmp_path / f"{name}_runs")
        assert result.metrics["global_step"] == 128
        assert result.metrics["gradient_steps"] > 0
        ends.append(load_checkpoint(result.checkpoint_path))
    assert_equal(ends[0].algorithm_state, ends[1].algorithm_state)
    assert_equal(ends[0].buffer_state, ends[1].buffer_state)
    reasons = ends[0].metadata[
        "inexact_reasons"
    ]  # the fixture was written on another kind of machine, perhaps
    assert [reason for reason in reasons if not reason.startswith("another machine: ")] == []


def test_an_unfinished_rollout_without_the_fields_of_this_version_begins_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state = load_checkpoint(FIXTURES / "schema_4" / "ppo")
    rows = {
        name: np.zeros((3, *array.shape[1:]), array.dtype)
        for name, array in state.buffer_state["storage"].items()
    }
    state.buffer_state.update(position=3, storage=rows)
    save_checkpoint(tmp_path / "old", state)
    end = load_checkpoint(
        resume_training(tmp_path / "old", output_dir=tmp_path / "runs").checkpoint_path
    )
    lost = "its first 3 steps are left out: another version stored them with other fields"
    assert lost in end.metadata["inexact_reasons"]
    assert lost in capfd.readouterr().err


@every_fixture
def test_it_names_no_place_of_the_machine_that_wrote_it(expected: Path) -> None:
    manifest = (expected.with_suffix("") / "manifest.json").read_text()
    assert '"/' not in manifest.replace('": "/', "")
    assert json.loads(manifest)["config"]["output_dir"] == "runs"
    assert json.loads(manifest)["schema_version"] == int(
        expected.parent.name.removeprefix("schema_")
    )
