"""Old place of `machine_facts`, which is in `execution`."""

from rl_training.runtime.execution import machine_facts as machine_facts
