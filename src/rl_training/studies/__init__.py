"""Many runs: the plan of a study, its runs on this machine or a cluster, and what their folders say. No torch here."""

from typing import TYPE_CHECKING

from rl_training.exports import lazy_exports

if TYPE_CHECKING:
    from rl_training.studies.comparison.verdict import compare as compare
    from rl_training.studies.groups import load_runs as load_runs
    from rl_training.studies.launching.study import Study as Study
else:
    _HOMES = {"launching.study": "Study", "groups": "load_runs", "comparison.verdict": "compare"}
    __getattr__, __dir__, __all__ = lazy_exports(__name__, _HOMES)
