"""The time of a training iteration whose state is below, against its floor.

    python python/bench/offload_step.py --path /mnt/nvme0 [--rounds 9]

A transformer of 13 layers of 896 over bytes, 1 x 128 tokens, fp32: 126.8 million
parameters; parameters and gradients in memory, a tenth of the state too. Rows,
one iteration of each in turn, in alternating order:

    in memory         torch.optim.AdamW(fused=True)
    checksum          one pass over as many bytes as an iteration moves
    raw               reads and writes as many bytes on the same disk, half of
                      each, O_DIRECT, 4 MiB a piece, two threads a direction,
                      through as much memory as the window
    at once           raw beside the two before it, which follow each other
    step()            terrace.AdamW, the state stepped after backward
    step_in_backward  terrace.AdamW(step_in_backward=1)

The floor is the larger one of (in memory + checksum) and raw, as if neither took
anything from the other; what they take of it is in "at once". Prints medians and
the ratios of the last row to both, and the same as a line of JSON. Parameters of
the last two rows are compared after the last round. Takes 4 GB of memory and as
much disk.
"""

import argparse
import functools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch

import terrace
from at_once import at_once
from raw_buffers import RawBuffers

_PIECE = 4 << 20
_TOKENS = 128
_POSITIONS = 1024  # that it has room for
_VOCABULARY = 256


class Bytes(torch.nn.Module):
    """A causal transformer over bytes."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = torch.nn.Embedding(_VOCABULARY, width)
        self.positions = torch.nn.Embedding(_POSITIONS, width)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0,
                                             batch_first=True, norm_first=True)
            for _ in range(layers))
        self.head = torch.nn.Linear(width, _VOCABULARY)
        self.register_buffer('mask', torch.full(
            (_TOKENS, _TOKENS), float('-inf')).triu(1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens) + self.positions.weight[:_TOKENS]
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask, is_causal=True)
        return self.head(hidden)

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """Of each token after those before it."""
        return torch.nn.functional.cross_entropy(
            self(tokens[:, :-1]).flatten(0, 1), tokens[0, 1:])


def drawn(generator: torch.Generator) -> torch.Tensor:
    """Tokens for one iteration, with the one that follows."""
    return torch.randint(_VOCABULARY, (1, _TOKENS + 1), generator=generator)


class Training:
    """A model and its optimizer, which `make` makes of its parameters."""

    def __init__(self, arguments: argparse.Namespace,
                 make: Callable) -> None:
        self.model = Bytes(arguments.layers, arguments.width)
        self.optimizer = make(self.model.parameters())
        self._generator = torch.Generator().manual_seed(2)

    def forward(self) -> torch.Tensor:
        """The loss of the next tokens."""
        return self.model.loss(drawn(self._generator))

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def iterate(self) -> None:
        self.backward(self.forward())
        self.optimizer.step()
        self.optimizer.zero_grad()


class Raw:
    """Reads of one half of a file, writes of the other, through as much memory
    as a window has."""

    def __init__(self, folder: str, half_bytes: int,
                 window_bytes: int) -> None:
        self._pieces = -(-half_bytes // _PIECE)
        self._file = os.open(os.path.join(folder, 'raw'),
                             os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        self._buffers = RawBuffers(window_bytes, _PIECE, least=4)
        for place in range(2 * self._pieces):
            self._buffers.move(os.pwritev, self._file, place * _PIECE)
        os.fsync(self._file)

    def move(self) -> None:
        def pass_over(call: Callable, first: int) -> None:
            start = 0 if call is os.preadv else self._pieces
            for place in range(first, self._pieces, 2):
                self._buffers.move(call, self._file, (start + place) * _PIECE)

        at_once(*(functools.partial(pass_over, call, first)
                  for call in (os.preadv, os.pwritev) for first in (0, 1)))


def checksum_pass(size_bytes: int) -> Callable:
    """Sums so many bytes: those of a tensor half as large, twice."""
    summed = torch.randint(1 << 30, (max(1, size_bytes // 16),))
    return lambda: (summed.sum(), summed.sum())


def measure(arguments: argparse.Namespace, folder: str) -> dict:
    def below(name: str, **settings) -> Training:
        os.mkdir(os.path.join(folder, name))
        return Training(arguments, lambda parameters: terrace.AdamW(
            parameters, lr=1e-4, memory_budget=arguments.memory_budget,
            nvme_path=os.path.join(folder, name), **settings))

    plain = below('plain')
    ours = below('ours', step_in_backward=1)
    memory = Training(arguments, lambda parameters: torch.optim.AdamW(
        parameters, lr=1e-4, fused=True))
    for _ in range(2):  # to know what an iteration moves
        ours.iterate()
        plain.iterate()
    before = ours.optimizer.stats()
    ours.iterate()
    plain.iterate()
    after = ours.optimizer.stats()
    read, written = (after[f'bytes_{way}'] - before[f'bytes_{way}']
                     for way in ('read', 'written'))
    raw = Raw(folder, (read + written) // 2,
              after['memory_bytes'] - after['resident_bytes'])
    checksum = checksum_pass(read + written)
    rows = {'in memory': memory.iterate,
            'checksum': checksum,
            'raw': raw.move,
            'at once': lambda: at_once(
                raw.move, lambda: (memory.iterate(), checksum())),
            'step()': plain.iterate,
            'step_in_backward': ours.iterate}
    times: dict[str, list[float]] = {name: [] for name in rows}
    for i in range(-1, arguments.rounds):
        for name in sorted(rows, reverse=bool(i % 2)):
            started = time.perf_counter()
            rows[name]()
            if i >= 0:  # before that: warming up
                times[name].append(time.perf_counter() - started)
    same = all(map(torch.equal, plain.model.parameters(),
                   ours.model.parameters()))
    return {'parameters': sum(p.numel() for p in ours.model.parameters()),
            'memory_budget': arguments.memory_budget,
            'rounds': arguments.rounds, 'bytes_read': read,
            'bytes_written': written, 'same_parameters': same,
            'threads': torch.get_num_threads(), 'load': os.getloadavg()[0],
            'engine': after['engine'],
            'medians': {name: statistics.median(values)
                        for name, values in times.items()},
            'least': {name: min(values) for name, values in times.items()}}


def parsed(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument('--path', required=True)
    parser.add_argument('--layers', type=int, default=13)
    parser.add_argument('--width', type=int, default=896)
    parser.add_argument('--memory-budget', default='10%')
    parser.add_argument('--rounds', type=int, default=9)
    return parser.parse_args()


def main() -> None:
    arguments = parsed(__doc__.splitlines()[0])
    with tempfile.TemporaryDirectory(dir=arguments.path) as folder:
        result = measure(arguments, folder)
    median = result['medians']
    compute = median['in memory'] + median['checksum']
    floor = max(compute, median['raw'])
    near = min(compute, median['raw']) >= floor / 1.2
    result.update(floor=floor, ratio=median['step_in_backward'] / floor,
                  bar=1.25 if near else 1.15,
                  to_at_once=median['step_in_backward'] / median['at once'])
    for name, value in median.items():
        print(f'{name:17} median {1e3 * value:7.0f} ms, least '
              f'{1e3 * result["least"][name]:7.0f} ms')
    print(f'{result["parameters"]:,} parameters, '
          f'{(result["bytes_read"] + result["bytes_written"]) / 1e9:.2f} GB an '
          f'iteration; load {result["load"]:.1f}')
    print(f'step_in_backward is {result["ratio"]:.3f} x the floor, the bar is '
          f'{result["bar"]}; {result["to_at_once"]:.3f} x "at once"')
    print(json.dumps(result))
    if not result['same_parameters']:
        raise SystemExit('the parameters differ')


if __name__ == '__main__':
    main()
