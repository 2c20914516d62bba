"""The memory that training takes with everything below.

    python python/bench/offload_gpt_memory.py --path /mnt/nvme0

A GPT of 13 layers of 896 over bytes, 126.8M parameters of fp32, 1 x 128 tokens
a step, with parameters, gradients and the state of terrace.AdamW in
--memory-budget of what they are. In a fresh process for each row: peak RSS
(VmHWM) while it trains three steps, from where offload() has returned, or the
model and the optimizer are made (the peak is reset there, by
/proc/self/clear_refs). Beside it the same in memory with torch.optim.AdamW and
with terrace.AdamW, and a model of one layer in memory, whose peak is what the
script takes whatever the model is. Losses below are those of terrace.AdamW in
memory, bit for bit, or this ends with 1.

Prints a table, the two bars of the project and a line of JSON. It takes 3 GB of
disk, 3.5 GB of memory and some minutes.
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

LAYERS, WIDTH, CONTEXT, TOKENS, BYTES = 13, 896, 1024, 128, 256
STEPS = 3
ROWS = ('torch.optim.AdamW, in memory', 'terrace.AdamW, in memory',
        'everything below', 'one layer, in memory')
MIB = 1 << 20


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH)
                                         for _ in range(2))
        self.queries = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.output = torch.nn.Linear(WIDTH, WIDTH)
        self.wide = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = hidden.shape
        parts = self.queries(self.norms[0](hidden)).view(batch, tokens, 3, 14,
                                                         WIDTH // 14)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True)
        hidden = hidden + self.output(
            mixed.transpose(1, 2).reshape(batch, tokens, WIDTH))
        wide = torch.nn.functional.gelu(self.wide(self.norms[1](hidden)))
        return hidden + self.narrow(wide)


class Gpt(torch.nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.bytes = torch.nn.Embedding(BYTES, WIDTH)
        self.places = torch.nn.Embedding(CONTEXT, WIDTH)
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(layers)))
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, BYTES, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        hidden = self.bytes(text) + self.places(torch.arange(text.shape[1]))
        return self.head(self.norm(self.blocks(hidden)))


def status_bytes(key: str) -> int:
    with open('/proc/self/status', encoding='ascii') as status:
        for line in status:
            if line.startswith(key + ':'):
                return int(line.split()[1]) << 10
    raise RuntimeError(f'the kernel does not say {key}')


def loss_of(model: Gpt, generator: torch.Generator) -> torch.Tensor:
    text = torch.randint(BYTES, (1, TOKENS + 1), generator=generator)
    logits = model(text[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1),
                                             text[:, 1:].flatten())


def activation_bytes(model: Gpt) -> int:
    """That backward keeps, but for parameters."""
    storages = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in storages:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
        loss_of(model, torch.Generator().manual_seed(1))
    return sum(kept.values())


def run_row(row: str, arguments: argparse.Namespace) -> dict:
    torch.manual_seed(1)
    model = Gpt(1 if row.startswith('one layer') else arguments.layers)
    count = sum(p.numel() for p in model.parameters())
    result = {'row': row, 'parameters': count}
    offload = None
    if row == 'everything below':
        offload = terrace.offload(model, nvme_path=arguments.folder,
                                  memory_budget=arguments.memory_budget)
    else:
        result['activation_bytes'] = activation_bytes(model)
    with open('/proc/self/clear_refs', 'w', encoding='ascii') as refs:
        refs.write('5')
    kind = torch.optim if row.startswith('torch.optim') else terrace
    optimizer = kind.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(2)
    losses, begun = [], time.monotonic()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, generator)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    result |= {'peak_bytes': status_bytes('VmHWM'), 'losses': losses,
               'seconds_a_step': (time.monotonic() - begun) / STEPS}
    if offload is not None:
        stats = offload.stats()
        result |= {key: stats[key] for key in (
            'budget_bytes', 'joined_bytes', 'memory_peak_bytes',
            'over_budget_bytes', 'bytes_read', 'bytes_written')}
        result['staging_bytes'] = optimizer.stats()['staging_bytes']
    return result


def measure(row: str, arguments: argparse.Namespace, folder: str) -> dict:
    output = subprocess.run(
        [sys.executable, '-P', os.path.abspath(__file__), '--row', row,
         '--folder', folder, '--path', arguments.path, '--layers',
         str(arguments.layers), '--memory-budget', arguments.memory_budget],
        check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def tell(rows: dict[str, dict], budget: str) -> bool:
    """Whether the losses are alike."""
    below, whole = rows['everything below'], rows['terrace.AdamW, in memory']
    count = below['parameters']
    print(f'{count} parameters, fp32, memory_budget={budget!r}, {TOKENS} '
          'tokens a step\n')
    print('| peak RSS | MiB | bytes a parameter | seconds a step |\n'
          '|---|---|---|---|')
    for row, result in rows.items():
        print(f'| {row} | {result["peak_bytes"] / MIB:.1f} | '
              f'{result["peak_bytes"] / result["parameters"]:.2f} | '
              f'{result["seconds_a_step"]:.2f} |')
    script = rows['one layer, in memory']['peak_bytes']
    beyond = below['peak_bytes'] - script
    allowed = (below['budget_bytes'] + whole['activation_bytes'] + 96 * MIB)
    print(f'\nbytes a parameter: {below["peak_bytes"] / count:.2f}, at most 9')
    print(f'beyond the script: {beyond / MIB:.1f} MiB, at most the budget of '
          f'{below["budget_bytes"] / MIB:.1f} + activations of '
          f'{whole["activation_bytes"] / MIB:.1f} + 96 = {allowed / MIB:.1f}')
    alike = below['losses'] == whole['losses']
    print(json.dumps({'rows': rows, 'alike': alike}))
    return alike


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--path', required=True, help='a folder of a disk')
    parser.add_argument('--layers', type=int, default=LAYERS)
    parser.add_argument('--memory-budget', default='10%')
    parser.add_argument('--row', choices=ROWS, help=argparse.SUPPRESS)
    parser.add_argument('--folder', help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        print(json.dumps(run_row(arguments.row, arguments)))
        return 0
    folder = tempfile.mkdtemp(prefix='terrace-offload-', dir=arguments.path)
    try:
        rows = {row: measure(row, arguments, folder) for row in ROWS}
    finally:
        shutil.rmtree(folder)
    return 0 if tell(rows, arguments.memory_budget) else 1


if __name__ == '__main__':
    sys.exit(main())
