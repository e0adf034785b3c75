"""Describes the settings of an algorithm: default, allowed values and meaning of each."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rl_training.algorithms.tune import Tune, spaces_of

if TYPE_CHECKING:
    from rl_training.validation import FrozenConfig

SCHEDULE = "Schedule"
TYPES = {"number": "number", "integer": "integer", "string": "text", "boolean": "true | false", "null": "null"}
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
MAPPING = "mapping:"
VALUES_COLUMN = 34


@dataclass(frozen=True)
class Setting:
    """One setting; keys of a nested mapping have dots in their names."""

    key: str
    default: Any
    is_required: bool
    values: str
    meaning: str
    has_keys: bool
    tune: Tune | None = None
    """Its search space; None: it has none."""

    @property
    def depth(self) -> int:
        """Number of mappings around it."""
        return self.key.count(".")

    def lines(self, width: int) -> list[str]:
        """The setting as lines of at most `width` columns."""
        indent = "  " * self.depth
        start = f"{indent}{self.key}"
        if not self.is_required and not (self.has_keys and self.default is not None):
            start += f" = {json.dumps(self.default)}"
        beside = f"{start:<{VALUES_COLUMN}}  {self.values}"
        return [
            *([beside] if len(beside) <= width else [start, f"{' ' * VALUES_COLUMN}  {self.values}"]),
            *textwrap.wrap(self.meaning, width, initial_indent=f"{indent}    ", subsequent_indent=f"{indent}    "),
            *textwrap.wrap(self._tune_text, width, initial_indent="    ", subsequent_indent="      "),
        ]

    @property
    def _tune_text(self) -> str:
        if self.tune is None:
            return ""
        return f"tune: {self.tune.text}{' (only if named: --tune KEY)' if self.tune.by_name else ''}"


def list_settings(config_class: type[FrozenConfig]) -> list[Setting]:
    """Every key of a config class, including nested ones; the keys of schedules are left out (`schedule_line`)."""
    schema, spaces = config_class.model_json_schema(), spaces_of(config_class)
    found = _settings(schema, schema.get("$defs", {}), "")
    return [replace(setting, tune=spaces.get(setting.key)) for setting in found]


def schedule_line(config_class: type[FrozenConfig]) -> str | None:
    """The keys of a schedule, if a setting of the class can be one."""
    definitions = config_class.model_json_schema().get("$defs", {})
    if SCHEDULE not in definitions:
        return None
    keys = definitions[SCHEDULE]["properties"]
    return f"a schedule: {{{', '.join(f'{key}: {_values(value, {})}' for key, value in keys.items())}}} over the run"


def _settings(
    schema: Mapping[str, Any], definitions: Mapping[str, Any], prefix: str, given: Mapping[str, Any] | None = None
) -> Iterator[Setting]:
    """The keys of a mapping; `given` are its values where it stands, if these differ from its own defaults."""
    for name, field in schema["properties"].items():
        nested = _nested(field, definitions)
        meaning = " ".join(field.get("description", "").split())
        is_required = name in schema.get("required", ())
        values = _values(field, definitions)
        default = (given or {}).get(name, field.get("default"))
        yield Setting(f"{prefix}{name}", default, is_required, values, meaning, nested is not None)
        if nested is not None:
            yield from _settings(nested, definitions, f"{prefix}{name}.", default)


def _nested(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema of the mapping that a field may hold, except a schedule; None if it holds none."""
    for member in field.get("anyOf", [field]):
        name = member.get("$ref", "").rpartition("/")[2]
        if name in definitions and name != SCHEDULE and "properties" in definitions[name]:
            nested: Mapping[str, Any] = definitions[name]
            return nested
    return None


def _values(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """The allowed values of a field."""
    if "anyOf" in field:
        members = dict.fromkeys(_values(member, definitions) for member in field["anyOf"])
        return f"null | {MAPPING}" if MAPPING in members else " | ".join(members)
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        definition = definitions.get(name, {})
        return "a schedule" if name == SCHEDULE else MAPPING if "properties" in definition else _values(definition, {})
    if "enum" in field or "const" in field:
        return " | ".join(map(str, field.get("enum", [field.get("const")])))
    if field.get("type") == "array":
        return f"list of {_values(field.get('items', {}), definitions)}"
    kind = TYPES.get(field.get("type", ""), field.get("format", "any"))
    if "minimum" in field and "maximum" in field:
        return f"{kind} from {field['minimum']:g} to {field['maximum']:g}"
    bounds = [f"{sign} {field[key]:g}" for key, sign in BOUNDS.items() if key in field]
    return " ".join([kind, " and ".join(bounds)]).strip()
