"""The memory that training and checkpoints take, through Python.

    python python/bench/memory.py --path /mnt/nvme0 [--parameters 124e6]

The README's example, with as many parameters as asked for, in a fresh process
for each row: peak RSS (VmHWM) with terrace.AdamW beyond that with plain SGD,
and the peak that terrace.save, terrace.load, export_torch and import_torch add
to what the process has before (import_torch maps one module's tensors at a
time: the largest here has 16 MiB). Prints a table with the bars and the same as a
line of JSON; ends with 1 where a bar is missed. 124e6 parameters take 4 GB of
disk, 2 GB of memory and some minutes.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

import torch

import terrace

_MIB = 1 << 20
_STEPS = 3
_TRAINING_MIB = 96  # beyond the budget
_CHECKPOINT_MIB = 32
_CHECKPOINTS = ('save', 'load', 'export_torch', 'import_torch')


def make_model(parameters: int, dtype: torch.dtype) -> torch.nn.Module:
    """Blocks as the README's, of at most 8.3 million parameters each."""
    blocks = max(1, round(parameters / 8.3e6))
    width = round((parameters / blocks / 8) ** 0.5)
    torch.manual_seed(1)
    return torch.nn.Sequential(*(
        torch.nn.Sequential(torch.nn.Linear(width, 4 * width, dtype=dtype),
                            torch.nn.GELU(),
                            torch.nn.Linear(4 * width, width, dtype=dtype))
        for _ in range(blocks)))


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer,
          steps: int) -> None:
    first = next(model.parameters())
    for _ in range(steps):
        inputs = torch.randn(16, first.shape[1], dtype=first.dtype)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def memory_bytes(field: str) -> int:
    """VmRSS or VmHWM of this process."""
    with open('/proc/self/status', encoding='ascii') as status:
        for line in status:
            if line.startswith(f'{field}:'):
                return int(line.split()[1]) << 10
    raise RuntimeError(f'the kernel does not say {field}')


def peak_of(work) -> int:
    """Bytes that `work` has at most beyond those before it."""
    with open('/proc/self/clear_refs', 'w', encoding='ascii') as file:
        file.write('5')
    before = memory_bytes('VmRSS')
    work()
    return memory_bytes('VmHWM') - before


def run_row(row: str, arguments: argparse.Namespace, folder: str) -> dict:
    """One row, in this process."""
    model = make_model(int(arguments.parameters),
                       getattr(torch, arguments.dtype))
    count = sum(p.numel() for p in model.parameters())
    if row == 'sgd':
        train(model, torch.optim.SGD(model.parameters(), lr=1e-3), _STEPS)
        return {'bytes': memory_bytes('VmHWM'), 'parameters': count}
    optimizer = terrace.AdamW(model.parameters(), memory_budget='10%',
                              nvme_path=folder)
    if row == 'train':
        train(model, optimizer, _STEPS)
        stats = optimizer.stats()
        return {'bytes': memory_bytes('VmHWM'),
                'budget_bytes': round(stats['state_bytes'] * 0.1),
                'state_bytes': stats['state_bytes']}
    train(model, optimizer, 1)
    directory = os.path.join(folder, 'checkpoint')
    file = os.path.join(folder, 'checkpoint.pt')
    work = {'save': lambda: terrace.save(directory, model, optimizer),
            'load': lambda: terrace.load(directory, model, optimizer),
            'export_torch': lambda: terrace.export_torch(file, model,
                                                         optimizer),
            'import_torch': lambda: terrace.import_torch(file, model,
                                                         optimizer)}[row]
    return {'bytes': peak_of(work)}


def measure(row: str, arguments: argparse.Namespace, folder: str) -> dict:
    """The row whose bytes are the median of several processes."""
    results = []
    for _ in range(arguments.repetitions):
        output = subprocess.run(
            [sys.executable, os.path.abspath(__file__), '--row', row,
             '--folder', folder, '--path', arguments.path, '--parameters',
             str(arguments.parameters), '--dtype', arguments.dtype],
            check=True, stdout=subprocess.PIPE, text=True).stdout
        results.append(json.loads(output.splitlines()[-1]))
    median = statistics.median_low(result['bytes'] for result in results)
    return next(r for r in results if r['bytes'] == median)


def measure_all(arguments: argparse.Namespace, folder: str) -> list[dict]:
    """What each row took and may take, in MiB."""
    sgd = measure('sgd', arguments, folder)
    ours = measure('train', arguments, folder)
    budget = ours['budget_bytes'] / _MIB
    rows = [{'row': f'training {sgd["parameters"]} parameters, '
                    f'{arguments.dtype}, beyond SGD',
             'mib': (ours['bytes'] - sgd['bytes']) / _MIB,
             'bar_mib': budget + _TRAINING_MIB,
             'bar': f'budget + {_TRAINING_MIB} MiB'}]
    for row in _CHECKPOINTS:
        rows.append({'row': f'terrace.{row}',
                     'mib': measure(row, arguments, folder)['bytes'] / _MIB,
                     'bar_mib': _CHECKPOINT_MIB,
                     'bar': f'{_CHECKPOINT_MIB} MiB'})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--path', required=True, help='a folder of a disk')
    parser.add_argument('--parameters', type=float, default=124e6)
    parser.add_argument('--dtype', choices=['float32', 'bfloat16'],
                        default='float32')
    parser.add_argument('--repetitions', type=int, default=1,
                        help='processes for each row; the median counts')
    parser.add_argument('--row', help=argparse.SUPPRESS)
    parser.add_argument('--folder', help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        print(json.dumps(run_row(arguments.row, arguments, arguments.folder)))
        return 0
    folder = tempfile.mkdtemp(prefix='terrace-memory-', dir=arguments.path)
    try:
        rows = measure_all(arguments, folder)
    finally:
        shutil.rmtree(folder)
    print('| peak memory | measured | bar | |\n|---|---|---|---|')
    missed = [row for row in rows if row['mib'] > row['bar_mib']]
    for row in rows:
        print(f'| {row["row"]} | {row["mib"]:.1f} MiB | {row["bar"]} = '
              f'{row["bar_mib"]:.1f} MiB | '
              f'{"missed" if row in missed else "met"} |')
    print(json.dumps({'parameters': arguments.parameters,
                      'dtype': arguments.dtype, 'rows': rows}))
    return 1 if missed else 0


if __name__ == '__main__':
    sys.exit(main())
