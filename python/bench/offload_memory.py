"""The memory that a model takes whose parameters are below.

    python python/bench/offload_memory.py --path /mnt/nvme0 [--parameters 124e6]

The README's example, with as many parameters as asked for, in a fresh process
for each row: peak RSS (VmHWM) beyond that before the model is made, and what
that is for each parameter. Training is three steps, with gradients in memory;
inference has the weights from a file. Each row below computes what the one in
memory does, bit for bit, or this ends with 1. Prints a table and the same as a
line of JSON. 124e6 parameters take 2 GB of disk, 2 GB of memory and a minute
or two.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import torch

import terrace

_STEPS = 3
_ROWS = ('inference, in memory', 'inference, below',
         'SGD, in memory', 'SGD, below',
         'terrace.AdamW, in memory', 'terrace.AdamW, parameters and state below')


def make_model(parameters: int) -> torch.nn.Module:
    """Blocks as the README's, of at most 8.3 million parameters each."""
    blocks = max(1, round(parameters / 8.3e6))
    width = round((parameters / blocks / 8) ** 0.5)
    torch.manual_seed(1)
    return torch.nn.Sequential(*(
        torch.nn.Sequential(torch.nn.Linear(width, 4 * width),
                            torch.nn.GELU(),
                            torch.nn.Linear(4 * width, width))
        for _ in range(blocks)))


def peak_bytes() -> int:
    with open('/proc/self/status', encoding='ascii') as status:
        for line in status:
            if line.startswith('VmHWM:'):
                return int(line.split()[1]) << 10
    raise RuntimeError('the kernel does not say VmHWM')


def import_all() -> None:
    """What torch imports at its first use, and threads."""
    small = make_model(1000)
    terrace.offload(small)
    optimizer = terrace.AdamW(small.parameters())
    small(torch.randn(16, small[0][0].in_features)).sum().backward()
    optimizer.step()


def infer(row: str, arguments: argparse.Namespace) -> list[float]:
    file = os.path.join(arguments.folder, 'weights.pt')
    with torch.device('meta'):
        model = make_model(int(arguments.parameters))
    if row.endswith('below'):
        terrace.offload(model, memory_budget=arguments.memory_budget,
                        nvme_path=arguments.folder, checkpoint=file)
    else:
        model.to_empty(device='cpu')
        model.load_state_dict(torch.load(file, mmap=True))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        return [float(model(torch.randn(16, model[0][0].in_features,
                                        generator=generator)).sum())
                for _ in range(_STEPS)]


def train(row: str, arguments: argparse.Namespace) -> list[float]:
    model = make_model(int(arguments.parameters))
    below = {'memory_budget': arguments.memory_budget,
             'nvme_path': arguments.folder}
    if row.endswith('below'):
        terrace.offload(model, **below)
    if row.startswith('SGD'):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    else:
        optimizer = terrace.AdamW(model.parameters(), lr=1e-3, **(
            below if row.endswith('below') else {}))
    generator = torch.Generator().manual_seed(2)
    losses = []
    for _ in range(_STEPS):
        inputs = torch.randn(16, model[0][0].in_features, generator=generator)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run_row(row: str, arguments: argparse.Namespace) -> dict:
    import_all()
    before, begun = peak_bytes(), time.monotonic()
    work = infer if row.startswith('inference') else train
    answers = work(row, arguments)
    return {'row': row, 'bytes': peak_bytes() - before, 'answers': answers,
            'seconds': round(time.monotonic() - begun, 1)}


def measure(row: str, arguments: argparse.Namespace, folder: str) -> dict:
    output = subprocess.run(
        [sys.executable, '-P', os.path.abspath(__file__), '--row', row,
         '--folder', folder, '--path', arguments.path, '--parameters',
         str(arguments.parameters), '--memory-budget',
         arguments.memory_budget], check=True, stdout=subprocess.PIPE,
        text=True).stdout
    return json.loads(output.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--path', required=True, help='a folder of a disk')
    parser.add_argument('--parameters', type=float, default=124e6)
    parser.add_argument('--memory-budget', default='10%')
    parser.add_argument('--row', choices=_ROWS, help=argparse.SUPPRESS)
    parser.add_argument('--folder', help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        print(json.dumps(run_row(arguments.row, arguments)))
        return 0
    folder = tempfile.mkdtemp(prefix='terrace-offload-', dir=arguments.path)
    try:
        model = make_model(int(arguments.parameters))
        count = sum(p.numel() for p in model.parameters())
        torch.save(model.state_dict(), os.path.join(folder, 'weights.pt'))
        del model
        rows = [measure(row, arguments, folder) for row in _ROWS]
    finally:
        shutil.rmtree(folder)
    print(f'{count} parameters, fp32, memory_budget='
          f'{arguments.memory_budget!r}\n')
    print('| peak memory | MiB | bytes a parameter | seconds |\n|---|---|---|---|')
    for row in rows:
        print(f'| {row["row"]} | {row["bytes"] / (1 << 20):.1f} | '
              f'{row["bytes"] / count:.2f} | {row["seconds"]} |')
    differ = [below['row'] for memory, below in zip(rows[::2], rows[1::2])
              if memory['answers'] != below['answers']]
    print(json.dumps({'parameters': count, 'rows': rows, 'differ': differ}))
    return 1 if differ else 0


if __name__ == '__main__':
    sys.exit(main())
