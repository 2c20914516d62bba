"""What a process group goes on with after its operation has returned: a close,
a fork, a failure, another owner and autograd meanwhile."""

import contextlib
import functools
import gc
import os
import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import terrace
from collectives import (LAYERS, all_reduce, busy, busy_with_all, late_rank,
                         matrices, network, offloaded, other,
                         send_and_receive, wait_here)
from crew import bits, one_rank
from offloaded import mlp, mlp_loss


def closed_meanwhile(path):
    plain, model = network(), network()
    all_reduce(matrices(plain), False)
    with offloaded(model, path):
        late_rank(0, 1)
        works = all_reduce(matrices(model)[:3], True)
    wait_here(works)
    all_reduce(matrices(model)[3:], False)
    return bits(model.parameters()) == bits(plain.parameters())


def test_a_close_waits_for_what_ends_by_itself(crew, tmp_path):
    assert crew.run(closed_meanwhile, str(tmp_path)) == [True, True]


def refused_meanwhile(path):
    """What a close says of a receive that nobody has waited for."""
    plain, model = network(), network()
    send_and_receive(matrices(plain), False)
    with offloaded(model, path) as offload:
        works = send_and_receive(matrices(model)[:2], True)
        said = ''
        try:
            offload.close()
        except RuntimeError as error:
            said = str(error)
        dist.barrier()
        busy_with_all(model)
        wait_here(works)
        busy_with_all(model)
        send_and_receive(matrices(model)[2:], False)
    return said, bits(model.parameters()) == bits(plain.parameters())


def test_a_close_names_what_nobody_waits_for(crew, tmp_path):
    for said, is_right in crew.run(refused_meanwhile, str(tmp_path)):
        assert is_right
        assert said.startswith('terrace: tensor ') and 'wait()' in said
        assert 'is in use by c10d::' in said


def taken_over_meanwhile(path):
    """What a second offload says of a tensor that is being received."""
    first, second = network(), network()
    with offloaded(first, path):
        tensor = matrices(second)[0]
        work = (dist.isend if dist.get_rank() == 0 else dist.irecv)(
            tensor, other())
        said = ''
        try:
            terrace.offload(second, memory_budget='10%', nvme_path=path)
        except RuntimeError as error:
            said = str(error)
        dist.barrier()
        work.wait()
        terrace.offload(second, memory_budget='10%', nvme_path=path).close()
    return said, bits([matrices(second)[0]]) == bits(
        [matrices(mlp(LAYERS, seed=7))[0]])


def test_what_is_in_flight_is_not_taken_over(crew, tmp_path):
    for said, is_right in crew.run(taken_over_meanwhile, str(tmp_path)):
        assert is_right
        assert 'in use by c10d::' in said and "'0.weight'" in said


def let_go(path, how):
    """Sends and receives that nobody waits for, whose Works are gone."""
    model = network(2 * LAYERS)
    with offloaded(model, path, '30%') as offload:
        if how == 'gone':
            works = send_and_receive(matrices(model)[:LAYERS], True)
            busy(model)
            dist.barrier()
            wait_here(works[1:])
        else:
            works = send_and_receive(matrices(model)[:2], True)
            dist.barrier()
            wait_here(works)
        del works
        gc.collect()
        for _ in range(2):
            busy_with_all(model)
        stats = offload.stats()
        assert stats['memory_peak_bytes'] <= stats['budget_bytes']
        assert stats['failures'] == 0
    return True


@pytest.mark.parametrize('how', ['gone', 'waited for'])
def test_works_that_are_gone_have_nothing(crew, tmp_path, how):
    assert crew.run(let_go, str(tmp_path), how) == [True, True]


def failed(path):
    plain, model = network(), network()
    group = dist.new_group(timeout=timedelta(seconds=1))
    with offloaded(model, path) as offload:
        said = ''
        if dist.get_rank() == 0:
            work = dist.all_reduce(matrices(model)[0], group=group,
                                   async_op=True)
            try:
                work.wait()
            except RuntimeError as error:
                said = str(error)
        dist.barrier()
        for _ in range(2):
            busy_with_all(model)
        assert offload.stats()['failures'] == 0
    return (said, bits(list(model.parameters())[1:])
            == bits(list(plain.parameters())[1:]))


@pytest.mark.alone
def test_a_work_that_fails_lets_go(crew, tmp_path):
    (said, is_right), (_, is_right_there) = crew.run(failed, str(tmp_path))
    assert said and 'terrace' not in said
    assert is_right and is_right_there


def forked(path):
    plain, model = network(), network()
    all_reduce(matrices(plain), False)
    with offloaded(model, path):
        late_rank(0)
        works = all_reduce(matrices(model)[:4], True)
        late_rank(1)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            del works
            gc.collect()
            os._exit(0)
        busy_with_all(model)
        wait_here(works)
        all_reduce(matrices(model)[4:], False)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, bits(model.parameters()) == bits(plain.parameters())


def test_a_fork_meanwhile_ends_nothing(crew, tmp_path):
    assert crew.run(forked, str(tmp_path)) == [(0, True), (0, True)]


class Gathers(torch.nn.Module):
    """What it sends goes on while autograd saves it."""

    def __init__(self, works):
        super().__init__()
        self.works = works
        self.layer = torch.nn.Linear(128, 128)

    def forward(self, x):
        x = self.layer(x)
        made = [torch.empty_like(x) for _ in range(2)]
        self.works.append((dist.all_gather(made, x.detach(), async_op=True),
                           made))
        return x * x


def saved_meanwhile(path, activations):
    works = []
    torch.manual_seed(3)
    model = torch.nn.Sequential(*(Gathers(works) for _ in range(8)))
    x = torch.randn(512, 128) + dist.get_rank()
    options = {'activations': True, 'activations_above': '4KiB',
               'parameters': False} if activations else {}
    around = (offloaded(model, path, '1MiB', **options) if activations
              else contextlib.nullcontext())
    with around:
        late_rank(0)
        loss = model(x).sum()
        loss.backward()
        left = []
        for work, made in works:
            work.wait()
            left += made
    return bits([loss, *left, *(p.grad for p in model.parameters())])


def test_an_activation_that_is_being_sent_stays(crew, tmp_path):
    assert (crew.run(saved_meanwhile, str(tmp_path), True)
            == crew.run(saved_meanwhile, str(tmp_path), False))


def reduced_gradients(path, below, later):
    """Each gradient is reduced as soon as backward has made it, or after."""
    model, works = network(), []
    if later:
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(lambda p: works.append(
                dist.all_reduce(p.grad, async_op=True)))
    around = (offloaded(model, path, '40%') if below
              else contextlib.nullcontext())
    with around:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(3):
            optimizer.zero_grad()
            mlp_loss(model, generator).backward()
            if later:
                wait_here(works)
                works.clear()
            else:
                for p in model.parameters():
                    dist.all_reduce(p.grad)
            optimizer.step()
    return bits(model.parameters())


@pytest.mark.parametrize('later', [False, True])
def test_gradients_are_reduced(crew, tmp_path, later):
    assert (crew.run(reduced_gradients, str(tmp_path), True, later)
            == crew.run(reduced_gradients, str(tmp_path), False, later))


@pytest.mark.parametrize('later', [False, True])
@pytest.mark.parametrize('overlap', [False, True])
def test_gradients_below_are_reduced(tmp_path, later, overlap):
    """With an optimizer that joins, as it may on one rank."""
    def train(model, make):
        works = []
        if later:
            for p in model.parameters():
                p.register_post_accumulate_grad_hook(lambda p: works.append(
                    dist.all_reduce(p.grad, async_op=True)))
        optimizer = make(model.parameters())
        generator = torch.Generator().manual_seed(5)
        for _ in range(3):
            optimizer.zero_grad()
            mlp_loss(model, generator).backward()
            if not later:
                works = [dist.all_reduce(p.grad, async_op=True)
                         for p in model.parameters()]
            wait_here(works)
            works.clear()
            optimizer.step()

    with one_rank(tmp_path):
        plain, model = mlp(LAYERS), mlp(LAYERS)
        train(plain, terrace.AdamW)
        (tmp_path / 'nvme').mkdir()
        with terrace.offload(model, memory_budget='40%',
                             nvme_path=str(tmp_path / 'nvme')):
            train(model, functools.partial(terrace.AdamW, overlap=overlap))
        assert bits(model.parameters()) == bits(plain.parameters())


class Buffered(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = network()
        self.norm = torch.nn.BatchNorm1d(128)

    def forward(self, x):
        return self.norm(self.body(x))


def wrapped(path, below):
    """DistributedDataParallel makes the ranks' parameters one at its start."""
    model = Buffered()
    around = (offloaded(model, path) if below else contextlib.nullcontext())
    with around:
        DistributedDataParallel(model)
    return bits([*model.parameters(), *model.buffers()])


def test_ddp_gives_the_first_rank_s_parameters(crew, tmp_path):
    below = crew.run(wrapped, str(tmp_path), True)
    assert below[0] == below[1]
    assert below == crew.run(wrapped, str(tmp_path), False)
