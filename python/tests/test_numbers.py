"""The numbers, element by element, against torch.optim.AdamW in double
precision on recorded N(0, 1) gradients."""

import math

import pytest
import torch

import terrace
from conftest import batches, largest_difference, pair, train

SHAPES = [(64, 300), (300,), (1,), (), (0, 5), (17, 3, 5), (40_000,)]


def parameters(dtype, generator):
    return [torch.nn.Parameter(torch.randn(s, generator=generator,
                                           dtype=torch.float64).to(dtype))
            for s in SHAPES]


def test_twenty_steps_are_within_1e_5_of_double(tier):
    generator = torch.Generator().manual_seed(7)
    ours = parameters(torch.float32, generator)
    exact = [torch.nn.Parameter(p.detach().double()) for p in ours]
    optimizer = terrace.AdamW(ours, lr=1e-3, **tier)
    reference = torch.optim.AdamW(exact, lr=1e-3)
    for _ in range(20):
        for p, q in zip(ours, exact):
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.double()
        optimizer.step()
        reference.step()
        for p, q in zip(ours, exact):
            if p.numel():
                assert (p.double() - q).abs().max() <= 1e-5


def test_one_step_from_equal_state_is_within_4_ulp():
    """Of the largest intermediate: the parameter or its update."""
    generator = torch.Generator().manual_seed(8)
    p = torch.nn.Parameter(torch.randn(50_000, generator=generator))
    q = torch.nn.Parameter(p.detach().double())
    optimizer = terrace.AdamW([p], lr=1e-3)
    reference = torch.optim.AdamW([q], lr=1e-3)
    m = torch.randn(p.shape, generator=generator) * 0.1
    v = torch.rand(p.shape, generator=generator) * 0.1
    state = {'step': torch.tensor(40.), 'exp_avg': m, 'exp_avg_sq': v}
    groups = reference.state_dict()['param_groups']
    optimizer.load_state_dict({'state': {0: state}, 'param_groups': groups})
    reference.load_state_dict({'state': {0: state}, 'param_groups': groups})
    p.grad = torch.randn(p.shape, generator=generator)
    q.grad = p.grad.double()
    before = p.detach().double().clone()
    optimizer.step()
    reference.step()
    largest = torch.maximum(torch.maximum(before.abs(), q.detach().abs()),
                            (q.detach() - before).abs())
    ulp = torch.exp2(torch.floor(torch.log2(largest)) - 23)
    assert ((p.detach().double() - q.detach()).abs() / ulp).max() <= 4
    mine, exact = optimizer.state[p], reference.state[q]
    for key in ('exp_avg', 'exp_avg_sq'):
        # The terms that are added are at most 0.5: 4 ulp of that.
        torch.testing.assert_close(mine[key].double(), exact[key], rtol=0,
                                   atol=2.4e-7)


@pytest.mark.parametrize('make, reference', [
    (terrace.AdamW, torch.optim.AdamW), (terrace.Adam, torch.optim.Adam)])
def test_thirty_steps_have_the_losses_of_torch(tier, make, reference):
    (network, optimizer), (other, theirs) = pair(
        tier, make, reference, lr=1e-3, weight_decay=0.05)
    data = batches(30)
    for loss, expected in zip(train(network, optimizer, data),
                              train(other, theirs, data)):
        assert abs(loss - expected) <= 1e-4
    assert largest_difference(network, other) <= 1e-4


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_sixteen_bit_parameters_have_a_float32_master(tier, dtype):
    """The cast of a float32 run's parameters, given the same gradients."""
    generator = torch.Generator().manual_seed(9)
    ours = parameters(dtype, generator)
    exact = [torch.nn.Parameter(p.detach().double()) for p in ours]
    optimizer = terrace.AdamW(ours, lr=1e-4, **tier)
    reference = torch.optim.AdamW(exact, lr=1e-4)
    for _ in range(12):
        for p, q in zip(ours, exact):
            p.grad = torch.randn(p.shape, generator=generator).to(dtype)
            q.grad = p.grad.double()
        optimizer.step()
        reference.step()
    for p, q in zip(ours, exact):
        if not p.numel():
            continue
        master = optimizer.state[p]['master_param']
        assert (master.double() - q).abs().max() <= 1e-5
        assert torch.equal(p, master.to(dtype))


def test_clipping_is_that_of_clip_grad_norm(tier):
    (network, optimizer), (other, theirs) = pair(tier, lr=1e-3)
    optimizer.close()
    clipped = terrace.AdamW(network.parameters(), lr=1e-3, max_grad_norm=0.05,
                            **tier)
    for inputs, targets in batches(10):
        for net, opt in ((network, clipped), (other, theirs)):
            opt.zero_grad()
            torch.nn.functional.mse_loss(net(inputs), targets).backward()
        norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 0.05)
        assert norm > 0.05
        clipped.step()
        theirs.step()
        assert math.isclose(clipped.stats()['gradient_norm'], norm.item(),
                            rel_tol=1e-5)
    assert largest_difference(network, other) <= 1e-5


def test_disk_and_memory_give_the_same_bits(tmp_path):
    """Also off any grid of bytes: widths that no sector divides."""
    for width in (131, 232):
        from conftest import model
        results = []
        for tier in ({}, {'memory_budget': '256KiB',
                          'nvme_path': [str(tmp_path)]},
                     {'memory_budget': '200KiB', 'nvme_path': str(tmp_path),
                      'io_engine': 'threads'}):
            network = model(width)
            optimizer = terrace.AdamW(network.parameters(), **tier)
            train(network, optimizer, batches(8, width))
            results.append(network)
            if tier:
                assert optimizer.stats()['bytes_written'] > 0
            optimizer.close()
        for other in results[1:]:
            assert largest_difference(results[0], other) == 0


def test_gradients_that_autograd_left_to_be_negated_are_negated():
    gradient = torch.randn(500)
    lazy = torch._neg_view(-gradient)
    assert lazy.is_neg() and torch.equal(lazy, gradient)
    results = []
    for given in (gradient, lazy):
        w = torch.nn.Parameter(torch.ones(500))
        optimizer = terrace.AdamW([w], lr=0.1)
        w.grad = given
        optimizer.step()
        results.append(w.detach().clone())
    assert torch.equal(*results)
