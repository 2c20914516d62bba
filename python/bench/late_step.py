"""The time of a training iteration whose updates go on after step(), against its
floor.

    python python/bench/late_step.py --path /mnt/nvme0 [--rounds 9]

The model of offload_step.py, gradients clipped at a norm of 1, a tenth of the
state in memory. Rows in turn, in alternating order, three iterations of each
after two that are not measured (the heap settles after what other rows have
allocated), so three samples a round:

    in memory   torch.nn.utils.clip_grad_norm_ and torch.optim.AdamW(fused=True)
    raw         reads and writes as many bytes as an iteration moves
    at once     raw beside one forward pass, beside the update in memory (it does
                not clip) and then one checksum pass over all that moves
    step()      terrace.AdamW(max_grad_norm=1)
    overlap     terrace.AdamW(max_grad_norm=1, overlap=True); each ends the
                updates of the one before, and what the last leaves ends after it

No update begins before the norm is known: the floor is the backward pass in
memory and then the larger one of the forward pass in memory and the raw time of
the bytes that two windows do not hold, as if neither took anything from the
other; what they take of it is in "at once". Prints medians and the ratios of the
last row to the floor and to backward with "at once", and the same as a line of
JSON. Parameters of the last two rows are compared after the last round. Takes 6
GB of memory and as much disk.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch

import terrace
from at_once import at_once
from offload_step import Bytes, Raw, checksum_pass, drawn, parsed

UNMEASURED = 2  # iterations that a row begins with
MEASURED = 3    # that follow, before the next row has its turn


class Training:
    """A model and its optimizer; clips by hand where that does not.

    Without a folder it is in memory; a share of the state is, or `below` of
    everything.
    """

    def __init__(self, arguments: argparse.Namespace, folder: str | None,
                 below: bool = False, **settings) -> None:
        self.model = Bytes(arguments.layers, arguments.width)
        self.is_in_memory = folder is None
        if below:
            os.mkdir(folder)
            self.offload = terrace.offload(
                self.model, memory_budget=arguments.memory_budget,
                nvme_path=folder)
            self.optimizer = terrace.AdamW(
                self.model.parameters(), lr=1e-4, max_grad_norm=1.0,
                offload=self.offload, **settings)
        elif folder is None:
            self.optimizer = torch.optim.AdamW(
                self.model.parameters(), lr=1e-4, fused=True)
        else:
            os.mkdir(folder)
            self.optimizer = terrace.AdamW(
                self.model.parameters(), lr=1e-4, max_grad_norm=1.0,
                memory_budget=arguments.memory_budget, nvme_path=folder,
                **settings)
        self._generator = torch.Generator().manual_seed(2)

    def iterate(self) -> dict[str, float]:
        """Seconds of all, and of its passes."""
        tokens = drawn(self._generator)
        started = time.perf_counter()
        loss = self.model.loss(tokens)
        forward = time.perf_counter()
        loss.backward()
        backward = time.perf_counter()
        if self.is_in_memory:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {'all': time.perf_counter() - started,
                'forward': forward - started, 'backward': backward - forward}

    def forward_beside(self, raw: Raw, checksum: Callable) -> dict[str, float]:
        """What follows a backward pass, all at once: forward reads parameters
        of before the update, after it, or between."""
        tokens = drawn(self._generator)
        self.model.loss(tokens).backward()
        started = time.perf_counter()
        at_once(raw.move, lambda: (self.optimizer.step(), checksum()),
                lambda: self.model.loss(tokens))
        seconds = time.perf_counter() - started
        self.optimizer.zero_grad()
        return {'all': seconds}

    def train(self) -> list[dict[str, float]]:
        """A run of iterations; no update goes on when it has ended."""
        seconds = run_of(self.iterate)
        if not self.is_in_memory:
            self.optimizer.flush()
        return seconds


def run_of(iterate: Callable) -> list[dict[str, float]]:
    for _ in range(UNMEASURED):
        iterate()
    return [iterate() for _ in range(MEASURED)]


def timed_move(raw: Raw) -> dict[str, float]:
    started = time.perf_counter()
    raw.move()
    return {'all': time.perf_counter() - started}


def measure(arguments: argparse.Namespace, folder: str) -> dict:
    plain = Training(arguments, os.path.join(folder, 'plain'))
    late = Training(arguments, os.path.join(folder, 'late'), overlap=True)
    memory = Training(arguments, None)
    plain.train()
    late.train()
    before = plain.optimizer.stats()
    plain.train()
    late.train()
    after = plain.optimizer.stats()
    moved = sum(after[f'bytes_{way}'] - before[f'bytes_{way}']
                for way in ('read', 'written')) / (UNMEASURED + MEASURED)
    window = after['memory_bytes'] - after['resident_bytes']
    raw = Raw(folder, int(moved - 2 * window) // 2, window)
    checksum = checksum_pass(int(moved))
    rows = {'in memory': memory.train,
            'raw': lambda: run_of(lambda: timed_move(raw)),
            'at once': lambda: run_of(
                lambda: memory.forward_beside(raw, checksum)),
            'step()': plain.train, 'overlap': late.train}
    times: dict[str, list[dict]] = {name: [] for name in rows}
    for i in range(-1, arguments.rounds):
        for name in sorted(rows, reverse=bool(i % 2)):
            seconds = rows[name]()
            if i >= 0:  # before that: warming up
                times[name] += seconds
    same = all(map(torch.equal, plain.model.parameters(),
                   late.model.parameters()))
    return {'parameters': sum(p.numel() for p in late.model.parameters()),
            'memory_budget': arguments.memory_budget,
            'rounds': arguments.rounds, 'bytes_moved': int(moved),
            'window_bytes': window, 'same_parameters': same,
            'threads': torch.get_num_threads(), 'load': os.getloadavg()[0],
            'engine': after['engine'],
            'medians': {name: {key: statistics.median(t[key] for t in values)
                               for key in values[0]}
                        for name, values in times.items()},
            'spread': {name: (min(t['all'] for t in values),
                              max(t['all'] for t in values))
                       for name, values in times.items()}}


def main() -> None:
    arguments = parsed(__doc__.splitlines()[0])
    with tempfile.TemporaryDirectory(dir=arguments.path) as folder:
        result = measure(arguments, folder)
    median = result['medians']
    memory = median['in memory']
    floor = memory['backward'] + max(memory['forward'], median['raw']['all'])
    together = memory['backward'] + median['at once']['all']
    result.update(floor=floor, ratio=median['overlap']['all'] / floor, bar=1.1,
                  to_at_once=median['overlap']['all'] / together)
    for name, values in median.items():
        least, most = result['spread'][name]
        passes = ''.join(f', {key} {1e3 * values[key]:.0f}'
                         for key in ('forward', 'backward') if key in values)
        print(f'{name:10} {1e3 * values["all"]:6.0f} ms ({1e3 * least:.0f} to '
              f'{1e3 * most:.0f}){passes}')
    print(f'{result["parameters"]:,} parameters, '
          f'{result["bytes_moved"] / 1e9:.2f} GB an iteration, a window of '
          f'{result["window_bytes"] / 1e6:.0f} MB; load {result["load"]:.1f}')
    print(f'overlap is {result["ratio"]:.3f} x the floor, '
          f'{1e3 * floor:.0f} ms; the bar is {result["bar"]}; '
          f'{result["to_at_once"]:.3f} x backward with "at once", '
          f'{1e3 * together:.0f} ms')
    print(json.dumps(result))
    if not result['same_parameters']:
        raise SystemExit('the parameters differ')


if __name__ == '__main__':
    main()
