"""Signals, forks, threads and the end of the process."""

import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

import terrace
from conftest import batches, largest_difference, model, train

INTERRUPTED = '''
import signal, sys, threading
import torch, terrace

torch.manual_seed(0)
weight = torch.nn.Parameter(torch.zeros(3_000_000))
optimizer = terrace.AdamW([weight], memory_budget='2MiB',
                          nvme_path=sys.argv[1])
weight.grad = torch.ones_like(weight)
optimizer.step()
main = threading.get_ident()
inside = threading.Event()

def interrupt():
    """In the middle of a step: this thread runs only while the main one has
    given Python's lock up, which it does there and nowhere else."""
    inside.wait()
    signal.pthread_kill(main, signal.SIGINT)

threading.Thread(target=interrupt).start()
raised = False
sys.setswitchinterval(1000)
try:
    inside.set()
    for _ in range(50):
        optimizer.step()
except KeyboardInterrupt:
    raised = True
steps = optimizer.stats()['steps']
other = torch.nn.Parameter(torch.zeros(3_000_000))
again = terrace.AdamW([other])
other.grad = torch.ones_like(other)
for _ in range(steps):
    again.step()
print(raised, steps < 51, torch.equal(weight, other))
optimizer.step()  # and goes on
again.step()
print(torch.equal(weight, other))
'''


def run(code, *arguments):
    return subprocess.run([sys.executable, '-c', code, *map(str, arguments)],
                          capture_output=True, text=True, timeout=120)


def test_ctrl_c_finishes_the_step_then_raises(tmp_path):
    result = run(INTERRUPTED, tmp_path)
    assert result.stdout.split() == ['True'] * 4, result
    assert not list(tmp_path.iterdir())


def test_other_python_threads_run_during_a_step():
    """The step gives Python's lock up, and nothing else here does."""
    weight = torch.nn.Parameter(torch.zeros(20_000_000))
    optimizer = terrace.AdamW([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    ran, gate = [], threading.Lock()

    def work():
        with gate:
            ran.append('during the step')

    gate.acquire()
    thread = threading.Thread(target=work)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # no thread is asked to give the lock up
    try:
        gate.release()
        before = list(ran)
        optimizer._store.step(optimizer.param_groups, 1.0)
        after = list(ran)
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    assert (before, after) == ([], ['during the step'])


def test_threads_with_optimizers_of_their_own(tmp_path):
    networks = [model(seed=i) for i in range(3)]
    failures = []

    def work(network):
        try:
            optimizer = terrace.AdamW(network.parameters(),
                                      memory_budget='256KiB',
                                      nvme_path=str(tmp_path))
            train(network, optimizer, batches(5))
            optimizer.close()
        except Exception as error:  # told below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in networks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for i, network in enumerate(networks):
        other = model(seed=i)
        train(other, terrace.AdamW(other.parameters()), batches(5))
        assert largest_difference(network, other) == 0


def test_threads_take_turns_at_one_optimizer():
    weight = torch.nn.Parameter(torch.zeros(100_000))
    optimizer = terrace.AdamW([weight])
    weight.grad = torch.ones_like(weight)

    def work():
        for _ in range(10):
            optimizer.step()
            optimizer.stats()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert optimizer.stats()['steps'] == 40


def test_data_loader_workers_do_no_harm(tmp_path):
    network, other = model(), model()
    optimizer = terrace.AdamW(network.parameters(), memory_budget='256KiB',
                              nvme_path=str(tmp_path))
    inputs = torch.stack([b[0][0] for b in batches(24)])
    targets = torch.stack([b[1][0] for b in batches(24)])
    data = torch.utils.data.TensorDataset(inputs, targets)

    def steps(net, opt, workers):
        for _ in range(2):
            train(net, opt, torch.utils.data.DataLoader(
                data, batch_size=4, num_workers=workers))

    steps(network, optimizer, 2)
    steps(other, terrace.AdamW(other.parameters()), 0)
    assert largest_difference(network, other) == 0
    assert list(tmp_path.iterdir())


FORKED = '''
import os, sys
import torch, terrace

weight = torch.nn.Parameter(torch.zeros(1 << 18))
optimizer = terrace.AdamW([weight], memory_budget='1MiB',
                          nvme_path=sys.argv[1])
weight.grad = torch.ones_like(weight)
optimizer.step()
assert weight in optimizer.state and len(optimizer.state) == 1  # and cached
files = sorted(os.listdir(sys.argv[1]))
for way in ('exit', 'drop', 'use'):
    child = os.fork()
    if child == 0:
        if way == 'drop':
            del optimizer
        elif way == 'use':
            for attempt in (lambda: weight in optimizer.state,
                            lambda: len(optimizer.state),
                            lambda: list(optimizer.state),
                            optimizer.step, optimizer.stats,
                            optimizer.state_dict,
                            lambda: optimizer.state[weight],
                            lambda: optimizer.load_state_dict(
                                optimizer.state_dict())):
                try:
                    attempt()
                except RuntimeError as error:
                    assert 'process' in str(error), error
                else:
                    os._exit(3)
            optimizer.close()
        sys.exit(0)  # runs what is registered at exit
    _, status = os.waitpid(child, 0)
    assert status == 0, (way, status)
    assert sorted(os.listdir(sys.argv[1])) == files, way
optimizer.step()
print(optimizer.stats()['steps'])
'''


def test_a_forked_child_leaves_everything_to_its_parent(tmp_path):
    result = run(FORKED, tmp_path)
    assert result.stdout.strip() == '2', result
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('ending', [
    'pass', 'sys.exit(0)', 'raise ValueError("on purpose")',
    'optimizer.self = optimizer', 'import gc; gc.disable()'])
def test_nothing_is_left_behind(tmp_path, ending):
    code = f'''
import sys
import torch, terrace
weight = torch.nn.Parameter(torch.zeros(1 << 18))
optimizer = terrace.AdamW([weight], memory_budget='1MiB',
                          nvme_path=sys.argv[1])
weight.grad = torch.ones_like(weight)
optimizer.step()
{ending}
'''
    result = run(code, tmp_path)
    assert result.returncode == (1 if 'raise' in ending else 0), result
    assert not list(tmp_path.iterdir())


def test_interrupt_while_waiting_is_not_lost():
    """SIGINT between two steps, as from a notebook's stop button."""
    weight = torch.nn.Parameter(torch.zeros(1000))
    optimizer = terrace.AdamW([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        optimizer.step()
        optimizer.step()
    optimizer.step()
