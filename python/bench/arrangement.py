"""What it costs to see that the groups' parameters are the same as before.

    python python/bench/arrangement.py --parameters 10000 2> /dev/null

Steps of an optimizer of many small parameters, all state in memory, and in
between the look at its groups alone, each by itself, in alternating order;
prints medians and the look's share of a step as a line of JSON.
"""

import argparse
import json
import os
import statistics
import time

import torch

import terrace


def measure(count: int, rounds: int) -> dict:
    parameters = [torch.nn.Parameter(torch.randn(16)) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.randn(16)
    optimizer = terrace.AdamW(parameters)
    store = optimizer._store

    def look() -> None:
        store.arrangement.follow(optimizer.param_groups, store.places.by_id)

    parts = {'step': optimizer.step, 'look': look}
    times: dict[str, list[float]] = {name: [] for name in parts}
    for i in range(-3, rounds):
        for name in sorted(parts, reverse=bool(i % 2)):
            started = time.perf_counter()
            parts[name]()
            if i >= 0:  # before that: warming up
                times[name].append(time.perf_counter() - started)
    result = {'parameters': count, 'rounds': rounds,
              'load': os.getloadavg()[0]}
    for name, values in times.items():
        result[f'{name}_median_ms'] = 1e3 * statistics.median(values)
    result['share'] = result['look_median_ms'] / result['step_median_ms']
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--parameters', type=int, default=10_000)
    parser.add_argument('--rounds', type=int, default=101)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.parameters, arguments.rounds)))


if __name__ == '__main__':
    main()
