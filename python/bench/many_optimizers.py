"""Many optimizers in one process: threads, memory, time to make and to step.

    python python/bench/many_optimizers.py --optimizers 200 2> /dev/null

One for each of so many small models, all state in memory, beside
torch.optim.AdamW in the same process; prints a line of JSON. Steps of all
optimizers are interleaved; the time to make them is that of the second round,
after what a first optimizer imports.
"""

import argparse
import json
import os
import statistics
import time

import torch

import terrace

_KINDS = {'torch': torch.optim.AdamW, 'terrace': terrace.AdamW}


def threads() -> int:
    return len(os.listdir('/proc/self/task'))


def resident_bytes() -> int:
    with open('/proc/self/statm') as statm:
        return int(statm.read().split()[1]) * os.sysconf('SC_PAGESIZE')


def make_models(count: int) -> list:
    models = [[torch.nn.Parameter(torch.randn(64, 64)),
               torch.nn.Parameter(torch.randn(64))] for _ in range(count)]
    for model in models:
        for parameter in model:
            parameter.grad = torch.ones_like(parameter)
    return models


def measure(count: int, rounds: int) -> dict:
    result = {'optimizers': count, 'rounds': rounds,
              'processors': len(os.sched_getaffinity(0))}
    optimizers, times = {}, {name: [] for name in _KINDS}
    for name, kind in _KINDS.items():
        kind(make_models(1)[0]).step()
        models = make_models(count)
        before = threads(), resident_bytes()
        started = time.perf_counter()
        optimizers[name] = [kind(model) for model in models]
        result[f'{name}_make_s'] = time.perf_counter() - started
        for optimizer in optimizers[name]:
            optimizer.step()
        result[f'{name}_threads'] = threads() - before[0]
        result[f'{name}_resident_bytes'] = resident_bytes() - before[1]
    for i in range(rounds):
        for name in sorted(_KINDS, reverse=bool(i % 2)):
            started = time.perf_counter()
            for optimizer in optimizers[name]:
                optimizer.step()
            times[name].append(time.perf_counter() - started)
    for name, values in times.items():
        result[f'{name}_step_all_ms'] = 1e3 * statistics.median(values)
    started = time.perf_counter()
    for optimizer in optimizers['terrace']:
        optimizer.close()
    result['terrace_close_s'] = time.perf_counter() - started
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--optimizers', type=int, default=200)
    parser.add_argument('--rounds', type=int, default=15)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.optimizers, arguments.rounds)))


if __name__ == '__main__':
    main()
