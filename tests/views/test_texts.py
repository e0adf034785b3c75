"""Text of studies: what is said of few and of many runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rl_training.views.studies import setting_lines


@pytest.mark.parametrize(
    ("scores", "line"),
    [
        ([7.0], "score 7.0 (1 run)"),
        ([80.0, 350.0], "median 215.0 [80.0, 350.0] (2 runs)"),
        ([80.0, None], "score 80.0 (1 run, 1 missing)"),
        ([1.0, 2.0, 3.0, 4.0, 500.0], "interquartile mean 3.0 ["),
    ],
)
def test_the_scores_of_a_setting_are_summarized_by_how_many_there_are(
    scores: list[float | None], line: str
) -> None:
    group: Any = SimpleNamespace(setting="gamma=0.9", scores=dict(enumerate(scores)), tasks=scores)
    first, *_, last = setting_lines(group)
    assert (first, last.startswith(f"    {line}")) == ("  gamma=0.9", True)
