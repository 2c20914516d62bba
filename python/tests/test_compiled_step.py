"""torch.compile of what steps: as with torch.optim.AdamW, whose bias
correction is float32 there."""

import pytest
import torch

import terrace


class Doubled(terrace.AdamW):
    """As programs derive theirs."""

    def step(self, closure=None):
        loss = super().step(closure)
        super().step()
        return loss


class DoubledTorch(torch.optim.AdamW):
    def step(self, closure=None):
        loss = super().step(closure)
        super().step()
        return loss


KINDS = [(terrace.AdamW, torch.optim.AdamW), (Doubled, DoubledTorch),
         (terrace.Adam, torch.optim.Adam)]


def made(kind):
    torch.manual_seed(1)
    weights = [torch.nn.Parameter(torch.randn(5, 4)) for _ in range(3)]
    return weights, kind(weights, lr=0.1)


def method(weights, optimizer):
    step = torch.compile(optimizer.step, backend='eager')

    def run():
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        step()
    return run


def whole(weights, optimizer):
    @torch.compile(backend='eager')
    def run():
        optimizer.zero_grad()
        sum((weight ** 2).sum() for weight in weights).backward()
        optimizer.step()
    return run


def with_closure(weights, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = sum((weight ** 2).sum() for weight in weights)
        loss.backward()
        return loss

    @torch.compile(backend='eager')
    def run():
        assert optimizer.step(closure) is not None
    return run


def scheduled(weights, optimizer):
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    inner = method(weights, optimizer)

    def run():
        inner()
        scheduler.step()
    return run


@pytest.mark.parametrize('ours, theirs', KINDS)
@pytest.mark.parametrize('way', [method, whole, with_closure, scheduled])
def test_steps_as_without(way, ours, theirs):
    results = []
    for kind in (ours, theirs):
        torch._dynamo.reset()
        weights, optimizer = made(kind)
        heard = []
        optimizer.register_step_pre_hook(
            lambda *_: heard.append('pre'))
        optimizer.register_step_post_hook(
            lambda *_: heard.append('post'))
        run = way(weights, optimizer)
        for _ in range(3):
            run()
        results.append((weights, heard))
    (mine, heard), (expected, other) = results
    assert heard == other
    for weight, reference in zip(mine, expected, strict=True):
        torch.testing.assert_close(weight, reference, rtol=0, atol=1e-5)


def test_a_script_may_say_who_unscales():
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = terrace.AdamW([weight])
    assert not optimizer._step_supports_amp_scaling
    for given in (True, False):
        optimizer._step_supports_amp_scaling = given
        assert optimizer._step_supports_amp_scaling is given
    fused = terrace.AdamW([weight], fused=True)
    fused._step_supports_amp_scaling = False
    assert not fused._step_supports_amp_scaling
