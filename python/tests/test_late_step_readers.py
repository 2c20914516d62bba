"""Whatever looks at a parameter, or writes it or its gradient, while updates of
terrace.AdamW(..., overlap=True) go on, sees it updated."""

import copy
import os
import pickle
import threading

import pytest
import torch

import terrace
from offloaded import check_equal_values, mlp, mlp_loss, values
from test_late_step import check_same_run, tight  # noqa: F401


READERS = {
    'norms': lambda network: [p.norm() for p in network.parameters()],
    'foreach': lambda network: list(torch._foreach_norm(
        list(network.parameters()))),
    'detached': lambda network: [p.detach().clone()
                                 for p in network.parameters()],
    'data': lambda network: [p.data.clone() for p in network.parameters()],
    'views': lambda network: [p.view(-1)[3:].clone()
                              for p in network.parameters()],
    'items': lambda network: [torch.tensor(p.flatten()[-1].item())
                              for p in network.parameters()],
    'lists': lambda network: [torch.tensor(p.tolist())
                              for p in network.parameters()],
    'numpy': lambda network: [torch.from_numpy(p.detach().numpy().copy())
                              for p in network.parameters()],
    'numpy of data': lambda network: [torch.from_numpy(p.data.numpy().copy())
                                      for p in network.parameters()],
    'state_dict': lambda network: [v.clone() for v
                                   in network.state_dict().values()],
    'deepcopy': lambda network: list(copy.deepcopy(network).parameters()),
    'pickle': lambda network: list(pickle.loads(pickle.dumps(
        [p.data for p in network.parameters()]))),
    'storages': lambda network: [
        torch.tensor(list(p.untyped_storage()[-8:]))
        for p in network.parameters()],
    'inference': lambda network: evaluated(network),
    'averaged': lambda network: averaged(network),
}


def evaluated(network):
    with torch.inference_mode():
        return [network(torch.ones(1, 128)).clone()]


def averaged(network):
    mean = [torch.zeros_like(p) for p in network.parameters()]
    torch._foreach_lerp_(mean, [p.detach() for p in network.parameters()], 0.1)
    return mean


@pytest.mark.parametrize('reader', READERS)
def test_what_reads_between_step_and_forward(tight, reader):  # noqa: F811
    def look(network, optimizer, step, losses):
        losses += READERS[reader](network)

    check_same_run(lambda: mlp(12), mlp_loss, tight, around=look)


def test_what_writes_between_step_and_forward(tight):  # noqa: F811
    def write(network, optimizer, step, losses):
        with torch.no_grad():
            network[6].weight.clamp_(-0.05, 0.05)
            network[20].bias.copy_(network[0].bias)
        optimizer.param_groups[0]['lr'] *= 0.9
        if step == 2:
            optimizer.state[network[4].weight]['exp_avg'].mul_(3)
        if step == 3:
            network[2].weight.data = network[2].weight.data * 2

    check_same_run(lambda: mlp(12), mlp_loss, tight, around=write)


def test_gradients_that_are_written_after_step(tight):  # noqa: F811
    def write(network, optimizer, step, losses):
        for p in list(network.parameters())[::-1]:
            p.grad.mul_(-1)

    check_same_run(lambda: mlp(12), mlp_loss, tight, around=write)


def test_another_optimizer_of_the_same_parameters(tight):  # noqa: F811
    others = []

    def step_other(network, optimizer, step, losses):
        if step == 0:
            others[:] = [terrace.AdamW(network.parameters(), lr=1e-3,
                                       overlap=bool(others))]
        others[0].step()

    check_same_run(lambda: mlp(6), mlp_loss, tight, around=step_other)


def test_a_forked_child_has_whole_parameters(tight):  # noqa: F811
    plain, network = mlp(12), mlp(12)
    reference = terrace.AdamW(plain.parameters(), **tight)
    optimizer = terrace.AdamW(network.parameters(), overlap=True, **tight)
    for seed in range(2):
        for each, made in ((plain, reference), (network, optimizer)):
            mlp_loss(each, torch.Generator().manual_seed(seed)).backward()
            if made is optimizer and seed:
                reference.step()
            elif not seed:
                made.step()
    optimizer.step()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if all(torch.equal(a, b) for a, b in zip(
                    plain.parameters(), network.parameters(), strict=True)):
                code = 2
                try:
                    optimizer.flush()
                except RuntimeError as error:
                    code = 0 if 'forked child' in str(error) else 3
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    optimizer.flush()


@pytest.mark.parametrize('when', ['before', 'meanwhile'])
def test_what_torch_compile_makes(tight, when):  # noqa: F811
    """It reads memory without operations."""
    pytest.importorskip('torch._inductor')
    torch._dynamo.reset()
    left = []
    try:
        for overlap in (False, True):
            network = mlp(6)
            compiled = torch.compile(network)
            optimizer = terrace.AdamW(network.parameters(), lr=1e-2,
                                      overlap=overlap, **tight)
            generator = torch.Generator().manual_seed(3)
            for step in range(4):
                use = compiled if when == 'before' or step > 1 else network
                mlp_loss(use, generator).backward()
                optimizer.step()
                optimizer.zero_grad()
            with torch.no_grad():
                left.append(mlp_loss(compiled, generator))
            left.append(values(network))
            optimizer.close()
            torch._dynamo.reset()
    finally:
        torch._dynamo.reset()
    assert torch.equal(left[0], left[2])
    check_equal_values(left[1], left[3])


def test_other_threads_wait_too(tight):  # noqa: F811
    """Several at once, while the next step is under way."""
    plain, network = mlp(12), mlp(12)
    for each, overlap in ((plain, False), (network, True)):
        optimizer = terrace.AdamW(each.parameters(), lr=1e-2, overlap=overlap,
                                  **tight)
        generator = torch.Generator().manual_seed(3)
        for _ in range(4):
            mlp_loss(each, generator).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen = {}
            threads = [threading.Thread(
                target=lambda name, p: seen.update({name: p.clone()}),
                args=named) for named in each.named_parameters()]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            check_equal_values(seen, dict(each.named_parameters()))
        optimizer.close()
    check_equal_values(values(network), values(plain))


def test_an_array_of_a_gradient_is_there_once_it_was_read(tight):  # noqa: F811
    def write(network, optimizer, step, losses):
        for p in list(network.parameters())[::-1]:
            p.grad.numpy()[...] = -1
        for p in network.parameters():
            p.grad.untyped_storage().fill_(0)

    check_same_run(lambda: mlp(12), mlp_loss, tight, around=write)


def test_a_forked_child_may_read_without_an_operation(tight):  # noqa: F811
    network = mlp(12)
    optimizer = terrace.AdamW(network.parameters(), overlap=True, **tight)
    mlp_loss(network, torch.Generator().manual_seed(1)).backward()
    optimizer.step()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = int(not all(p.detach().numpy().any()
                               for p in network.parameters()))
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    optimizer.close()
