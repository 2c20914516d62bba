"""Steps in backward on each of two ranks whose gradients
DistributedDataParallel averages: the bits are those of one process whose
gradient is the same average, however the model is wrapped, and where one rank
is slow."""

import functools
import os
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import terrace
from conftest import model
from crew import bits, one_rank
from offloaded import mlp, mlp_loss, transformer, token_loss
from test_ranks import (CASES, STEPS, WIDTH, Job,
                        _one_thread_as_the_ranks)  # noqa: F401

ALONE = {name: CASES[name] for name in ('memory', 'disk', 'bf16', 'groups')}


class InBackwardJob(Job):
    """Each rank has all the state and steps it in backward; one process steps
    in step()."""

    def among(self, group):
        return {'step_in_backward': int(group is not None)}


def train(case, path, wrapped_by, pauses):
    """Losses, parameters and stats; a rank waits so many seconds before each
    step, and so many after it."""
    rank = dist.get_rank()
    os.makedirs(f'{path}/{rank}', exist_ok=True)
    job = InBackwardJob(case, f'{path}/{rank}', [rank], dist.group.WORLD)
    job.wrapped = DistributedDataParallel(job.network, **wrapped_by)
    before, after = pauses[rank]
    losses = []
    for number in range(STEPS):
        time.sleep(before)
        losses += job.step(number)
        assert all(p.grad is None for p in job.network.parameters())
        time.sleep(after)
    stats = job.optimizer.stats()
    job.optimizer.close()
    return losses, bits(job.network.parameters()), stats


def check_is_one_process(results, case, path):
    alone = InBackwardJob(case, path, [0, 1])
    losses = alone.run()
    for rank, (theirs, parameters, stats) in enumerate(results):
        assert theirs == [both[rank] for both in losses]
        assert parameters == bits(alone.network.parameters()), rank
        assert stats['steps'] == STEPS
        assert (stats['bytes_read'] > 0) == ('budget' in case)
    alone.optimizer.close()


QUICK = [(0, 0), (0, 0)]


@pytest.mark.parametrize('name', ALONE)
def test_two_ranks_are_one_process(name, crew, tmp_path):
    results = crew.run(train, ALONE[name], str(tmp_path), {}, QUICK)
    check_is_one_process(results, ALONE[name], str(tmp_path))


@pytest.mark.parametrize('wrapped_by', [
    {'gradient_as_bucket_view': True}, {'find_unused_parameters': True},
    {'bucket_cap_mb': 0.01}, {'static_graph': True},
    {'static_graph': True, 'gradient_as_bucket_view': True},
    {'bucket_cap_mb': 0.01, 'gradient_as_bucket_view': True,
     'find_unused_parameters': True}])
def test_however_it_is_wrapped(wrapped_by, crew, tmp_path):
    results = crew.run(train, CASES['disk'], str(tmp_path), wrapped_by, QUICK)
    check_is_one_process(results, CASES['disk'], str(tmp_path))


@pytest.mark.parametrize('pauses', [[(0.02, 0), (0, 0)], [(0, 0), (0, 0.02)]])
@pytest.mark.parametrize('wrapped_by', [{}, {'gradient_as_bucket_view': True}])
def test_one_is_slow(pauses, wrapped_by, crew, tmp_path):
    results = crew.run(train, CASES['disk'], str(tmp_path), wrapped_by, pauses)
    check_is_one_process(results, CASES['disk'], str(tmp_path))


# Several passes a step.

def micro_batches(rank, passes):
    generator = torch.Generator().manual_seed(20 + rank)
    return [[torch.randn(12, WIDTH, generator=generator)
             for _ in range(passes)] for _ in range(4)]


def accumulate(passes, wrapped_by, synchronised):
    """Four steps. In which passes before the last gradients are averaged too:
    none, or all."""
    network = model(WIDTH)
    wrapped = DistributedDataParallel(network, **wrapped_by)
    optimizer = terrace.AdamW(network.parameters(), lr=1e-2,
                              step_in_backward=passes)
    for batch in micro_batches(dist.get_rank(), passes):
        for number, inputs in enumerate(batch):
            wrapped.require_backward_grad_sync = (
                synchronised or number == passes - 1)
            wrapped(inputs).square().mean().backward()
        assert all(p.grad is None for p in network.parameters())
        optimizer.step()
    parameters = bits(network.parameters())
    optimizer.close()
    return parameters


def accumulated_in_one(passes, synchronised):
    network = model(WIDTH)
    parameters = list(network.parameters())
    optimizer = terrace.AdamW(parameters, lr=1e-2)
    for batches in zip(micro_batches(0, passes), micro_batches(1, passes)):
        sums = [[None] * len(parameters), [None] * len(parameters)]
        for number in range(passes):
            for rank in (0, 1):
                for parameter, gradient in zip(parameters, sums[rank]):
                    parameter.grad = gradient
                network(batches[rank][number]).square().mean().backward()
                sums[rank] = [parameter.grad for parameter in parameters]
            if synchronised or number == passes - 1:
                for place, (mine, theirs) in enumerate(zip(*sums)):
                    mean = mine / 2 + theirs / 2
                    sums[0][place], sums[1][place] = mean, mean.clone()
        for parameter, gradient in zip(parameters, sums[0]):
            parameter.grad = gradient
        optimizer.step()
    return bits(parameters)


@pytest.mark.parametrize('synchronised', [False, True])
@pytest.mark.parametrize('wrapped_by', [
    {}, {'gradient_as_bucket_view': True}, {'bucket_cap_mb': 0.01}])
def test_several_passes(wrapped_by, synchronised, crew):
    for passes in (2, 3):
        expected = accumulated_in_one(passes, synchronised)
        assert crew.run(accumulate, passes, wrapped_by, synchronised) == [
            expected, expected]


# Beside step() of the same ranks, where no process alone does the same.

class Some(torch.nn.Module):
    """A rank leaves out a layer, another one in each step."""

    def __init__(self):
        super().__init__()
        self.parts = mlp(4)
        self.calls = 0

    def forward(self, inputs):
        self.calls += 1
        left_out = (self.calls + dist.get_rank()) % 4
        for place in range(4):
            if place != left_out:
                inputs = self.parts[2 * place](inputs).tanh()
        return inputs


def hooked(wrapped):
    wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return wrapped


def checkpointed(how):
    return lambda: transformer(how)


KINDS = {
    # how it is made, its loss, how it is wrapped, what is done to that
    'one leaves out some': (Some, mlp_loss, {
        'find_unused_parameters': True}, None),
    'one leaves out some, in views': (Some, mlp_loss, {
        'find_unused_parameters': True, 'gradient_as_bucket_view': True}, None),
    'hooked': (mlp, mlp_loss, {}, hooked),
    'hooked, in views': (mlp, mlp_loss, {'gradient_as_bucket_view': True},
                         hooked),
    'checkpointed': (checkpointed('plain'), token_loss, {}, None),
    're-entrant': (checkpointed('re-entrant'), token_loss,
                   {'static_graph': True}, None),
    're-entrant, in views': (
        checkpointed('re-entrant'), token_loss,
        {'static_graph': True, 'gradient_as_bucket_view': True}, None),
}


def train_kind(kind, passes, path):
    make, loss_of, wrapped_by, then = KINDS[kind]
    network = make()
    wrapped = DistributedDataParallel(network, **wrapped_by)
    if then is not None:
        then(wrapped)
    directory = f'{path}/{dist.get_rank()}'
    os.makedirs(directory, exist_ok=True)
    optimizer = terrace.AdamW(
        network.parameters(), lr=1e-2, step_in_backward=passes,
        memory_budget='256KiB', nvme_path=directory)
    generator = torch.Generator().manual_seed(20 + dist.get_rank())
    torch.manual_seed(4)  # of dropout
    for _ in range(4):
        loss_of(wrapped, generator).backward()
        if passes:
            assert all(p.grad is None for p in network.parameters())
        optimizer.step()
        optimizer.zero_grad()
    parameters = bits(network.parameters())
    optimizer.close()
    return parameters


@pytest.mark.parametrize('kind', KINDS)
def test_as_in_step(kind, crew, tmp_path):
    expected = crew.run(train_kind, kind, 0, str(tmp_path))
    assert crew.run(train_kind, kind, 1, str(tmp_path)) == expected
    assert expected[0] == expected[1]


def train_with_a_clock_that_stands(passes):
    """Each parameter is marked as ready at the same time in all steps, as one
    may be by chance."""
    network = mlp(2)
    wrapped = DistributedDataParallel(network)
    optimizer = terrace.AdamW(network.parameters(), lr=1e-2,
                              step_in_backward=passes)
    generator = torch.Generator().manual_seed(20 + dist.get_rank())
    marks = dist.Reducer.get_backward_stats
    dist.Reducer.get_backward_stats = lambda reducer: [7] * 4
    try:
        for _ in range(3):
            mlp_loss(wrapped, generator).backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        dist.Reducer.get_backward_stats = marks
    return bits(network.parameters())


def test_marks_that_are_alike_by_chance(crew):
    assert (crew.run(train_with_a_clock_that_stands, 1)
            == crew.run(train_with_a_clock_that_stands, 0))


def train_uneven(passes):
    """Rank 1 has a batch less than rank 0."""
    network = mlp(4)
    wrapped = DistributedDataParallel(network)
    optimizer = terrace.AdamW(network.parameters(), lr=1e-2,
                              step_in_backward=passes)
    generator = torch.Generator().manual_seed(20 + dist.get_rank())
    with wrapped.join():
        for _ in range(4 - dist.get_rank()):
            mlp_loss(wrapped, generator).backward()
            optimizer.step()
            optimizer.zero_grad()
    parameters = bits(network.parameters())
    optimizer.close()
    return parameters


def test_inputs_are_uneven(crew):
    assert crew.run(train_uneven, 1) == crew.run(train_uneven, 0)


def train_offloaded(passes, path):
    network = mlp()
    directory = f'{path}/{dist.get_rank()}'
    os.makedirs(directory, exist_ok=True)
    with terrace.offload(network, memory_budget='220 kB',
                         nvme_path=directory):
        wrapped = DistributedDataParallel(network)
        optimizer = terrace.AdamW(network.parameters(), lr=1e-2,
                                  step_in_backward=passes)
        generator = torch.Generator().manual_seed(20 + dist.get_rank())
        for _ in range(4):
            mlp_loss(wrapped, generator).backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.close()
    return bits(network.parameters())


def test_parameters_are_below(crew, tmp_path):
    expected = crew.run(train_offloaded, 0, str(tmp_path))
    assert crew.run(train_offloaded, 1, str(tmp_path)) == expected


def two_models(passes):
    """One pass through each of two wrapped models, in one step."""
    networks = [mlp(3, seed=seed) for seed in (7, 8)]
    wrapped = [DistributedDataParallel(each) for each in networks]
    optimizer = terrace.AdamW([p for each in networks
                               for p in each.parameters()], lr=1e-2,
                              step_in_backward=passes)
    generator = torch.Generator().manual_seed(20 + dist.get_rank())
    for _ in range(3):
        for each in wrapped:
            mlp_loss(each, generator).backward()
        optimizer.step()
        optimizer.zero_grad()
    return bits(p for each in networks for p in each.parameters())


def test_one_optimizer_of_two_models(crew):
    assert crew.run(two_models, 2) == crew.run(two_models, 0)


def wrapped_anew(passes):
    """The model is wrapped again after two steps, and the first wrapping is
    kept or not."""
    network = mlp(3)
    optimizer = terrace.AdamW(network.parameters(), lr=1e-2,
                              step_in_backward=passes)
    generator = torch.Generator().manual_seed(20 + dist.get_rank())
    wrapped = []
    for keeps in (False, True, True):
        if not keeps:
            wrapped.clear()
        wrapped.append(DistributedDataParallel(
            network, gradient_as_bucket_view=True))
        for _ in range(2):
            if len(wrapped) > 1:
                wrapped[-2]._remove_autograd_hooks()
            mlp_loss(wrapped[-1], generator).backward()
            optimizer.step()
            optimizer.zero_grad()
    return bits(network.parameters())


def test_a_model_is_wrapped_anew(crew):
    assert crew.run(wrapped_anew, 1) == crew.run(wrapped_anew, 0)


@pytest.mark.parametrize('passes', [1, 2])
@pytest.mark.parametrize('wrapped_first', [False, True])
@pytest.mark.parametrize('wrapped_by', [{}, {'gradient_as_bucket_view': True}])
def test_one_rank(tmp_path, passes, wrapped_first, wrapped_by):
    left = []
    for in_backward in (0, passes):
        network = mlp(2)
        make = functools.partial(terrace.AdamW, lr=1e-2,
                                 step_in_backward=in_backward)
        with one_rank(tmp_path):
            if wrapped_first:
                wrapped = DistributedDataParallel(network, **wrapped_by)
            optimizer = make(network.parameters())
            if not wrapped_first:
                wrapped = DistributedDataParallel(network, **wrapped_by)
            generator = torch.Generator().manual_seed(3)
            for _ in range(3):
                for number in range(passes):
                    wrapped.require_backward_grad_sync = number == passes - 1
                    mlp_loss(wrapped, generator).backward()
                optimizer.step()
                optimizer.zero_grad()
        (tmp_path / 'store').unlink(missing_ok=True)
        optimizer.close()
        left.append(bits(network.parameters()))
    assert left[0] == left[1]
