"""A process_group whose updates go on after step(): each rank updates its share
late, and its parameters come to the other ranks while their forward begins. The
bits are those of one process, whatever order operations take them in on each
rank, also where one rank is slow, and where a late update of one fails and is
tried again."""

import contextlib
import errno
import functools
import time

import pytest
import torch
import torch.distributed as dist

import terrace
from conftest import model
from crew import bits, error_of
from terrace._state.stepping import late_readers
from test_late_step_faults import no_large_files
from test_ranks import (CASES, STEPS, WIDTH, Job,
                        _one_thread_as_the_ranks, odd_parameters,  # noqa: F401
                        same, step_odd)


class LateJob(Job):
    def among(self, group):
        return {'process_group': group, 'overlap': group is not None}


def train_late(case, path, pauses):
    """Losses, parameters and stats; a rank waits so many seconds before each
    step, and so many after it."""
    rank = dist.get_rank()
    job = LateJob(case, path, [rank], dist.group.WORLD)
    before, after = pauses[rank]
    losses = []
    for number in range(STEPS):
        time.sleep(before)
        losses.append(job.step(number))
        time.sleep(after)
    job.optimizer.flush()
    parameters = bits(job.network.parameters())
    stats = job.optimizer.stats()
    job.optimizer.close()
    return losses, parameters, stats


def check_is_one_process(results, case, path):
    alone = LateJob(case, path, [0, 1])
    losses = alone.run()
    for rank, (theirs, parameters, stats) in enumerate(results):
        for step in range(STEPS):
            assert same(theirs[step][0], losses[step][rank]), (rank, step)
        assert parameters == bits(alone.network.parameters()), rank
        assert stats['rank'] == rank and stats['ranks'] == 2
        assert stats['steps'] == STEPS - ('bad' in case)
        assert stats['bytes_sent'] > 0 and stats['bytes_received'] > 0
        assert (stats['bytes_read'] > 0) == ('budget' in case)
    whole = alone.optimizer.stats()
    assert (sum(stats['state_bytes'] for _, _, stats in results)
            == whole['state_bytes'])
    norms = {stats['gradient_norm'] for _, _, stats in results}
    assert norms == {whole['gradient_norm']}
    alone.optimizer.close()


@pytest.mark.parametrize('name', CASES)
def test_two_ranks_are_one_process(name, crew, tmp_path):
    results = crew.run(train_late, CASES[name], str(tmp_path),
                       [(0, 0), (0, 0)])
    check_is_one_process(results, CASES[name], str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('pauses', [[(0.02, 0), (0, 0)], [(0, 0), (0, 0.02)]])
def test_one_is_slow(pauses, crew, tmp_path):
    results = crew.run(train_late, CASES['clipped on disk'], str(tmp_path),
                       pauses)
    check_is_one_process(results, CASES['clipped on disk'], str(tmp_path))


def gradient_of(parameter, number, index):
    generator = torch.Generator().manual_seed(100 * number + index)
    return torch.randn(parameter.shape, generator=generator)


def step_in_orders(group, order, path):
    """Parameters after steps between which operations take them in some order;
    sums that were seen on the way."""
    torch.manual_seed(3)
    parameters = [torch.nn.Parameter(torch.randn(40, 500 + i))
                  for i in range(12)]
    settings = dict(memory_budget='192KiB', nvme_path=path)
    if group:
        settings.update(process_group=group, overlap=True)
    optimizer = terrace.AdamW(parameters, lr=1e-2, **settings)
    seen = {}
    for number in range(6):
        for index, parameter in enumerate(parameters):
            parameter.grad = gradient_of(parameter, number, index)
        optimizer.step()
        for index in order[number % len(order)]:
            seen[number, index] = parameters[index].sum().item()
    values = bits(parameters)
    optimizer.close()
    return values, seen


def step_in_own_order(orders, path):
    return step_in_orders(dist.group.WORLD, orders[dist.get_rank()], path)


def test_each_rank_takes_them_in_an_order_of_its_own(crew, tmp_path):
    forward = list(range(12))
    orders = [[forward, forward[::-1], forward[::3]],
              [forward[::-1], forward[5:] + forward[:5], forward]]
    results = crew.run(step_in_own_order, orders, str(tmp_path))
    values, seen = step_in_orders(None, [forward], str(tmp_path))
    for parameters, sums in results:
        assert parameters == values
        assert all(seen[key] == value for key, value in sums.items())
    assert not list(tmp_path.iterdir())


def odd(group):
    parameters = odd_parameters()
    settings = {'process_group': group, 'overlap': True} if group else {}
    optimizer = terrace.AdamW(parameters[:6], max_grad_norm=1.0, **settings)
    for number in range(4):
        step_odd(optimizer, parameters[:6], number)
    optimizer.add_param_group({'params': parameters[6:], 'lr': 1e-2})
    for number in range(4, 8):
        step_odd(optimizer, parameters, number)
        # What a program writes between steps counts: not before all have what
        # was sent.
        with torch.no_grad():
            for parameter in parameters:
                parameter.mul_(0.5)
    optimizer.flush()
    versions = [p._version > 0 for p in parameters if p.numel()]
    values = bits(parameters)
    optimizer.close()
    return values, versions


def odd_together():
    return odd(dist.group.WORLD)


def test_odd_parameters_that_are_written_between_steps(crew):
    assert crew.run(odd_together) == [odd(None)] * 2


def one_has_compiled():
    """Parameters, and whether the step went on after step()."""
    network = model(WIDTH)
    optimizer = terrace.AdamW(network.parameters(), lr=1e-2, overlap=True,
                              process_group=dist.group.WORLD)
    is_compiled = late_readers.is_compiled
    if dist.get_rank() == 1:
        late_readers.is_compiled = lambda: True
    try:
        network(torch.ones(3, WIDTH)).square().mean().backward()
        optimizer.step()
        was_late = optimizer._store.share._exchange is not None
    finally:
        late_readers.is_compiled = is_compiled
    values = bits(network.parameters())
    optimizer.close()
    return was_late, values


def test_all_end_in_step_where_one_has_compiled(crew):
    network = model(WIDTH)
    optimizer = terrace.AdamW(network.parameters(), lr=1e-2)
    network(torch.ones(3, WIDTH)).square().mean().backward()
    optimizer.step()
    assert (crew.run(one_has_compiled)
            == [(False, bits(network.parameters()))] * 2)


def two_optimizers(group):
    """Over halves of a model, whose steps are made in another order than their
    parameters are taken in."""
    network = model(WIDTH)
    settings = {'process_group': group, 'overlap': True} if group else {}
    parameters = list(network.parameters())
    optimizers = [terrace.AdamW(parameters[0::2], lr=1e-2, **settings),
                  terrace.AdamW(parameters[1::2], lr=3e-3, **settings)]
    generator = torch.Generator().manual_seed(5)
    for number in range(6):
        inputs = torch.randn(12, WIDTH, generator=generator)
        network(inputs).square().mean().backward()
        for optimizer in optimizers[::1 if number % 2 else -1]:
            optimizer.step()
            optimizer.zero_grad()
    values = bits(network.parameters())
    for optimizer in optimizers:
        optimizer.close()
    return values


def two_together():
    return two_optimizers(dist.group.WORLD)


def test_two_optimizers_at_once(crew):
    assert crew.run(two_together) == [two_optimizers(None)] * 2


def save_between_steps(path):
    """The state and the parameters as saved between late steps, and those after
    two more steps, made twice."""
    job = LateJob(CASES['disk'], path, [dist.get_rank()], dist.group.WORLD)
    job.run(0, 4)
    part = job.optimizer.state_dict()['state']
    terrace.save(f'{path}/saved', job.network, job.optimizer)
    job.optimizer.consolidate_state_dict(0)
    whole = job.optimizer.state_dict()['state']
    between = bits(job.network.parameters())
    job.run(4, 6)
    after = bits(job.network.parameters())
    terrace.load(f'{path}/saved', job.network, job.optimizer)
    again = bits(job.network.parameters())
    job.scheduler.last_epoch = 4
    job.optimizer.close()
    return len(part), len(whole), between, after, again


def test_a_checkpoint_between_late_steps(crew, tmp_path):
    results = crew.run(save_between_steps, str(tmp_path))
    alone = LateJob(CASES['disk'], str(tmp_path), [0, 1])
    alone.run(0, 4)
    between = bits(alone.network.parameters())
    count = len(alone.optimizer.state_dict()['state'])
    alone.run(4, 6)
    assert sum(part for part, *_ in results) == count
    assert results[0][1] == count
    for _, _, *values in results:
        assert values == [between, bits(alone.network.parameters()), between]
    alone.optimizer.close()


def fail_on_the_second(path, third):
    """Four steps, the third by third(optimizer, network, inputs, fails): within
    fails() a late update fails on rank 1. What that said, and the
    parameters."""
    rank = dist.get_rank()
    network = model(WIDTH)
    optimizer = terrace.AdamW(network.parameters(), lr=1e-2, overlap=True,
                              memory_budget='192KiB', nvme_path=path,
                              process_group=dist.group.WORLD)
    fails = no_large_files if rank == 1 else contextlib.nullcontext
    generator = torch.Generator().manual_seed(20)
    for number in range(4):
        inputs = torch.randn(12, WIDTH, generator=generator)
        network(inputs).square().mean().backward()
        if number == 2:
            said = third(optimizer, network, inputs, fails)
        else:
            optimizer.step()
        optimizer.zero_grad()
    optimizer.flush()
    parameters = bits(network.parameters())
    optimizer.close()
    return said, parameters


def flush_again(optimizer, network, inputs, fails, seen):
    """What flush() says and, where it is `seen`, an operation before it."""
    said = []
    with fails():
        optimizer.step()
        if seen:
            said.append(error_of(lambda: network(inputs))[:2])
        said.append(error_of(optimizer.flush)[:3])
    optimizer.flush()
    return said


def look_on_one(optimizer, network, inputs, fails):
    """What two calls of step() say after a look at the state has told rank 0
    first, and what that look says."""
    said = []
    with fails():
        optimizer.step()
        optimizer._store.share._exchange._native.wait()
    if dist.get_rank() == 0:
        said.append(error_of(optimizer.state_dict)[0])
    optimizer.zero_grad()  # what is tried again has its gradients
    return said + [error_of(optimizer.step)[0] for _ in range(2)]


def test_a_look_on_one_rank_leaves_all_in_step(crew, tmp_path):
    (quiet, mine), (said, theirs) = crew.run(
        fail_on_the_second, str(tmp_path), look_on_one)
    assert quiet == ['RankError', 'RankError', 'nothing']
    assert said == ['OSError', 'nothing']
    assert mine == theirs == undisturbed()


def undisturbed():
    network = model(WIDTH)
    optimizer = terrace.AdamW(network.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(20)
    for _ in range(4):
        inputs = torch.randn(12, WIDTH, generator=generator)
        network(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return bits(network.parameters())


@pytest.mark.parametrize('seen', [False, True])
def test_one_fails_and_all_try_again(crew, tmp_path, seen):
    results = crew.run(fail_on_the_second, str(tmp_path),
                       functools.partial(flush_again, seen=seen))
    (quiet, mine), (said, theirs) = results
    if seen:
        for kind, text in (quiet.pop(0), said.pop(0)):
            assert kind == 'RuntimeError'
            assert text.startswith('terrace:')
            assert 'could not be updated' in text
    (kind, text, attributes), = quiet
    assert kind == 'RankError' and attributes['failed'] == (1,)
    assert 'rank 1 of 2 failed' in text and 'EFBIG (File too large' in text
    assert text.endswith('); flush() on all ranks tries again')
    (kind, text, attributes), = said
    assert kind == 'OSError' and f'[Errno {errno.EFBIG}]' in text
    assert mine == theirs == undisturbed()
    assert not list(tmp_path.iterdir())
