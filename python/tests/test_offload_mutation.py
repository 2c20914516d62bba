"""torch.autograd.graph.allow_mutation_on_saved_tensors of an offloaded model."""

import pytest
import torch
from torch.autograd.graph import allow_mutation_on_saved_tensors

import terrace
from offloaded import check_equal_values, mlp, values


def changed_between(model, change, rounds=3):
    gradients = []
    for _ in range(rounds):
        data = torch.ones(4, 128, requires_grad=True)
        with allow_mutation_on_saved_tensors():
            answer = model(data)
            with torch.no_grad():
                change(list(model.parameters()))
            answer.sum().backward()
        gradients.append(data.grad)
    return gradients


def multiply(parameters):
    for parameter in parameters:
        parameter.mul_(1.5)


CHANGES = {
    'each': multiply,
    'foreach': lambda parameters: torch._foreach_mul_(parameters, 0.5),
    'views': lambda parameters: [each.view(-1)[1:].add_(0.25)
                                 for each in parameters],
    'transposed': lambda parameters: [each.t().mul_(2)
                                      for each in parameters]}


@pytest.mark.parametrize('budget', ['25%', '60%'])
@pytest.mark.parametrize('name', CHANGES)
def test_backward_has_what_was_saved(tmp_path, name, budget):
    model, plain = mlp(8), mlp(8)
    with terrace.offload(model, memory_budget=budget,
                         nvme_path=str(tmp_path)):
        found = changed_between(model, CHANGES[name])
        expected = changed_between(plain, CHANGES[name])
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(ours, theirs)
    check_equal_values(values(model), values(plain))
