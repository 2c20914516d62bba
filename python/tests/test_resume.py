"""A run goes on bit for bit on whatever it is resumed on; kills at any time."""

import dataclasses
import itertools
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

import terrace
from conftest import batches, largest_difference, model, train

_BEFORE, _AFTER = 3, 3
_KIB = 1 << 10


class Chunked(terrace.AdamW):
    """With chunks of another size than Terrace would choose."""

    chunk_bytes = 0

    def _further(self, settings):
        return dataclasses.replace(settings, chunk_bytes=self.chunk_bytes)


# budget, paths, engine, bytes of a chunk
ARRANGEMENTS = {
    'resident': (None, 0, 'auto', 0),
    'ring': ('400KiB', 1, 'io_uring', 0),
    'ring-two-paths': ('900KiB', 2, 'io_uring', 100 * _KIB),
    'ring-three-paths': ('60%', 3, 'io_uring', 64 * _KIB),
    'threads': ('500KiB', 1, 'threads', 0),
    'threads-two-paths': ('900KiB', 2, 'threads', 100 * _KIB),
}
_WIDTH = 256  # 1 MiB of state in fp32


def arranged(network, name, folder):
    budget, paths, engine, chunk_bytes = ARRANGEMENTS[name]
    folders = [folder / f'{name}-{i}' for i in range(paths)]
    for path in folders:
        path.mkdir(exist_ok=True)
    kind = type('Arranged', (Chunked,), {'chunk_bytes': chunk_bytes})
    return kind(network.parameters(), lr=2e-3, memory_budget=budget,
                nvme_path=list(map(str, folders)) or None, io_engine=engine,
                max_grad_norm=1.0)


def state_of(optimizer):
    return [tensor for state in optimizer.state_dict()['state'].values()
            for tensor in state.values()]


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16,
                                   torch.float16])
@pytest.mark.parametrize('saved', ARRANGEMENTS)
def test_resumes_exactly_on_every_arrangement(saved, dtype, tmp_path):
    """Row 23 of docs/deepspeed.md. 18 that save, each resumed on two others:
    36 combinations."""
    data = batches(_BEFORE + _AFTER, _WIDTH, dtype)
    network = model(_WIDTH, dtype)
    optimizer = arranged(network, saved, tmp_path)
    train(network, optimizer, data[:_BEFORE])
    terrace.save(tmp_path / 'run', network, optimizer)
    train(network, optimizer, data[_BEFORE:])
    expected = state_of(optimizer)
    optimizer.close()
    names = list(ARRANGEMENTS)
    for further in (1, 3):
        name = names[(names.index(saved) + further) % len(names)]
        other = model(_WIDTH, dtype, seed=1)
        resumed = arranged(other, name, tmp_path)
        terrace.load(tmp_path / 'run', other, resumed)
        train(other, resumed, data[_BEFORE:])
        assert largest_difference(network, other) == 0, name
        assert all(map(torch.equal, expected, state_of(resumed))), name
        resumed.close()


def test_chunks_have_several_sizes(tmp_path):
    """Else the arrangements above are fewer than they seem."""
    sizes = set()
    for name in ARRANGEMENTS:
        optimizer = arranged(model(_WIDTH), name, tmp_path)
        told = optimizer.stats()
        if name != 'resident':
            assert told['chunks'] > 8
        sizes.add(told['chunk_bytes'])
    assert len(sizes) >= 3


# Saves after every step, of a run whose every step is drawn by its number.
RUN = '''
import sys
sys.path.insert(0, sys.argv[2])
from conftest import batches, model, train
import terrace
network = model(seed=5)
optimizer = terrace.AdamW(network.parameters(), memory_budget='256KiB',
                          nvme_path=sys.argv[3])
step = 0
try:
    step = terrace.load(sys.argv[1], network, optimizer)['step']
except FileNotFoundError:
    pass
print('from', step, flush=True)
while True:
    step += 1
    train(network, optimizer, batches(1, seed=step))
    print('stepped', step, flush=True)
    terrace.save(sys.argv[1], network, optimizer, values={'step': step})
    print('saved', step, flush=True)
'''


def kills():
    """A few in the suite; TERRACE_KILLS=50 makes it a soak."""
    return int(os.environ.get('TERRACE_KILLS', '3'))


def expect_exact(path, reference, reached):
    """The checkpoint is what the uninterrupted run has at its step."""
    network = model(seed=1)
    optimizer = terrace.AdamW(network.parameters())
    step = terrace.load(path, network, optimizer)['step']
    other, theirs = reference
    assert step >= reached['step'], 'a saved checkpoint is gone'
    for number in range(reached['step'] + 1, step + 1):
        train(other, theirs, batches(1, seed=number))
    reached['step'] = step
    assert largest_difference(network, other) == 0
    assert all(map(torch.equal, state_of(theirs), state_of(optimizer)))
    return step


@pytest.mark.parametrize('moment', ['in training', 'in a save'])
def test_killed_at_any_time_goes_on_exactly(moment, tmp_path):
    seed = random.randrange(1 << 30)
    print('seed', seed)
    draw = random.Random(seed)
    path, nvme = tmp_path / 'run', tmp_path / 'nvme'
    nvme.mkdir()
    network = model(seed=5)
    reference = network, terrace.AdamW(network.parameters())
    reached = {'step': 0}
    for kill in range(kills()):
        process = subprocess.Popen(
            [sys.executable, '-c', RUN, str(path), os.path.dirname(__file__),
             str(nvme)], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == f'from {reached["step"]}\n'
        first = f'saved {reached["step"] + 1}\n'
        for line in itertools.takewhile(
                lambda line: line != first, process.stdout):
            assert line
        if moment == 'in a save':
            assert process.stdout.readline().startswith('stepped')
        longest = {'in training': 0.004, 'in a save': 0.02}[moment]
        until = time.monotonic() + draw.random() * longest
        while time.monotonic() < until:
            pass
        process.send_signal(signal.SIGKILL)
        said = process.communicate(timeout=60)[0].split('\n')
        told = [int(line.split()[1]) for line in (first, *said)
                if line.startswith('saved ')]
        step = expect_exact(path, reference, reached)
        assert step >= max(told), f'kill {kill}, seed {seed}'
