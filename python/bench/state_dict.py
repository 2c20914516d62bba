"""What torch.save(optimizer.state_dict()) takes of memory and disk, and what
the state of frozen parameters does.

    python python/bench/state_dict.py --path /mnt/nvme0 [--parameters 120e6]

Each row in a fresh process. Saving: peak RSS (VmHWM), and of it what is no
page of a file (RssAnon, looked at 200 times a second), beyond what the process
has before; the most bytes of the path that the copy takes; seconds. `in memory`
is the same with copies as an optimizer without a path makes them. Frozen: a
model of which little is trained, as with LoRA, against one whose parameters
are frozen only after the optimizer has made room for them. Prints a table with
the bar and the same as a line of JSON; ends with 1 where the bar is missed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import torch

import terrace
from terrace._state import copy_file

_MIB = 1 << 20
_BAR_MIB = 64
_BUDGET_SHARE = 20  # the budget is so many times smaller than the state
_ROWS = ('in memory', 'mapped', 'terrace.save', 'reserved for all',
         'trained only')


def memory_bytes(field: str) -> int:
    """A line of this process's status."""
    with open('/proc/self/status', encoding='ascii') as status:
        for line in status:
            if line.startswith(f'{field}:'):
                return int(line.split()[1]) << 10
    raise RuntimeError(f'the kernel does not say {field}')


class Peaks:
    """The most of anonymous memory, and of a folder's unnamed files."""

    def __init__(self, folder: str) -> None:
        self.anonymous = self.copy = 0
        self._folder = folder
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> 'Peaks':
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            self.anonymous = max(self.anonymous, memory_bytes('RssAnon'))
            self.copy = max(self.copy, self._unnamed_bytes())

    def _unnamed_bytes(self) -> int:
        found = 0
        for name in os.listdir('/proc/self/fd'):
            try:
                target = os.readlink(f'/proc/self/fd/{name}')
                if (target.startswith(f'{self._folder}/')
                        and target.endswith(' (deleted)')):
                    found += os.stat(f'/proc/self/fd/{name}').st_blocks * 512
            except OSError:  # closed meanwhile
                pass
        return found


class Holder(torch.nn.Module):
    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.full((size,), 0.5)) for size in sizes)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def save(row: str, parameters: int, folder: str) -> dict:
    model = Holder([parameters // 16] * 16)
    disk = os.path.join(folder, 'disk')
    os.mkdir(disk)
    optimizer = terrace.AdamW(
        model.parameters(), nvme_path=disk,
        memory_budget=parameters * 8 // _BUDGET_SHARE)
    step(model, optimizer)
    if row == 'in memory':
        copy_file._MAPPED_BYTES = sys.maxsize
    with open('/proc/self/clear_refs', 'w', encoding='ascii') as file:
        file.write('5')
    before, anonymous = memory_bytes('VmRSS'), memory_bytes('RssAnon')
    started = time.monotonic()
    with Peaks(disk) as peaks:
        if row == 'terrace.save':
            terrace.save(os.path.join(folder, 'saved'), model, optimizer)
        else:
            torch.save(optimizer.state_dict(), os.path.join(folder, 'saved'))
    stats = optimizer.stats()
    return {'row': row, 'state_bytes': stats['state_bytes'],
            'budget_bytes': stats['memory_bytes'],
            'peak_bytes': memory_bytes('VmHWM') - before,
            'anonymous_bytes': max(0, peaks.anonymous - anonymous),
            'copy_bytes': peaks.copy,
            'seconds': time.monotonic() - started}


def freeze(row: str, folder: str) -> dict:
    """27 million frozen, 48 thousand trained."""
    model = Holder([27_000_000 // 8] * 8 + [24_000] * 2)
    frozen = list(model.parameters())[:8]

    def freeze_them() -> None:
        for parameter in frozen:
            parameter.requires_grad_(False)

    if row == 'trained only':
        freeze_them()
    # What every process loads with its first optimizer.
    other = Holder([16])
    step(other, terrace.AdamW(other.parameters()))
    before = memory_bytes('VmRSS')
    optimizer = terrace.AdamW(model.parameters(), nvme_path=folder,
                              memory_budget='10%')
    freeze_them()
    for _ in range(3):
        step(model, optimizer)
    stats = optimizer.stats()
    return {'row': row, 'state_bytes': stats['state_bytes'],
            'memory_bytes': stats['memory_bytes'],
            'rss_bytes': memory_bytes('VmRSS') - before,
            'disk_bytes': sum(os.stat(os.path.join(where, name)).st_blocks * 512
                              for where, _, names in os.walk(folder)
                              for name in names)}


def measure(row: str, arguments: argparse.Namespace) -> dict:
    folder = tempfile.mkdtemp(prefix='terrace-state-', dir=arguments.path)
    try:
        output = subprocess.run(
            [sys.executable, os.path.abspath(__file__), '--row', row,
             '--path', folder, '--parameters', str(arguments.parameters)],
            check=True, stdout=subprocess.PIPE, text=True).stdout
        return json.loads(output.splitlines()[-1])
    finally:
        shutil.rmtree(folder)


def mib(size: int) -> str:
    return f'{size / _MIB:.1f}'


def tell(rows: list[dict]) -> bool:
    """The tables; whether the bar is met."""
    first, met = rows[0], False
    print(f'State {mib(first["state_bytes"])} MiB, budget '
          f'{mib(first["budget_bytes"])} MiB; beyond what the process had, in '
          'MiB:\n\n| saving | peak RSS | of it anonymous | copy on the path | '
          'seconds |\n|---|---|---|---|---|')
    for row in rows[:3]:
        print(f'| {row["row"]} | {mib(row["peak_bytes"])} | '
              f'{mib(row["anonymous_bytes"])} | {mib(row["copy_bytes"])} | '
              f'{row["seconds"]:.1f} |')
        if row['row'] == 'mapped':
            met = row['peak_bytes'] <= _BAR_MIB * _MIB
    print(f'\nBar of `mapped`: {_BAR_MIB} MiB, {"met" if met else "missed"}.\n'
          '\n| 27M frozen, 48k trained, MiB | state | memory | RSS | disk |\n'
          '|---|---|---|---|---|')
    for row in rows[3:]:
        print(f'| {row["row"]} | {mib(row["state_bytes"])} | '
              f'{mib(row["memory_bytes"])} | {mib(row["rss_bytes"])} | '
              f'{mib(row["disk_bytes"])} |')
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--path', required=True, help='a folder of a disk')
    parser.add_argument('--parameters', type=float, default=120e6)
    parser.add_argument('--row', choices=_ROWS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row in _ROWS[3:]:
        print(json.dumps(freeze(arguments.row, arguments.path)))
        return 0
    if arguments.row:
        print(json.dumps(save(arguments.row, int(arguments.parameters),
                              arguments.path)))
        return 0
    rows = [measure(row, arguments) for row in _ROWS]
    met = tell(rows)
    print(json.dumps({'parameters': arguments.parameters, 'rows': rows}))
    return 0 if met else 1


if __name__ == '__main__':
    sys.exit(main())
