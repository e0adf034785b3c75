"""Writes `algorithms.pyi`, the types of the algorithm classes, from the config classes. Run it when a setting changes.

python -m rl_training.api.stubs
"""

from __future__ import annotations

import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from rl_training.api.settings import OPTIONS, own_settings, run_settings
from rl_training.experiment.registry import BUILT_IN_CLASSES, get_algorithm_spec
from rl_training.validation import FrozenConfig

STUB = Path(__file__).with_name("algorithms.pyi")
HEADER = '''"""Types of the algorithm classes, written by `python -m rl_training.api.stubs`."""'''
SPECIAL = {
    "network": "str | type[nn.Module] | None",
    "env_id": "EnvLike | None",
    "init_from": "str | Path | AlgorithmAPI | None",
    "algo_kwargs": "{config} | Mapping[str, Any] | None",
    "env_kwargs": "Mapping[str, Any] | None",
    "loggers": "Sequence[str | Mapping[str, Any]]",
}
"""Types of arguments that accept more than the field of the configuration holds."""
OPTION_TYPES = {"eval_env": "EnvLike | None"}
"""Types of the keywords that are no settings, where they are not bool."""


def make_stub() -> str:
    """The text of `algorithms.pyi`."""
    bodies = [_class_of(name, algo) for name, algo in BUILT_IN_CLASSES.items()]
    text = "\n".join(bodies)
    lines = [
        "from collections.abc import Mapping, Sequence",
        "from pathlib import Path",
        "from typing import Any, Literal",
        "",
        "from torch import nn",
        "",
        *_imports(),
    ]
    exported = sorted(BUILT_IN_CLASSES, key=lambda name: (not name.isupper(), name))
    names = "".join(f'    "{name}",\n' for name in exported)
    return "\n".join([HEADER, "", *lines, "", f"__all__ = [\n{names}]", "", text])


def _imports() -> list[str]:
    """Import lines of the config classes in the signatures."""
    names: dict[str, set[str]] = {
        "rl_training.api.agent": {"AlgorithmAPI as AlgorithmAPI"},
        "rl_training.envs.given.objects": {"EnvLike"},
        "rl_training.experiment.config": {"TrainConfig"},
    }
    for algo in BUILT_IN_CLASSES.values():
        config = get_algorithm_spec(algo).config_class()
        used = [
            config,
            *(
                part
                for field in own_settings(algo).values()
                for part in _config_classes(field.annotation)
            ),
        ]
        for one in used:
            names.setdefault(one.__module__, set()).add(one.__name__)
    return [
        f"from {module} import {', '.join(sorted(found))}"
        for module, found in sorted(names.items())
    ]


def _config_classes(annotation: Any) -> list[type[FrozenConfig]]:
    if isinstance(annotation, type) and issubclass(annotation, FrozenConfig):
        return [annotation]
    return [found for part in get_args(annotation) for found in _config_classes(part)]


def _class_of(name: str, algo: str) -> str:
    summary, config = (
        get_algorithm_spec(algo).summary,
        get_algorithm_spec(algo).config_class().__name__,
    )
    arguments = {
        name: f"{OPTION_TYPES.get(name, 'bool')} = {default}" for name, default in OPTIONS.items()
    }
    for key, field in {**run_settings(), **own_settings(algo)}.items():
        spelled = SPECIAL[key].format(config=config) if key in SPECIAL else spell(field.annotation)
        arguments[key] = f"{spelled} = ..."
    lines = "".join(f"        {key}: {text},\n" for key, text in arguments.items())
    return (
        f'class {name}(AlgorithmAPI):\n    """{summary[:1].upper()}{summary[1:]}."""\n\n'
        "    def __init__(\n        self,\n"
        f"        config: EnvLike | TrainConfig | None = None,\n        *,\n{lines}    ) -> None: ...\n"
    )


def spell(annotation: Any) -> str:
    """The type of an argument that a setting of this type accepts, as source code."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return spell(parts[0])
    if origin in (Union, types.UnionType):
        return " | ".join(
            dict.fromkeys(word for part in parts for word in spell(part).split(" | "))
        )
    if origin is Literal:
        return f"Literal[{', '.join(_quoted(part) for part in parts)}]"
    if origin is tuple:
        return f"Sequence[{spell(parts[0])}]"
    if annotation is type(None):
        return "None"
    if annotation is Path:
        return "str | Path"
    if isinstance(annotation, type) and issubclass(annotation, FrozenConfig):
        return f"{annotation.__name__} | Mapping[str, Any]"
    if annotation in (int, float, str, bool):
        return str(annotation.__name__)
    raise TypeError(f"no spelling for {annotation!r}: add one")


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


if __name__ == "__main__":
    STUB.write_text(make_stub(), encoding="utf-8")
