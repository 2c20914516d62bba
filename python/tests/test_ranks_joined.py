"""Gradients below on each of two ranks: an optimizer that joins the offloaded
model which DistributedDataParallel wraps, with all of its state or a share of
it, in step() and late, to the bits of one process in memory; and steps in
backward of an optimizer that joins so."""

import contextlib
import errno
import os
import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import terrace
from crew import bits
from offloaded import mlp, mlp_loss
from terrace._base.library import is_offloaded
from test_late_step_faults import no_large_files
from test_ranks import _one_thread_as_the_ranks  # noqa: F401

LAYERS = 12
STEPS = 4
WRAPPED_BY = [{}, {'gradient_as_bucket_view': True},
              {'find_unused_parameters': True}, {'bucket_cap_mb': 0.01}]


def train_joined(path, wrapped_by, overlap, activations, pauses=(0, 0),
                 fails=False, shares=False, clipped=None):
    """Losses and parameters of batches of its own, whether its gradients were
    below, what the offload counted, and what a late update that failed on rank
    1 said."""
    rank = dist.get_rank()
    os.makedirs(f'{path}/{rank}')
    network = mlp(LAYERS)
    offload = terrace.offload(network, memory_budget='448KiB',
                              nvme_path=f'{path}/{rank}',
                              activations=activations,
                              activations_above='1KiB')
    wrapped = DistributedDataParallel(network, **wrapped_by)
    optimizer = terrace.AdamW(
        network.parameters(), lr=1e-2, offload=offload, overlap=overlap,
        max_grad_norm=clipped,
        process_group=dist.group.WORLD if shares else None)
    generator = torch.Generator().manual_seed(20 + rank)
    losses, below, said = [], set(), []
    for number in range(STEPS):
        time.sleep(pauses[rank])
        optimizer.zero_grad()
        loss = mlp_loss(wrapped, generator)
        loss.backward()
        losses.append(loss.item())
        below.update(is_offloaded(p.grad) for p in network.parameters())
        if fails and number == 2 and not overlap:
            fail_now(optimizer, said)
            optimizer.step()
        elif fails and number == 2 and (shares or rank == 1):
            with no_large_files() if rank == 1 else contextlib.nullcontext():
                optimizer.step()
                try:
                    optimizer.flush()
                except OSError as error:
                    said.append(error.errno)
                except terrace.RankError as error:
                    said.append(error.failed)
            # Rank 0 waits in its backward for the gradients of this one.
            optimizer.flush()
        else:
            optimizer.step()
    optimizer.flush()
    stats = offload.stats()
    optimizer.close()
    offload.close()
    return losses, bits(network.parameters()), below, stats, said


def train_in_backward(path, wrapped_by, pauses=(0, 0), fails=False):
    """Losses and parameters of steps in backward, what the offload counted, and
    what rank 1 said: it may have a disk that is full in the third step, which
    is the last one then."""
    rank = dist.get_rank()
    os.makedirs(f'{path}/{rank}')
    network = mlp(LAYERS)
    offload = terrace.offload(network, memory_budget='448KiB',
                              nvme_path=f'{path}/{rank}')
    wrapped = DistributedDataParallel(network, **wrapped_by)
    optimizer = terrace.AdamW(network.parameters(), lr=1e-2, offload=offload,
                              step_in_backward=1)
    generator = torch.Generator().manual_seed(20 + rank)
    losses, said = [], []
    for number in range(STEPS):
        time.sleep(pauses[rank])
        loss = mlp_loss(wrapped, generator)
        losses.append(loss.item())
        if fails and number == 2:
            with no_large_files() if rank == 1 else contextlib.nullcontext():
                try:
                    loss.backward()
                    optimizer.step()
                except OSError as error:
                    said += [error.errno, 'resume all of them' in str(error)]
            break
        loss.backward()
        optimizer.step()
        assert all(p.grad is None for p in network.parameters())
        optimizer.zero_grad()
    stats = offload.stats()
    optimizer.close()
    offload.close()
    return losses, bits(network.parameters()), stats, said


def fail_now(optimizer, said):
    """A step of which rank 1 cannot use a gradient of its share."""
    share = optimizer._store.share
    bad = next(p for p in optimizer.param_groups[0]['params']
               if share.owner(p) == 1)
    gradient = bad.grad
    if dist.get_rank() == 1:
        bad.grad = gradient.to_sparse()
    try:
        optimizer.step()
    except (ValueError, terrace.RankError) as error:
        said.append(type(error).__name__)
    bad.grad = gradient


def alone(clipped=None):
    """Both ranks' losses, and the parameters, of one process in memory."""
    network = mlp(LAYERS)
    optimizer = terrace.AdamW(network.parameters(), lr=1e-2,
                              max_grad_norm=clipped)
    generators = [torch.Generator().manual_seed(20 + rank) for rank in (0, 1)]
    losses = ([], [])
    for _ in range(STEPS):
        optimizer.zero_grad()
        for each, generator in zip(losses, generators):
            loss = mlp_loss(network, generator)
            (loss / 2).backward()
            each.append(loss.item())
        optimizer.step()
    optimizer.close()
    return losses, bits(network.parameters())


def check(results, wrapped_by, clipped=None):
    expected, parameters = alone(clipped)
    for rank, (losses, theirs, below, stats, _) in enumerate(results):
        assert losses == expected[rank]
        assert theirs == parameters
        # Views of a bucket are left in its memory.
        assert below == {not wrapped_by.get('gradient_as_bucket_view', False)}
        assert stats['evictions'] > 0 and stats['bytes_written'] > 0


@pytest.mark.parametrize('wrapped_by', WRAPPED_BY)
@pytest.mark.parametrize('overlap', [False, True, None])
@pytest.mark.parametrize('activations', [False, True])
def test_two_ranks_are_one_process(crew, tmp_path, wrapped_by, overlap,
                                   activations):
    check(crew.run(train_joined, str(tmp_path), wrapped_by, overlap,
                   activations), wrapped_by)


@pytest.mark.parametrize('pauses', [(0.05, 0), (0, 0.05)])
@pytest.mark.parametrize('overlap', [False, True])
def test_one_is_slow(crew, tmp_path, pauses, overlap):
    check(crew.run(train_joined, str(tmp_path), {}, overlap, False, pauses), {})


@pytest.mark.parametrize('wrapped_by', WRAPPED_BY[:2])
def test_one_fails_and_tries_again(crew, tmp_path, wrapped_by):
    results = crew.run(train_joined, str(tmp_path), wrapped_by, True, False,
                       (0, 0), True)
    check(results, wrapped_by)
    assert [said for *_, said in results] == [[], [errno.EFBIG]]


def check_in_backward(results):
    expected, parameters = alone()
    for rank, (losses, theirs, stats, _) in enumerate(results):
        assert losses == expected[rank]
        assert theirs == parameters
        assert stats['evictions'] > 0 and stats['bytes_written'] > 0


@pytest.mark.parametrize('wrapped_by', WRAPPED_BY)
def test_two_ranks_that_step_in_backward(crew, tmp_path, wrapped_by):
    check_in_backward(crew.run(train_in_backward, str(tmp_path), wrapped_by))


@pytest.mark.parametrize('pauses', [(0.05, 0), (0, 0.05)])
def test_one_that_steps_in_backward_is_slow(crew, tmp_path, pauses):
    check_in_backward(crew.run(train_in_backward, str(tmp_path), {}, pauses))


def test_one_that_steps_in_backward_fails(crew, tmp_path):
    results = crew.run(train_in_backward, str(tmp_path), {}, (0, 0), True)
    assert [said for *_, said in results] == [[], [errno.EFBIG, True]]
    expected, _ = alone()
    for rank, (losses, *_) in enumerate(results):
        assert losses == expected[rank][:3]


@pytest.mark.parametrize('wrapped_by', WRAPPED_BY)
@pytest.mark.parametrize('overlap', [False, True, None])
@pytest.mark.parametrize('clipped', [None, 0.05])
def test_ranks_that_share_the_state_are_one_process(crew, tmp_path, wrapped_by,
                                                    overlap, clipped):
    check(crew.run(train_joined, str(tmp_path), wrapped_by, overlap, False,
                   (0, 0), False, True, clipped), wrapped_by, clipped)


@pytest.mark.parametrize('pauses', [(0.05, 0), (0, 0.05)])
@pytest.mark.parametrize('overlap', [False, True])
def test_one_of_those_that_share_is_slow(crew, tmp_path, pauses, overlap):
    check(crew.run(train_joined, str(tmp_path), {}, overlap, True, pauses,
                   False, True), {})


@pytest.mark.parametrize('overlap, expected', [
    (False, [['RankError'], ['ValueError']]),
    (True, [[(1,)], [errno.EFBIG]])])
def test_one_of_those_that_share_fails(crew, tmp_path, overlap, expected):
    results = crew.run(train_joined, str(tmp_path), {}, overlap, False,
                       (0, 0), True, True)
    check(results, {})
    assert [said for *_, said in results] == expected
