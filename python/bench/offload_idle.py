"""What an offloaded model costs that is in memory as a whole.

    python python/bench/offload_idle.py [--rounds 15]

The model of offload_step.py trains with torch.optim.SGD, on one thread, by the
process's own processor time, so that what else the machine does takes no share
of it. A round is an iteration without terrace.offload(), one within it, with a
budget that holds everything, and one after its close(); the cost of a round is
the second's time beyond the mean of the two beside it. Prints the median and
spread, of which at most 1 % is wanted, and the same as a line of JSON.
"""

import argparse
import json
import os
import statistics
import time

import torch

import terrace
from offload_step import Bytes

_TOKENS, _VOCABULARY = 128, 256


def iterate(model: Bytes, optimizer: torch.optim.Optimizer) -> float:
    """Its seconds of processor time."""
    tokens = torch.randint(_VOCABULARY, (1, _TOKENS + 1))
    started = time.process_time()
    loss = torch.nn.functional.cross_entropy(
        model(tokens[:, :-1]).flatten(0, 1), tokens[0, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.process_time() - started


def within(model: Bytes, optimizer: torch.optim.Optimizer) -> float:
    with terrace.offload(model):
        iterate(model, optimizer)  # the first one takes storages over
        return iterate(model, optimizer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--layers', type=int, default=13)
    parser.add_argument('--width', type=int, default=896)
    parser.add_argument('--rounds', type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = Bytes(arguments.layers, arguments.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    iterate(model, optimizer)
    costs, plain = [], []
    for _ in range(arguments.rounds):
        before = iterate(model, optimizer)
        offloaded = within(model, optimizer)
        iterate(model, optimizer)  # its storages are other ones now
        after = iterate(model, optimizer)
        plain.append((before + after) / 2)
        costs.append(offloaded / plain[-1] - 1)
    result = {'cost': statistics.median(costs), 'least': min(costs),
              'most': max(costs), 'plain': statistics.median(plain),
              'rounds': arguments.rounds, 'load': os.getloadavg()[0]}
    print(f'an iteration of {result["plain"]:.3f} s costs '
          f'{100 * result["cost"]:.2f} % more ({100 * result["least"]:.2f} to '
          f'{100 * result["most"]:.2f}); at most 1 % is wanted')
    print(json.dumps(result))


if __name__ == '__main__':
    main()
