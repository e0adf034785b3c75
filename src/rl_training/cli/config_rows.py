"""The settings of a run as rows: key, value and source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rl_training.cli.output import json_text
from rl_training.terminal.tables import table_lines

if TYPE_CHECKING:
    from rl_training.experiment.config import ResolvedConfig

ConfigRow = tuple[str, Any, str]
MAPPINGS = ("algo_kwargs", "env_kwargs")
LONGEST_VALUE = 24


def configuration_rows(resolved: ResolvedConfig, *, is_flat: bool = False) -> list[ConfigRow]:
    """Every key with its value and source, including the algorithm's defaults; if flat, nested keys get own rows."""
    from rl_training.envs.factory import split_env_kwargs
    from rl_training.experiment.config import leaves, serialize_train_config
    from rl_training.experiment.registry import get_algorithm_spec

    config = resolved.config
    split_env_kwargs(config.env_kwargs)  # validates them
    values = serialize_train_config(config)
    given = {path for path, _ in leaves({key: values[key] for key in MAPPINGS})}
    values["algo_kwargs"] = get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs).model_dump(mode="json")
    rows: list[ConfigRow] = []
    for key, value in values.items():
        if key not in MAPPINGS:
            pairs = [(key, value)]
        elif is_flat:
            pairs = list(leaves(value, f"{key}."))
        else:
            pairs = [(f"{key}.{name}", item) for name, item in value.items()]
        rows += [(path, item, _source(path, resolved.sources, given)) for path, item in pairs]
    return rows


def row_lines(rows: list[ConfigRow]) -> list[str]:
    """The rows as aligned lines; the preset's file name is left out, since a message names it."""
    cells = []
    for key, value, source in rows:
        origin = "preset" if source.startswith("preset ") else source
        cells.append((key, f"{json_text(value):<{LONGEST_VALUE}}  # {origin}"))
    return table_lines(cells, "l")


def _source(path: str, sources: Mapping[str, str], given: set[str]) -> str:
    """The source of a key: of the key itself, of a key inside it, or of the mapping around it; else `default`."""
    within = next((source for known, source in sources.items() if f"{known}.".startswith(f"{path}.")), None)
    if within is not None:
        return within
    around = [known for known in sources if path.startswith(f"{known}.")]
    return sources[max(around, key=len)] if around and path in given else "default"
