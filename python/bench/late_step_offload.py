"""The time of an iteration with everything below, whose updates go on after
step() or end in it.

    python python/bench/late_step_offload.py --path /mnt/nvme0 [--rounds 9]

The model of offload_step.py, gradients clipped at a norm of 1, a tenth of
parameters, gradients and state in memory. Rows in turn, in alternating order,
each a run of iterations as in late_step.py:

    in memory   torch.nn.utils.clip_grad_norm_ and torch.optim.AdamW(fused=True)
    step()      terrace.offload and terrace.AdamW(max_grad_norm=1,
                overlap=False)
    overlap     terrace.offload and terrace.AdamW(max_grad_norm=1); what it
                leaves ends after it

Prints medians and the ratio of the last row to the one before, and the same as
a line of JSON. Parameters of the last two rows are compared after the last
round. Takes 4 GB of memory and 6 GB of disk.
"""

import argparse
import json
import os
import statistics
import tempfile

import torch

from late_step import Training
from offload_step import parsed


def measure(arguments: argparse.Namespace, folder: str) -> dict:
    memory = Training(arguments, None)
    plain = Training(arguments, os.path.join(folder, 'plain'), below=True,
                     overlap=False)
    late = Training(arguments, os.path.join(folder, 'late'), below=True)
    rows = {'in memory': memory, 'step()': plain, 'overlap': late}
    times: dict[str, list[float]] = {name: [] for name in rows}
    for i in range(-2, arguments.rounds):
        for name in sorted(rows, reverse=bool(i % 2)):
            seconds = [each['all'] for each in rows[name].train()]
            if i >= 0:  # before that: warming up
                times[name] += seconds
    load = os.getloadavg()[0]
    budget = late.offload.stats()['budget_bytes']
    plain.offload.close()
    late.offload.close()
    same = all(map(torch.equal, plain.model.parameters(),
                   late.model.parameters()))
    return {'parameters': sum(p.numel() for p in late.model.parameters()),
            'memory_budget': arguments.memory_budget, 'budget_bytes': budget,
            'rounds': arguments.rounds, 'same_parameters': same,
            'threads': torch.get_num_threads(), 'load': load,
            'medians': {name: statistics.median(values)
                        for name, values in times.items()},
            'spread': {name: (min(values), max(values))
                       for name, values in times.items()}}


def main() -> None:
    arguments = parsed(__doc__.splitlines()[0])
    with tempfile.TemporaryDirectory(dir=arguments.path) as folder:
        result = measure(arguments, folder)
    median = result['medians']
    result['ratio'] = median['overlap'] / median['step()']
    for name, seconds in median.items():
        least, most = result['spread'][name]
        print(f'{name:10} {1e3 * seconds:6.0f} ms ({1e3 * least:.0f} to '
              f'{1e3 * most:.0f})')
    print(f'{result["parameters"]:,} parameters, a budget of '
          f'{result["budget_bytes"] / 1e6:.0f} MB; load {result["load"]:.1f}')
    print(f'overlap is {result["ratio"]:.3f} x step()')
    print(json.dumps(result))
    if not result['same_parameters']:
        raise SystemExit('the parameters differ')


if __name__ == '__main__':
    main()
