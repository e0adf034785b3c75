"""The folder of a study: its frozen plan, `study.yaml`, beside the run folders."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from rl_training.errors import ConfigError, RLTrainingError, RunOwnedError
from rl_training.experiment.config import load_signed_file
from rl_training.experiment.ownership import Lease, acquire
from rl_training.experiment.yaml_text import dump_yaml, parse_yaml, sign
from rl_training.files import is_file, replace_synced, translate_write_errors, write_new
from rl_training.studies.plan import Plan, PlannedRun, is_extension, plan_differences
from rl_training.validation import suggest

PLAN_FILE = "study.yaml"
MANY_SETTINGS = 100


@dataclass(frozen=True)
class StudyFolder:
    """A study on disk."""

    path: Path
    plan: Plan

    @property
    def name(self) -> str:
        """Name of the study."""
        return self.plan.name

    def runs(self) -> list[PlannedRun]:
        """All planned runs, validated."""
        return self.plan.runs(self.path)


def find_study(name: str, parent: Path = Path("runs")) -> Path:
    """The folder of a study, given by its path or by its name in `parent`."""
    for path in (Path(name), parent / name):
        if is_file(path / PLAN_FILE):
            return path
    known = [path.name for path in list_studies(parent)]
    raise ConfigError(f"there is no study '{name}' here or in '{parent}'{suggest(name, known)}")


def list_studies(parent: Path = Path("runs")) -> list[Path]:
    """The folders of the studies in `parent`, by name."""
    return sorted(path.parent for path in parent.glob(f"*/{PLAN_FILE}"))


def open_study(path: Path) -> StudyFolder:
    """Read the stored plan of a study; a file that was edited is refused."""
    instead = "plan another study from a file of your own (`rl-training study run FILE --fork NAME`)"
    values = load_signed_file(path / PLAN_FILE, "a study", instead)
    return StudyFolder(path, Plan.from_values(values))


def store_plan(plan: Plan, path: Path, *, is_extended: bool = False) -> StudyFolder:
    """Begin the study `plan` in the folder `path`, or continue it there.

    A stored plan that differs is refused; with `is_extended` it may gain runs.
    """
    if (path / PLAN_FILE).is_file():
        return _continue(plan, open_study(path), is_extended=is_extended)
    is_other = path.is_dir() and any(not child.name.startswith((".", PLAN_FILE)) for child in path.iterdir())
    if is_other or (path.exists() and not path.is_dir()):
        raise ConfigError(f"'{path}' exists and is not a study: move it away, or give the study another name")
    if not freeze(path / PLAN_FILE, _text(plan)):  # another process began it at the same moment
        return _continue(plan, open_study(path), is_extended=is_extended)
    return StudyFolder(path, plan)


def _continue(plan: Plan, stored: StudyFolder, *, is_extended: bool) -> StudyFolder:
    refuse_changed(plan, stored, is_extended=is_extended)
    if plan_differences(stored.plan, plan):
        with translate_write_errors(stored.path / PLAN_FILE):
            replace_synced(stored.path / PLAN_FILE, _text(plan).encode())
        return StudyFolder(stored.path, plan)
    # The code that it imports may have moved.
    return replace(stored, plan=replace(stored.plan, plugins=plan.plugins, callbacks=plan.callbacks))


def refuse_changed(plan: Plan, stored: StudyFolder, *, is_extended: bool = False) -> None:
    """Raise a `ConfigError` if `plan` differs from the stored one, unless `is_extended` and it only has more runs."""
    differences = plan_differences(stored.plan, plan)
    can_grow = is_extension(stored.plan, plan)
    if not differences or (can_grow and is_extended):
        return
    grow = "--extend (in Python: extend=True) to add the new runs, or " if can_grow else ""
    raise ConfigError(
        f"study '{stored.name}' began with another plan ('{stored.path}'): {'; '.join(differences)}. Give"
        f" {grow}--fork NAME (in Python: another name) to begin a new study with this one"
    )


def freeze(path: Path, text: str) -> bool:
    """Create a plan file with its folder, complete from its first moment on; False if there is one already."""
    draft = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    with translate_write_errors(path), _removed_on_failure(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_new(draft, text.encode())
            try:
                os.link(draft, path)  # unlike a rename, it does not replace
            except FileExistsError:
                raise
            except OSError:  # no hard links here
                write_new(path, text.encode())
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
    return True


@contextmanager
def driven_alone(path: Path, what: str) -> Iterator[Lease]:
    """Be the only process that drives `what`, such as a tuning, in the folder `path`; else a `ConfigError`."""
    try:
        lease = acquire(path)
    except RunOwnedError as error:
        raise ConfigError(
            f"{what} '{path}' is driven by {error.owner}, which is still alive: wait for it to end, or end it"
        ) from None
    try:
        yield lease
    finally:
        lease.release()


@contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
    """Remove the folders that the block makes if it fails: nothing is left behind."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    except (OSError, RLTrainingError):
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()
        raise


def _text(plan: Plan) -> str:
    try:
        text = sign(dump_yaml(plan.values()))
    except yaml.YAMLError as error:
        raise ConfigError(f"the plan of study '{plan.name}' cannot be stored: {str(error).splitlines()[0]}") from None
    if len(plan.vary) > MANY_SETTINGS:
        parse_yaml(text, f"the plan of study '{plan.name}'")  # a plan too large to be read again is refused now
    return text
