"""Gradients below of shards of fully_shard (FSDP2): an optimizer that joins the
Offload of a sharded model has its state there, and the shards' gradients. The
bits are those of one process with whole parameters in memory, in step() and
late, also where one rank is slow, and where one fails and tries again."""

import contextlib
import errno
import os
import time

import pytest
import torch.distributed as dist

import sharded
import terrace
from crew import bits
from terrace._base.library import is_offloaded
from test_dtensor_late import SIZES, STEPS, alone, rows_of
from test_late_step_faults import no_large_files
from test_ranks import _one_thread_as_the_ranks  # noqa: F401


def train(path, overlap, passes=1, pauses=(0, 0), fails=False):
    """Losses of this rank's rows, whole parameters and moments after them,
    whether gradients were below, what the offload counted, and what failed on
    rank 1."""
    rank = dist.get_rank()
    os.makedirs(f'{path}/{rank}')
    model = sharded.sharded(SIZES)
    offload = terrace.offload(model, parameters=False, activations=True,
                              activations_above='1KiB',
                              memory_budget=('440KiB' if fails else
                                             '260KiB'),
                              nvme_path=f'{path}/{rank}')
    optimizer = terrace.AdamW(model.parameters(), lr=1e-2, overlap=overlap,
                              offload=offload)
    losses, below, said = [], set(), []
    for number in range(STEPS):
        time.sleep(pauses[rank])
        optimizer.zero_grad()
        for _ in range(passes):
            loss = model(rows_of(number)[rank::2]).square().mean()
            (loss / passes).backward()
        losses.append(loss.item())
        below.update(is_offloaded(p.grad.to_local())
                     for p in model.parameters())
        if fails and rank == 1 and number == 3:
            with no_large_files(), contextlib.suppress(terrace.RankError):
                try:
                    optimizer.step()
                    optimizer.flush()
                except OSError as error:
                    said.append(error.errno)
            # Rank 0 waits in its forward for the shards of this one.
            optimizer.flush()
            if not overlap:
                optimizer.step()
        else:
            optimizer.step()
    state = optimizer.state_dict()['state']
    parameters = bits(map(sharded.whole, model.parameters()))
    moments = bits(sharded.whole(each['exp_avg']) for each in state.values())
    stats = offload.stats()
    optimizer.close()
    offload.close()
    return losses, parameters, moments, below, stats, said


def check(results, path, evicts=True):
    expected, parameters, moments = alone(path)
    for rank, (losses, theirs, their_moments, below, stats, _) in enumerate(
            results):
        assert losses == expected[rank]
        assert theirs == parameters and their_moments == moments
        assert below == {True}
        assert stats['bytes_written'] > 0
        assert stats['evictions'] > 0 or not evicts


@pytest.mark.parametrize('overlap', [False, True, None])
def test_two_ranks_are_one_process(crew, tmp_path, overlap):
    check(crew.run(train, str(tmp_path), overlap), str(tmp_path))


@pytest.mark.parametrize('overlap', [False, True])
@pytest.mark.parametrize('pauses', [(0.05, 0), (0, 0.05)])
def test_one_is_slow(crew, tmp_path, overlap, pauses):
    check(crew.run(train, str(tmp_path), overlap, 1, pauses), str(tmp_path))


@pytest.mark.parametrize('overlap', [False, True])
def test_one_fails_and_tries_again(crew, tmp_path, overlap):
    """The gradients have room, so that it is the state that is not written."""
    results = crew.run(train, str(tmp_path), overlap, 1, (0, 0), True)
    check(results, str(tmp_path), evicts=False)
    assert [said for *_, said in results] == [[], [errno.EFBIG]]


def test_gradients_that_are_summed(crew, tmp_path):
    """Of two passes whose halves are added up below."""
    check(crew.run(train, str(tmp_path), False, 2), str(tmp_path))
