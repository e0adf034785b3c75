"""`rl-training export`: what it writes, prints and refuses; its card and its page of documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm
from conftest import TESTS, small_config

from rl_training.bundle import load
from rl_training.bundle.archive import unpack
from rl_training.bundle.exporting import onnx_model
from rl_training.cli import main
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint

PAGE = (TESTS.parent / "docs" / "export.md").read_text()


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = small_config(
        "ppo", tmp_path_factory.mktemp("ppo"), env_id="CartPole-v1", total_timesteps=256
    )
    return run_training(config).run_dir


def export(*words: Any) -> int:
    return main(["export", *map(str, words)])


def test_the_verb_writes_a_bundle_that_acts_like_the_run(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "policy.rlp"
    assert export(run_dir, "--out", out) == 0
    answer = capsys.readouterr()
    assert answer.out == f"bundle={out}\n"
    assert re.search(r"operations, \d+ golden pairs reproduced", answer.err)
    policy = load(out)
    obs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    np.testing.assert_array_equal(policy.act(obs), predict_checkpoint(run_dir, obs))
    assert (policy.manifest["algorithm"], policy.manifest["env_id"]) == ("ppo", "CartPole-v1")
    assert policy.manifest["global_step"] == 256
    assert [path.name for path in tmp_path.iterdir()] == ["policy.rlp"]


def test_json_tells_files_pairs_and_the_returns_of_eval(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = run_dir / "checkpoints" / "best"
    assert (
        export("--checkpoint", best, "--out", tmp_path / "a.rlp", "--json", "--eval-episodes", 3)
        == 0
    )
    value = json.loads(capsys.readouterr().out)
    assert value["bundle"] == str(tmp_path / "a.rlp")
    assert value["bytes"] == (tmp_path / "a.rlp").stat().st_size
    files = unpack((tmp_path / "a.rlp").read_bytes())
    assert value["files"] == {
        name: len(data) for name, data in files.items() if name != "manifest.json"
    }
    assert value["golden_pairs"] > 20
    assert export(run_dir, "--out", tmp_path / "b.rlp", "--json", "--eval-episodes", 0) == 0
    extreme = json.loads(capsys.readouterr().out)
    assert (extreme["returns"], 0 < extreme["golden_pairs"] < 64) == (None, True)
    assert (
        np.mean(value["returns"]) == evaluate_checkpoint(best, num_episodes=3)["eval_return_mean"]
    )


def test_mistakes_are_errors_that_leave_nothing_behind(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken.rlp"
    taken.write_text("mine")
    for words, message in (
        ((run_dir,), "missing option --out"),
        ((run_dir, "--out", taken), "exists already and is not overwritten"),
        ((run_dir, "--out", tmp_path / "no" / "a.rlp"), "does not exist"),
        ((run_dir, "--out", f"{tmp_path}/"), "names a folder"),
        (("nothing-like-it", "--out", tmp_path / "a.rlp"), "nothing-like-it"),
        ((run_dir, "--out", tmp_path / "a.rlp", "--eval-episodes", -1), "should be at least 0"),
    ):
        assert export(*words) == 2
        assert message in capsys.readouterr().err
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"taken.rlp": "mine"}


def test_a_missing_package_is_named_with_its_extra(
    run_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(onnx_model, "PACKAGES", ("onnx", "no_such_package"))
    assert export(run_dir, "--out", tmp_path / "a.rlp", "--onnx") == 2
    remedy = 'pip install "rl-training[onnx]"'
    assert (
        f"--onnx needs no_such_package, which is not installed: {remedy}" in capsys.readouterr().err
    )
    assert not list(tmp_path.iterdir())


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run_python(code: str, folder: Path) -> str:
    (folder / "snippet.py").write_text(code)
    answer = warm.run(["snippet.py"], folder, target=warm.SCRIPT)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_the_snippets_of_the_page_and_of_the_card_run(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert export(run_dir, "--out", "policy.rlp", "--onnx", "--card") == 0
    blocks = python_blocks(PAGE)
    assert len(blocks) == 2
    for block in blocks:
        run_python(block, tmp_path)
    card = unpack((tmp_path / "policy.rlp").read_bytes())["card.md"].decode()
    (snippet,) = python_blocks(card)
    assert len(snippet.splitlines()) == 5
    assert run_python(snippet, tmp_path).strip() in ("0", "1")
    expected = [
        "# ppo on CartPole-v1",
        "| seed | 1 |",
        "2 episodes of the deterministic policy",
        "95 % interval",
    ]
    assert [text for text in expected if text not in card] == []


@pytest.mark.parametrize(
    ("algo", "env_id", "settings"),
    [
        ("her", None, {}),
        ("iql", None, {}),
        ("ppo", "rl_training.envs.toys:CartPoleNoVel", {"memory": {"kind": "gru", "size": 4}}),
        ("dqn", "rl_training.envs.toys:MostlyInvalid", {}),
    ],
    ids=["dict", "offline", "memory", "masks"],
)
def test_runs_of_other_kinds_are_exported_with_a_card_that_runs(
    algo: str, env_id: str | None, settings: dict[str, Any], tmp_path: Path
) -> None:
    changes: dict[str, Any] = {} if env_id is None else {"env_id": env_id}
    config = small_config(
        algo, tmp_path / "runs", total_timesteps=64, algo_kwargs=settings, **changes
    )
    run_dir = run_training(config).run_dir
    assert export(run_dir, "--out", tmp_path / "policy.rlp", "--card", "-q") == 0
    (snippet,) = python_blocks(unpack((tmp_path / "policy.rlp").read_bytes())["card.md"].decode())
    assert run_python(snippet, tmp_path)
    assert load(tmp_path / "policy.rlp").manifest["algorithm"] == algo
