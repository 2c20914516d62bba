"""Collectives over offloaded tensors, on two ranks over gloo: what they leave
is what they leave in memory, whether the program waits at once, later, on
another thread, or never; what they only send is not written back."""

import gc
import threading

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from collectives import (KINDS, LAYERS, busy, late_rank, matrices, network,
                         offloaded, other, wait_here)
from crew import bits
from offloaded import written_below


def run_now(path, kind):
    """Bits of what a collective leaves below and in memory."""
    plain, model = network(), network()
    KINDS[kind](matrices(plain), False)
    with offloaded(model, path) as offload:
        KINDS[kind](matrices(model), False)
        assert offload.stats()['failures'] == 0
    return bits(model.parameters()) == bits(plain.parameters())


@pytest.mark.parametrize('kind', KINDS)
def test_what_a_collective_leaves_is_kept(crew, tmp_path, kind):
    assert crew.run(run_now, str(tmp_path), kind) == [True, True]


def wait_on_a_thread(works):
    thread = threading.Thread(target=lambda: [w.wait() for w in works])
    thread.start()
    thread.join()


def wait_from_the_end(works):
    wait_here(works[::-1])


def never(works):
    """Only for a Work that ends by itself."""
    works.clear()
    gc.collect()
    dist.barrier()


WAITS = {each.__name__: each for each in (wait_here, wait_on_a_thread,
                                          wait_from_the_end, never)}
PEER_TO_PEER = {'send_and_receive', 'receive_from_any', 'batch_of_sends'}


def run_later(path, kind, wait):
    plain, model = network(2 * LAYERS), network(2 * LAYERS)
    wait_here(KINDS[kind](matrices(plain)[:LAYERS], True))
    with offloaded(model, path, '30%') as offload:
        late_rank(0)
        works = list(KINDS[kind](matrices(model)[:LAYERS // 2], True))
        for _ in range(3):
            busy(model)
        WAITS[wait](works)
        works = list(KINDS[kind](matrices(model)[LAYERS // 2:LAYERS], True))
        late_rank(1)
        busy(model)
        WAITS[wait](works)
        busy(model)
        stats = offload.stats()
        assert stats['failures'] == 0 and stats['evictions'] > 0
    return bits(model.parameters()) == bits(plain.parameters())


@pytest.mark.parametrize('kind', [
    kind for kind in KINDS if kind not in ('functional_copied_back',)])
def test_what_a_collective_leaves_later_is_kept(crew, tmp_path, kind):
    assert crew.run(run_later, str(tmp_path), kind, 'wait_here') == [True] * 2


@pytest.mark.parametrize('wait', list(WAITS)[1:])
@pytest.mark.parametrize('kind', ['all_reduce', 'broadcast', 'all_reduce_coalesced',
                                  'all_gather_into', 'send_and_receive'])
def test_whoever_waits_for_it(crew, tmp_path, kind, wait):
    if wait == 'never' and kind in PEER_TO_PEER:
        pytest.skip('nobody has received it before someone waits')
    assert crew.run(run_later, str(tmp_path), kind, wait) == [True] * 2


def sent(path, kind):
    """Bytes that went below for tensors that are only sent."""
    model = network()
    sink = torch.empty(128, 128)
    sends = {
        'send': lambda t, tag: (dist.send(t, other(), tag=tag)
                                if dist.get_rank() == tag % 2
                                else dist.recv(sink, other(), tag=tag)),
        'all_gather': lambda t, tag: dist.all_gather(
            [torch.empty_like(t) for _ in range(2)], t),
        'all_gather_into': lambda t, tag: dist.all_gather_into_tensor(
            torch.empty(2 * t.numel()), t.view(-1)),
        'gather': lambda t, tag: dist.gather(
            t, [torch.empty_like(t) for _ in range(2)]
            if dist.get_rank() == 0 else None),
        'all_to_all_single': lambda t, tag: dist.all_to_all_single(sink, t),
        'functional': lambda t, tag: functional.all_reduce(
            t, 'sum', dist.group.WORLD) + 1,
    }
    with offloaded(model, path) as offload:
        def go_through():
            for tag, t in enumerate(matrices(model)):
                sends[kind](t, tag)

        return written_below(offload, go_through)


@pytest.mark.parametrize('kind', ['send', 'all_gather', 'all_gather_into',
                                  'gather', 'all_to_all_single', 'functional'])
def test_what_is_only_sent_is_not_written_back(crew, tmp_path, kind):
    assert crew.run(sent, str(tmp_path), kind) == [0, 0]
