"""Checkpoints of older schemas, turned into what the current code reads.

Schema 1 kept the replay in one piece and, of each environment, the journal and the observation only.
"""

from __future__ import annotations

from typing import Any

from rl_training.algorithms.config import OfflineConfig
from rl_training.data.segments import Segment
from rl_training.errors import CheckpointError
from rl_training.experiment.registry import get_algorithm_spec

OLDEST_SCHEMA = 1
Sections = dict[str, dict[str, Any]]


def upgrade(sections: Sections, schema_version: int) -> Sections:
    """The sections as the current schema has them."""
    if schema_version == 1:
        try:
            return _from_1(sections)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise CheckpointError(f"this checkpoint of schema 1 cannot be read: {error!r}") from None
    return sections


def upgrade_algo_kwargs(algo: str, algo_kwargs: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run to resume, with the data named that it was started with.

    Offline runs without dataset_kind once learned from random actions; now it must be set.
    """
    if "dataset_kind" in algo_kwargs or not issubclass(get_algorithm_spec(algo).config_class(), OfflineConfig):
        return algo_kwargs
    return {**algo_kwargs, "dataset_kind": "random"}


def _from_1(sections: Sections) -> Sections:
    trainer = dict(sections["trainer"])
    old = trainer.get("collector")
    if old is not None:
        environments = [
            {
                "seed": journal["seed"],
                "generator_before_reset": journal["generator"],
                "attributes_before_reset": None,
                "emulator_before_reset": None,
                "actions": journal["actions"],
                "own": None,
                "generator": None,
                "attributes": None,
                "obs": obs,
            }
            for journal, obs in zip(old["journals"], old["obs"], strict=True)
        ]
        envs = {"seeds": [None] * len(environments), "num_restarts": 0, "environments": environments}
        trainer["collector"] = {"envs": envs, "doubts": []}
    upgraded = {**sections, "trainer": trainer}
    buffer = sections.get("buffer")
    if buffer is not None and "rows_stored" in buffer:
        rest = {key: value for key, value in buffer.items() if key != "storage"}
        segments = [Segment(0, buffer["storage"])] if buffer["rows_stored"] else []
        upgraded["buffer"] = {**rest, "writes": 0, "segments": segments}
    return upgraded
