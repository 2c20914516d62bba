"""The time of a step with all the state in memory, against PyTorch's own.

    python python/bench/step_time.py --parameters 30e6 --dtype fp32

Interleaved steps in one process, in alternating order; prints medians, minima
and their ratios, and the same as a line of JSON. fp32: against
torch.optim.AdamW(fused=True). bf16: against copying the gradients to fp32,
fused AdamW on fp32 masters, and copying back, in _foreach_copy_.

On a machine with other work, set OMP_WAIT_POLICY=passive: PyTorch's threads
otherwise spin for each other, which makes its time many times longer.
"""

import argparse
import json
import os
import statistics
import time

import torch

import terrace

_SIZE = 1 << 20  # elements of a tensor


def make_parameters(count: int, dtype: torch.dtype) -> list:
    """Tensors of `count` elements together, each with a gradient."""
    generator = torch.Generator().manual_seed(1)
    parameters = []
    for first in range(0, count, _SIZE):
        shape = (min(_SIZE, count - first),)
        parameter = torch.nn.Parameter(
            torch.randn(shape, generator=generator).to(dtype) * 0.02)
        parameter.grad = torch.randn(shape, generator=generator).to(dtype)
        parameters.append(parameter)
    return parameters


def make_reference(count: int, dtype: torch.dtype):
    """PyTorch's step, as a function."""
    parameters = make_parameters(count, dtype)
    if dtype == torch.float32:
        return torch.optim.AdamW(parameters, fused=True).step
    masters = [torch.nn.Parameter(p.detach().float()) for p in parameters]
    for master in masters:
        master.grad = torch.empty_like(master)
    optimizer = torch.optim.AdamW(masters, fused=True)

    def step() -> None:
        torch._foreach_copy_([m.grad for m in masters],
                             [p.grad for p in parameters])
        optimizer.step()
        torch._foreach_copy_([p.data for p in parameters],
                             [m.data for m in masters])
    return step


def measure(count: int, dtype: torch.dtype, rounds: int) -> dict:
    optimizer = terrace.AdamW(make_parameters(count, dtype))
    steps = {'torch': make_reference(count, dtype), 'terrace': optimizer.step}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(-3, rounds):
        for name in sorted(steps, reverse=bool(i % 2)):
            started = time.perf_counter()
            steps[name]()
            if i >= 0:  # before that: warming up
                times[name].append(time.perf_counter() - started)
    result = {'parameters': count, 'dtype': str(dtype), 'rounds': rounds,
              'threads': torch.get_num_threads(),
              'load': os.getloadavg()[0],
              'instruction_set': terrace.instruction_set()}
    for name, values in times.items():
        result[f'{name}_median_ms'] = 1e3 * statistics.median(values)
        result[f'{name}_min_ms'] = 1e3 * min(values)
    for kind in ('median', 'min'):
        result[f'{kind}_ratio'] = (result[f'terrace_{kind}_ms'] /
                                   result[f'torch_{kind}_ms'])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--parameters', type=float, default=30e6)
    parser.add_argument('--dtype', choices=['fp32', 'bf16'], default='fp32')
    parser.add_argument('--rounds', type=int, default=25)
    arguments = parser.parse_args()
    dtype = {'fp32': torch.float32, 'bf16': torch.bfloat16}[arguments.dtype]
    result = measure(int(arguments.parameters), dtype, arguments.rounds)
    for name in ('torch', 'terrace'):
        print(f'{name:8} median {result[f"{name}_median_ms"]:7.1f} ms, '
              f'least {result[f"{name}_min_ms"]:7.1f} ms')
    print(f'ratio of medians {result["median_ratio"]:.3f}, of the least '
          f'{result["min_ratio"]:.3f}; load {result["load"]:.1f}')
    print(json.dumps(result))


if __name__ == '__main__':
    main()
