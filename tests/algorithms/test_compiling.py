"""Compiled updates are checked against eager ones, and kernels of one processor never run on another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import MethodType

import pytest
import torch
from compiled_run import Regression
from conftest import HELPERS, TRY_ALL
from numpy_reference import make_algorithm, make_batch

from rl_training.algorithms.compiling import (
    CACHE_VARIABLE,
    checked,
    compiled,
    try_instructions,
    use_cache_of_this_machine,
)
from rl_training.algorithms.td3 import TD3Algorithm, TD3Config
from rl_training.errors import CompilationError


class Scaling:
    def __init__(self, size):
        self.scale = torch.arange(float(size))

    def step(self, x):
        return self.scale * x


def parameters(owner):
    return [value.detach().clone() for value in owner.network.parameters()]


X, Y = torch.arange(12.0).view(4, 3), torch.arange(4.0)


def test_many_runs_of_one_process_compile_however_they_differ():
    with torch._dynamo.config.patch(recompile_limit=1):
        for size in (2, 3):
            assert compiled(Scaling(size).step, True)(torch.ones(size)).tolist() == list(
                range(size)
            )


def test_the_check_changes_no_result():
    plain, watched = Regression(3), Regression(3)
    call = checked(watched.step, watched.step)
    for _ in range(3):
        assert call(X, Y) == plain.step(X, Y)
    for one, other in zip(parameters(watched), parameters(plain), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("wrong", ["loss", "nan", "moments", "parameters"])
def test_a_graph_that_computes_something_else_is_refused(wrong, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, "kernels")
    owner = Regression(3)

    def graph(x, y):
        loss = owner.step(x, y)
        if wrong == "moments":
            owner.optimizer.state_dict()["first"][0].mul_(2.0)
        if wrong == "parameters":
            owner.network.bias.detach().add_(1.0)
        return {"loss": 1.1 * loss, "nan": loss * torch.nan}.get(wrong, loss)

    with pytest.raises(CompilationError, match="'kernels', or set compile=false"):
        checked(owner.step, graph)(X, Y)


def test_both_kinds_of_step_of_td3_are_checked():
    algorithm = make_algorithm(TD3Algorithm, TD3Config(hidden_sizes=(8,), policy_delay=2))
    plain = algorithm._step
    eager_calls = []

    def counted(self, *arguments):
        eager_calls.append(arguments[-1])
        return plain(*arguments)

    algorithm._step = checked(MethodType(counted, algorithm), plain)
    for seed in range(6):
        algorithm.update(make_batch(None, seed))
    assert eager_calls == [False, True]


def test_the_cache_folder_names_torch_and_the_instruction_set_once(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    for _ in range(2):
        use_cache_of_this_machine()
    folder = Path(os.environ[CACHE_VARIABLE])
    assert folder.parent == tmp_path
    assert torch.__version__ in folder.name
    assert torch.backends.cpu.get_cpu_capability().replace(" ", "") in folder.name
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    use_cache_of_this_machine()
    assert os.environ[CACHE_VARIABLE] != str(folder)
    assert Path(os.environ[CACHE_VARIABLE]).parent == tmp_path


def test_instructions_are_tried_once_for_each_cache(tmp_path, monkeypatch):
    isa = torch._inductor.cpu_vec_isa
    with monkeypatch.context() as patch:  # the processor claims what the compiler cannot use
        patch.setattr(isa, "valid_vec_isa_list", list)
        assert not try_instructions(tmp_path)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(isa, "x86_isa_checker", lambda: ["avx2"])
    monkeypatch.setattr(isa, "valid_vec_isa_list", lambda: ["avx2"])
    assert try_instructions(tmp_path / "new")
    monkeypatch.setattr(isa, "valid_vec_isa_list", list)
    assert try_instructions(tmp_path / "new")


def losses_on_one_cache(tmp_path: Path, folders: str) -> list[str]:
    """What an update prints on this processor, then on a lesser one that finds the first one's cache."""
    lesser = "avx2" if "AVX512" in torch.backends.cpu.get_cpu_capability() else "default"
    printed = []
    for capability in ({}, {"ATEN_CPU_CAPABILITY": lesser}):
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            CACHE_VARIABLE: str(tmp_path / "cache"),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, str(HELPERS / "compiled_run.py"), folders]
        process = subprocess.run(
            command, env=env | capability, capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stderr
        printed.append(process.stdout.strip())
    return printed


def numbers(printed: str) -> list[float]:
    return [float(word) for word in printed.split()]


@pytest.mark.skipif(
    not TRY_ALL, reason="half a minute of compiling: RL_TRAINING_TEST_ALL=1 runs it"
)
def test_two_instruction_sets_share_a_cache_folder_and_compute_the_same(tmp_path):
    here, lesser = losses_on_one_cache(tmp_path, "own-folders")
    assert numbers(lesser) == pytest.approx(numbers(here), rel=1e-4)


@pytest.mark.skipif(not TRY_ALL, reason="takes half a minute: RL_TRAINING_TEST_ALL=1 runs it")
def test_kernels_of_another_instruction_set_never_give_wrong_numbers(tmp_path):
    here, lesser = losses_on_one_cache(tmp_path, "one-folder")
    if "compiled update" not in lesser:
        assert numbers(lesser) == pytest.approx(numbers(here), rel=1e-4)
