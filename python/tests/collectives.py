"""Collectives over the parameters of a model, for the ranks of a crew."""

import contextlib
import os
import shutil
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import terrace
from offloaded import mlp

LAYERS = 12


def other():
    return 1 - dist.get_rank()


def network(layers=LAYERS):
    """Each rank's own values."""
    return mlp(layers, seed=7 + dist.get_rank())


@contextlib.contextmanager
def offloaded(model, path, budget='10%', **options):
    directory = f'{path}/{dist.get_rank()}'
    os.mkdir(directory)
    try:
        with terrace.offload(model, memory_budget=budget, nvme_path=directory,
                             **options) as offload:
            yield offload
    finally:
        shutil.rmtree(directory)


def halves(tensor):
    flat = tensor.view(-1)
    return flat[:flat.numel() // 2], flat[flat.numel() // 2:]


# Each takes tensors of one size; Works, if it is for later.
def broadcast(tensors, later):
    return [dist.broadcast(t, 0, async_op=later) for t in tensors]


def all_reduce(tensors, later):
    return [dist.all_reduce(t, async_op=later) for t in tensors]


def all_reduce_maximum(tensors, later):
    return [dist.all_reduce(t, dist.ReduceOp.MAX, async_op=later)
            for t in tensors]


def all_reduce_views(tensors, later):
    return [dist.all_reduce(half, async_op=later) for t in tensors
            for half in halves(t)[:1]]


def reduce_to_all(tensors, later):
    """What gloo leaves elsewhere is its own."""
    works = []
    for t in tensors:
        half = halves(t)[0]
        works.append(dist.reduce(
            half if dist.get_rank() == 0 else half.clone(), 0,
            async_op=later))
    return works


def all_gather(tensors, later):
    return [dist.all_gather(list(tensors[i:i + 2]), tensors[i + 2],
                            async_op=later)
            for i in range(0, len(tensors) - 2, 3)]


def all_gather_into(tensors, later):
    return [dist.all_gather_into_tensor(tensors[i].view(-1),
                                        halves(tensors[i + 1])[0],
                                        async_op=later)
            for i in range(0, len(tensors) - 1, 2)]


def reduce_scatter_into(tensors, later):
    return [dist.reduce_scatter_tensor(halves(tensors[i])[1],
                                       tensors[i + 1].view(-1),
                                       async_op=later)
            for i in range(0, len(tensors) - 1, 2)]


def reduce_scatter(tensors, later):
    return [dist.reduce_scatter(tensors[i], list(tensors[i + 1:i + 3]),
                                async_op=later)
            for i in range(0, len(tensors) - 2, 3)]


def gather(tensors, later):
    return [dist.gather(tensors[i], list(tensors[i + 1:i + 3])
                        if dist.get_rank() == 0 else None, async_op=later)
            for i in range(0, len(tensors) - 2, 3)]


def scatter(tensors, later):
    return [dist.scatter(tensors[i], list(tensors[i + 1:i + 3])
                         if dist.get_rank() == 0 else None, async_op=later)
            for i in range(0, len(tensors) - 2, 3)]


def all_to_all_single(tensors, later):
    return [dist.all_to_all_single(tensors[i], tensors[i + 1], async_op=later)
            for i in range(0, len(tensors) - 1, 2)]


def all_reduce_coalesced(tensors, later):
    return [dist.all_reduce_coalesced(list(tensors), async_op=later)]


def send_and_receive(tensors, later):
    works = []
    for tag, t in enumerate(tensors):
        if dist.get_rank() == tag % 2:
            works.append(dist.isend(t, other(), tag=tag) if later
                         else dist.send(t, other(), tag=tag))
        else:
            works.append(dist.irecv(t, other(), tag=tag) if later
                         else dist.recv(t, other(), tag=tag))
    return works


def receive_from_any(tensors, later):
    works = []
    for tag, t in enumerate(tensors):
        if dist.get_rank() == 0:
            works.append(dist.isend(t, 1, tag=tag) if later
                         else dist.send(t, 1, tag=tag))
        else:
            works.append(dist.irecv(t, tag=tag) if later
                         else dist.recv(t, tag=tag))
    return works


def batch_of_sends(tensors, later):
    operations = [dist.P2POp(dist.isend if dist.get_rank() == i % 2
                             else dist.irecv, t, other(), tag=i)
                  for i, t in enumerate(tensors)]
    works = dist.batch_isend_irecv(operations)
    if later:
        return works
    for work in works:
        work.wait()
    return []


def functional_in_place(tensors, later):
    name = dist.group.WORLD.group_name
    made = [torch.ops._c10d_functional.all_reduce_(t, 'sum', name)
            for t in tensors]

    class Waits:
        def __init__(self, tensor):
            self.tensor = tensor

        def wait(self):
            torch.ops._c10d_functional.wait_tensor(self.tensor)

    works = [Waits(t) for t in made]
    if later:
        return works
    for work in works:
        work.wait()
    return []


def functional_copied_back(tensors, later):
    for t in tensors:
        t.copy_(functional.all_reduce(t, 'sum', dist.group.WORLD))
    return []


KINDS = {each.__name__: each for each in (
    broadcast, all_reduce, all_reduce_maximum, all_reduce_views,
    reduce_to_all, all_gather, all_gather_into, reduce_scatter_into,
    reduce_scatter, gather, scatter, all_to_all_single, all_reduce_coalesced,
    send_and_receive, receive_from_any, batch_of_sends,
    functional_in_place, functional_copied_back)}


def matrices(model):
    return [p.data for p in model.parameters() if p.dim() == 2]


def busy(model):
    """Forward over the last half, whose tensors take the others' room."""
    x = torch.ones(2, 128)
    with torch.no_grad():
        for layer in list(model)[LAYERS:]:
            x = layer(x)


def late_rank(rank, seconds=0.3):
    if dist.get_rank() == rank:
        time.sleep(seconds)


def busy_with_all(model):
    with torch.no_grad():
        model(torch.ones(2, 128))


def wait_here(works):
    for work in works:
        work.wait()
