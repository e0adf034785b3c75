"""Safe YAML: as PyYAML reads it, with limits of size, 1e-3 as a number, and errors for repeated keys and for 010."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any

import yaml

from rl_training.errors import ConfigError
from rl_training.files import short_checksum

MAX_BYTES = 1 << 20
MAX_DEPTH = 50
MAX_VALUES = 50_000
"""Maximum number of values, with aliases expanded; a long string counts as several."""
CHARACTERS_PER_VALUE = 64
PREFIX = "tag:yaml.org,2002:"
CHECKSUM_LINE = "# as written by rl-training; checksum "
LEADING_ZERO = "!leading_zero"
DAMAGE = (
    yaml.YAMLError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""Exceptions of PyYAML for invalid YAML, or for an explicit tag that does not fit its value."""


def parse_yaml(text: str, what: str, *, with_tuples: bool = False) -> Any:
    """Parse YAML; `what` names the text in a `ConfigError`.

    Files of older versions may hold tuples: they are read as lists, or `with_tuples` as what they were.
    """
    if len(text) > MAX_BYTES:
        raise ConfigError(
            f"{what} has {len(text):,} characters, more than the limit of {MAX_BYTES:,}"
        )
    try:
        return (
            yaml.load(text, Loader=_TupleLoader) if with_tuples else yaml.load(text, Loader=_Loader)
        )
    except DAMAGE as error:
        reason = (
            str(error)
            if isinstance(error, (yaml.YAMLError, ValueError))
            else "a value does not fit its tag"
        )
        raise ConfigError(f"{what} is not valid YAML: {reason}") from None


def dump_yaml(values: Mapping[str, Any]) -> str:
    """The inverse of `parse_yaml`."""
    text = str(yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False))
    if len(text) > MAX_BYTES:
        raise ConfigError(
            f"the configuration takes {len(text):,} characters, more than the limit of {MAX_BYTES:,}:"
            " put large env_kwargs in a file and pass its path"
        )
    return text


def sign(text: str) -> str:
    """The text with a last line that shows later whether it was edited."""
    return f"{text}{CHECKSUM_LINE}{short_checksum(text)}\n"


def is_unedited(text: str) -> bool:
    """Whether the last line of a signed text still fits the rest."""
    text, _, checksum = text.rpartition(CHECKSUM_LINE)
    return checksum.strip() == short_checksum(text)


class _Loader(yaml.SafeLoader):
    """The safe loader, with limits, and an error for repeated keys."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._num_values = 0
        self._sizes: dict[int, int] = {}
        """Number of values within each composed node, by the node's id."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Count values before descending: nested aliases could expand exponentially."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        mark: Any = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            known = super().compose_node(parent, index)
            if id(known) not in self._sizes:
                raise yaml.composer.ComposerError(
                    None, None, "an alias refers to a node that contains it", mark
                )
            self._count(self._sizes[id(known)], event)
            return known
        if self._depth >= MAX_DEPTH:
            problem = f"it is nested deeper than {MAX_DEPTH} levels"
            raise yaml.composer.ComposerError(None, None, problem, mark)
        before, self._depth = self._num_values, self._depth + 1
        self._count(1 + len(getattr(event, "value", "")) // CHARACTERS_PER_VALUE, event)
        node = super().compose_node(parent, index)
        self._sizes[id(node)], self._depth = self._num_values - before, self._depth - 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == f"{PREFIX}merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # refused below
            if key in seen:
                problem = f"key '{key_node.value}' is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def _count(self, count: int, event: Any) -> None:
        self._num_values += count
        if self._num_values > MAX_VALUES:
            problem = f"it has more than {MAX_VALUES:,} values, with aliases expanded"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)


class _TupleLoader(_Loader):
    """The same, with the tuples of older versions."""


class _Dumper(yaml.SafeDumper):
    """The safe dumper; it quotes strings that `_Loader` would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write an object that occurs twice twice, without an alias."""
        return True


def _refuse_octal(loader: _Loader, node: yaml.ScalarNode) -> None:
    problem = f"{node.value} is octal to some readers and decimal to others: write it without the zero, or in quotes"
    raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _read_list(loader: _Loader, node: yaml.SequenceNode) -> list[Any]:
    return list(loader.construct_sequence(node, deep=True))


def _read_tuple(loader: _Loader, node: yaml.SequenceNode) -> tuple[Any, ...]:
    return tuple(_read_list(loader, node))


RESOLVERS = (
    (LEADING_ZERO, r"[-+]?0[0-9_]+", "-+0"),
    (f"{PREFIX}int", r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0o[0-7]+|0b[01_]+)", "-+0123456789"),
    (
        f"{PREFIX}float",
        r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?",
        "-+0123456789.",
    ),
    (f"{PREFIX}float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
)
"""Numbers: as in PyYAML, and 1e-3; without minutes (1:30 is text) and octal 010."""
REPLACED = {f"{PREFIX}{name}" for name in ("int", "float", "timestamp", "value")}
for _side in (_Loader, _Dumper):
    _side.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in REPLACED]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for _tag, _pattern, _first in RESOLVERS:
        _side.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), list(_first))
_Loader.add_constructor(LEADING_ZERO, _refuse_octal)
for _tag in ("!tuple", "!frozenset"):  # in files of older versions
    _Loader.add_constructor(_tag, _read_list)
_TupleLoader.add_constructor("!tuple", _read_tuple)
