"""Activations below of a model whose parameters fully_shard (FSDP2),
FullyShardedDataParallel or tensor parallelism has: losses and gradients of each
rank are those of torch alone. The parameters are refused by name."""

import functools
import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (ColwiseParallel,
                                               RowwiseParallel,
                                               parallelize_module)

import sharded
import terrace
from crew import bits, error_of, one_rank
from offloaded import WIDTH, mlp

LAYERS = 8
STEPS = 3
ROWS = 150  # of them an activation has 75 KiB

KINDS = ['fully_shard', 'unsharded until backward', 'of 16 bits', 'tensors',
         'flat', 'flat originals']


def build(kind):
    network = mlp(LAYERS)
    mesh = sharded.mesh()
    if kind == 'tensors':
        return parallelize_module(network, mesh, {'0': ColwiseParallel(),
                                                  '2': RowwiseParallel()})
    if kind.startswith('flat'):
        return FSDP(network, use_orig_params=kind == 'flat originals',
                    device_id=torch.device('cpu'),
                    auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}))
    settings = {
        'fully_shard': {},
        'unsharded until backward': {'reshard_after_forward': False},
        'of 16 bits': {'mp_policy': MixedPrecisionPolicy(
            param_dtype=torch.bfloat16)},
    }[kind]
    for layer in network[::2]:
        fully_shard(layer, mesh=mesh, **settings)
    return fully_shard(network, mesh=mesh, **settings)


def train(kind, path):
    """Losses, and the bits of all gradients, of steps on batches of its own;
    and what was moved, with a path."""
    rank = dist.get_rank()
    model = build(kind)
    below = None
    if path:
        os.mkdir(f'{path}/{rank}')
        below = terrace.offload(model, parameters=False, activations=True,
                                activations_above='1KiB',
                                memory_budget='400KiB',
                                nvme_path=f'{path}/{rank}')
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(
        3 if kind == 'tensors' else 3 + rank)
    left = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        inputs = torch.randn(ROWS, WIDTH, generator=generator)
        loss = model(inputs).float().square().mean()
        loss.backward()
        left.append((loss.item(), bits(
            sharded.whole(p.grad) for p in model.parameters()
            if p.grad is not None)))
        optimizer.step()
    stats = below.stats() if below else {}
    if below:
        below.close()
    return left, stats


def check(theirs, ours, path, rank, kind):
    (expected, _), (left, stats) = theirs, ours
    assert left == expected and all(gradients for _, gradients in left)
    assert stats['parameter_bytes'] == stats['failures'] == 0
    assert stats['activation_written_bytes'] > 0
    assert (stats['activation_fetched_bytes']
            == stats['activation_written_bytes'])
    assert os.listdir(path / str(rank)) == []
    if kind != 'of 16 bits':  # which has a cast batch, too
        # No weight is among them, which FSDP gathers and resizes.
        most = STEPS * (LAYERS + 1) * ROWS * WIDTH * 4
        assert stats['activation_bytes'] <= most


@pytest.mark.parametrize('kind', KINDS)
def test_two_ranks_are_as_torch_alone(crew, tmp_path, kind):
    theirs = crew.run(train, kind, None)
    ours = crew.run(train, kind, str(tmp_path))
    for rank in range(2):
        check(theirs[rank], ours[rank], tmp_path, rank, kind)


@pytest.mark.parametrize('kind', KINDS)
def test_and_so_is_one(tmp_path, kind):
    with one_rank(tmp_path):
        check(train(kind, None), train(kind, str(tmp_path)), tmp_path, 0, kind)


def refusal(kind, path):
    model = build(kind)
    said = error_of(functools.partial(terrace.offload, model,
                                      memory_budget='40%', nvme_path=path))
    return said[:2], any(isinstance(p, DTensor) for p in model.parameters())


@pytest.mark.parametrize('kind', KINDS)
def test_their_parameters_are_refused(crew, tmp_path, kind):
    for (error, text), has_dtensors in crew.run(refusal, kind, str(tmp_path)):
        assert error == 'NotImplementedError' and 'parameters=False' in text
        assert (' is a DTensor, ' in text) == has_dtensors
        assert has_dtensors or 'FullyShardedDataParallel' in text
    assert os.listdir(tmp_path) == []
