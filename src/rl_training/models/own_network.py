"""The user's own observation encoder: found by its name, made with reproducible weights, and checked."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.errors import ConfigError, EnvError
from rl_training.plugins.user_classes import find_class
from rl_training.plugins.user_code import frames_of_user
from rl_training.spaces.observations import ObsSpec

KEY = "algo_kwargs.network"
BATCH = 2
"""Observations of the forward pass that checks a new encoder."""


def find_network(name: str) -> type[nn.Module]:
    """The class that `network: name` stands for; imports its module or file."""
    try:
        found = find_class(name, _is_network)
    except EnvError as error:
        raise ConfigError(f"bad value '{name}' for {KEY}: {error}") from None
    if not _is_network(found):
        raise ConfigError(f"bad value '{name}' for {KEY}: it is not a class that inherits torch.nn.Module")
    network: type[nn.Module] = found
    return network


def make_encoder(encoder_class: type[nn.Module], spec: ObsSpec, generator: torch.Generator) -> nn.Module:
    """An encoder of the user's class in evaluation mode, with initial weights that depend on `generator` only.

    The global generator, from which torch's layers are initialized, is seeded from `generator` meanwhile and restored.
    """
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    name = encoder_class.__name__
    with torch.random.fork_rng(devices=()), torch.enable_grad():
        torch.default_generator.manual_seed(seed)
        encoder: nn.Module = _call(f"{name}(obs) with obs = {spec}", encoder_class, spec).eval()
        num_features = getattr(encoder, "num_features", None)
        if type(num_features) is not int or num_features < 1:
            fault = "has no attribute num_features" if num_features is None else f"has num_features {num_features!r}"
            raise ConfigError(f"{KEY}: {name} {fault}: set self.num_features to the number of outputs, an int")
        _settle_parameters(encoder)
        output = _call(f"forward of {name}", encoder, _example(spec))
        _check_output(name, output, num_features)
        _check_is_pure(name, encoder, spec, output)
        _check_gradients(name, encoder, output)
    return encoder


def _is_network(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, nn.Module) and value is not nn.Module


def _call(what: str, function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{KEY}: {what:.300} raised {detail:.1000}{frames_of_user(error)}") from error


def _example(spec: ObsSpec) -> Tensor:
    """Preprocessed observations: images, and numbers beside them, as bytes; all else as flat vectors."""
    if spec.image_shapes:
        return torch.zeros(BATCH, *spec.shape, dtype=torch.uint8)
    return torch.full((BATCH, spec.num_features), 0.5)


def _check_is_pure(name: str, encoder: nn.Module, spec: ObsSpec, output: Tensor) -> None:
    """Raise unless `forward` leaves its input and the module as they are, and gives the same output again."""
    example, before = _example(spec), {key: value.clone() for key, value in encoder.state_dict().items()}
    again = _call(f"forward of {name}", encoder, example)
    fault = None
    if not torch.equal(example, _example(spec)):
        fault = "changes its input in place, which belongs to the buffer: work on a copy"
    elif any(not torch.equal(value, before[key]) for key, value in encoder.state_dict().items()):
        fault = "changes the module: an evaluation would change the policy"
    elif not torch.equal(output, again):
        fault = "gives another output for the same input: draw no random numbers and keep no state"
    if fault is not None:
        raise ConfigError(f"{KEY}: forward of {name} {fault}")


def _settle_parameters(encoder: nn.Module) -> None:
    """Turn frozen parameters into buffers, which no optimizer reads, and make the others contiguous for Adam."""
    for module in encoder.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not parameter.requires_grad:
                delattr(module, name)
                module.register_buffer(name, parameter.data)
            else:
                parameter.data = parameter.data.contiguous()


def _check_output(name: str, output: Any, num_features: int) -> None:
    expected = f"float32 [{BATCH}, {num_features}] for {BATCH} observations"
    is_tensor = isinstance(output, Tensor)
    if is_tensor and output.shape == (BATCH, num_features) and output.dtype == torch.float32:
        return
    kind = type(output).__name__
    got = f"{str(output.dtype).removeprefix('torch.')} {list(output.shape)}" if is_tensor else f"a {kind}"
    raise ConfigError(f"{KEY}: forward of {name} returned {got}: return {expected}, as num_features says")


def _check_gradients(name: str, encoder: nn.Module, output: Tensor) -> None:
    """Raise unless every parameter is float32 and reaches the output: each is trained with all others."""
    named = dict(encoder.named_parameters())
    if not named:
        return
    for path, parameter in named.items():
        if parameter.dtype != torch.float32:
            raise ConfigError(f"{KEY}: parameter '{path}' of {name} is {parameter.dtype}: make it float32")
    grads: Any = [None] * len(named)
    if output.requires_grad:
        grads = torch.autograd.grad(output.sum(), list(named.values()), allow_unused=True)
    for path, gradient in zip(named, grads, strict=True):
        if gradient is None:
            fault = f"the output of {name} does not depend on its parameter '{path}'"
            raise ConfigError(f"{KEY}: {fault}: remove it, use it in forward, or set requires_grad=False on it")
