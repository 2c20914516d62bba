"""Bytes and time of an iteration with everything below, beside their limits.

    python python/bench/everything_below.py --path /mnt/nvme0 \\
        [--budgets 10%,25%,50%] [--rounds 9] [--bench TERRACE-BENCH]

The model of offload_step.py; parameters, gradients and state below, in so much
memory for all of them. For each budget a row per kind of step:

    step()       terrace.offload and terrace.AdamW(overlap=False)
    late         terrace.offload and terrace.AdamW, whose updates go on after
                 step()
    in backward  terrace.AdamW(step_in_backward=1)

and beside each, in turn, `raw`: reads and writes of as many bytes as its
iteration moves, as in offload_step.py. The limit of a row's time is the larger
one of torch.optim.AdamW(fused=True) in memory and raw. Beside it stands the
limit of its phases, with bytes moved in the phases where ours moved them: of
forward and of what follows it by themselves. Of late steps, whose updates are
beside forward, it is not told, but their floor: backward in memory, and then
the longer of forward in memory and raw's time for the bytes that two windows do
not hold, as no update begins before all gradients are there. A row's time is of
runs of iterations as in late_step.py. Its bytes are the mean of ten iterations
from the third on with nothing between them; beside them stand those of the
runs, each of which a flush ends: of the iterations that are timed, and of all.

With --bench the bytes are also told beside those of farthest next use over the
model's own trace (terrace-bench offline): each operator's parameters, as a
dispatch mode sees them in memory, gradients from when they are whole until
their update, and state with its parameter's update. After step() gradients are
there until zero_grad(), which drops them. What is `reserved` for motion is four
chunks of state (`staging_bytes`; the window in which state is updated has at
least as many) and, of the other memory, an eighth, or, where four of the
largest parameters are more, as much as these, up to a quarter. The same with an
eighth of the budget, and with none of it, is told beside. Takes 4 GB of memory
and 4 GB of disk.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import offload_step
import terrace
from late_step import MEASURED, UNMEASURED, run_of
from offload_step import Raw, drawn

_PAGE = 4096
_RUN = UNMEASURED + MEASURED
_MOTION_PARTS = 8
_SETTLING = 2  # iterations
_SETTLED = 10
_KINDS = {'step()': {'overlap': False}, 'late': {},
          'in backward': {'step_in_backward': 1}}


class Training(offload_step.Training):
    """Iterations in memory, or with everything below in a folder."""

    def __init__(self, arguments: argparse.Namespace, folder: str | None = None,
                 budget: str = '', **settings) -> None:
        self.offload = None
        self.repeated_bytes = 0  # moved by iterations that are measured
        # The seconds of each forward pass, and the bytes that it moved.
        self.forwards: list[tuple[float, int]] = []
        self.backwards: list[float] = []
        super().__init__(arguments, lambda parameters: torch.optim.AdamW(
            parameters, lr=1e-4, fused=True) if folder is None
            else self._below(parameters, folder, budget, settings))

    def _below(self, parameters: Iterator, folder: str, budget: str,
               settings: dict) -> terrace.AdamW:
        os.mkdir(folder)
        self.offload = terrace.offload(self.model, memory_budget=budget,
                                       nvme_path=folder)
        return terrace.AdamW(parameters, lr=1e-4, offload=self.offload,
                             **settings)

    def forward(self) -> torch.Tensor:
        before = self.moved()
        started = time.perf_counter()
        loss = super().forward()
        seconds = time.perf_counter() - started
        self.forwards.append((seconds, self.moved() - before))
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        started = time.perf_counter()
        super().backward(loss)
        self.backwards.append(time.perf_counter() - started)

    def typical_forward(self) -> tuple[float, float]:
        """The median of its seconds, and the mean of its bytes."""
        seconds, moved = zip(*self.forwards)
        return statistics.median(seconds), statistics.mean(moved)

    def timed(self) -> float:
        """The seconds of an iteration."""
        started = time.perf_counter()
        self.iterate()
        return time.perf_counter() - started

    def run(self) -> list[float]:
        """A run of iterations; no update goes on when it has ended."""
        moved = []

        def noted() -> float:
            moved.append(self.moved())
            return self.timed()
        seconds = run_of(noted)
        del self.forwards[-_RUN:-MEASURED]
        del self.backwards[-_RUN:-MEASURED]
        moved.append(self.moved())
        self.repeated_bytes += moved[-1] - moved[UNMEASURED]
        if self.offload is not None:
            self.optimizer.flush()
        return seconds

    def settled_bytes(self) -> int:
        """The bytes of an iteration from the third on, nothing between them."""
        for _ in range(_SETTLING):
            self.iterate()
        before = self.moved()
        for _ in range(_SETTLED):
            self.iterate()
        moved = self.moved() - before
        self.optimizer.flush()
        return moved // _SETTLED

    def moved(self) -> int:
        """Bytes until now."""
        if self.offload is None:
            return 0
        stats = self.offload.stats()
        return stats['bytes_read'] + stats['bytes_written']

    def close(self) -> None:
        self.optimizer.close()
        self.offload.close(restore=False)


class Uses(TorchDispatchMode):
    """The parameters of each operator, and the gradients as they become whole,
    of one iteration in memory."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.operations: list[list[str]] = []
        self.sizes: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._hooks = []
        for name, parameter in model.named_parameters():
            self._names[parameter.untyped_storage().data_ptr()] = name
            self.sizes[name] = parameter.untyped_storage().nbytes()
            whole = [f'gradient {name}']
            self._hooks.append(parameter.register_post_accumulate_grad_hook(
                lambda _, whole=whole: self.operations.append(whole)))

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tensors = [each for each in tree_leaves((args, kwargs))
                   if isinstance(each, torch.Tensor)]
        names = {self._names.get(each.untyped_storage().data_ptr())
                 for each in tensors} - {None}
        if names:
            self.operations.append(sorted(names))
        return function(*args, **(kwargs or {}))

    def __exit__(self, *error):
        for hook in self._hooks:
            hook.remove()
        return super().__exit__(*error)

    def trace(self, kind: str) -> str:
        """As terrace-bench offline reads it."""
        lines = []
        updated: set[str] = set()
        for operation in self.operations:
            if not operation[0].startswith('gradient '):
                for name in operation:
                    # A late update comes before the next use.
                    if kind == 'late' and name not in updated:
                        lines.append(self._update(name, 'e'))
                        updated.add(name)
                lines.append(' '.join(f'p.{name}:{self._bytes(name)}'
                                      for name in operation))
                continue
            name = operation[0].removeprefix('gradient ')
            lines.append(self._update(name, 'ne') if kind == 'in backward'
                         else f'g.{name}:{self._bytes(name)}n')
        if kind == 'step()':
            lines += [self._update(name, '') for name in self.sizes]
            lines.append(' '.join(f'g.{name}:{self._bytes(name)}d'
                                  for name in self.sizes))
        return '\n'.join(lines) + '\n'

    def largest(self) -> int:
        return max(self._bytes(name) for name in self.sizes)

    def _update(self, name: str, gradient: str) -> str:
        """`gradient` is what the update does to the gradient."""
        size = self._bytes(name)
        return (f'p.{name}:{size}w g.{name}:{size}{gradient} '
                f's.{name}:{self._bytes(name, 2)}w')

    def _bytes(self, name: str, times: int = 1) -> int:
        """In whole pages, with one for a header."""
        return (-(-times * self.sizes[name] // _PAGE) + 1) * _PAGE


def offline(bench: str, trace: str, budget: int, reserved: int,
            rounds: int) -> dict[str, int]:
    """The bytes an iteration, with the budget `less` what is reserved and with
    the `whole` one."""
    with tempfile.NamedTemporaryFile('w', suffix='.trace') as file:
        file.write(trace)
        file.flush()
        output = subprocess.run(
            [bench, 'offline', '--trace', file.name, '--budget', str(budget),
             '--reserved', str(reserved), '--rounds', str(rounds), '--json'],
            check=True, capture_output=True, text=True).stdout
    rows = [json.loads(line) for line in output.splitlines()]
    return {row['row']: (row['read'] + row['written']) // rounds
            for row in rows}


def for_motion(memory_bytes: int, largest_bytes: int) -> int:
    """As runtime/mover/read_ahead.h says it."""
    return max(memory_bytes // _MOTION_PARTS,
               min(memory_bytes // 4, 4 * largest_bytes))


def phases_limit(ours: Training, memory: Training, medians: dict[str, float],
                 bytes_moved: int) -> float:
    """The seconds of forward, and of the rest, where each takes the longer of
    its time in memory and raw's for its bytes."""
    in_memory = memory.typical_forward()[0]
    raw = medians['raw'] * ours.typical_forward()[1] / max(1, bytes_moved)
    return (max(in_memory, raw) +
            max(medians['in memory'] - in_memory, medians['raw'] - raw))


def late_floor(memory: Training, medians: dict[str, float], bytes_moved: int,
               window_bytes: int) -> float:
    """The seconds of backward, and of forward beside what is moved after it."""
    left = max(0, bytes_moved - 2 * window_bytes) / max(1, bytes_moved)
    return statistics.median(memory.backwards) + max(
        memory.typical_forward()[0], medians['raw'] * left)


def measure(arguments: argparse.Namespace, folder: str, memory: Training,
            uses: Uses, budget: str, kind: str) -> dict:
    ours = Training(arguments, os.path.join(folder, f'{kind} {budget}'), budget,
                    **_KINDS[kind])
    settled_bytes = ours.settled_bytes()
    ours.repeated_bytes = 0
    ours.run()
    stats = ours.offload.stats()
    raw = Raw(folder, ours.repeated_bytes // MEASURED // 2,
              stats['budget_bytes'] // 4)
    seconds: dict[str, list[float]] = {'in memory': [], 'ours': [], 'raw': []}
    before = ours.moved()
    ours.repeated_bytes = 0
    ours.forwards.clear()
    memory.forwards.clear()
    memory.backwards.clear()
    for _ in range(arguments.rounds):
        seconds['in memory'] += memory.run()
        seconds['ours'] += ours.run()
        started = time.perf_counter()
        raw.move()
        seconds['raw'].append(time.perf_counter() - started)
    bytes_of_all = (ours.moved() - before) // (arguments.rounds * _RUN)
    bytes_moved = ours.repeated_bytes // (arguments.rounds * MEASURED)
    stats = ours.offload.stats()
    window = ours.optimizer.stats()['staging_bytes']
    ours.close()
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    limit = max(medians['in memory'], medians['raw'])
    row = {'kind': kind, 'budget': budget,
           'budget_bytes': stats['budget_bytes'], 'bytes': settled_bytes,
           'bytes_timed': bytes_moved, 'bytes_of_all': bytes_of_all, **medians,
           'spread': {name: (min(each), max(each))
                      for name, each in seconds.items()},
           'over_budget_bytes': stats['over_budget_bytes'],
           'forward': ours.typical_forward()[0],
           'forward_bytes': ours.typical_forward()[1],
           'to_limit': medians['ours'] / limit}
    if kind == 'late':
        row['floor'] = late_floor(memory, medians, bytes_moved, window)
        row['to_floor'] = medians['ours'] / row['floor']
    else:
        row['to_phases'] = medians['ours'] / phases_limit(ours, memory, medians,
                                                          bytes_moved)
    if arguments.bench:
        budget_bytes = stats['budget_bytes']
        reserved = window + for_motion(budget_bytes - window,
                                       uses.largest())
        trace = uses.trace(kind)
        least = offline(arguments.bench, trace, budget_bytes, reserved,
                        _SETTLED)
        eighth = offline(arguments.bench, trace, budget_bytes,
                         budget_bytes // _MOTION_PARTS, _SETTLED)
        row.update(reserved=reserved, window=window,
                   least_reserved=least['less'], least_whole=least['whole'],
                   least_eighth=eighth['less'])
        for name in ('reserved', 'whole', 'eighth'):
            row[f'to_{name}'] = settled_bytes / row[f'least_{name}']
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--path', required=True)
    parser.add_argument('--layers', type=int, default=13)
    parser.add_argument('--width', type=int, default=896)
    parser.add_argument('--budgets', default='10%,25%,50%')
    parser.add_argument('--kinds', default=','.join(_KINDS))
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--bench', help='terrace-bench, for the least bytes')
    arguments = parser.parse_args()
    memory = Training(arguments)
    memory.iterate()
    uses = Uses(memory.model)
    with uses:
        memory.model.loss(drawn(torch.Generator())).backward()
    memory.optimizer.zero_grad()
    for budget in arguments.budgets.split(','):
        for kind in arguments.kinds.split(','):
            with tempfile.TemporaryDirectory(dir=arguments.path) as folder:
                row = measure(arguments, folder, memory, uses, budget, kind)
            phases = (f', {row["to_phases"]:.2f} of its phases'
                      if 'to_phases' in row else
                      f', {row["to_floor"]:.2f} of its floor')
            text = (f'{kind:12} in {budget:>4} '
                    f'({row["budget_bytes"] / 1e6:,.0f} MB): '
                    f'{1e3 * row["ours"]:6.0f} ms, in memory '
                    f'{1e3 * row["in memory"]:5.0f}, raw '
                    f'{1e3 * row["raw"]:5.0f}: {row["to_limit"]:.2f} of the '
                    f'limit{phases}; {row["bytes"] / 1e6:,.0f} MB '
                    f'({row["bytes_timed"] / 1e6:,.0f} where a flush ends each '
                    f'run, {row["bytes_of_all"] / 1e6:,.0f} with those '
                    'after it)')
            if arguments.bench:
                text += (f', {row["to_reserved"]:.3f} of farthest next use '
                         f'({row["to_eighth"]:.3f} with all but an eighth, '
                         f'{row["to_whole"]:.3f} with the whole budget)')
            print(text, flush=True)
            print(json.dumps(row), flush=True)


if __name__ == '__main__':
    main()
