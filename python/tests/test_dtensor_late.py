"""Shards of fully_shard (FSDP2) that are updated after step(): the bits are
those of one process with whole parameters, also where one rank is slow, and
where a late update of one fails and is tried again."""

import errno
import os
import time

import pytest
import torch
import torch.distributed as dist

import sharded
import terrace
from crew import bits
from test_late_step_faults import no_large_files
from test_ranks import _one_thread_as_the_ranks  # noqa: F401

SIZES = (200, 256, 200)
STEPS = 6
CASES = {
    'memory': {},
    'disk': {'memory_budget': '160KiB'},
    'kept gathered': {'reshard': False},
}


def rows_of(number):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(12, SIZES[0], generator=generator)


def optimizer_of(parameters, case, path, overlap):
    settings = {key: value for key, value in case.items() if key != 'reshard'}
    if settings:
        os.makedirs(path, exist_ok=True)
        settings['nvme_path'] = path
    return terrace.AdamW(parameters, lr=1e-2, overlap=overlap, **settings)


def train(case, path, pauses=(0, 0), fails=None):
    """Losses of this rank's rows, whole parameters after them, what a late
    update that failed on rank 1 said, and stats."""
    rank = dist.get_rank()
    model = sharded.sharded(SIZES)
    if not case.get('reshard', True):
        for module in (model[0], model):
            module.set_reshard_after_forward(False)
    optimizer = optimizer_of(model.parameters(), case, f'{path}/{rank}', True)
    losses, said = [], []
    for number in range(STEPS):
        time.sleep(pauses[rank])
        optimizer.zero_grad()
        rows = rows_of(number)[rank::2]
        if fails == 'seen' and rank == 1 and number == 4:
            # Rank 0 waits in its forward for the shards of this one.
            try:
                model(rows)
            except RuntimeError as error:
                said.append(str(error))
            optimizer.flush()
        loss = model(rows).square().mean()
        loss.backward()
        losses.append(loss.item())
        if fails and rank == 1 and number == 3:
            with no_large_files():
                optimizer.step()
                try:
                    optimizer.flush()
                except OSError as error:
                    said.append(error.errno)
            if fails == 'told':
                optimizer.flush()
        else:
            optimizer.step()
    state = optimizer.state_dict()['state']
    parameters = bits(map(sharded.whole, model.parameters()))
    moments = bits(sharded.whole(each['exp_avg']) for each in state.values())
    stats = optimizer.stats()
    optimizer.close()
    return losses, parameters, moments, said, stats


def alone(path):
    """The same in one process; the losses by rank."""
    model = sharded.network(SIZES)
    optimizer = optimizer_of(model.parameters(), {}, path, False)
    losses = ([], [])
    for number in range(STEPS):
        optimizer.zero_grad()
        for rank, each in enumerate(losses):
            loss = model(rows_of(number)[rank::2]).square().mean()
            (loss / 2).backward()
            each.append(loss.item())
        optimizer.step()
    state = optimizer.state_dict()['state']
    moments = bits(each['exp_avg'] for each in state.values())
    optimizer.close()
    return losses, bits(model.parameters()), moments


def check(results, case, path):
    expected, parameters, moments = alone(path)
    for rank, (losses, theirs, their_moments, _, stats) in enumerate(results):
        assert losses == expected[rank]
        assert theirs == parameters and their_moments == moments
        assert (stats['bytes_read'] > 0) == ('memory_budget' in case)


@pytest.mark.parametrize('name', CASES)
def test_two_ranks_are_one_process(crew, tmp_path, name):
    check(crew.run(train, CASES[name], str(tmp_path)), CASES[name],
          str(tmp_path))


@pytest.mark.parametrize('pauses', [(0.05, 0), (0, 0.05)])
def test_one_is_slow(crew, tmp_path, pauses):
    check(crew.run(train, CASES['disk'], str(tmp_path), pauses), CASES['disk'],
          str(tmp_path))


@pytest.mark.parametrize('fails', ['told', 'seen'])
def test_one_fails_and_tries_again(crew, tmp_path, fails):
    results = crew.run(train, CASES['disk'], str(tmp_path), (0, 0), fails)
    check(results, CASES['disk'], str(tmp_path))
    (*_, quiet, _), (*_, said, _) = results
    assert quiet == [] and said[0] == errno.EFBIG
    if fails == 'seen':
        assert said[1].startswith('terrace:')
        assert 'could not be updated' in said[1]


def shards_are_waited_for():
    """Whether the memory of a shard is what it is after its update for what
    reads it right after step(), as an operation of the shard and of the
    DTensor."""
    model = sharded.sharded(SIZES)
    other = sharded.sharded(SIZES)
    optimizer = terrace.AdamW(model.parameters(), lr=1e-2, overlap=True)
    reference = terrace.AdamW(other.parameters(), lr=1e-2)
    same = []
    for number in range(4):
        for each in (model, other):
            each(rows_of(number)[dist.get_rank()::2]).square().mean().backward()
        reference.step()
        optimizer.step()
        for p, q in zip(model.parameters(), other.parameters()):
            if number % 2:
                same.append(torch.equal(p.to_local(), q.to_local()))
            else:
                same.append(p.to_local().tolist() == q.to_local().tolist())
            same.append(torch.equal((p + 0).to_local(), q.to_local()))
        for each in (optimizer, reference):
            each.zero_grad()
    optimizer.close()
    return same


def test_what_reads_a_shard_waits(crew):
    for same in crew.run(shards_are_waited_for):
        assert len(same) == 32 and all(same)
