"""Offloaded models under DistributedDataParallel: parameters and activations
below, on two ranks, to the bits of the run in memory; what is not built for
ranks is refused by name. On one rank an optimizer joins, as without it."""

import functools
import os

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import terrace
from crew import bits, one_rank
from offloaded import check_equal_values, mlp, mlp_loss, values
from terrace._base.library import is_offloaded


def train_wrapped(path, group, offloaded, activations, overlap=None):
    """Losses and parameters after four steps, of batches of its own; and what
    was moved."""
    rank = dist.get_rank()
    network = mlp()
    offload = None
    if offloaded:
        os.mkdir(f'{path}/{rank}')
        offload = terrace.offload(network, memory_budget='220 kB',
                                  nvme_path=f'{path}/{rank}',
                                  activations=activations,
                                  activations_above='1KiB')
    wrapped = DistributedDataParallel(network)
    optimizer = terrace.AdamW(
        network.parameters(), lr=1e-2, overlap=overlap,
        process_group=dist.group.WORLD if group else None)
    generator = torch.Generator().manual_seed(20 + rank)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = mlp_loss(wrapped, generator)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    stats = offload.stats() if offload else {}
    optimizer.close()
    if offload:
        offload.close()
    return losses, bits(network.parameters()), stats


@pytest.mark.parametrize('group, overlap', [(True, None), (False, None),
                                            (False, True)])
@pytest.mark.parametrize('activations', [False, True])
def test_two_ranks_are_as_in_memory(crew, tmp_path, group, overlap,
                                    activations):
    below = crew.run(train_wrapped, str(tmp_path), group, True, activations,
                     overlap)
    expected = crew.run(train_wrapped, str(tmp_path), group, False, False)
    assert expected[0][0] != expected[1][0]  # each has batches of its own
    for rank, (losses, parameters, stats) in enumerate(below):
        assert losses == expected[rank][0]
        assert parameters == expected[0][1]
        assert stats['budget_bytes'] < stats['parameter_bytes']
        assert stats['fetches'] + stats['fetches_ahead'] > 0
        assert stats['evictions'] > 0
        assert (stats['activation_written_bytes'] > 0) == activations
        assert os.listdir(tmp_path / str(rank)) == []


def refused(path, group, options):
    """What an optimizer over an offloaded model answers there."""
    network = mlp()
    with terrace.offload(network, memory_budget='40%', nvme_path=path):
        try:
            terrace.AdamW(network.parameters(), **options,
                          process_group=dist.group.WORLD if group else None)
        except NotImplementedError as error:
            return str(error)


@pytest.mark.parametrize('group, options, text', [
    (True, {'step_in_backward': 1}, 'step_in_backward'),
])
def test_what_is_not_built_for_ranks(crew, tmp_path, group, options, text):
    for said in crew.run(refused, str(tmp_path), group, options):
        assert said and text in said


def train_alone(network, make, wrapped_by, look=lambda: None):
    """Losses of three steps, of two passes each."""
    wrapped = DistributedDataParallel(network, **wrapped_by)
    optimizer = make(network.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(20)
    losses = []
    for _ in range(3):
        for _ in range(2):
            loss = mlp_loss(wrapped, generator)
            loss.backward()
            losses.append(loss.item())
        look()
        optimizer.step()
        optimizer.zero_grad()
    return losses, optimizer


@pytest.mark.parametrize('activations, overlap', [(True, None), (False, None),
                                                  (False, False)])
@pytest.mark.parametrize('wrapped_by', [
    {}, {'gradient_as_bucket_view': True}, {'find_unused_parameters': True},
    {'bucket_cap_mb': 0.01}])
def test_an_optimizer_joins_on_one_rank(tmp_path, activations, overlap,
                                        wrapped_by):
    below = set()

    def look():
        below.update(is_offloaded(p.grad) for p in network.parameters())

    with one_rank(tmp_path):
        plain, theirs, network = mlp(12), mlp(12), mlp(12)
        expected, _ = train_alone(plain, terrace.AdamW, wrapped_by)
        near, _ = train_alone(theirs, torch.optim.AdamW, wrapped_by)
        (tmp_path / 'nvme').mkdir()
        with terrace.offload(network, memory_budget='448KiB',
                             nvme_path=str(tmp_path / 'nvme'),
                             activations=activations,
                             activations_above='1KiB') as offload:
            losses, optimizer = train_alone(
                network, functools.partial(terrace.AdamW, overlap=overlap),
                wrapped_by, look)
            optimizer.flush()
            stats = offload.stats()
        assert losses == expected == pytest.approx(near, rel=1e-4)
        check_equal_values(values(network), values(plain))
        # Views of a bucket are left in its memory.
        assert below == {not wrapped_by.get('gradient_as_bucket_view', False)}
        assert stats['evictions'] > 0 and stats['bytes_written'] > 0
        assert (stats['blocked_seconds']['updates'] > 0) == (overlap is None)
