"""The machine a run computes on, as far as the last bits of its results depend on it."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

LIMITS = (
    *("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"),
    *("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "OPENBLAS_CORETYPE"),
)
"""Environment variables that choose the kernels of torch and its libraries."""


def machine_facts(device: torch.device) -> dict[str, str]:
    """Processor, instruction set and library versions: equal on two machines that compute the same bits."""
    facts = {
        "processor": _processor_name(),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }
    facts |= {name: os.environ[name] for name in LIMITS if name in os.environ}
    if device.type == "cuda":
        facts["accelerator"] = torch.cuda.get_device_name(device)
    return facts


def machine_differences(saved: Mapping[str, object], now: Mapping[str, str]) -> list[str]:
    """Why a run that was saved on one machine does not continue bit for bit on another."""
    names = dict.fromkeys([*saved, *now])
    return [
        f"another machine: {name} was {saved.get(name, 'not set')!s:.100} and is {now.get(name, 'not set')}"
        for name in names
        if saved.get(name) != now.get(name)
    ]


@functools.cache
def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    fields = dict.fromkeys(("vendor_id", "model name", "cpu family", "model"), "")
    for line in lines:
        key, colon, value = line.partition(":")
        if colon and not fields.get(key.strip(), "-"):
            fields[key.strip()] = value.strip()
    words = [fields["model name"] or platform.processor() or platform.machine()]
    if fields["model"]:
        words.append(f"({fields['vendor_id']} family {fields['cpu family']} model {fields['model']})")
    return " ".join(words)
