"""Gradients that are views of one: backward of what puts parameters together
makes that of all, however large, and each parameter's is a part of it."""

import functools

import pytest
import torch

import terrace
from offloaded import WIDTH, check_equal_values, check_same, mlp, sgd, values

EXPERTS = 12

# Each puts a list of equal matrices together, into rows of WIDTH.
TOGETHER = {
    'cat': lambda weights: torch.cat(weights),
    'cat of all but one': lambda weights: torch.cat(weights[1:]),
    'cat by columns': lambda weights: torch.cat(weights, 1).view(-1, WIDTH),
    'stack': lambda weights: torch.stack(weights).view(-1, WIDTH),
    'vstack': lambda weights: torch.vstack(weights),
    'two cats': lambda weights: torch.cat([torch.cat(weights[::2]),
                                           torch.cat(weights[1::2])]),
    'twice': lambda weights: torch.cat([*weights, *weights]),
}


class Experts(torch.nn.Module):
    """Steps over all of them at a time, beside layers of its own."""

    def __init__(self, together):
        super().__init__()
        self.together = TOGETHER[together]
        self.before, self.after = mlp(2), mlp(2, seed=8)
        self.experts = mlp(EXPERTS, seed=9)

    def forward(self, x):
        weights = [each.weight for each in self.experts
                   if isinstance(each, torch.nn.Linear)]
        mixed = self.before(x) @ self.together(weights).t()
        return self.after(mixed.unflatten(-1, (-1, WIDTH)).sum(1))


def train(model, optimizer, passes=2):
    generator = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(passes):
            loss = model(torch.randn(4, WIDTH, generator=generator))
            loss = loss.square().mean()
            loss.backward()
            losses.append(loss.detach().clone())
        optimizer.step()
    return losses


@pytest.mark.parametrize('make', [
    terrace.AdamW, functools.partial(terrace.AdamW, overlap=False),
    functools.partial(terrace.AdamW, step_in_backward=2), sgd])
@pytest.mark.parametrize('together', TOGETHER)
def test_parameters_put_together(tmp_path, together, make):
    plain, model = Experts(together), Experts(together)
    reference = (sgd if make is sgd else terrace.AdamW)(plain.parameters())
    expected = train(plain, reference)
    with terrace.offload(model, memory_budget='20%',
                         nvme_path=str(tmp_path)) as offload:
        optimizer = make(model.parameters())
        check_same(train(model, optimizer), expected)
        if make is not sgd:
            optimizer.flush()
        stats = offload.stats()
        assert stats['failures'] == 0
    check_equal_values(values(model), values(plain))


def test_clipping_and_reading_such_gradients(tmp_path):
    plain, model = Experts('cat'), Experts('cat')
    x = torch.randn(4, WIDTH)
    with terrace.offload(model, memory_budget='20%', nvme_path=str(tmp_path)):
        optimizer = terrace.AdamW(model.parameters())
        norms = []
        for each in (plain, model):
            each(x).sum().backward()
            norms.append(terrace.clip_grad_norm_(each.parameters(), 0.1))
        assert torch.equal(*norms)
        for mine, theirs in zip(model.parameters(), plain.parameters()):
            assert (mine.grad is None) == (theirs.grad is None)
            assert mine.grad is None or torch.equal(mine.grad, theirs.grad)
        optimizer.step()
