"""The time of a step of parameters on a GPU whose state is in CPU memory,
against the least time in which its bytes cross the bus.

    python python/bench/cuda_step.py --parameters 124e6

For each dtype a line of JSON: median seconds of a step; GB/s over the bus; the
bus itself, each way alone, from and to pinned memory; and `bound`, the part of
the step that the busier way needs (1: no step can be faster). With clipping
the gradients cross twice.
"""

import argparse
import json
import statistics
import time

import torch

import terrace

_SIZE = 1 << 22  # elements of a tensor
_COPY = 256 << 20


def seconds(work, rounds: int) -> float:
    """The median, after two that are not counted."""
    times = []
    for _ in range(rounds + 2):
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[2:])


def bus(rounds: int) -> tuple[float, float]:
    """Bytes a second to the host and to the device."""
    host = torch.empty(_COPY, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(_COPY, dtype=torch.uint8, device='cuda')
    return (_COPY / seconds(lambda: host.copy_(device, True), rounds),
            _COPY / seconds(lambda: device.copy_(host, True), rounds))


def make_parameters(count: int, dtype: torch.dtype) -> list:
    parameters = []
    for first in range(0, count, _SIZE):
        shape = (min(_SIZE, count - first),)
        parameter = torch.nn.Parameter(
            torch.randn(shape, device='cuda').to(dtype) * 0.02)
        parameter.grad = torch.randn(shape, device='cuda').to(dtype)
        parameters.append(parameter)
    return parameters


def measure(count: int, dtype: torch.dtype, clip: float | None,
            rounds: int) -> dict:
    optimizer = terrace.AdamW(make_parameters(count, dtype),
                              max_grad_norm=clip)
    median = seconds(optimizer.step, rounds)
    stats = optimizer.stats()
    before = stats['bytes_from_devices'], stats['bytes_to_devices']
    optimizer.step()
    stats = optimizer.stats()
    down = stats['bytes_from_devices'] - before[0]
    up = stats['bytes_to_devices'] - before[1]
    to_host, to_device = bus(rounds)
    optimizer.close()
    return {'parameters': count, 'dtype': str(dtype).removeprefix('torch.'),
            'clipped': clip is not None, 'step_seconds': median,
            'gb_per_second': (down + up) / median / 1e9,
            'bus_to_host': to_host / 1e9, 'bus_to_device': to_device / 1e9,
            'bound': max(down / to_host, up / to_device) / median,
            'staging_bytes': stats['staging_bytes'],
            'instruction_set': stats['instruction_set']}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument('--parameters', type=float, default=124e6)
    parser.add_argument('--rounds', type=int, default=7)
    arguments = parser.parse_args()
    for dtype in (torch.float32, torch.bfloat16):
        for clip in (None, 1.0):
            print(json.dumps(measure(int(arguments.parameters), dtype, clip,
                                     arguments.rounds)), flush=True)


if __name__ == '__main__':
    main()
