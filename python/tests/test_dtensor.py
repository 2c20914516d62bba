"""Parameters that fully_shard (FSDP2) and others make DTensors, against
torch.optim.AdamW of the same."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import (DTensor, Partial, Replicate, Shard,
                                      distribute_tensor)

import sharded
from crew import Crew

STEPS = 8


@pytest.fixture(scope='module')
def crew_of_three(tmp_path_factory):
    made = Crew(tmp_path_factory.mktemp('three'), 3)
    yield made
    made.close()


@pytest.fixture(scope='module')
def crew_of_four(tmp_path_factory):
    made = Crew(tmp_path_factory.mktemp('four'), 4)
    yield made
    made.close()


def run(who, case, path):
    case = dict(case)
    shape = case.pop('sizes', sharded.SIZES)
    dtype = case.pop('dtype', torch.float32)
    over = (sharded.mesh(2, 2, names=('outer', 'inner'))
            if case.pop('replicas', False) else None)
    model = sharded.sharded(shape, dtype, over, case.pop('compute', None))
    max_norm = case.pop('max_norm', None)
    if 'memory_budget' in case:
        case['nvme_path'] = path
    optimizer = sharded.optimizer_of(who, model.parameters(), **case)
    losses = sharded.train(model, optimizer, 0, STEPS, max_norm=max_norm,
                           dtype=dtype)
    state = sharded.state_of(model, optimizer)
    values = {name: sharded.whole(parameter)
              for name, parameter in model.named_parameters()}
    read = optimizer.stats()['bytes_read'] if who == 'ours' else 0
    if who == 'ours':
        optimizer.close()
    return losses, state, values, read


CASES = {
    'memory': {},
    'disk': {'sizes': (400, 600, 7), 'memory_budget': '512KiB'},
    'clipped by hand': {'max_norm': 0.1},
    'computed in bf16': {'compute': torch.bfloat16},
    'one row': {'sizes': (5, 1, 1)},  # the other ranks have nothing at all
    'maximize': {'maximize': True},
}


@pytest.mark.parametrize('name', CASES)
def test_losses_and_state_are_those_of_torch(name, crew, tmp_path):
    compare(crew, CASES[name], tmp_path)


@pytest.mark.parametrize('name', ['memory', 'one row'])
def test_ranks_with_empty_shards(name, crew_of_three, tmp_path):
    compare(crew_of_three, CASES[name], tmp_path)


def test_shards_with_replicas(crew_of_four, tmp_path):
    compare(crew_of_four, {'replicas': True}, tmp_path)


def compare(crew, case, path):
    expected = crew.run(run, 'torch', case, str(path))
    for ours, theirs in zip(crew.run(run, 'ours', case, str(path)), expected):
        # bf16 turns a last place of fp32 into one of 256.
        tolerance = 1e-3 if 'compute' in case else 2e-6
        sharded.assert_near(ours[0], theirs[0], tolerance)
        sharded.assert_near(ours[1], theirs[1], tolerance)
        sharded.assert_near(ours[2], theirs[2], tolerance)
        assert (ours[3] > 0) == ('memory_budget' in case)
    assert not list(path.iterdir())


def run_alone_and_sharded(dtype):
    """The same numbers as DTensors and as plain tensors."""
    over = sharded.mesh()
    generator = torch.Generator().manual_seed(3)
    values = [torch.randn(9, 4, generator=generator).to(dtype),
              torch.randn(1, generator=generator).to(dtype)]
    plain = [torch.nn.Parameter(value.clone()) for value in values]
    placed = [torch.nn.Parameter(distribute_tensor(value, over, [Shard(0)]))
              for value in values]
    optimizers = [sharded.optimizer_of('ours', parameters)
                  for parameters in (plain, placed)]
    for _ in range(5):
        for a, b in zip(plain, placed):
            gradient = torch.randn(a.shape, generator=generator).to(dtype)
            a.grad = gradient
            b.grad = distribute_tensor(gradient, over, [Shard(0)])
        for optimizer in optimizers:
            optimizer.step()
    states = [[{key: sharded.whole(value) for key, value
                in optimizer.state[parameter].items()}
               for parameter in parameters]
              for optimizer, parameters in zip(optimizers, (plain, placed))]
    same = all(torch.equal(a, sharded.whole(b)) for a, b in zip(plain, placed))
    versions = [parameter._version for parameter in placed]
    return states, same, versions


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16,
                                   torch.float16])
def test_bit_for_bit_as_plain_tensors(dtype, crew):
    for (plain, placed), same, versions in crew.run(run_alone_and_sharded,
                                                    dtype):
        assert same
        for a, b in zip(plain, placed):
            assert a.keys() == b.keys()
            assert all(torch.equal(a[key], b[key]) for key in a)
            assert ('master_param' in a) == (dtype != torch.float32)
        assert versions == [5, 5]  # autograd hears of each step


def run_some_without_gradient(who):
    model = sharded.sharded()
    optimizer = sharded.optimizer_of(who, model.parameters())
    frozen = model[0].bias
    frozen.requires_grad_(False)
    losses = sharded.train(model, optimizer, 0, 3)
    before = len(optimizer.state), frozen in optimizer.state
    frozen.requires_grad_(True)
    losses += sharded.train(model, optimizer, 3, 6)
    return losses, before, sharded.state_of(model, optimizer)


def test_some_have_no_gradient(crew):
    expected = crew.run(run_some_without_gradient, 'torch')
    for ours, theirs in zip(crew.run(run_some_without_gradient, 'ours'),
                            expected):
        assert ours[1] == theirs[1] == (3, False)
        sharded.assert_near(ours[0], theirs[0], 2e-6)
        sharded.assert_near(ours[2], theirs[2], 2e-6)


def run_placed_otherwise(who):
    """As tensor parallelism leaves them."""
    over = sharded.mesh()
    rank = dist.get_rank()
    values = torch.arange(8.).reshape(4, 2)
    parameters = [
        torch.nn.Parameter(distribute_tensor(values, over, [Replicate()])),
        torch.nn.Parameter(distribute_tensor(values, over, [Shard(1)])),
        torch.nn.Parameter(distribute_tensor(values.t(), over, [Shard(0)]))]
    optimizer = sharded.optimizer_of(who, parameters)
    for number in range(1, 4):
        part = torch.full((4, 2), float(rank + number))
        parameters[0].grad = DTensor.from_local(part, over, [Partial()])
        parameters[1].grad = distribute_tensor(values - number, over,
                                               [Shard(0)])
        parameters[2].grad = distribute_tensor(values.t() / number, over,
                                               [Shard(0)])
        optimizer.step()
    return [sharded.whole(parameter) for parameter in parameters]


def test_gradients_that_are_placed_otherwise(crew):
    expected = crew.run(run_placed_otherwise, 'torch')
    for ours, theirs in zip(crew.run(run_placed_otherwise, 'ours'), expected):
        for a, b in zip(ours, theirs):
            sharded.assert_near(a, b, 2e-6)


def run_with_scaler(who, fused, bad):
    model = sharded.sharded()
    optimizer = sharded.optimizer_of(who, model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler('cpu', init_scale=2.0**10)
    losses = []
    for number in range(4):
        inputs = torch.ones(3, 5) * (number + 1 + dist.get_rank())
        loss = model(inputs).square().mean()
        if number == bad and dist.get_rank() == 1:
            loss = loss * float('inf')
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, scaler.get_scale(), sharded.state_of(model, optimizer)


@pytest.mark.parametrize('fused', [None, True])
def test_with_a_grad_scaler(fused, crew):
    expected = crew.run(run_with_scaler, 'torch', None, 2)
    for ours, theirs in zip(crew.run(run_with_scaler, 'ours', fused, 2),
                            expected):
        assert ours[1] == theirs[1] == 2.0**9  # it skipped one, on all ranks
        sharded.assert_near(torch.tensor(ours[0][:2]),
                            torch.tensor(theirs[0][:2]), 2e-6)
        sharded.assert_near(ours[2], theirs[2], 2e-6)


def run_parameters_replaced():
    """As accelerate does: the optimizer comes first."""
    model = sharded.network((300, 400, 7))
    optimizer = sharded.optimizer_of('ours', model.parameters())
    before = optimizer.stats()['state_bytes']
    from torch.distributed.fsdp import fully_shard
    fully_shard(model, mesh=sharded.mesh())
    optimizer.param_groups[0]['params'] = list(model.parameters())
    losses = sharded.train(model, optimizer, 0, STEPS)
    stats = optimizer.stats()
    copied = copy.deepcopy(optimizer.state)
    return losses, before, stats['state_bytes'], len(copied)


def run_from_the_beginning():
    model = sharded.sharded((300, 400, 7))
    optimizer = sharded.optimizer_of('torch', model.parameters())
    return sharded.train(model, optimizer, 0, STEPS)


def test_parameters_replaced_by_their_shards(crew):
    expected = crew.run(run_from_the_beginning)
    for (losses, before, after, count), theirs in zip(
            crew.run(run_parameters_replaced), expected):
        sharded.assert_near(losses, theirs, 2e-6)
        assert after < 0.6 * before  # nothing is kept of the whole ones
        assert count == 4
