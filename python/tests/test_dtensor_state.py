"""The state of DTensors as scripts read and write it, and what is refused."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import (DTensor, Partial, Shard,
                                      distribute_tensor)

import sharded
import terrace
from crew import error_of


def parameter_of(*shape):
    return torch.nn.Parameter(distribute_tensor(
        torch.arange(float(torch.Size(shape).numel())).reshape(shape),
        sharded.mesh(), [Shard(0)]))


def stepped(who, count=2, **settings):
    parameter = parameter_of(5, 2)
    optimizer = sharded.optimizer_of(who, [parameter], **settings)
    for number in range(count):
        step(parameter, optimizer, number)
    return parameter, optimizer


def step(parameter, optimizer, number):
    parameter.grad = distribute_tensor(torch.full((5, 2), number + 1.0),
                                       sharded.mesh(), [Shard(0)])
    optimizer.step()


def in_place(state, parameter):
    state[parameter]['exp_avg'].zero_()


def through_the_shard(state, parameter):
    state[parameter]['exp_avg'].to_local().fill_(3)


def halved(state, parameter):
    state[parameter]['exp_avg_sq'].mul_(0.5)


def assigned(state, parameter):
    state[parameter]['exp_avg'] = state[parameter]['exp_avg'] * 2


def a_new_one(state, parameter):
    state[parameter]['exp_avg'] = torch.zeros_like(parameter)


def the_step(state, parameter):
    state[parameter]['step'] = torch.tensor(10.0)


def deleted(state, parameter):
    del state[parameter]


def popped(state, parameter):
    taken = state.pop(parameter)
    taken['exp_avg'].add_(1)
    state[parameter] = taken


WAYS = [in_place, through_the_shard, halved, assigned, a_new_one, the_step,
        deleted, popped]


def run_written(who, way):
    parameter, optimizer = stepped(who)
    way(optimizer.state, parameter)
    step(parameter, optimizer, 2)
    state = optimizer.state[parameter]
    kinds = {key: type(value).__name__ for key, value in state.items()}
    placed = [getattr(value, 'placements', None) for value in state.values()]
    return ([sharded.whole(value) for value in (parameter, *state.values())],
            kinds, placed)


@pytest.mark.parametrize('way', WAYS)
def test_state_is_written_as_in_torch(way, crew):
    expected = crew.run(run_written, 'torch', way)
    for ours, theirs in zip(crew.run(run_written, 'ours', way), expected):
        for a, b in zip(ours[0], theirs[0], strict=True):
            sharded.assert_near(a, b, 2e-6)
        assert ours[1:] == theirs[1:]


def write_late():
    parameter, optimizer = stepped('ours')
    old = optimizer.state[parameter]['exp_avg']
    step(parameter, optimizer, 2)
    old.zero_()
    return error_of(lambda: step(parameter, optimizer, 3))[:2]


def test_a_shard_of_before_the_last_step_is_refused(crew):
    for kind, text in crew.run(write_late):
        assert kind == 'ValueError' and 'take it out again' in text


def refusals(folder):
    over = sharded.mesh()
    parameter = parameter_of(5, 2)
    named = [('weight', parameter)]
    partial = torch.nn.Parameter(DTensor.from_local(torch.ones(2), over,
                                                    [Partial()]))
    frozen = parameter_of(5, 2).requires_grad_(False)
    model = torch.nn.Module()
    model.weight = parameter
    optimizer = terrace.AdamW(named)
    half = torch.nn.Module()
    half.weight = torch.nn.Parameter(distribute_tensor(
        torch.ones(4, 2).half(), over, [Shard(0)]))

    def with_gradient(gradient, **settings):
        other = parameter_of(5, 2)
        other.grad = gradient
        terrace.AdamW([('weight', other)], **settings).step()

    def late():
        made = terrace.AdamW([('plain', torch.nn.Parameter(torch.ones(3))),
                              ('frozen', frozen)], max_grad_norm=1.0)
        frozen.requires_grad_(True).grad = torch.zeros_like(frozen)
        made.step()

    def added():
        terrace.AdamW([torch.nn.Parameter(torch.ones(3))],
                      max_grad_norm=1.0).add_param_group({'params': [parameter]})

    def gradient_of_a_plain_one():
        plain = torch.nn.Parameter(torch.ones(5, 2))
        plain.grad = torch.zeros_like(parameter.detach())
        terrace.AdamW([('plain', plain)]).step()

    calls = [
        lambda: terrace.AdamW(named, max_grad_norm=1.0), late, added,
        lambda: terrace.AdamW(named, process_group=dist.group.WORLD),
        lambda: terrace.AdamW(named, step_in_backward=1),
        lambda: terrace.from_deepspeed_config(
            half, {'optimizer': {'type': 'AdamW'}, 'train_batch_size': 4,
                   'gradient_clipping': 0,
                   'fp16': {'enabled': True}}),
        lambda: terrace.AdamW([('sum', partial)]),
        lambda: with_gradient(torch.ones(5, 2)),
        gradient_of_a_plain_one,
        lambda: terrace.save(folder, model, optimizer),
        lambda: terrace.load(folder, model, optimizer),
        lambda: terrace.export_torch(f'{folder}/x.pt', model, optimizer),
        lambda: terrace.export_torch(f'{folder}/x.pt', None, optimizer),
        lambda: terrace.import_torch(f'{folder}/x.pt', model)]
    return [error_of(call)[:2] for call in calls]


NO, BAD = 'NotImplementedError', 'ValueError'
EXPECTED = [
    (NO, "parameter 'weight' is a DTensor: max_grad_norm"),
    (NO, "parameter 'frozen' is a DTensor: max_grad_norm"),
    (NO, 'call torch.nn.utils.clip_grad_norm_(), or'),
    (NO, 'leave process_group out'),
    (NO, "parameter 'weight' is a DTensor, which step_in_backward"),
    (NO, 'train in bf16'),
    (NO, "parameter 'sum' is a DTensor that is placed (Partial(sum),)"),
    (BAD, "the gradient of parameter 'weight' is a plain tensor"),
    (BAD, 'wraps other tensors and has no memory of its own'),
    (NO, "parameter 'weight' is a DTensor: each rank has a part"),
    (NO, 'torch.distributed.checkpoint'), (NO, 'set_state_dict()'),
    (NO, "parameter 'weight' is a DTensor"), (NO, 'DTensor')]


def test_what_cannot_be_followed_is_named(crew, tmp_path):
    for errors in crew.run(refusals, str(tmp_path)):
        for (kind, text), (expected, words) in zip(errors, EXPECTED,
                                                   strict=True):
            assert kind == expected and words in text, text
    assert not list(tmp_path.iterdir())


class Wrapper(torch.Tensor):
    """Of a tensor, without memory of its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), named=None):
        if function is torch.ops.aten.detach.default:
            return cls(arguments[0].inner)
        raise NotImplementedError(function)


class Plain(torch.Tensor):
    """A subclass with memory."""


def test_other_wrappers_are_named():
    wrapper = torch.nn.Parameter(Wrapper(torch.ones(3)))
    with pytest.raises(NotImplementedError, match="'w' is a Wrapper, which "
                       'wraps other tensors'):
        terrace.AdamW([('w', wrapper)])
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = terrace.AdamW([('p', parameter)])
    parameter.grad = Wrapper(torch.ones(3))
    with pytest.raises(ValueError, match='the gradient of p.*no memory'):
        optimizer.step()
    assert torch.equal(parameter, torch.ones(3))


def test_subclasses_with_memory_are_stepped():
    ours, theirs = (torch.nn.Parameter(torch.ones(3).as_subclass(Plain))
                    for _ in range(2))
    for parameter, kind in ((ours, terrace.AdamW), (theirs, torch.optim.AdamW)):
        parameter.grad = torch.ones(3)
        kind([parameter]).step()
    assert torch.equal(ours.as_subclass(torch.Tensor),
                       theirs.as_subclass(torch.Tensor))
