"""What activations below save in memory and cost in time.

    python python/bench/offload_activations.py --path /mnt/nvme0

A decoder of 30 million parameters (9 layers of 528, byte vocabulary) trains on 8
x 512 tokens, in fp32, in two processes: one in memory, one with activations
below. They take turns, a step each, so that what else the machine does falls on
both; before each pair the disk alone is asked for its rates. Prints medians and
spreads:

- activation memory: the peak of RSS over the steps (reset through
  /proc/self/clear_refs before each) beyond RSS before offload(), with
  parameters, gradients and what torch loads at its first step;
- the time of forward and backward, and as a ratio to the larger of the step in
  memory and the bytes of a step by the disk's own rates.

Ends with 1 where a gradient differs in any bit.
"""

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch

import terrace

_WIDTH, _LAYERS, _HEADS, _TOKENS, _BATCH = 528, 9, 6, 512, 8
_ROWS = ('in memory', 'below')
_WARM = 3


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = torch.nn.LayerNorm(_WIDTH)
        self.attention = torch.nn.Linear(_WIDTH, 3 * _WIDTH)
        self.out = torch.nn.Linear(_WIDTH, _WIDTH)
        self.between = torch.nn.LayerNorm(_WIDTH)
        self.up = torch.nn.Linear(_WIDTH, 4 * _WIDTH)
        self.down = torch.nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        shape = (*hidden.shape[:2], _HEADS, -1)
        query, key, value = (
            part.view(shape).transpose(1, 2) for part in
            self.attention(self.before(hidden)).chunk(3, dim=-1))
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        return hidden + self.down(torch.nn.functional.gelu(
            self.up(self.between(hidden))))


class Decoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bytes = torch.nn.Embedding(256, _WIDTH)
        self.places = torch.nn.Embedding(_TOKENS, _WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(_LAYERS))
        self.norm = torch.nn.LayerNorm(_WIDTH)
        self.head = torch.nn.Linear(_WIDTH, 256, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        hidden = self.bytes(text) + self.places.weight
        for block in self.blocks:
            hidden = block(hidden)
        return torch.nn.functional.cross_entropy(
            self.head(self.norm(hidden))[:, :-1].flatten(0, 1),
            text[:, 1:].flatten())


def status_bytes(name: str) -> int:
    with open('/proc/self/status', encoding='ascii') as status:
        for line in status:
            if line.startswith(name + ':'):
                return int(line.split()[1]) << 10
    raise RuntimeError(f'the kernel does not say {name}')


def reset_peak() -> None:
    with open('/proc/self/clear_refs', 'w', encoding='ascii') as file:
        file.write('5')


def digest_of(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.grad.numpy().tobytes())
    return digest.hexdigest()


def serve(arguments: argparse.Namespace) -> None:
    """One line of JSON for each line that comes."""
    torch.manual_seed(1)
    model = Decoder()
    generator = torch.Generator().manual_seed(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def step(batch: int) -> float:
        text = torch.randint(256, (batch, _TOKENS), generator=generator)
        optimizer.zero_grad(set_to_none=False)
        begun = time.perf_counter()
        model(text).backward()
        return time.perf_counter() - begun

    step(1)  # gradients, and all that torch loads and makes at first
    optimizer.step()
    below, before = None, status_bytes('VmRSS')
    if arguments.row == 'below':
        below = terrace.offload(
            model, parameters=False, activations=True,
            memory_budget=arguments.memory_budget, nvme_path=arguments.path)
    print(json.dumps({'parameters': sum(p.numel()
                                        for p in model.parameters())}),
          flush=True)
    for _ in sys.stdin:
        counted = below.stats() if below else None
        reset_peak()
        seconds = step(_BATCH)
        answer = {'seconds': seconds,
                  'activation_bytes': status_bytes('VmHWM') - before,
                  'gradients': digest_of(model)}
        optimizer.step()
        if below:
            stats = below.stats()
            answer |= {name: stats[name] - counted[name] for name in (
                'bytes_read', 'bytes_written', 'activation_tensors',
                'fetches', 'fetches_ahead')}
            answer['packed_bytes'] = (stats['activation_bytes']
                                      - counted['activation_bytes'])
            answer['blocked_seconds'] = (
                sum(stats['blocked_seconds'].values())
                - sum(counted['blocked_seconds'].values()))
        print(json.dumps(answer), flush=True)


def raw_rates(path: str) -> tuple[float, float]:
    """Bytes a second, written and read: pieces of 8 MiB one after another, past
    the system's cache, in a file that has its place."""
    from raw_buffers import RawBuffers
    size, count = 8 << 20, 32
    buffers = RawBuffers(size, size)
    name = os.path.join(path, 'raw')
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
    try:
        os.posix_fallocate(file, 0, count * size)
        rates = []
        for move in (os.pwritev, os.preadv):
            begun = time.perf_counter()
            for index in range(count):
                buffers.move(move, file, index * size)
            rates.append(count * size / (time.perf_counter() - begun))
    finally:
        os.close(file)
        os.unlink(name)
    return rates[0], rates[1]


def spread(values: list[float]) -> str:
    return (f'{statistics.median(values):.3f} '
            f'({min(values):.3f} to {max(values):.3f})')


def ask(child: subprocess.Popen) -> dict:
    child.stdin.write('\n')
    child.stdin.flush()
    return json.loads(child.stdout.readline())


def measure(arguments: argparse.Namespace, folder: str) -> dict:
    children = [subprocess.Popen(
        [sys.executable, '-P', os.path.abspath(__file__), '--row', row,
         '--path', folder, '--memory-budget', arguments.memory_budget],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for row in _ROWS]
    rounds = []
    try:
        parameters = [json.loads(child.stdout.readline())['parameters']
                      for child in children][0]
        for index in range(_WARM + arguments.steps):
            rates = raw_rates(folder)
            answers = [ask(child) for child in children]
            if answers[0]['gradients'] != answers[1]['gradients']:
                raise SystemExit(f'gradients differ in step {index}')
            if index >= _WARM:
                rounds.append((rates, *answers))
    finally:
        for child in children:
            child.stdin.close()
            child.wait()
    return {'parameters': parameters, 'rounds': rounds}


def show(measured: dict, arguments: argparse.Namespace) -> None:
    rounds = measured['rounds']
    memory = [one for _, one, _ in rounds]
    below = [one for _, _, one in rounds]
    disk = [one['bytes_written'] / written + one['bytes_read'] / read
            for (written, read), _, one in rounds]
    mib = 1 << 20

    def column(rows: list[dict], name: str, unit: float = 1) -> str:
        return spread([row[name] / unit for row in rows])

    print(f'{measured["parameters"]} parameters, fp32, {_BATCH} x {_TOKENS} '
          f'tokens, memory_budget={arguments.memory_budget!r}, '
          f'{len(rounds)} steps after {_WARM}: medians (least to most)\n')
    print('| | in memory | below |\n|---|---|---|')
    for text, name, unit in (('activation memory, MiB', 'activation_bytes',
                              mib),
                             ('forward and backward, s', 'seconds', 1)):
        print(f'| {text} | {column(memory, name, unit)} | '
              f'{column(below, name, unit)} |')
    for text, name, unit in (
            ('saved tensors of 1 MiB and more', 'activation_tensors', 1),
            ('their MiB', 'packed_bytes', mib),
            ('MiB written', 'bytes_written', mib),
            ('MiB read', 'bytes_read', mib),
            ('seconds waited for', 'blocked_seconds', 1)):
        print(f'| {text} | | {column(below, name, unit)} |')
    print(f'| its bytes by the disk alone, s | | {spread(disk)} |')
    written, read = zip(*(rates for rates, _, _ in rounds))
    print(f'| the disk alone, MiB/s written; read | | '
          f'{statistics.median(written) / mib:.0f}; '
          f'{statistics.median(read) / mib:.0f} |')
    shares = [one['activation_bytes'] / other['activation_bytes']
              for other, one in zip(memory, below)]
    ratios = [one['seconds'] / max(other['seconds'], alone)
              for other, one, alone in zip(memory, below, disk)]
    print(f'\nmemory: {spread(shares)} of that in memory (at most 0.25)')
    print(f'time: {spread(ratios)} of the larger of in memory and the disk '
          'alone (at most 1.2)')
    print(json.dumps({'parameters': measured['parameters'],
                      'memory_budget': arguments.memory_budget,
                      'memory': statistics.median(shares),
                      'time': statistics.median(ratios),
                      'rounds': rounds}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--path', required=True, help='a folder of a disk')
    parser.add_argument('--memory-budget', default='288MiB')
    parser.add_argument('--steps', type=int, default=7)
    parser.add_argument('--row', choices=_ROWS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        serve(arguments)
        return 0
    folder = tempfile.mkdtemp(prefix='terrace-activations-',
                              dir=arguments.path)
    try:
        show(measure(arguments, folder), arguments)
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == '__main__':
    sys.exit(main())
