"""optimizer.state while a state_dict() is made: in its hooks, and in another
thread."""

import threading

import pytest
import torch

import terrace


def made(kind, count=2):
    torch.manual_seed(1)
    weights = [torch.nn.Parameter(torch.randn(5, 4)) for _ in range(count)]
    optimizer = kind(weights, lr=0.01)
    for weight in weights:
        weight.grad = torch.randn(5, 4)
    optimizer.step()
    return weights, optimizer


KINDS = [terrace.AdamW, torch.optim.AdamW]


@pytest.mark.parametrize('kind', KINDS)
def test_hooks_see_the_state_and_write_it(kind):
    weights, optimizer = made(kind)
    heard = []

    def before(given):
        heard.append([state['step'].item() for state in given.state.values()])
        given.state[weights[0]]['exp_avg'].fill_(3.0)

    def after(given, copy):
        heard.append(given.state[weights[0]]['step'].item())
        assert list(given.state) == weights
        assert weights[0] in given.state
        assert torch.equal(copy['state'][0]['exp_avg'], torch.full((5, 4), 3.0))
        copy['state'].pop(1)

    optimizer.register_state_dict_pre_hook(before)
    optimizer.register_state_dict_post_hook(after)
    copy = optimizer.state_dict()
    assert heard == [[1, 1], 1]
    assert list(copy['state']) == [0]
    assert type(copy['state'][0]) is dict


@pytest.mark.parametrize('kind', KINDS)
def test_what_a_hook_leaves_out_is_not_put_back(kind):
    _, optimizer = made(kind)

    def first(_, copy):
        del copy['state'][0]

    def another(_, copy):
        return {**copy, 'epoch': 3}

    optimizer.register_state_dict_post_hook(first, prepend=True)
    optimizer.register_state_dict_post_hook(another)
    copy = optimizer.state_dict()
    assert list(copy['state']) == [1] and copy['epoch'] == 3
    assert isinstance(copy['state'][1]['exp_avg'], torch.Tensor)
    assert type(copy['state'][1]) is dict


def test_another_thread_looks_meanwhile():
    _, optimizer = made(terrace.AdamW, 8)
    faults, done = [], threading.Event()

    def look():
        while not done.is_set():
            try:
                assert [state['step'].item() for state
                        in optimizer.state.values()] == [1] * 8
            except Exception as error:
                faults.append(error)
                return

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(200):
        optimizer.state_dict()
    done.set()
    thread.join()
    assert not faults
