"""Offloaded models under DistributedDataParallel: parameters and activations
below, on two ranks, to the bits of the run in memory; what is not built for
ranks is refused by name."""

import os

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import terrace
from crew import bits
from offloaded import mlp, mlp_loss


def train_wrapped(path, group, offloaded, activations):
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
        network.parameters(), lr=1e-2,
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


@pytest.mark.parametrize('group', [True, False])
@pytest.mark.parametrize('activations', [False, True])
def test_two_ranks_are_as_in_memory(crew, tmp_path, group, activations):
    below = crew.run(train_wrapped, str(tmp_path), group, True, activations)
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
    with terrace.offload(network, memory_budget='40%',
                         nvme_path=path) as offload:
        joins = options.pop('joins', False)
        if joins:
            options['offload'] = offload
        try:
            terrace.AdamW(network.parameters(), **options,
                          process_group=dist.group.WORLD if group else None)
        except NotImplementedError as error:
            return str(error)


@pytest.mark.parametrize('group', [True, False])
@pytest.mark.parametrize('options, text', [
    ({'joins': True}, 'gradients below'),
    ({'overlap': True}, 'overlap=True on one of several ranks'),
    ({'step_in_backward': 1}, 'step_in_backward'),
])
def test_what_is_not_built_for_ranks(crew, tmp_path, group, options, text):
    for said in crew.run(refused, str(tmp_path), group, options):
        assert said and text in said
