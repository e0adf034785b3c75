"""The errors a user can meet; each message names the value at fault and the remedy."""


class RLTrainingError(Exception):
    """Anything this package reports on purpose."""


class ConfigError(RLTrainingError, ValueError):
    """A setting is unknown, of the wrong type or impossible."""


class EnvError(RLTrainingError):
    """An environment cannot be made or used."""


class CheckpointError(RLTrainingError):
    """A checkpoint is missing, damaged or of another kind."""


class RunExistsError(RLTrainingError, FileExistsError):
    """A run folder is already there and will not be overwritten."""
