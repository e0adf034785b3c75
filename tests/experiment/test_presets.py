"""Presets: found by algorithm and environment, not used with a complete config file, and listed with their scores."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from conftest import TESTS

from rl_training.cli import main
from rl_training.experiment.config import TrainConfig, serialize_train_config
from rl_training.experiment.presets import describe_presets, list_presets

Call = Callable[..., tuple[int, str, str]]
ROOT = TESTS.parent


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        return main(list(words)), *capsys.readouterr()

    return call


@pytest.mark.parametrize(
    "words",
    [
        ["ppo", "CartPole-v1"],
        ["PPO", "CartPole-v1"],
        ["algo=ppo", "env_id=CartPole-v1"],
        ["algo=PPO", "env_id=CartPole-v1", "seed=3"],
        ["ppo", "env_id=CartPole-v1"],
        ["env_id=CartPole-v1", "seed=3", "ppo"],
    ],
)
def test_the_preset_applies_however_the_pair_is_named(call: Call, words: list[str]) -> None:
    code, out, err = call("config", *words, "--json")
    assert code == 0, err
    assert "using preset ppo/cartpole.yaml" in err
    assert json.loads(out)["algo_kwargs.gae_lambda"] == {
        "value": 0.8,
        "source": "preset ppo/cartpole.yaml",
    }
    code, out, err = call("config", *words, "--json", "--no-preset")
    assert (code, err) == (0, "")
    assert json.loads(out)["algo_kwargs.gae_lambda"]["source"] == "default"
    assert call("config", "ppo", "Acrobot-v1")[2] == ""


def test_no_preset_applies_to_a_file_that_names_the_pair(call: Call) -> None:
    Path("c.yaml").write_text("algo: ppo\nenv_id: CartPole-v1\nalgo_kwargs: {gamma: 0.5}\n")
    for words in ([], ["PPO", "CartPole-v1"], ["algo=ppo", "seed=3"]):
        code, out, err = call("config", "--config", "c.yaml", *words, "--json")
        assert code == 0
        assert err == (
            "file c.yaml does not use preset ppo/cartpole.yaml: add `preset: true` to begin with it, or"
            " `preset: false` to train without it\n"
        )
        rows = json.loads(out)
        assert rows["algo_kwargs.gamma"] == {"value": 0.5, "source": "file c.yaml"}
        assert not any(row["source"].startswith("preset") for row in rows.values())


PAIR = "algo: ppo\nenv_id: CartPole-v1\n"


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (f"preset: true\n{PAIR}algo_kwargs: {{gamma: 0.5}}", 0, "using preset ppo/cartpole.yaml\n"),
        (f"preset: false\n{PAIR}", 0, ""),
        ("preset: false\nalgo: ppo\nenv_id: Acrobot-v1\n", 0, ""),
        (
            "preset: true\nalgo: ppo\nenv_id: Acrobot-v1\n",
            2,
            "error: 'preset: true' of file c.yaml: there is no preset",
        ),
        (
            f"preset: yes please\n{PAIR}",
            2,
            "error: bad value 'yes please' for 'preset' of file c.yaml",
        ),
        ((ROOT / "configs/ppo/cartpole.yaml").read_text(), 0, ""),
        # As a run's own file, which has every key.
        (
            yaml.safe_dump(serialize_train_config(TrainConfig(algo="ppo", env_id="CartPole-v1"))),
            0,
            "",
        ),
    ],
    ids=["true", "false", "false without", "true without", "bad", "the preset", "every key"],
)
def test_a_file_says_whether_it_begins_with_the_preset(
    call: Call, text: str, code: int, message: str
) -> None:
    Path("c.yaml").write_text(text)
    answer, out, err = call("config", "--config", "c.yaml", "--json")
    assert answer == code
    assert err.startswith(message) if message else err == ""
    if "using" in message:
        rows = json.loads(out)
        assert rows["algo_kwargs.gamma"]["source"] == "file c.yaml"
        assert rows["algo_kwargs.gae_lambda"]["source"] == "preset ppo/cartpole.yaml"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["sac"],
            "'sac' contradicts algo: ppo in file 'c.yaml': leave it out, or replace the file's value with algo=sac",
        ),
        (["ppo", "Acrobot-v1"], "'Acrobot-v1' contradicts env_id: CartPole-v1 in file 'c.yaml'"),
        (["ppo", "cartpole-v1"], "'cartpole-v1' contradicts env_id: CartPole-v1 in file 'c.yaml'"),
    ],
)
def test_words_that_contradict_the_file_are_refused(
    call: Call, words: list[str], message: str
) -> None:
    Path("c.yaml").write_text("algo: ppo\nenv_id: CartPole-v1\n")
    code, out, err = call("train", "--config", "c.yaml", *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")


def test_a_setting_replaces_the_files_value(call: Call) -> None:
    Path("c.yaml").write_text("algo: ppo\nenv_id: CartPole-v1\n")
    code, out, _ = call("config", "--config", "c.yaml", "env_id=Acrobot-v1", "--json")
    assert code == 0
    assert json.loads(out)["env_id"] == {"value": "Acrobot-v1", "source": "command line"}


def test_the_list_has_one_short_line_each(call: Call) -> None:
    code, out, _ = call("presets")
    assert code == 0
    header, *rows = out.splitlines()
    assert header.split() == ["preset", "environment", "steps", "score"]
    lines = {line.split()[0]: line for line in rows}
    assert list(lines) == sorted(f"{path.parent.name}/{path.stem}" for path in list_presets())
    assert max(map(len, lines.values())) <= 80
    assert lines["ppo/cartpole"].split()[1:] == ["CartPole-v1", "100,000", "500.0", "(5)"]
    assert lines["bc/pendulum"].endswith(" not measured")
    by_name = {row["name"]: row for row in json.loads(call("presets", "--json")[1])}
    assert list(by_name) == list(lines)
    assert by_name["dqn/cartpole"]["total_timesteps"] == 50_000
    assert by_name["dqn/cartpole"]["score"]["policy"] == "best"
    assert by_name["dqn/pong"]["score"] is None


def test_the_scores_are_those_of_the_results_page() -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    measured = {preset.name: preset for preset in describe_presets() if preset.score is not None}
    assert len(measured) > 25
    for name, preset in measured.items():
        assert preset.score is not None
        assert preset.score.steps == preset.total_timesteps, (
            f"{name} was measured with another number of steps"
        )
        forms = (
            ", ".join(str(score) for score in preset.score.scores),
            ", ".join(f"{s:.0f}" for s in preset.score.scores),
        )
        assert any(f"| {form} |" in page for form in forms), name
    assert set(json.loads((ROOT / "configs" / "scores.json").read_text())) == set(measured)
