"""Many optimizers in one process, one to each parameter or model: with their
state in memory they share one pool of threads."""

import gc
import os
import random
import subprocess
import sys
import threading
import time

import pytest
import torch

import terrace
from terrace._state.settings import Settings
from terrace._state.store import StateStore

MANY = 200


def threads():
    """Without those that were joined and are still listed, on their way out."""
    exiting = 0x4  # PF_EXITING of the kernel
    count = 0
    for task in os.listdir('/proc/self/task'):
        try:
            with open(f'/proc/self/task/{task}/stat') as stat:
                line = stat.read()
        except OSError:  # gone since
            continue
        # The name may hold anything; six fields lie between it and the flags.
        count += not int(line.rpartition(')')[2].split()[6]) & exiting
    return count


def threads_left(expected):
    """After Python's own have ended: join() returns a moment before that."""
    deadline = time.monotonic() + 60
    while threads() > expected and time.monotonic() < deadline:
        time.sleep(0.01)
    return threads()


def resident_bytes():
    with open('/proc/self/statm') as statm:
        return int(statm.read().split()[1]) * os.sysconf('SC_PAGESIZE')


def pool():
    return len(os.sched_getaffinity(0))


def made(seed=0, count=3000, dtype=torch.float32, **settings):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.nn.Parameter(
        torch.randn(count, generator=generator).to(dtype))
    return weight, terrace.AdamW([weight], lr=0.01, **settings)


def steps(weight, optimizer, first=0, last=4):
    for number in range(first, last):
        weight.grad = torch.linspace(-1, number, weight.numel()).to(
            weight.dtype)
        optimizer.step()


def stepped_alone(last=4, **settings):
    weight, optimizer = made(**settings)
    steps(weight, optimizer, last=last)
    optimizer.close()
    return weight.detach().clone()


@pytest.fixture(autouse=True)
def _nothing_left_open():
    gc.collect()
    yield
    gc.collect()


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_many_have_the_threads_of_one(dtype):
    alone = stepped_alone(dtype=dtype)
    before = threads()
    optimizers = [made(dtype=dtype) for _ in range(MANY)]
    for number in range(4):
        for weight, optimizer in optimizers:
            steps(weight, optimizer, number, number + 1)
    assert threads() <= before + pool() + 1
    for weight, _ in optimizers:
        assert torch.equal(weight, alone)
    random.Random(5).shuffle(optimizers)
    for weight, optimizer in optimizers[:-1]:
        optimizer.close()
    weight, last = optimizers[-1]
    steps(weight, last, 4, 6)
    assert torch.equal(weight, stepped_alone(6, dtype=dtype))
    last.close()
    assert threads_left(before) <= before


def test_memory_goes_with_each_of_them():
    size = 1 << 20  # elements: 8 MiB of state each
    weights = [torch.nn.Parameter(torch.zeros(size)) for _ in range(8)]
    for weight in weights:
        weight.grad = torch.ones(size)
    before = resident_bytes()
    optimizers = [terrace.AdamW([weight]) for weight in weights]
    for optimizer in optimizers:
        optimizer.step()
    state = sum(optimizer.stats()['state_bytes'] for optimizer in optimizers)
    assert resident_bytes() - before > 0.9 * state
    for optimizer in optimizers[::2]:
        optimizer.close()
    assert resident_bytes() - before < 0.7 * state
    for optimizer in optimizers[1::2]:
        optimizer.step()
        optimizer.close()
    assert resident_bytes() - before < 0.2 * state


def test_each_counts_its_own():
    (weight, one), (other, two) = made(count=1000), made(count=500_000)
    steps(weight, one, last=3)
    steps(other, two, last=1)
    ours, theirs = one.stats(), two.stats()
    assert (ours['steps'], theirs['steps']) == (3, 1)
    assert (ours['state_bytes'], theirs['state_bytes']) == (8000, 4_000_000)
    for stats in (ours, theirs):
        assert stats['engine'] == 'memory'
        assert stats['disk_bytes'] == stats['bytes_read'] == 0
        # In pages of 4 KiB, and chunks in whole cache lines.
        assert (stats['state_bytes'] <= stats['memory_peak_bytes']
                == stats['memory_bytes'] < stats['state_bytes'] + (1 << 16))
    two.close()
    assert one.stats()['steps'] == 3


def test_several_threads_step_theirs_at_once():
    shapes = [1000, 70_000, 600_000, 40_000]
    alone = [stepped_alone(12, count=count) for count in shapes]
    optimizers = [made(count=count) for count in shapes]
    workers = [threading.Thread(target=steps, args=(*pair, 0, 12))
               for pair in optimizers]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
    for (weight, _), expected in zip(optimizers, alone):
        assert torch.equal(weight, expected)


def test_they_are_made_stepped_and_closed_at_once():
    expected = stepped_alone()
    wrong = []

    def work():
        for _ in range(20):
            weight, optimizer = made()
            steps(weight, optimizer)
            if not torch.equal(weight, expected):
                wrong.append(weight)
            optimizer.close()

    before = threads()
    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
    assert not wrong
    assert threads_left(before) <= before


def test_one_that_fails_leaves_the_others_alone():
    (bad, failing), (weight, optimizer) = made(), made()
    steps(bad, failing, last=1)
    steps(weight, optimizer, last=1)
    bad.grad = torch.ones(3000).to_sparse()
    with pytest.raises((ValueError, RuntimeError)):
        failing.step()
    steps(weight, optimizer, 1)
    assert torch.equal(weight, stepped_alone())
    steps(bad, failing, 1)
    assert torch.equal(bad, stepped_alone())


def test_a_number_of_threads_is_a_pool_of_its_own():
    before = threads()
    stores = []
    for number in (1, 1, 2, 1, 2):
        store = StateStore(Settings(threads=number))
        store.add([[('weight', torch.nn.Parameter(torch.ones(10)))]])
        stores.append(store)
    assert threads() == before + 3
    for store in stores:
        store.close()
    assert threads_left(before) == before


def test_memory_grows_with_what_is_added():
    weight, optimizer = made()
    steps(weight, optimizer, last=2)
    before = optimizer.stats()['memory_bytes']
    added = torch.nn.Parameter(torch.ones(1 << 18))
    optimizer.add_param_group({'params': [added]})
    added.grad = torch.ones(1 << 18)
    steps(weight, optimizer, 2)
    assert torch.equal(weight, stepped_alone())
    stats = optimizer.stats()
    assert 0 <= stats['memory_bytes'] - before - (8 << 18) < 1 << 14


FORKED = '''
import os
import torch, terrace

def made():
    weight = torch.nn.Parameter(torch.zeros(5000))
    weight.grad = torch.ones_like(weight)
    return weight, terrace.AdamW([weight])

optimizers = [made() for _ in range(3)]
for _, optimizer in optimizers:
    optimizer.step()
child = os.fork()
if child == 0:
    for _, optimizer in optimizers:
        try:
            optimizer.step()
        except RuntimeError as error:
            assert 'process' in str(error), error
        else:
            os._exit(3)
    weight, own = made()  # on threads of the child's own
    own.step()
    own.close()
    same = torch.equal(weight, optimizers[0][0])
    del optimizer, optimizers, own
    os._exit(0 if same else 4)
_, status = os.waitpid(child, 0)
assert status == 0, status
for _, optimizer in optimizers:
    optimizer.step()
    optimizer.close()
print(len({float(weight[0]) for weight, _ in optimizers}))
'''


def test_a_forked_child_has_a_pool_of_its_own():
    result = subprocess.run([sys.executable, '-c', FORKED], timeout=120,
                            capture_output=True, text=True)
    assert result.stdout.strip() == '1', result
