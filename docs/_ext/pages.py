"""Directives whose content is made from the code: settings and presets."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from pydantic import BaseModel
from sphinx.application import Sphinx

from rl_training.cli.configuration import Setting, list_settings, schedule_line
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.presets import Preset, describe_presets
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.validation import FrozenConfig

OUTSIDE = {
    "../README.md#install": "installation.md",
    "../README.md": "index.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../CHANGELOG.md": "changelog.md",
}
"""Pages beside the folder `docs`, and the page of the site that a link to them leads to."""


class MarkdownDirective(Directive):
    """A directive that becomes Markdown; its argument is the name of an algorithm."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The parsed Markdown."""
        container = nodes.container()
        text = StringList(
            "\n".join(self.markdown(self.arguments[0])).splitlines(), source=self.name
        )
        self.state.nested_parse(text, self.content_offset, container)
        return container.children

    def markdown(self, algo: str) -> Iterable[str]:
        """The content for an algorithm."""
        raise NotImplementedError


class Settings(MarkdownDirective):
    """`{settings} sac`: every setting with default, values and meaning; `{settings} train`: every key of a run."""

    def markdown(self, algo: str) -> Iterator[str]:
        """A table for each config class that declares some of the settings, the algorithm's own first."""
        config_class = TrainConfig if algo == "train" else get_algorithm_spec(algo).config_class()
        settings = list_settings(config_class)
        for owner, names in declared_names(config_class):
            rows = [setting for setting in settings if setting.key.split(".")[0] in names]
            yield from (f"**{first_sentence(owner)}**", "", *settings_table(rows), "")
        schedule = schedule_line(config_class)
        if schedule is not None:
            yield f"A *schedule* is {code(schedule.partition(': ')[2].removesuffix(' over the run'))}, over the run."


class Presets(MarkdownDirective):
    """`{presets} sac`: the presets of an algorithm with their measured scores."""

    def markdown(self, algo: str) -> Iterator[str]:
        """A table of the presets, or a sentence that there are none."""
        presets = [preset for preset in describe_presets() if preset.name.startswith(f"{algo}/")]
        if not presets:
            yield f"There is no preset for `{algo}`."
            return
        yield from ("| preset | environment | steps | score of each seed |", "|---|---|---|---|")
        for preset in presets:
            yield f"| `configs/{preset.name}.yaml` | {preset.env_id} | {preset.total_timesteps:,} | {scores(preset)} |"


def declared_names(config_class: type[FrozenConfig]) -> Iterator[tuple[type, list[str]]]:
    """The classes that declare a setting last, from the algorithm's own to the most general, with those settings."""
    seen: set[str] = set()
    for owner in config_class.__mro__:
        names = [
            name
            for name in inspect.get_annotations(owner)
            if name in config_class.model_fields and name not in seen
        ]
        seen.update(names)
        if names:
            yield owner, names


def settings_table(settings: Iterable[Setting]) -> Iterator[str]:
    """Settings as the rows of a table."""
    yield from ("| setting | default | values | meaning |", "|---|---|---|---|")
    for setting in settings:
        default = "required" if setting.is_required else code(json.dumps(setting.default))
        if setting.has_keys and setting.default is not None:
            default = "the keys below"
        values = setting.values.removesuffix(":").replace("|", "\\|")
        yield f"| {code(setting.key)} | {default} | {values} | {escape(setting.meaning)} |"


def scores(preset: Preset) -> str:
    """The measured scores of a preset."""
    if preset.score is None:
        return "not measured"
    values = ", ".join(f"{value:g}" for value in preset.score.scores)
    return f"{values} ({preset.score.policy} policy, {preset.score.episodes} episodes)"


def first_sentence(owner: type) -> str:
    """The first sentence of a class's docstring."""
    return re.split(r"(?<=\.)\s", (owner.__doc__ or owner.__name__).strip())[0]


def code(text: str) -> str:
    """Text as code in the cell of a table."""
    return f"`{text}`".replace("|", "\\|")


def escape(text: str) -> str:
    """Text in the cell of a table."""
    return text.replace("|", "\\|").replace("$", "\\$")


def lead_inside(app: Sphinx, name: str, source: list[str]) -> None:
    """Links to pages beside `docs` lead to the pages of the site that include them."""
    up = "../" * name.count("/")
    for outside, page in OUTSIDE.items():
        source[0] = source[0].replace(f"]({up}{outside}", f"]({up}{page}")
    source[0] = re.sub(
        rf"\]\({re.escape(up)}\.\./examples[^)]*\)", f"]({up}examples.md)", source[0]
    )


def shorten_signature(
    app: Sphinx,
    what: str,
    name: str,
    obj: object,
    options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """A config class is called with its settings, which have a table; the name of a type stands for the type."""
    if isinstance(obj, type) and issubclass(obj, BaseModel):
        return "(**settings)", None
    return _plain(signature), _plain(returns)


def _plain(signature: str | None) -> str | None:
    return (
        None if signature is None else re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", signature)
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    for directive in (Settings, Presets):
        app.add_directive(directive.__name__.lower(), directive)
    app.connect("source-read", lead_inside)
    app.connect("autodoc-process-signature", shorten_signature)
    return {"parallel_read_safe": True}
