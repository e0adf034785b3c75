"""The public contract, a test for each row: the names users are promised, their signatures and what they give."""

from __future__ import annotations

import ast
import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TESTS, small_config

from rl_training.algorithms.ppo import PPOAlgorithm, PPOConfig
from rl_training.envs.rewards import RewardTransformConfig
from rl_training.errors import ConfigError
from rl_training.experiment import registry
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import (
    AlgorithmSpec,
    Loop,
    get_algorithm_spec,
    list_algorithm_specs,
    register_algorithm,
)
from rl_training.runtime.controls import EarlyStoppingConfig
from rl_training.validation import FrozenConfig

SOURCE = TESTS.parent / "src" / "rl_training"
ALGORITHMS = [spec.name for spec in list_algorithm_specs()]
CLASSES = [
    "A2C",
    "AWAC",
    "BC",
    "CQL",
    "DDPG",
    "DQN",
    "HER",
    "IQL",
    "PPO",
    "QRDQN",
    "SAC",
    "TD3",
    "TD3BC",
    "TQC",
    "CrossQ",
]
EXPORTS = {
    "rl_training": ["TrainConfig", "DefaultExperimentManager", "__version__", *CLASSES],
    "rl_training.api": CLASSES,
    "rl_training.data": ["TransitionDataset", "load_transition_dataset"],
    "rl_training.envs": [
        "RewardClipWrapper",
        "RewardScaleWrapper",
        "RewardShiftWrapper",
        "RewardTransformConfig",
        "apply_reward_wrappers",
        "make_env",
        "make_vector_env",
    ],
    "rl_training.experiment": [
        "AlgorithmSpec",
        "CheckpointState",
        "DefaultExperimentManager",
        "TrainConfig",
        "get_algorithm_spec",
        "list_algorithm_specs",
        "load_checkpoint",
        "register_algorithm",
        "save_checkpoint",
    ],
    "rl_training.runtime": [
        "Callback",
        "CallbackList",
        "CollectResult",
        "EarlyStoppingCallback",
        "EarlyStoppingConfig",
        "TrainResult",
        "Trainer",
        "TrainerState",
        "create_training_run",
        "evaluate_checkpoint",
        "predict_checkpoint",
        "resolve_device",
        "resume_training",
        "save_training_checkpoint",
        "serialize_train_config",
        *(f"train_{algo}" for algo in ALGORITHMS),
    ],
}
PACKAGES = list(EXPORTS)


def run_python(code: str) -> str:
    """What a new process prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


class TestPackages:
    @pytest.mark.parametrize("package", PACKAGES)
    def test_a_package_exports_its_names(self, package: str) -> None:
        module = importlib.import_module(package)
        assert set(EXPORTS[package]) <= set(dir(module))
        assert set(EXPORTS[package]) <= set(module.__all__)
        assert len(module.__all__) == len(set(module.__all__))
        for name in module.__all__:
            assert getattr(module, name) is not None

    def test_importing_the_packages_loads_nothing_heavy(self) -> None:
        code = f"import sys, {', '.join(PACKAGES)}; from rl_training.experiment import TrainConfig, AlgorithmSpec"
        loaded = set(ast.literal_eval(run_python(f"{code}; print(sorted(sys.modules))")))
        assert not {"torch", "gymnasium", "tensorboard", "matplotlib", "minari"} & loaded

    def test_the_packages_are_attributes_of_the_top(self) -> None:
        code = "import rl_training; print(rl_training.runtime.Callback, rl_training.envs.make_env)"
        assert "Callback" in run_python(code)

    @pytest.mark.parametrize("package", PACKAGES)
    def test_an_unknown_name_is_an_attribute_error(self, package: str) -> None:
        module = importlib.import_module(package)
        name = next(name for name in EXPORTS[package] if not name.startswith("_"))
        with pytest.raises(AttributeError, match=f"'{package}' has no attribute '{name}x'") as caught:
            getattr(module, f"{name}x")
        assert (caught.value.name, caught.value.obj) == (f"{name}x", module)  # by which Python names the nearest

    @pytest.mark.parametrize("package", PACKAGES)
    def test_type_checkers_see_the_names_that_are_loaded(self, package: str) -> None:
        path = SOURCE.parent.joinpath(*package.split("."), "__init__.py")
        seen = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module not in ("__future__", "typing", "rl_training.exports"):
                assert all(alias.name == alias.asname for alias in node.names)  # else it is not exported to them
                seen |= {alias.name for alias in node.names}
        assert seen == set(importlib.import_module(package).__all__) - {"__version__"}


def config_classes() -> list[type[FrozenConfig]]:
    """Every config class of the package."""
    for path in SOURCE.rglob("*.py"):
        importlib.import_module(
            ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        )
    found: list[type[FrozenConfig]] = []
    pending: list[type[FrozenConfig]] = [FrozenConfig]
    while pending:
        pending += (children := pending.pop().__subclasses__())
        found += [child for child in children if child.__module__.startswith("rl_training.")]
    return sorted(set(found), key=lambda cls: cls.__name__)


class TestRegistry:
    @pytest.mark.parametrize("algo", ALGORITHMS)
    def test_each_algorithm_names_the_function_that_trains_it(self, algo: str) -> None:
        spec = get_algorithm_spec(algo)
        module = importlib.import_module(f"rl_training.runtime.{algo}_trainer")
        assert spec.train_fn is getattr(module, f"train_{algo}")
        assert spec.train_fn.__name__ == f"train_{algo}"
        assert pickle.loads(pickle.dumps(spec.train_fn)) is spec.train_fn

    def test_naming_it_is_what_imports_the_runtime(self) -> None:
        code = "import sys; from rl_training.experiment import get_algorithm_spec as get; spec = get('ppo'); repr(spec)"
        answer = run_python(f"{code}; print('torch' in sys.modules); spec.train_fn; print('torch' in sys.modules)")
        assert answer.split() == ["False", "True"]

    def test_a_users_algorithm_has_one_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
        spec = AlgorithmSpec("mine", "a user's own", PPOAlgorithm, PPOConfig, Loop.ON_POLICY)
        register_algorithm(spec)
        config = small_config("ppo", tmp_path, total_timesteps=16)
        result = spec.train_fn(TrainConfig(**{**config.model_dump(), "algo": "mine"}))
        assert result.metrics["global_step"] == 16
        with pytest.raises(ConfigError, match="trains 'mine', but the configuration says algo: ppo"):
            spec.train_fn(config)


class TestConfigClasses:
    def test_a_bad_value_is_a_config_error(self) -> None:
        with pytest.raises(ConfigError, match="bad value 0 for 'patience' of EarlyStoppingConfig: should be"):
            EarlyStoppingConfig(patience=0)
        with pytest.raises(ConfigError, match=r"RewardTransformConfig: the lower clip bound 1.0 is above"):
            RewardTransformConfig(clip_min=1, clip_max=0)
        with pytest.raises(ConfigError, match="unknown key 'clip_coeff' for PPOConfig: did you mean 'clip_coef'"):
            PPOConfig(clip_coeff=0.1)

    def test_a_bad_value_of_a_nested_class_is_named_by_its_place(self) -> None:
        with pytest.raises(ConfigError, match=r"^bad value 0 for 'early_stopping.patience' of PPOConfig: should be"):
            PPOConfig(early_stopping={"patience": 0})

    def test_every_class_refuses_an_unknown_key_alike(self) -> None:
        classes = config_classes()
        assert len(classes) > 20
        for cls in classes:
            with pytest.raises(ConfigError, match="unknown key 'no_such_key' for "):
                cls(no_such_key=1)
