"""How fast a model runs whose weights are larger than the memory they have.

    python python/bench/offload_inference.py --path /mnt/nvme0

A decoder of a billion parameters in bf16 (transformers' Llama, random weights,
a vocabulary of 32,000) reads 16 x 512 tokens: once with all weights in memory,
once with 12 % of them and the rest below. Both have them from one safetensors
file that is made in a folder of --path, each is a process of its own, and they
take turns. Between the turns the same file is read by O_DIRECT preads of
several threads into as much memory, which is what the disk gives. The bars:

    seconds of a pass <= 1.15 x max(those in memory, bytes / that rate)
    peak RSS <= budget + 128 MiB + (the one's in memory - its weights)

The peak below is that of the whole process, the reading of the file included;
in memory that of the passes. The first pass below, which does not know the
order yet, is told apart; a pass of both gives the same logits, bit for bit, or
this ends with 1, as where a bar is missed. Prints a table and the same as a
line of JSON. A billion parameters take 4 GB of disk and 8 GB of memory.
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from at_once import at_once

_MIB = 1 << 20
_PIECE = 4 * _MIB
_TIME_BAR, _BEYOND_MIB = 1.15, 128
_FILE = 'model.safetensors'


def config_of(arguments: argparse.Namespace):
    """Of so many parameters: blocks of 12 x width^2, and two embeddings."""
    import transformers
    width, vocabulary = arguments.width, arguments.vocabulary
    block = 4 * width ** 2 + 3 * width * (inner := 8 * width // 3)
    blocks = max(1, round((arguments.parameters - 2 * vocabulary * width)
                          / block))
    return transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=inner,
        num_hidden_layers=blocks, num_attention_heads=width // 128 or 1,
        max_position_embeddings=arguments.tokens, use_cache=False,
        tie_word_embeddings=False)


def empty_model(arguments: argparse.Namespace):
    import accelerate
    import torch
    import transformers
    with accelerate.init_empty_weights():
        return transformers.LlamaForCausalLM(config_of(arguments)).to(
            torch.bfloat16).eval()


def write_weights(arguments: argparse.Namespace, file: str) -> None:
    """Random ones, in a process of its own."""
    import safetensors.torch
    import torch
    generator = torch.Generator().manual_seed(1)
    safetensors.torch.save_file({
        name: torch.empty(tensor.shape, dtype=torch.bfloat16).normal_(
            0, 0.02, generator=generator)
        for name, tensor in empty_model(arguments).state_dict().items()}, file)


def read_rate(file: str, buffers, threads: int) -> float:
    """Bytes a second of all of it, past the page cache."""
    size = os.path.getsize(file) // _PIECE * _PIECE
    offsets = iter(range(0, size, _PIECE))
    lock = threading.Lock()

    def read() -> None:
        while True:
            with lock:
                offset = next(offsets, None)
            if offset is None:
                return
            buffers.move(os.preadv, descriptor, offset)

    descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    try:
        begun = time.monotonic()
        at_once(*[read] * threads)
        return size / (time.monotonic() - begun)
    finally:
        os.close(descriptor)


def peak_bytes() -> int:
    with open('/proc/self/status', encoding='ascii') as status:
        for line in status:
            if line.startswith('VmHWM:'):
                return int(line.split()[1]) << 10
    raise RuntimeError('the kernel does not say VmHWM')


def load_in_memory(model, file: str) -> None:
    """Each tensor from the file, and the peak that this took forgotten."""
    import safetensors
    import torch
    with safetensors.safe_open(file, 'pt') as stored:
        for name, tensor in list(model.named_parameters()):
            path, _, last = name.rpartition('.')
            setattr(model.get_submodule(path), last, torch.nn.Parameter(
                stored.get_tensor(name).clone(), requires_grad=False))
    with open('/proc/self/clear_refs', 'w', encoding='ascii') as clear:
        clear.write('5')


def run_passes(arguments: argparse.Namespace) -> None:
    """One of the two: a pass for each line that comes, a line of JSON back."""
    import torch
    import terrace
    model = empty_model(arguments)
    file = os.path.join(arguments.folder, _FILE)
    offload = None
    if arguments.side == 'below':
        offload = terrace.offload(
            model, checkpoint=file, memory_budget=arguments.memory_budget,
            nvme_path=arguments.folder)
    else:
        load_in_memory(model, file)
    tokens = torch.randint(arguments.vocabulary,
                           (arguments.rows, arguments.tokens),
                           generator=torch.Generator().manual_seed(2))
    print('{}', flush=True)
    for _ in sys.stdin:
        before = offload.stats() if offload else None
        begun, busy = time.monotonic(), time.process_time()
        with torch.inference_mode():
            logits = model(tokens).logits
        answer = {'seconds': time.monotonic() - begun,
                  'busy_seconds': time.process_time() - busy,
                  'peak_bytes': peak_bytes(), 'digest': digest_of(logits)}
        del logits
        if offload:
            answer |= told(before, offload.stats())
        print(json.dumps(answer), flush=True)


def digest_of(logits) -> str:
    """Of all their bits."""
    import torch
    digest = hashlib.sha256()
    for row in logits:  # so that a pass has no peak of this
        digest.update(row.contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


def told(before: dict, after: dict) -> dict:
    """What a pass below moved, and what it waited for."""
    moved = {key: after[key] - before[key]
             for key in ('bytes_read', 'bytes_written', 'fetches',
                         'fetches_ahead')}
    return moved | {
        'blocked': {cause: seconds - before['blocked_seconds'][cause]
                    for cause, seconds in after['blocked_seconds'].items()},
        'budget_bytes': after['budget_bytes'],
        'parameter_bytes': after['parameter_bytes']}


class Side:
    """A process that runs passes when it is told to."""

    def __init__(self, side: str, arguments: argparse.Namespace) -> None:
        self._child = child(arguments, '--side', side, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE)
        self._child.stdout.readline()

    def run(self) -> dict:
        self._child.stdin.write('pass\n')
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f'a child ended: {self._child.wait()}')
        return json.loads(line)

    def close(self) -> None:
        self._child.stdin.close()
        self._child.wait()


def child(arguments: argparse.Namespace, *more: str, **pipes):
    same = [word for name in ('path', 'parameters', 'width', 'vocabulary',
                              'rows', 'tokens', 'memory_budget', 'folder')
            for word in ('--' + name.replace('_', '-'),
                         str(getattr(arguments, name)))]
    return subprocess.Popen(
        [sys.executable, '-P', os.path.abspath(__file__), *same, *more],
        text=True, **pipes)


def measure(arguments: argparse.Namespace) -> dict:
    """All that the table is made of."""
    from raw_buffers import RawBuffers
    file = os.path.join(arguments.folder, _FILE)
    if child(arguments, '--side', 'write').wait() != 0:
        raise RuntimeError('no weights were written')
    with contextlib.ExitStack() as stack:
        sides = {}
        for name in ('memory', 'below'):
            sides[name] = Side(name, arguments)
            stack.callback(sides[name].close)
        first = {name: side.run() for name, side in sides.items()}
        passes, rates = {name: [] for name in sides}, []
        buffers = RawBuffers(first['below']['budget_bytes'], _PIECE,
                             least=arguments.readers)
        # A disk may be faster after a rest: each of the three comes first.
        turns = [*sides, 'disk']
        for _ in range(arguments.passes):
            for name in turns:
                if name == 'disk':
                    rates.append(read_rate(file, buffers,
                                           arguments.readers))
                else:
                    passes[name].append(sides[name].run())
            turns.append(turns.pop(0))
    return {'first': first, 'passes': passes, 'rates': rates}


def spread(values: list[float], digits: int = 1) -> str:
    median, least, most = (f'{value:.{digits}f}' for value in (
        statistics.median(values), min(values), max(values)))
    return f'{median} ({least} to {most})'


def tell(arguments: argparse.Namespace, measured: dict) -> bool:
    """The table; whether both bars are met, and the bits are the same."""
    memory, below = (measured['passes'][name] for name in ('memory', 'below'))
    seconds = {name: [each['seconds'] for each in passes]
               for name, passes in measured['passes'].items()}
    last = below[-1]
    rate = statistics.median(measured['rates'])
    floor = max(statistics.median(seconds['memory']),
                statistics.median(each['bytes_read'] for each in below) / rate)
    ratio = statistics.median(seconds['below']) / floor
    beyond = (max(each['peak_bytes'] for each in below) - last['budget_bytes']
              - max(each['peak_bytes'] for each in memory)
              + last['parameter_bytes']) / _MIB
    alike = {each['digest'] for each in
             memory + below + list(measured['first'].values())}
    print(f'{last["parameter_bytes"] // 2} parameters, bf16, '
          f'{last["parameter_bytes"] / _MIB:.0f} MiB, of which '
          f'{last["budget_bytes"] / _MIB:.0f} MiB in memory; '
          f'{arguments.rows} x {arguments.tokens} tokens, '
          f'{arguments.passes} passes\n\n| | |\n|---|---|')
    for what, value in (
            ('a pass in memory, s', spread(seconds['memory'])),
            ('a pass below, s', spread(seconds['below'])),
            ('the first pass below, s',
             f'{measured["first"]["below"]["seconds"]:.1f}'),
            ('processors busy in a pass in memory, s',
             spread([each['busy_seconds'] for each in memory])),
            ('processors busy in a pass below, s',
             spread([each['busy_seconds'] for each in below])),
            ('read in a pass, MiB',
             spread([each['bytes_read'] / _MIB for each in below], 0)),
            ('the disk reads, MiB/s',
             spread([each / _MIB for each in measured['rates']], 0)),
            ('blocked in a pass, s',
             spread([sum(each['blocked'].values()) for each in below], 2)),
            ('came ahead of need, %',
             spread([100 * each['fetches_ahead'] / max(
                 1, each['fetches'] + each['fetches_ahead'])
                 for each in below])),
            (f'below / max(in memory, disk), at most {_TIME_BAR}',
             f'{ratio:.3f}'),
            (f'peak beyond budget and activations, MiB, at most {_BEYOND_MIB}',
             f'{beyond:.1f}'),
            ('the same bits', 'yes' if len(alike) == 1 else 'NO')):
        print(f'| {what} | {value} |')
    print(json.dumps({'ratio': ratio, 'beyond_mib': beyond, **measured}))
    return ratio <= _TIME_BAR and beyond <= _BEYOND_MIB and len(alike) == 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--path', required=True, help='a folder of a disk')
    parser.add_argument('--parameters', type=float, default=1e9)
    parser.add_argument('--width', type=int, default=1792)
    parser.add_argument('--vocabulary', type=int, default=32000)
    parser.add_argument('--rows', type=int, default=16)
    parser.add_argument('--tokens', type=int, default=512)
    parser.add_argument('--memory-budget', default='12%')
    parser.add_argument('--passes', type=int, default=3)
    parser.add_argument('--readers', type=int, default=4, help='threads')
    parser.add_argument('--side', choices=['write', 'memory', 'below'],
                        help=argparse.SUPPRESS)
    parser.add_argument('--folder', help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side == 'write':
        write_weights(arguments, os.path.join(arguments.folder, _FILE))
        return 0
    if arguments.side:
        run_passes(arguments)
        return 0
    arguments.folder = tempfile.mkdtemp(prefix='terrace-inference-',
                                        dir=arguments.path)
    try:
        return 0 if tell(arguments, measure(arguments)) else 1
    finally:
        shutil.rmtree(arguments.folder)


if __name__ == '__main__':
    sys.exit(main())
