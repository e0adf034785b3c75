"""The public contract: the promised names, their signatures and results."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import TEST_ENVS, TESTS, env_of, small_config

import rl_training
from rl_training.algorithms.base import UpdateResult
from rl_training.algorithms.config import AlgorithmConfig
from rl_training.algorithms.ppo import PPOAlgorithm, PPOConfig
from rl_training.api import algorithms
from rl_training.data.dataset_loaders import load_transition_dataset
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.factory import make_env
from rl_training.envs.rewards import (
    RewardClipWrapper,
    RewardScaleWrapper,
    RewardShiftWrapper,
    RewardTransformConfig,
)
from rl_training.errors import ConfigError
from rl_training.experiment import registry
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.registry import (
    BUILT_IN_CLASSES,
    AlgorithmSpec,
    Loop,
    get_algorithm_spec,
    list_algorithm_specs,
    register_algorithm,
)
from rl_training.runtime.callbacks import EVENTS, Callback, CallbackList
from rl_training.runtime.controls import EarlyStoppingConfig
from rl_training.runtime.run_utils import (
    create_training_run,
    resolve_device,
)
from rl_training.runtime.trainer import CollectResult, TrainerState, TrainResult
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint, resume_training
from rl_training.validation import FrozenConfig

SOURCE = TESTS.parent / "src" / "rl_training"
ALGORITHMS = [spec.name for spec in list_algorithm_specs()]
CLASSES = list(BUILT_IN_CLASSES)
PROMISED = [
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
"""Classes that a release has had: users' imports of them must keep working."""
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
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


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
        code = (
            f"import sys, {', '.join(PACKAGES)}; print(sorted(sys.modules));"
            " from rl_training.experiment import TrainConfig, get_algorithm_spec as get; repr(get('ppo'));"
            " print(sorted(sys.modules))"
        )
        imported, used = (set(ast.literal_eval(line)) for line in run_python(code).splitlines())
        assert "pydantic" not in imported
        assert not {"torch", "gymnasium", "tensorboard", "matplotlib", "minari"} & used

    def test_the_packages_are_attributes_of_the_top(self) -> None:
        code = "import rl_training as rl; print(rl.runtime, rl.envs, rl.data, rl.api, rl.experiment.TrainConfig)"
        assert "rl_training.experiment.config.TrainConfig" in run_python(code)

    @pytest.mark.parametrize("package", PACKAGES)
    def test_an_unknown_name_is_an_attribute_error(self, package: str) -> None:
        module = importlib.import_module(package)
        name = next(name for name in EXPORTS[package] if not name.startswith("_"))
        with pytest.raises(
            AttributeError, match=f"'{package}' has no attribute '{name}x'"
        ) as caught:
            getattr(module, f"{name}x")
        assert (caught.value.name, caught.value.obj) == (
            f"{name}x",
            module,
        )  # by which Python names the nearest

    @pytest.mark.parametrize("package", PACKAGES)
    def test_type_checkers_see_the_names_that_are_loaded(self, package: str) -> None:
        folder = SOURCE.parent.joinpath(*package.split("."))
        if (folder / "__init__.pyi").exists():
            nodes = ast.parse((folder / "__init__.pyi").read_text()).body[1:]
        else:
            tree = ast.parse((folder / "__init__.py").read_text())
            (nodes,) = [node.body for node in tree.body if isinstance(node, ast.If)]
        imports = [
            alias for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
        ]
        seen = {
            alias.asname for alias in imports if alias.name == alias.asname
        }  # others are not exported to them
        if [
            node for node in nodes if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
        ]:
            seen |= set(CLASSES)  # of algorithms.pyi
        made = {f"train_{algo}" for algo in ALGORITHMS}  # typed by __getattr__
        has_getattr = [node.name for node in nodes if isinstance(node, ast.FunctionDef)] == [
            "__getattr__"
        ]
        names = set(importlib.import_module(package).__all__)
        assert seen == names - {"__version__"} - made
        assert has_getattr == bool(names & made)


class TestTrainerModules:
    CODE = """
import importlib, multiprocessing, sys
import rl_training.runtime.ppo_trainer as module
from rl_training.runtime import ppo_trainer, train_ppo
assert module is ppo_trainer and module.train_ppo is train_ppo
assert importlib.reload(module).train_ppo is train_ppo
hooks = len(sys.meta_path)
importlib.reload(sys.modules["rl_training.runtime"])
assert len(sys.meta_path) == hooks
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(train_ppo.__reduce__()[0], ("ppo",)) is not None
        spec = pool.apply(importlib.util.find_spec, ("rl_training.runtime.dqn_trainer",))
        print(spec.name)
"""

    def test_they_are_importable_in_new_processes_and_can_be_reloaded(self, tmp_path: Path) -> None:
        assert (
            run_python("from rl_training.runtime.sac_trainer import train_sac as f; print(f.algo)")
            == "sac\n"
        )
        script = tmp_path / "script.py"
        script.write_text(self.CODE)
        answer = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, check=True
        )
        assert answer.stdout == "rl_training.runtime.dqn_trainer\n"

    def test_another_name_is_the_usual_import_error(self) -> None:
        with pytest.raises(
            ModuleNotFoundError, match=r"No module named 'rl_training.runtime.ppp_trainer'"
        ) as caught:
            importlib.import_module("rl_training.runtime.ppp_trainer")
        assert caught.value.name == "rl_training.runtime.ppp_trainer"
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("rl_training.api.ppo_trainer")

    def test_a_user_defined_algorithm_has_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
        register_algorithm(
            AlgorithmSpec("mine", "a user's own", PPOAlgorithm, PPOConfig, Loop.ON_POLICY)
        )
        assert importlib.util.find_spec("rl_training.runtime.mine_trainer") is None


def config_classes() -> list[type[FrozenConfig]]:
    """Every config class of the package."""
    for path in SOURCE.rglob("*.py"):
        importlib.import_module(
            ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(
                ".__init__"
            )
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
        options = dict.fromkeys(["run_suffix", "checkpoint_state", "callbacks"])
        assert parameters(spec.train_fn) == {"config": REQUIRED, "*": None, **options}
        assert pickle.loads(pickle.dumps(spec.train_fn)) is spec.train_fn

    def test_a_users_algorithm_has_one_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
        spec = AlgorithmSpec("mine", "a user's own", PPOAlgorithm, PPOConfig, Loop.ON_POLICY)
        register_algorithm(spec)
        config = small_config("ppo", tmp_path, total_timesteps=16)
        result = spec.train_fn(TrainConfig(**{**config.model_dump(), "algo": "mine"}))
        assert result.metrics["global_step"] == 16
        with pytest.raises(
            ConfigError, match="trains 'mine', but the configuration says algo: ppo"
        ):
            spec.train_fn(config)

    @pytest.mark.parametrize("algo", ALGORITHMS)
    def test_each_config_class_has_the_settings_that_its_loop_reads(self, algo: str) -> None:
        spec = get_algorithm_spec(algo)
        for loop in set(Loop) - {spec.loop}:
            with pytest.raises(
                ConfigError,
                match=rf"'{algo}': config class {spec.config_class().__name__} does not",
            ):
                dataclasses.replace(spec, loop=loop).config_class()

    def test_a_config_class_of_another_loop_is_refused_when_registered(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
        wrong = AlgorithmSpec("mine", "a user's own", PPOAlgorithm, PPOConfig, Loop.OFF_POLICY)
        message = (
            "algorithm 'mine': config class PPOConfig does not inherit OffPolicyConfig, which Loop.OFF_POLICY reads:"
            " derive it from OffPolicyConfig, or set loop=Loop.ON_POLICY"
        )
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
            register_algorithm(wrong)
        assert "mine" not in registry._SPECS
        by_name = dataclasses.replace(wrong, config="rl_training.algorithms.ppo:PPOConfig")
        register_algorithm(by_name)  # imports nothing
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
            by_name.parse_kwargs({})
        no_base = dataclasses.replace(wrong, name="other", config=AlgorithmConfig)
        with pytest.raises(ConfigError, match=r"reads: derive it from OffPolicyConfig$"):
            register_algorithm(no_base)
        with pytest.raises(
            ConfigError, match=r"loop 'off_policy' is not one of Loop.ON_POLICY, Loop.OFF_POLICY"
        ):
            register_algorithm(dataclasses.replace(no_base, loop="off_policy"))


class TestConfigClasses:
    def test_a_bad_value_is_a_config_error(self) -> None:
        with pytest.raises(
            ConfigError, match="bad value 0 for 'patience' of EarlyStoppingConfig: should be"
        ):
            EarlyStoppingConfig(patience=0)
        with pytest.raises(
            ConfigError, match=r"RewardTransformConfig: the lower clip bound 1.0 is above"
        ):
            RewardTransformConfig(clip_min=1, clip_max=0)
        with pytest.raises(
            ConfigError, match="unknown key 'clip_coeff' for PPOConfig: did you mean 'clip_coef'"
        ):
            PPOConfig(clip_coeff=0.1)
        with pytest.raises(
            ConfigError, match=r"^bad value 0 for 'early_stopping.patience' of PPOConfig: should be"
        ):
            PPOConfig(early_stopping={"patience": 0})

    def test_changing_a_value_is_a_config_error(self) -> None:
        config = EarlyStoppingConfig()
        with pytest.raises(
            ConfigError, match="cannot set 'patience' of EarlyStoppingConfig: it is frozen"
        ):
            config.patience = 3
        assert config.patience == 5

    def test_every_class_refuses_an_unknown_key_alike(self) -> None:
        classes = config_classes()
        assert len(classes) > 20
        for cls in classes:
            with pytest.raises(ConfigError, match="unknown key 'no_such_key' for "):
                cls(no_such_key=1)


def parameters(function: Any) -> dict[str, Any]:
    """The arguments of a function with their defaults; `REQUIRED` has none. A `*` stands before keyword-only ones."""
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            found.setdefault("*", None)
        if name != "self":
            found[name] = REQUIRED if parameter.default is parameter.empty else parameter.default
    return found


def starts_with(function: Any, wanted: dict[str, Any]) -> bool:
    """Whether a function takes these arguments, in this order before `*`; it may take more by keyword."""
    found = parameters(function)
    positional = list(wanted)[: list(wanted).index("*")] if "*" in wanted else list(wanted)
    return list(found)[: len(positional)] == positional and wanted.items() <= found.items()


REQUIRED = object()


class TestExperiment:
    def test_default_manager(self) -> None:
        manager = DefaultExperimentManager()
        assert starts_with(manager.setup, {"config": REQUIRED, "*": None, "callbacks": None})
        options = dict.fromkeys(["total_timesteps", "output_dir", "eval_episodes", "callbacks"])
        assert starts_with(manager.resume, {"checkpoint_path": REQUIRED, "*": None, **options})


class TestRuntime:
    def test_trainer(self) -> None:
        assert list(parameters(TrainResult))[:3] == ["run_dir", "checkpoint_path", "metrics"]
        state = TrainerState("algorithm", Path("run"), 5, 6, 7, True, "why")
        assert (state.global_step, state.epoch, state.update_count) == (5, 6, 7)
        assert (state.should_stop, state.stop_reason, state.run_dir) == (True, "why", Path("run"))
        assert CollectResult(3).num_env_steps == CollectResult(3).steps == 3
        assert UpdateResult({}, 4).num_gradient_steps == UpdateResult({}, 4).gradient_steps == 4

    def test_callbacks(self) -> None:
        base, page = Callback(), (TESTS.parent / "docs" / "python.md").read_text()
        for event, arguments in EVENTS.items():
            assert list(parameters(getattr(base, event))) == list(arguments)
            assert getattr(base, event)(*arguments) is None
            assert f"`{event}({', '.join(arguments)})`" in page
        (example,) = re.findall(r"```python\n# watch.py\n(.*?)```", page, re.DOTALL)
        names: dict[str, Any] = {}
        exec(example, names)
        assert CallbackList([names["Watch"]()]).state_dict() == {"0:Watch": {"best": None}}
        assert base.state_dict() == {}
        assert isinstance(CallbackList([base]), Callback)

    def test_controls(self) -> None:
        values = {
            "metric": "eval_return_mean",
            "mode": "max",
            "patience": 5,
            "min_delta": 0.0,
            "min_steps": 0,
        }
        assert EarlyStoppingConfig().model_dump() == {**values, "target_value": None}
        values = {"scale": 1.0, "shift": 0.0, "clip_min": None, "clip_max": None}
        assert RewardTransformConfig().model_dump() == values

    @pytest.mark.parametrize(
        ("function", "required", "options"),
        [
            (create_training_run, ["config"], {"run_suffix": None}),
            (evaluate_checkpoint, ["path"], {"num_episodes": None, "device": "auto"}),
            (predict_checkpoint, ["path", "obs"], {"deterministic": True}),
            (resume_training, ["path"], {"total_timesteps": None, "callbacks": None}),
            (
                load_transition_dataset,
                ["kind"],
                {"dataset_path": None, "dataset_id": None, "download": False, "env_id": None},
            ),
            (RewardScaleWrapper, ["env"], {"scale": REQUIRED}),
            (RewardShiftWrapper, ["env"], {"shift": REQUIRED}),
            (RewardClipWrapper, ["env"], {"clip_min": None, "clip_max": None}),
        ],
    )
    def test_functions(self, function: Any, required: list[str], options: dict[str, Any]) -> None:
        assert starts_with(function, {**dict.fromkeys(required, REQUIRED), "*": None, **options})

    def test_functions_with_positions(self) -> None:
        assert list(parameters(resolve_device)) == ["device"]
        assert list(parameters(make_env))[:2] == ["env_id", "env_kwargs"]
        names = ["obs", "actions", "rewards", "next_obs", "terminated", "truncated"]
        assert list(parameters(TransitionDataset))[:6] == names
        names = ["algorithm_state", "buffer_state", "trainer_state", "config", "metadata"]
        assert list(parameters(CheckpointState)) == names
        assert {"size", "seed"} <= parameters(load_transition_dataset).keys()


class TestApi:
    @pytest.mark.parametrize("name", CLASSES)
    def test_algorithms(self, name: str) -> None:
        cls = getattr(rl_training, name)
        assert next(iter(parameters(cls))) == "config"
        assert starts_with(cls.learn, {"*": None, "callbacks": None})
        assert parameters(cls.evaluate) == {"num_episodes": None}
        assert starts_with(cls.predict, {"obs": REQUIRED, "*": None, "deterministic": True})
        assert starts_with(cls.save, {"path": REQUIRED, "*": None})
        assert starts_with(cls.load, {"path": REQUIRED})
        assert cls.algo in ALGORITHMS

    def test_every_algorithm_has_a_class(self) -> None:
        assert sorted(getattr(rl_training, name).algo for name in CLASSES) == sorted(ALGORITHMS)
        assert set(PROMISED) <= set(CLASSES)
        assert set(CLASSES) <= set(algorithms.__all__)

    @pytest.mark.parametrize("name", CLASSES)
    def test_a_class_is_one_object_wherever_it_is_imported_from(self, name: str) -> None:
        cls = getattr(algorithms, name)
        assert cls is getattr(rl_training, name) is getattr(rl_training.api, name)
        assert (cls.__module__, cls.__qualname__) == ("rl_training.api.algorithms", name)
        assert pickle.loads(pickle.dumps(cls)) is cls
        assert cls.__doc__.lower() == f"{get_algorithm_spec(cls.algo).summary}.".lower()


def test_the_tests_find_an_environment_for_every_algorithm() -> None:
    found = {algo: env_of(algo) for algo in ALGORITHMS}  # fails if there is none
    assert (found["dqn"], found["td3"], found["her"]) == TEST_ENVS
