"""The loggers of a configuration: which there are, their settings, and the extras that they need."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints, field_validator

from rl_training.errors import ConfigError, install_extra
from rl_training.validation import FrozenConfig, parse_config, suggest

DEFAULT_LOGGERS = ("tensorboard",)
NonEmpty = Annotated[str, StringConstraints(min_length=1)]
PlainLoggers = tuple[str | dict[str, dict[str, Any]], ...]
"""Loggers as a configuration has them: a name, or a name with its settings."""


class LoggerSettings(FrozenConfig):
    """Base of the settings of a logger."""

    logger: ClassVar[str]
    """Name of the logger in a configuration."""

    def needed_modules(self) -> list[str]:
        """Modules that an extra installs."""
        return []


class TensorboardSettings(LoggerSettings):
    """TensorBoard: event files in the run folder. It has no settings."""

    logger = "tensorboard"


class TrackerSettings(LoggerSettings):
    """Settings that every tracker has."""

    name: NonEmpty | None = None
    """Name of the tracked run; null: the name of the run folder."""
    group: NonEmpty | None = None
    """Group of the tracked run; null: the name of the study, if the run belongs to one."""


class WandbSettings(TrackerSettings):
    """Weights & Biases."""

    logger = "wandb"

    project: NonEmpty = "rl-training"
    """Project of the tracked run."""
    entity: NonEmpty | None = None
    """User or team; null: your default one."""
    mode: Literal["online", "offline"] | None = None
    """`offline` writes to the run folder only; null: the environment variable WANDB_MODE, or online."""

    def needed_modules(self) -> list[str]:
        """The client."""
        return ["wandb"]


class MlflowSettings(TrackerSettings):
    """MLflow."""

    logger = "mlflow"

    experiment: NonEmpty = "rl-training"
    """Experiment of the tracked run; it is created if there is none."""
    tracking_uri: Annotated[str, Field(min_length=1)] | None = None
    """Server or database; null: the environment variable MLFLOW_TRACKING_URI, or mlflow.db beside the run folder."""

    @field_validator("tracking_uri")
    @classmethod
    def _refuse_passwords(cls, value: str | None) -> str | None:
        if value is not None and re.match(r"[^/]*//[^/@]*:[^/@]*@", value):
            raise ValueError(
                "it holds a password, which config.yaml would show: set the environment variable MLFLOW_TRACKING_URI"
                " instead"
            )
        return value

    def needed_modules(self) -> list[str]:
        """The client, and the packages of its databases."""
        needs_database = self.tracking_uri is None or self.tracking_uri.startswith("sqlite:")
        return ["mlflow", "sqlalchemy", "alembic"] if needs_database else ["mlflow"]


LOGGERS: dict[str, type[LoggerSettings]] = {
    settings.logger: settings for settings in (TensorboardSettings, WandbSettings, MlflowSettings)
}


def plain_loggers(values: Any) -> PlainLoggers:
    """The checked value of the key `loggers`: a list of names, or of mappings of one name to its settings."""
    if not isinstance(values, (list, tuple)):
        raise ConfigError(
            f"bad value {values!r:.80} for 'loggers' of the configuration: should be a list, such as"
            " [tensorboard, wandb] or [{wandb: {project: my-project}}]"
        )
    found = parse_loggers(values)
    names = [settings.logger for settings in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"'loggers' of the configuration has '{twice[0]}' twice: remove one")
    return tuple(_plain(settings) for settings in found)


def parse_loggers(values: PlainLoggers | list[Any]) -> list[LoggerSettings]:
    """The settings of each logger."""
    return [_parse(item) for item in values]


def _parse(item: Any) -> LoggerSettings:
    if isinstance(item, LoggerSettings):
        return item
    name, values = item, None
    if isinstance(item, Mapping) and len(item) == 1:
        ((name, values),) = item.items()
    if not isinstance(name, str):
        raise ConfigError(
            f"bad value {item!r:.80} in 'loggers' of the configuration: should be a name, or one name with its"
            " settings, such as {wandb: {project: my-project}}"
        )
    if name not in LOGGERS:
        raise ConfigError(
            f"unknown logger '{name}' in 'loggers' of the configuration{suggest(name, LOGGERS)}"
        )
    if values is not None and not isinstance(values, Mapping):
        raise ConfigError(
            f"bad value {values!r:.80} for logger {name}: should be a mapping of keys to values"
        )
    return parse_config(LOGGERS[name], values or {}, f"logger {name}")


def _plain(settings: LoggerSettings) -> str | dict[str, dict[str, Any]]:
    values = settings.model_dump(mode="json", exclude_defaults=True)
    return {settings.logger: values} if values else settings.logger


def check_installed(loggers: PlainLoggers) -> None:
    """Raise a `ConfigError` that names the extra of a logger whose package is missing."""
    for settings in parse_loggers(loggers):
        for name in settings.needed_modules():
            spec = importlib.util.find_spec(name)
            # A folder without code, as the `wandb` that wandb makes in the working directory, has no origin.
            if spec is None or spec.origin is None:
                remedy = install_extra(settings.logger)
                raise ConfigError(f"logger {settings.logger} needs {name}: {remedy}")
