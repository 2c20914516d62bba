"""One iteration's time in two builds of the package, in pairs.

    pip install --no-deps --target OLD .   # in one tree, then NEW in the other
    python -P python/bench/pairs.py OLD NEW --row step --pairs 30 --path /mnt/nvme0

Each build has a process of its own, which makes one iteration when it has its
turn; the order alternates. Prints the median of the pairs' ratios, new to old,
and the 95 % interval of that median (bootstrap): above 1 the new one is slower.

    memory-fp32, memory-bf16   five steps of step_time.py's parameters
    step, backward             an iteration of offload_step.py's model, a tenth
                               of the state in memory: step(), or in backward
    late                       three iterations of late_step.py's that overlap,
                               and flush()
    below, below-late          parameters and gradients below too
    infer                      a forward pass of parameters that are below
    activations                forward and backward, activations below too

--layers makes the model smaller. Takes up to 8 GB of memory and of disk.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

_WIDTH = 896
_BUDGET = '10%'
_FULL_LAYERS = 13


def in_memory(dtype: str) -> Callable[[], None]:
    import step_time
    import terrace
    import torch
    optimizer = terrace.AdamW(step_time.make_parameters(
        30_000_000, {'fp32': torch.float32, 'bf16': torch.bfloat16}[dtype]))

    def steps() -> None:
        for _ in range(5):
            optimizer.step()
    return steps


def stepped(layers: int, folder: str, **settings) -> Callable[[], None]:
    import offload_step
    import terrace
    return offload_step.Training(
        argparse.Namespace(layers=layers, width=_WIDTH),
        lambda parameters: terrace.AdamW(
            parameters, lr=1e-4, memory_budget=_BUDGET, nvme_path=folder,
            **settings)).iterate


def clipped(layers: int, folder: str, below: bool, late: bool
            ) -> Callable[[], None]:
    import late_step
    training = late_step.Training(
        argparse.Namespace(layers=layers, width=_WIDTH, memory_budget=_BUDGET),
        os.path.join(folder, 'state'), below=below, overlap=late)

    def iterations() -> None:
        for _ in range(3 if late else 1):
            training.iterate()
        training.optimizer.flush()
    return iterations


def passed(layers: int, folder: str, backward: bool) -> Callable[[], None]:
    import offload_step
    import terrace
    import torch
    model = offload_step.Bytes(layers, _WIDTH)
    tokens = offload_step.drawn(torch.Generator().manual_seed(3))
    terrace.offload(model, memory_budget='60%' if backward else _BUDGET,
                    nvme_path=folder, activations=backward)

    def passes() -> None:
        if not backward:
            with torch.no_grad():
                model(tokens[:, :-1])
            return
        model.loss(tokens).backward()
        for parameter in model.parameters():
            parameter.grad = None
    return passes


# Each makes its iteration of layers and a folder.
ROWS = {
    'memory-fp32': lambda *_: in_memory('fp32'),
    'memory-bf16': lambda *_: in_memory('bf16'),
    'step': stepped,
    'backward': lambda *where: stepped(*where, step_in_backward=1),
    'late': lambda *where: clipped(*where, below=False, late=True),
    'below': lambda *where: clipped(*where, below=True, late=False),
    'below-late': lambda *where: clipped(*where, below=True, late=True),
    'infer': lambda *where: passed(*where, backward=False),
    'activations': lambda *where: passed(*where, backward=True)}


def be_a_side(row: str, layers: int, folder: str) -> None:
    """An iteration for each line that is read, its seconds for each."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), 'w')
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what others print
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    iterate = ROWS[row](layers, folder)
    for _ in range(3):  # a trace, and a heap that has settled
        iterate()
    print('ready', file=answers, flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        iterate()
        print(time.perf_counter() - started, file=answers, flush=True)


class Side:
    """The process of a build."""

    def __init__(self, package: str, arguments: argparse.Namespace,
                 folder: str) -> None:
        self._folder = tempfile.TemporaryDirectory(dir=folder)
        self._process = subprocess.Popen(
            [sys.executable, '-P', os.path.abspath(__file__), package, package,
             '--row', arguments.row, '--layers', str(arguments.layers),
             '--path', self._folder.name, '--side'],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {'PYTHONPATH': os.path.abspath(package)})
        self._answer()

    def seconds(self) -> float:
        self._process.stdin.write('\n')
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()

    def _answer(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f'a side ended with {self._process.wait()}')
        return line


def interval(ratios: list[float]) -> tuple[float, float]:
    """Of their median, 95 %."""
    draw = random.Random(1)
    medians = sorted(
        statistics.median(draw.choices(ratios, k=len(ratios)))
        for _ in range(2000))
    return medians[50], medians[1949]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('old')
    parser.add_argument('new')
    parser.add_argument('--row', choices=ROWS, required=True)
    parser.add_argument('--pairs', type=int, default=30)
    parser.add_argument('--layers', type=int, default=_FULL_LAYERS)
    parser.add_argument('--path', default='.', help='a folder of a disk')
    parser.add_argument('--side', action='store_true', help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        be_a_side(arguments.row, arguments.layers, arguments.path)
        return
    sides = {name: Side(getattr(arguments, name), arguments, arguments.path)
             for name in ('old', 'new')}
    pairs = []
    for i in range(arguments.pairs):
        order = sorted(sides, reverse=bool(i % 2))
        pairs.append({name: sides[name].seconds() for name in order})
    for side in sides.values():
        side.close()
    ratios = [pair['new'] / pair['old'] for pair in pairs]
    low, high = interval(ratios)
    old, new = (statistics.median(pair[name] for pair in pairs)
                for name in ('old', 'new'))
    print(f'{arguments.row}: {statistics.median(ratios):.3f} '
          f'({low:.3f} to {high:.3f}) of {len(pairs)} pairs, '
          f'{1e3 * old:.1f} ms old, {1e3 * new:.1f} ms new')
    print(json.dumps({'row': arguments.row, 'layers': arguments.layers,
                      'pairs': pairs}))


if __name__ == '__main__':
    main()
