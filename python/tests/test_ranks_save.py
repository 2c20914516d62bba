"""What a save on several ranks takes, and leaves when one of them is killed."""

import ctypes
import os
import signal
import threading
import time
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import terrace
from conftest import compiled_of
from crew import Crew, bits, error_of

TIMEOUT_SECONDS = 10  # more than a busy machine keeps a rank waiting
MIB = 1 << 20


def network(sizes, seed=7):
    torch.manual_seed(seed)
    result = torch.nn.Module()
    for i, size in enumerate(sizes):
        weight = torch.randn(size).bfloat16()
        result.register_parameter(f'w{i}', torch.nn.Parameter(weight))
    return result


def step(module, optimizer, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.grad = torch.randn(
            parameter.shape, generator=generator).bfloat16()
    optimizer.step()
    optimizer.zero_grad()


def memory(field):
    with open('/proc/self/status', encoding='ascii') as status:
        line = next(line for line in status if line.startswith(field))
    return int(line.split()[1]) << 10


def forget_peak():
    """The peak counts from here on; False: this kernel cannot."""
    # What was freed is given back, or a save might grow into it unseen.
    ctypes.CDLL(None).malloc_trim(0)
    try:
        with open('/proc/self/clear_refs', 'w', encoding='ascii') as file:
            file.write('5')
    except OSError:
        return False
    return True


def measured_save(path):
    module = network([2_000_000] * 9)
    optimizer = terrace.AdamW(module.parameters(),
                              process_group=dist.group.WORLD)
    step(module, optimizer, 1)
    state_bytes = optimizer.stats()['state_bytes']
    dist.barrier()
    grown = None
    if forget_peak():
        before = memory('VmRSS')
        terrace.save(path, module, optimizer)
        grown = memory('VmHWM') - before
    optimizer.close()
    return state_bytes, grown


def test_a_save_takes_a_few_blocks_whatever_the_state(crew, tmp_path):
    results = crew.run(measured_save, f'{tmp_path}/saved')
    assert sum(state for state, _ in results) >= 200_000_000
    if results[0][1] is None:
        pytest.skip('the peak cannot be reset here')
    print('MiB more in a save, by rank:',
          [grown / MIB for _, grown in results])
    for _, grown in results:
        assert grown <= 32 * MIB
    names = sorted(p.name.split('-')[0] for p in (tmp_path / 'saved').iterdir())
    assert names == ['checkpoint.json', 'optimizer', 'optimizer', 'parameters',
                     'values']


class Doomed:
    """The compiled optimizer of a rank that is killed in a save."""

    def __init__(self, native, when, directory):
        self._native, self._when, self._directory = native, when, directory
        self._before = set(os.listdir(directory))

    def __getattr__(self, name):
        return getattr(self._native, name)

    def write_part(self, *arguments):
        killer = threading.Thread(target=self._kill_at_the_file)
        if self._when == 'writing':
            killer.start()
        outcome = self._native.write_part(*arguments)
        if self._when == 'writing':
            killer.join()
        if self._when == 'written':
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome

    def commit_save(self, parts):
        os.kill(os.getpid(), signal.SIGKILL)

    def _kill_at_the_file(self):
        own = None
        while own is None:  # the directory has the other rank's as well
            own = next((f for f in os.listdir('/proc/self/fd')
                        if self._is_new(f)), None)
        os.kill(os.getpid(), signal.SIGKILL)

    def _is_new(self, descriptor):
        try:
            path = os.readlink(f'/proc/self/fd/{descriptor}')
        except OSError:
            return False
        return (os.path.basename(path) not in self._before
                and os.path.basename(path).startswith('optimizer-'))


def save_and_be_killed(directory, doomed, when):
    warnings.simplefilter('ignore')
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_SECONDS))
    module = network([3_000_000, 2_000_000, 1_000])
    optimizer = terrace.AdamW(module.parameters(), process_group=group)
    step(module, optimizer, 1)
    terrace.save(directory, module, optimizer, values={'steps': 1})
    dist.barrier()
    saved = contents(directory)
    step(module, optimizer, 2)
    if dist.get_rank() == doomed:
        compiled = compiled_of(optimizer)
        compiled._native = Doomed(compiled._native, when, directory)
    errors = [error_of(lambda: terrace.save(directory, module, optimizer))
              for _ in range(2)]
    optimizer.close()
    return saved, errors


def contents(directory):
    found = {}
    for name in os.listdir(directory):
        with open(f'{directory}/{name}', 'rb') as file:
            found[name] = file.read()
    return found


def resumed(directory):
    module = network([3_000_000, 2_000_000, 1_000], seed=8)
    optimizer = terrace.AdamW(module.parameters())
    values = terrace.load(directory, module, optimizer)
    state = [bits(s.values()) for s in optimizer.state.values()]
    return module, optimizer, values, state


@pytest.mark.alone
@pytest.mark.parametrize('doomed, when', [
    (1, 'writing'), (1, 'written'), (0, 'committing')])
def test_a_rank_killed_in_a_save(doomed, when, tmp_path, tmp_path_factory):
    directory = f'{tmp_path}/saved'
    crew = Crew(tmp_path_factory.mktemp('doomed'))
    started = time.monotonic()
    crew.start(save_and_be_killed, directory, doomed, when)
    saved, errors = crew.result(1 - doomed)
    crew.processes[doomed].join(120)
    assert crew.processes[doomed].exitcode == -signal.SIGKILL
    crew.close()
    print(f'{time.monotonic() - started:.1f} s')
    for name, text, attributes, _ in errors:
        assert name == 'RankError'
        assert f'lost rank {doomed} while saving' in text
        assert attributes['phase'] == 'saving'
    # When it is known once, no call waits a second time.
    assert errors[0][3] < TIMEOUT_SECONDS + 20
    assert errors[1][3] < TIMEOUT_SECONDS / 2

    assert len(saved) == 5
    left = contents(directory)
    assert {name: left[name] for name in saved} == saved
    # Rank 0 clears away what the other left; its own is the next save's.
    assert (len(left) > len(saved)) == (doomed == 0)

    module, optimizer, values, state = resumed(directory)
    assert values == {'steps': 1}
    alone = network([3_000_000, 2_000_000, 1_000])
    reference = terrace.AdamW(alone.parameters())
    step(alone, reference, 1)
    assert bits(module.parameters()) == bits(alone.parameters())
    assert state == [bits(s.values()) for s in reference.state.values()]
    terrace.save(directory, module, optimizer)
    assert len(os.listdir(directory)) == 4
    optimizer.close()
    reference.close()
