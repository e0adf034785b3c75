"""Optional packages of environments, and the extra that installs each."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys

import gymnasium as gym

from rl_training.errors import install_extra

KNOWN_PACKAGES = ("ale_py", "gymnasium_robotics")
"""Packages that register environments when imported; imported automatically if installed."""
EXTRA_OF_PACKAGE = {
    "mujoco": "mujoco",
    "imageio": "mujoco",
    "Box2D": "box2d",
    "pygame": "box2d",
    "ale_py": "atari",
    "cv2": "atari",
    "gymnasium_robotics": "robotics",
    "minari": "offline",
    "envpool": "envpool",
    "matplotlib": "plot",
}
"""The extra that installs a package, by import name."""
FAMILIES = (
    ("gymnasium.envs.mujoco", "MuJoCo", "mujoco"),
    ("gymnasium.envs.box2d", "Box2D", "box2d"),
)
"""Module prefix of the registered classes, the package they need, and its extra."""
ROBOTS = re.compile(
    r"(Fetch|HandReach|HandManipulate|AdroitHand|FrankaKitchen|PointMaze_|AntMaze_)"
)
ATARI_GAMES = (
    "Adventure|AirRaid|Alien|Amidar|Assault|Asterix|Asteroids|Atlantis|BankHeist|BattleZone|BeamRider|Berzerk|"
    "Bowling|Boxing|Breakout|Carnival|Centipede|ChopperCommand|CrazyClimber|Defender|DemonAttack|DoubleDunk|"
    "ElevatorAction|Enduro|FishingDerby|Freeway|Frostbite|Gopher|Gravitar|Hero|IceHockey|Jamesbond|JourneyEscape|"
    "Kangaroo|Krull|KungFuMaster|MontezumaRevenge|MsPacman|NameThisGame|Phoenix|Pitfall|Pong|Pooyan|PrivateEye|"
    "Qbert|Riverraid|RoadRunner|Robotank|Seaquest|Skiing|Solaris|SpaceInvaders|StarGunner|Tennis|TimePilot|"
    "Tutankham|UpNDown|Venture|VideoPinball|WizardOfWor|YarsRevenge|Zaxxon"
)
"""Names of the games in ids without the prefix ALE/."""
ATARI = re.compile(rf"ALE/|({ATARI_GAMES})(-ram)?(NoFrameskip|Deterministic)?-v[045]$")


def import_known_packages(env_id: str) -> None:
    """Import the installed known packages until one registers the id."""
    for package in KNOWN_PACKAGES if ":" not in env_id else ():
        if env_id not in gym.registry:
            with contextlib.suppress(ImportError):
                importlib.import_module(package)


def remedy_for(package: str) -> str | None:
    """The command that installs a package; None if no extra has it."""
    extra = EXTRA_OF_PACKAGE.get(package.partition(".")[0])
    return None if extra is None else install_extra(extra)


def missing_for_unknown(env_id: str) -> str | None:
    """Message for an unregistered id whose package is known and missing; else None."""
    for names, package in ((ATARI, "ale_py"), (ROBOTS, "gymnasium_robotics")):
        if names.match(env_id) and sys.modules.get(package) is None:
            return (
                f"environment '{env_id}' needs {package.replace('_', '-')}: {remedy_for(package)}"
            )
    return None


def missing_for_registered(env_id: str, error: Exception) -> str:
    """Message for a registered environment with a failed import: the package and how to install it."""
    name = env_id.rpartition(":")[2]
    spec = gym.registry.get(name)
    entry_point = str(spec.entry_point) if spec is not None else ""
    for module, package, extra in FAMILIES:
        if entry_point.startswith(module):
            return f"environment '{env_id}' needs {package}: {install_extra(extra)}"
    if "mujoco_py" in entry_point and spec is not None:
        return f"environment '{env_id}' needs the retired mujoco-py: use '{spec.name}-v5' ({install_extra('mujoco')})"
    package = getattr(error, "name", None) or str(error).partition(" is not installed")[0]
    if not package.isidentifier():
        return f"environment '{env_id}' needs a package that is not installed: {error}"
    remedy = remedy_for(package) or f"none of our extras has it, so install {package} yourself"
    return f"environment '{env_id}' needs {package}, which is not installed: {remedy}"
