"""README and docs stay true: links, paths, modules, commands, Python blocks, configurations and names of metrics."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from conftest import TESTS, TRY_ALL
from typer.main import get_command

from rl_training import PPO
from rl_training.cli import main
from rl_training.cli.program import app
from rl_training.envs.factory import split_env_kwargs
from rl_training.experiment.config import TrainConfig, load_config_file
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs

ROOT = TESTS.parent
SOURCE = ROOT / "src" / "rl_training"
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")
    ),
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts),
]
ROOMS = sorted(path.name for path in SOURCE.iterdir() if path.is_dir())
FOLDERS = ("tests", "benchmarks", "examples", "configs", "src", "docs", *ROOMS)
every_page = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix()
)


def blocks(text: str, language: str) -> list[str]:
    """The contents of the fenced code blocks of a language ("" is without one)."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def prose(text: str) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if target.startswith("http"):
            continue
        place, _, anchor = target.partition("#")
        path = (page.parent / place).resolve() if place else page
        assert path.exists(), f"{page.name} links to '{target}'"
        assert not anchor or anchor in anchors(path), f"{page.name} links to '{target}'"


def test_every_page_can_be_found_from_the_index() -> None:
    """The pages beside `docs` are found as the pages of the site that include them."""
    found = {page for page in PAGES if (ROOT / "docs") not in page.parents} | {
        ROOT / "docs" / "index.md"
    }
    for index in (page for page in PAGES if page.name == "index.md"):
        found |= {
            (index.parent / link).resolve()
            for link in re.findall(r"\]\(([^)#\s]+)\)", index.read_text())
        }
    assert [page.relative_to(ROOT).as_posix() for page in PAGES if page not in found] == []


def test_there_is_a_page_for_every_algorithm() -> None:
    """Each says the same things in the same order, and its settings are those of the algorithm."""
    for spec in list_algorithm_specs():
        text = (ROOT / "docs" / "algorithms" / f"{spec.name}.md").read_text()
        headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert headings == ["Update rule", "Measured", "Settings"], spec.name
        assert all(f"```{{{name}}} {spec.name}\n```" in text for name in ("settings", "presets")), (
            spec.name
        )
        assert all(
            f"| {row} |" in text
            for row in ("Actions", "Use it for", "Use something else", "Paper", "Code")
        )


@every_page
def test_files_that_are_named_exist(page: Path) -> None:
    pattern = rf"(?<![\w/.<])(?:{'|'.join(FOLDERS)})/[\w/]+\.(?:py|yaml|json|md|png)\b"
    for name in re.findall(pattern, page.read_text()):
        if not re.search("[A-Z]{3}", name):  # NAME stands for any
            places = (ROOT, SOURCE, page.parent)
            assert any((place / name).exists() for place in places), f"{page.name} names '{name}'"


def resolve(name: str) -> None:
    """Import `rl_training.a.b`, or `rl_training.a.b.Name`."""
    module: Any = importlib.import_module("rl_training")
    for part in name.split(".")[1:]:
        path = f"{module.__name__}.{part}" if hasattr(module, "__path__") else None
        try:
            module = importlib.import_module(path) if path else getattr(module, part)
        except ModuleNotFoundError:
            module = getattr(module, part)


@every_page
def test_modules_that_are_named_import(page: Path) -> None:
    text = page.read_text()
    for name, attribute in set(re.findall(r"\b(rl_training(?:\.\w+)+)(?::(\w+))?", text)):
        resolve(f"{name}.{attribute}" if attribute else name)
    for block in blocks(text, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rl_training"):
                for alias in node.names:
                    resolve(f"{node.module}.{alias.name}")


@every_page
def test_python_blocks_compile(page: Path) -> None:
    for block in blocks(page.read_text(), "python"):
        compile(block, page.name, "exec")


def commands(text: str) -> list[str]:
    """What stands after `rl-training` in code blocks and in backticks."""
    lines = [
        line.removeprefix("$ ")
        for block in re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    ]
    lines += re.findall(r"`([^`\n]+)`", prose(text))
    return [line.removeprefix("rl-training ") for line in lines if line.startswith("rl-training ")]


def options_of(command: Any) -> set[str]:
    return {
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }


@every_page
def test_commands_have_the_verb_and_the_options(page: Path) -> None:
    for line in commands(page.read_text()):
        words = shlex.split(line, comments=True)
        command: Any = get_command(app)
        while words and hasattr(command, "commands") and not words[0].startswith("-"):
            if words[0] not in command.commands and hasattr(command, "default_command"):
                command = command.commands[command.default_command]
                break
            assert words[0] == "VERB" or words[0] in command.commands, (
                f"{page.name}: rl-training {line}"
            )
            command = command.commands.get(words.pop(0), command)
            if not hasattr(command, "commands"):
                break
        unknown = (
            {word for word in words if word.startswith("--")} - options_of(command) - {"--help"}
        )
        assert not unknown, f"{page.name}: rl-training {line}"


@every_page
def test_configurations_are_valid(page: Path, tmp_path: Path) -> None:
    for text in blocks(page.read_text(), "yaml"):
        if not re.search(r"^algo:", text, re.MULTILINE):
            continue
        path = tmp_path / "config.yaml"
        path.write_text(text)
        config = TrainConfig(**load_config_file(path))
        get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
        split_env_kwargs(config.env_kwargs)


class TestMasksAndMemory:
    """The page about masks and memory: its files, commands, configurations and Python blocks run as they stand."""

    TEXT = (ROOT / "docs" / "masks-and-memory.md").read_text()
    SMALL = (
        "total_timesteps=64",
        "eval_episodes=1",
        "num_threads=1",
        "compile=false",
        "hidden_sizes=[8]",
    )

    @pytest.fixture(autouse=True)
    def _files_are_in_the_working_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for text in blocks(self.TEXT, "python"):
            if text.startswith("# "):
                (tmp_path / text.splitlines()[0].removeprefix("# ")).write_text(text)

    def shortened(self, words: list[str]) -> list[str]:
        """The words of a command with the settings of a short run."""
        small = (*self.SMALL, "num_steps=32") if "ppo" in words else self.SMALL
        keys = {setting.partition("=")[0] for setting in small}
        return [*(word for word in words if word.partition("=")[0] not in keys), *small]

    def test_the_commands_run(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = [shlex.split(line, comments=True) for line in commands(self.TEXT)]
        verbs = [words for words in found if words[0] in ("train", "data", "doctor")]
        assert [words[0] for words in verbs] == [
            "train",
            "train",
            "train",
            "doctor",
            "train",
            "train",
            "data",
            "train",
        ]
        for words in verbs:
            assert main(self.shortened(words) if words[0] == "train" else words) == 0, words
        assert "exactness=exact" in capsys.readouterr().out

    def test_the_configurations_train(self) -> None:
        for number, text in enumerate(blocks(self.TEXT, "yaml")):
            Path(f"{number}.yaml").write_text(text)
            assert main(["train", "--config", f"{number}.yaml", *self.SMALL]) == 0

    def test_the_python_examples_run(self, capsys: pytest.CaptureFixture[str]) -> None:
        printed = []
        for text in blocks(self.TEXT, "python"):
            if not text.startswith("# "):
                exec(compile(text, "page", "exec"), {"__name__": "page"})
                printed.append(capsys.readouterr().out.split())
        masked, remembering = printed
        assert masked == ["True"]
        assert len(remembering) == 2
        assert all(float(total) >= 1.0 for total in remembering)

    def test_the_environment_of_the_page_is_learned(self) -> None:
        agent = PPO(
            "shelves.py:Shelves", num_envs=4, num_steps=128, total_timesteps=6000, progress=False
        )
        assert agent.learn().metrics["best_eval_return_mean"] >= 5.0


class TestGuides:
    """Recipes and tables for newcomers: their files, commands and configurations run as they stand, only shorter."""

    SMALL = (
        *("total_timesteps=64", "eval_episodes=1", "num_threads=1", "compile=false", "loggers=[]"),
        "eval_interval=64",
    )
    HOW_TO = (ROOT / "docs" / "how-to.md").read_text()
    D3RLPY = (ROOT / "docs" / "coming-from-d3rlpy.md").read_text()

    @pytest.fixture(autouse=True)
    def _working_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        for text in blocks(self.HOW_TO, "python"):
            if text.startswith("# "):
                Path(text.splitlines()[0].removeprefix("# ")).write_text(text)
        rows = [f"{i / 60},0.5,0.1,{i / 60},-1,0,{int(i % 20 == 19)}" for i in range(60)]
        Path("steps.csv").write_text("\n".join(["s0,s1,s2,a0,reward,terminated,truncated", *rows]))

    def train(self, *words: str) -> None:
        """Train shortly, whatever the words say about the length."""
        text = Path(words[1]).read_text() if words[0] == "--config" else " ".join(words)
        small = list(self.SMALL)
        small += ["batch_size=16"] if "dataset" in text else []
        small += ["online.after_updates=32"] if "online" in text else []
        small += ["num_steps=32"] if "ppo" in text else []
        keys = {setting.partition("=")[0] for setting in small}
        kept = (word for word in words if word.partition("=")[0] not in keys)
        assert main(["train", "-q", *kept, *small]) == 0, words

    def test_the_training_commands_of_the_recipes_run(self) -> None:
        exec(compile(Path("csv_to_npz.py").read_text(), "csv_to_npz.py", "exec"), {})
        found = [shlex.split(line, comments=True) for line in commands(self.HOW_TO)]
        elsewhere = (
            "RUN",
            "wandb",
            "--config",
            "--seeds",
            "ALE/",
            "HalfCheetah",
            "--resume-or-start",
        )
        lines = {" ".join(words[1:]): words[1:] for words in found if words[0] == "train"}
        here = [
            words for line, words in lines.items() if not any(word in line for word in elsewhere)
        ]
        assert len(here) >= 8
        for words in here:
            self.train(*words)
        assert main(["doctor", "--env", "walk.py:Walk"]) == 0

    def test_a_reward_of_training_only(self, capsys: pytest.CaptureFixture[str]) -> None:
        (text,) = (text for text in blocks(self.HOW_TO, "python") if "eval_env" in text)
        exec(compile(text.replace("2048", "512"), "how-to", "exec"), {"__name__": "page"})
        assert float(capsys.readouterr().out) >= 8.0  # scored by CartPole's own reward

    @pytest.mark.skipif(not TRY_ALL, reason="trains nine times: RL_TRAINING_TEST_ALL=1 runs it")
    def test_the_configurations_with_the_numbers_of_others_train(self) -> None:
        arrays = blocks(self.D3RLPY, "python")[1]
        exec(compile(arrays, "coming-from-d3rlpy", "exec"), {"__name__": "page"})
        pages = [
            self.D3RLPY,
            *(
                (ROOT / "docs" / f"coming-from-{name}.md").read_text()
                for name in ("cleanrl", "sb3")
            ),
        ]
        texts = [
            text
            for page in pages
            for text in blocks(page, "yaml")
            if "CartPole" in text or "Pendulum" in text
        ]
        assert len(texts) >= 9
        for number, text in enumerate(texts):
            Path(f"{number}.yaml").write_text(text)
            self.train("--config", f"{number}.yaml")


def test_the_readme_lists_every_algorithm() -> None:
    table = (ROOT / "README.md").read_text().partition("## Algorithms")[2].partition("\n## ")[0]
    assert {spec.name for spec in list_algorithm_specs()} <= set(re.findall(r"`(\w+)`", table))


def test_the_metrics_page_explains_every_metric_of_an_algorithm() -> None:
    settings = {
        name for spec in list_algorithm_specs() for name in spec.config_class().model_fields
    }
    pattern = r'"(\w+_(?:loss|norm|mean|gap|multiplier|kl|fraction|variance)|entropy|alpha)"'
    names = {
        name
        for path in (SOURCE / "algorithms").glob("*.py")
        for name in re.findall(pattern, path.read_text())
    }
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert names - settings
    assert [
        name for name in sorted(names) if f"`{name}`" not in page and name not in settings
    ] == []


def test_commits_are_checked_by_the_version_of_ruff_that_is_pinned() -> None:
    pinned = re.search(r"^ruff==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    assert f"rev: v{pinned[1]}\n" in (ROOT / ".pre-commit-config.yaml").read_text()


def test_pictures_are_small() -> None:
    for path in (ROOT / "docs" / "images").iterdir():
        assert path.stat().st_size < 100_000, path


def test_make_help_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert targets
    assert set(targets[1].split()) == set(re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE))
