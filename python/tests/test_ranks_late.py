"""Updates that go on after step() on each of two ranks whose gradients
DistributedDataParallel averages: the bits are those of one process, also where
one rank is slow, and where a late update of one fails and is tried again."""

import errno
import os
import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import terrace
from conftest import model
from crew import bits
from test_late_step_faults import no_large_files
from test_ranks import (CASES, STEPS, WIDTH, Job,
                        _one_thread_as_the_ranks, same)  # noqa: F401


class LateJob(Job):
    """Each rank has all the state, and its updates are late."""

    def among(self, group):
        return {'overlap': group is not None}


def train_late(case, path, wrapped_by, pauses):
    """Losses, parameters and stats; a rank waits so many seconds before each
    step, and so many after it."""
    rank = dist.get_rank()
    os.makedirs(f'{path}/{rank}', exist_ok=True)
    job = LateJob(case, f'{path}/{rank}', [rank], dist.group.WORLD)
    job.wrapped = DistributedDataParallel(job.network, **wrapped_by)
    before, after = pauses[rank]
    losses = []
    for number in range(STEPS):
        time.sleep(before)
        losses.append(job.step(number))
        time.sleep(after)
    job.optimizer.flush()
    stats = job.optimizer.stats()
    parameters = bits(job.network.parameters())
    job.optimizer.close()
    return losses, parameters, stats


def check_is_one_process(results, case, path):
    alone = LateJob(case, path, [0, 1])
    losses = alone.run()
    for rank, (theirs, parameters, stats) in enumerate(results):
        for step in range(STEPS):
            assert same(theirs[step][0], losses[step][rank]), (rank, step)
        assert parameters == bits(alone.network.parameters()), rank
        assert stats['steps'] == STEPS - ('bad' in case)
        assert stats['ranks'] == 1
        assert (stats['bytes_read'] > 0) == ('budget' in case)
    alone.optimizer.close()


@pytest.mark.parametrize('name', CASES)
def test_two_ranks_are_one_process(name, crew, tmp_path):
    results = crew.run(train_late, CASES[name], str(tmp_path), {},
                       [(0, 0), (0, 0)])
    check_is_one_process(results, CASES[name], str(tmp_path))


@pytest.mark.parametrize('wrapped_by', [
    {'gradient_as_bucket_view': True}, {'find_unused_parameters': True},
    {'bucket_cap_mb': 0.01}, {'static_graph': True},
    {'bucket_cap_mb': 0.01, 'gradient_as_bucket_view': True}])
def test_however_it_is_wrapped(wrapped_by, crew, tmp_path):
    case = CASES['clipped on disk']
    results = crew.run(train_late, case, str(tmp_path), wrapped_by,
                       [(0, 0), (0, 0)])
    check_is_one_process(results, case, str(tmp_path))


@pytest.mark.parametrize('pauses', [[(0.02, 0), (0, 0)], [(0, 0), (0, 0.02)]])
@pytest.mark.parametrize('wrapped_by', [{}, {'gradient_as_bucket_view': True}])
def test_one_is_slow(pauses, wrapped_by, crew, tmp_path):
    results = crew.run(train_late, CASES['disk'], str(tmp_path), wrapped_by,
                       pauses)
    check_is_one_process(results, CASES['disk'], str(tmp_path))


def fail_on_the_second(path, wrapped_by):
    """Four steps, of which a late update of the third fails on rank 1: what its
    pass said, whether its flush() did, and the parameters."""
    rank = dist.get_rank()
    os.makedirs(f'{path}/{rank}', exist_ok=True)
    network = model(WIDTH)
    wrapped = DistributedDataParallel(network, **wrapped_by)
    optimizer = terrace.AdamW(network.parameters(), lr=1e-2, overlap=True,
                              memory_budget='192KiB',
                              nvme_path=f'{path}/{rank}')
    generator = torch.Generator().manual_seed(20 + rank)
    said = []
    for number in range(4):
        inputs = torch.randn(12, WIDTH, generator=generator)
        if number == 3 and rank == 1:
            # Rank 0 waits in its backward for the gradients of this one.
            try:
                wrapped(inputs)
            except RuntimeError as error:
                said.append(str(error))
            optimizer.flush()
        wrapped(inputs).square().mean().backward()
        if number == 2 and rank == 1:
            with no_large_files():
                optimizer.step()
                try:
                    optimizer.flush()
                except OSError as error:
                    said.append(error.errno)
        else:
            optimizer.step()
        optimizer.zero_grad()
    optimizer.flush()
    parameters = bits(network.parameters())
    optimizer.close()
    return said, parameters


def undisturbed():
    """The same in one process."""
    network = model(WIDTH)
    optimizer = terrace.AdamW(network.parameters(), lr=1e-2)
    generators = [torch.Generator().manual_seed(20 + rank) for rank in (0, 1)]
    for _ in range(4):
        for generator in generators:
            inputs = torch.randn(12, WIDTH, generator=generator)
            (network(inputs).square().mean() / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    return bits(network.parameters())


@pytest.mark.parametrize('wrapped_by', [{}, {'gradient_as_bucket_view': True}])
def test_one_fails_and_tries_again(wrapped_by, crew, tmp_path):
    results = crew.run(fail_on_the_second, str(tmp_path), wrapped_by)
    (quiet, mine), (said, theirs) = results
    assert quiet == []
    number, text = said
    assert number == errno.EFBIG, said
    assert text.startswith('terrace:') and 'could not be updated' in text
    assert mine == theirs == undisturbed()
