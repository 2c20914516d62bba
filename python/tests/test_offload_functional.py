"""Derivatives that a model takes inside its forward, by torch.func, with its
activations below: they are those of the run in memory."""

import pytest
import torch
from torch.func import (functional_call, grad, grad_and_value, hessian,
                        jacfwd, jacrev, jvp, vjp, vmap)

import terrace
from offloaded import WIDTH, check_equal_values, check_same, mlp, values


def energy(layer, x):
    return torch.tanh(layer(x)).square().sum()


# Each of a layer and its input.
DERIVATIVES = {
    'grad': lambda layer, x: grad(lambda y: energy(layer, y))(x),
    'grad_and_value': lambda layer, x: sum(
        grad_and_value(lambda y: energy(layer, y))(x)),
    'grad of grad': lambda layer, x: grad(
        lambda y: grad(lambda z: energy(layer, z))(y).square().sum())(x),
    'vmap of grad': lambda layer, x: vmap(grad(
        lambda y: energy(layer, y)))(x),
    'vjp': lambda layer, x: vjp(layer, x)[1](torch.ones(x.shape[0], WIDTH))[0],
    'jvp': lambda layer, x: jvp(layer, (x,), (torch.ones_like(x),))[1],
    'jacrev': lambda layer, x: jacrev(lambda y: energy(layer, y))(x),
    'jacfwd': lambda layer, x: jacfwd(lambda y: layer(y).sum(0))(
        x[:1]).sum((0, 1)).expand_as(x),
    'hessian': lambda layer, x: hessian(lambda y: energy(layer, y))(
        x[0]).sum(0).expand_as(x),
    'functional_call': lambda layer, x: grad(
        lambda w: functional_call(layer, {'weight': w, 'bias': layer.bias},
                                  (x,)).square().sum())(
        layer.weight.detach()).sum(0).expand_as(x),
}


class Forces(torch.nn.Module):
    def __init__(self, derivative):
        super().__init__()
        self.derivative = DERIVATIVES[derivative]
        self.before, self.layer, self.after = mlp(1), mlp(1)[0], mlp(2)

    def forward(self, x):
        x = self.before(x)
        return self.after(x + self.derivative(self.layer, x))


def train(model, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(64, WIDTH, generator=generator)).square()
        loss = loss.mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses


@pytest.mark.parametrize('parameters', [False, True])
@pytest.mark.parametrize('derivative', DERIVATIVES)
def test_derivatives_inside_forward(tmp_path, derivative, parameters):
    plain, model = Forces(derivative), Forces(derivative)
    expected = train(plain)
    with terrace.offload(model, nvme_path=str(tmp_path), activations=True,
                         parameters=parameters, memory_budget='1MiB',
                         activations_above='1KiB') as offload:
        check_same(train(model), expected)
        stats = offload.stats()
    assert stats['activation_tensors'] > 0 and stats['failures'] == 0
    check_equal_values(values(model), values(plain))


class Fails(Exception):
    pass


def test_a_derivative_that_fails_puts_the_hooks_back(tmp_path):
    def failing(x):
        raise Fails

    class Tries(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = mlp(1)

        def forward(self, x):
            with pytest.raises(Fails):
                grad(failing)(x)
            return self.layer(x)

    model = Tries()
    with terrace.offload(model, nvme_path=str(tmp_path), activations=True,
                         activations_above='1KiB') as offload:
        model(torch.randn(64, WIDTH)).sum().backward()
        assert offload.stats()['activation_tensors'] > 0
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_hooks_of_a_program_are_refused_as_ever(tmp_path):
    class Hooked(torch.nn.Module):
        def __init__(self, derivative='grad'):
            super().__init__()
            self.body = Forces(derivative)

        def forward(self, x):
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t,
                                                          lambda t: t):
                return self.body(x)

    model, x = Hooked(), torch.randn(4, WIDTH)
    with pytest.raises(RuntimeError) as in_memory:
        model(x)
    with terrace.offload(model, nvme_path=str(tmp_path), activations=True,
                         activations_above='1KiB'):
        with pytest.raises(RuntimeError) as below:
            model(x)
    assert str(below.value) == str(in_memory.value)


def test_torch_has_its_own_again(tmp_path):
    before = torch.autograd.graph.disable_saved_tensors_hooks
    models = [mlp(1), mlp(1)]
    offloads = [terrace.offload(model, nvme_path=str(tmp_path),
                                activations=True) for model in models]
    offloads[0].close()
    assert torch.autograd.graph.disable_saved_tensors_hooks is not before
    offloads[1].close()
    assert torch.autograd.graph.disable_saved_tensors_hooks is before
