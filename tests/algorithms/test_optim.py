"""Adam and gradient clipping against torch's own."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from rl_training.algorithms.optim import Adam, JointAdam, descend, polyak

SHAPES = [(4, 3), (3,), ()]
LEARNING_RATES = [0.01 / (1 + step % 5) for step in range(20)]


def random_parameters():
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def random_gradients(count):
    """Gradients of very different sizes, so that the moments and epsilon matter."""
    generator = torch.Generator().manual_seed(1)
    return [
        [torch.randn(s, generator=generator) * 10.0 ** -(step % 7) for s in SHAPES]
        for step in range(count)
    ]


def run(optimizer, gradients, learning_rates):
    for step_gradients, learning_rate in zip(gradients, learning_rates, strict=True):
        optimizer.set_learning_rate(learning_rate)
        optimizer.step([gradient.clone() for gradient in step_gradients])


@pytest.mark.parametrize("eps", [1e-8, 1e-2])
def test_adam_equals_torch_while_the_learning_rate_changes(eps):
    parameters, reference_parameters = random_parameters(), random_parameters()
    gradients = random_gradients(20)
    run(Adam(parameters, eps=eps), gradients, LEARNING_RATES)
    reference = torch.optim.Adam(reference_parameters, eps=eps)
    for step_gradients, learning_rate in zip(gradients, LEARNING_RATES, strict=True):
        reference.param_groups[0]["lr"] = learning_rate
        for parameter, gradient in zip(reference_parameters, step_gradients, strict=True):
            parameter.grad = gradient.clone()
        reference.step()
    for parameter, expected in zip(parameters, reference_parameters, strict=True):
        torch.testing.assert_close(parameter, expected, rtol=0, atol=1e-6)


def test_adam_reads_a_gradient_of_any_memory_layout():
    # Unlike `backward`, `autograd.grad` does not give a gradient the strides of its parameter.
    parameter = nn.Parameter(torch.zeros(3, 2))
    gradient = torch.tensor([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]]).t()
    optimizer = Adam([parameter])
    optimizer.set_learning_rate(0.1)
    optimizer.step([gradient])
    torch.testing.assert_close(parameter.detach(), -0.1 * gradient.sign())


@pytest.mark.parametrize("eps", [1e-8, 1e-2])
def test_the_formula_used_when_compiling_equals_the_fused_step(monkeypatch, eps):
    fused, by_formula = random_parameters(), random_parameters()
    gradients = random_gradients(20)
    run(Adam(fused, eps=eps), gradients, LEARNING_RATES)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(torch, "_fused_adam_", None)
    run(Adam(by_formula, eps=eps), gradients, LEARNING_RATES)
    for one, other in zip(fused, by_formula, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_a_restored_optimizer_continues_identically():
    parameters = random_parameters()
    optimizer = Adam(parameters)
    gradients = random_gradients(20)
    run(optimizer, gradients[:10], LEARNING_RATES[:10])
    saved, saved_parameters = deepcopy(optimizer.state_dict()), deepcopy(parameters)

    restored = Adam(saved_parameters)
    restored.load_state_dict(saved)
    for step_gradients in gradients[10:]:
        optimizer.step([gradient.clone() for gradient in step_gradients])
        restored.step([gradient.clone() for gradient in step_gradients])
    for one, other in zip(parameters, saved_parameters, strict=True):
        assert torch.equal(one, other)


class GradientRecorder(Adam):
    """Keeps the gradients instead of using them: Adam's first step hardly shows their scale."""

    def step(self, gradients, scale=None):
        self.gradients = [gradient if scale is None else gradient * scale for gradient in gradients]


def quadratic_loss(parameters, scale):
    return scale * sum((parameter**2).sum() for parameter in parameters)


@pytest.mark.parametrize("scale", [100.0, 0.001], ids=["long_gradient", "short_gradient"])
def test_descend_clips_like_torch_and_returns_the_unclipped_norm(scale):
    parameters, reference = random_parameters(), random_parameters()
    recorder = GradientRecorder(parameters)
    norm = descend(quadratic_loss(parameters, scale), recorder, max_grad_norm=0.5)

    quadratic_loss(reference, scale).backward()
    unclipped = torch.cat([parameter.grad.reshape(-1) for parameter in reference]).norm()
    assert (unclipped > 0.5) == (scale == 100.0)
    nn.utils.clip_grad_norm_(reference, 0.5)
    torch.testing.assert_close(norm, unclipped)
    for gradient, parameter in zip(recorder.gradients, reference, strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


def test_descend_clips_gradients_that_share_memory_once():
    # autograd hands the two terms of a sum one and the same gradient tensor.
    one, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    recorder = GradientRecorder([one, other])
    descend(((one + other) * torch.tensor([3.0, 4.0])).sum(), recorder, max_grad_norm=0.5)
    expected = torch.tensor([0.3, 0.4]) / 2**0.5
    for gradient in recorder.gradients:
        torch.testing.assert_close(gradient, expected)


def test_descend_without_a_limit_leaves_the_gradient_as_it_is():
    parameters = random_parameters()
    recorder = GradientRecorder(parameters)
    descend(quadratic_loss(parameters, 100.0), recorder)
    for gradient, parameter in zip(recorder.gradients, parameters, strict=True):
        torch.testing.assert_close(gradient, 200.0 * parameter.detach())


def test_descend_moves_the_parameters_down_the_loss():
    parameters = random_parameters()
    optimizer = Adam(parameters)
    optimizer.set_learning_rate(0.01)
    before = [parameter.detach().clone() for parameter in parameters]
    descend(quadratic_loss(parameters, 1.0), optimizer)
    # Adam's first step has the length of the learning rate in every component.
    for parameter, old in zip(parameters, before, strict=True):
        torch.testing.assert_close(parameter.detach(), old - 0.01 * old.sign())


def frozen(*tensors):
    return torch.nn.ParameterList(
        torch.nn.Parameter(tensor, requires_grad=False) for tensor in tensors
    )


def test_a_polyak_update_moves_only_the_target_by_the_fraction_tau():
    source = frozen(torch.tensor([1.0, 2.0]), torch.tensor([[10.0]]))
    target = frozen(torch.tensor([0.0, 4.0]), torch.tensor([[-10.0]]))
    polyak(source, target, 0.25)
    assert [t.tolist() for t in target] == [[0.25, 3.5], [[-5.0]]]
    assert [s.tolist() for s in source] == [[1.0, 2.0], [[10.0]]]


def test_a_polyak_update_with_tau_one_copies_bit_for_bit():
    generator = torch.Generator().manual_seed(0)
    source = frozen(torch.randn(1000, generator=generator))
    target = frozen(1e3 * torch.randn(1000, generator=generator))
    polyak(source, target, 1.0)
    assert torch.equal(source[0], target[0])


def test_a_constant_learning_rate_stays_as_configured_when_a_state_is_loaded():
    saved = Adam([torch.nn.Parameter(torch.zeros(2))], 1e-3).state_dict()
    changed = Adam([torch.nn.Parameter(torch.zeros(2))], 5e-4)
    changed.load_state_dict(saved)
    assert changed.state_dict()["learning_rate"].item() == pytest.approx(5e-4)


def torch_steps(reference, parameters, gradients, learning_rates):
    for step_gradients, learning_rate in zip(gradients, learning_rates, strict=True):
        reference.param_groups[0]["lr"] = learning_rate
        for parameter, gradient in zip(parameters, step_gradients, strict=True):
            parameter.grad = gradient.clone()
        reference.step()


@pytest.mark.parametrize("by_formula", [False, True], ids=["fused", "formula"])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.99), (0.0, 0.9)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_betas_and_weight_decay_equal_adamw_of_torch(monkeypatch, by_formula, betas, weight_decay):
    parameters, expected = random_parameters(), random_parameters()
    gradients = random_gradients(20)
    reference = torch.optim.AdamW(expected, betas=betas, eps=1e-5, weight_decay=weight_decay)
    torch_steps(reference, expected, gradients, LEARNING_RATES)
    if by_formula:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        monkeypatch.setattr(torch, "_fused_adam_", None)
        monkeypatch.setattr(torch, "_fused_adamw_", None)
    run(
        Adam(parameters, eps=1e-5, betas=betas, weight_decay=weight_decay),
        gradients,
        LEARNING_RATES,
    )
    for parameter, wanted in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter, wanted, rtol=0, atol=2e-6)


def test_a_joint_step_clips_one_gradient_and_has_two_learning_rates():
    parameters, expected = random_parameters(), random_parameters()
    joint = JointAdam(Adam(parameters[:1], 1e-2), Adam(parameters[1:], 1e-3))
    groups = [{"params": expected[:1], "lr": 1e-2}, {"params": expected[1:], "lr": 1e-3}]
    reference = torch.optim.Adam(groups)
    for scale in (100.0, 0.001, 3.0):
        norm = descend(quadratic_loss(parameters, scale), joint, max_grad_norm=0.5)
        reference.zero_grad()
        quadratic_loss(expected, scale).backward()
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(expected, 0.5))
        reference.step()
    for parameter, wanted in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter, wanted, rtol=0, atol=1e-6)
