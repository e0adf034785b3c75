"""Tables of text: alignment, wrapping, and text that would move the cursor."""

from __future__ import annotations

import pytest
from terminals import use_terminal

from rl_training.terminal.tables import LiveTable, cell_lines, shorten_names, table_lines

ROWS = [
    ("run", "state", "steps/s"),
    ("ppo__CartPole-v1__seed0", "finished", "1,234"),
    ("é漢", "dead", "5"),
]


def test_columns_are_aligned_by_their_letters() -> None:
    assert table_lines(ROWS, "llr", "  ") == [
        "  run                      state     steps/s",
        "  ppo__CartPole-v1__seed0  finished    1,234",
        "  é漢                      dead            5",
    ]
    assert table_lines([]) == []


def test_long_cells_are_wrapped_in_their_column() -> None:
    lines = table_lines(
        [("gamma", "0.99"), ("learning_rate", "a number or a schedule over the run")], "l", width=30
    )
    assert lines == [
        "gamma          0.99",
        "learning_rate  a number or a",
        "               schedule over",
        "               the run",
    ]
    assert table_lines([("abcdef", "x")], "l", width=30, widest=[3]) == ["abc  x", "def"]


def test_long_names_lose_their_middle() -> None:
    rows = shorten_names(ROWS, 42)
    assert (rows[1][0], len(table_lines(rows, "llr")[1])) == ("ppo__CartPole-v1__seed0", 42)
    (name, _), *_ = shorten_names([("a" * 40 + "b" * 40, "x")], 27)
    assert name == f"{'a' * 12}…{'b' * 11}"


@pytest.mark.parametrize(
    ("pattern", "shown"),
    [
        ("ppo__CartPole-v1__seed{}__20261119-044604", "ppo__CartP…__seed0__20261119-044604"),
        (
            "a-long-study/ppo__CartPole-v1__seed{}__20261119-044604",
            "…/ppo__Car…__seed0__20261119-044604",
        ),
        ("study/{}" + "a" * 60, "…/0aaaaaaaaaaaaaa…aaaaaaaaaaaaaaaaa"),
        ("a" * 30 + "{}" + "b" * 20, "…aaaaaaaaaaaaa0bbbbbbbbbbbbbbbbbbbb"),
    ],
)
def test_names_that_differ_stay_different(pattern: str, shown: str) -> None:
    rows = shorten_names([(pattern.format(seed), "x" * 43) for seed in range(10)], 80)
    assert rows[0][0] == shown
    assert len({row[0] for row in rows}) == 10


def test_cells_fill_lines_of_eighty_columns() -> None:
    lines = cell_lines([f"seed {seed}: 500.0" for seed in range(10)], "  ")
    assert [len(line) for line in lines] == [75, 75]
    assert cell_lines([]) == []


@pytest.mark.parametrize("text", ["\x1b[31mred", "[bold]markup[/bold]", "a\rb"])
def test_text_from_files_stays_text(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = table_lines([(text, "x")], "l")
    shown = ascii(text)[1:-1]
    assert line == f"{shown}  x"
    terminal = use_terminal(monkeypatch)
    table = LiveTable(("run", "state"))
    table.draw([(text, "1")], "summary")
    table.close()
    assert shown in "\n".join(terminal.lines())
