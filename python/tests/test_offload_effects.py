"""What an operation writes to an offloaded tensor comes to stay, whatever its
schema says of it; what it only reads leaves without being written."""

import ctypes

import pytest
import torch
import torch.nn.functional as F

import terrace
from offloaded import (check_equal_values, mlp, mlp_loss, values,
                       written_below)

LAYERS = 12
WIDTH = 20000


class Norm(torch.nn.Module):
    """Its statistics are parameters."""

    def __init__(self, function, dtype=torch.float32):
        super().__init__()
        self.function = function
        self.mean = torch.nn.Parameter(torch.zeros(WIDTH, dtype=dtype),
                                       requires_grad=False)
        self.var = torch.nn.Parameter(torch.ones(WIDTH, dtype=dtype),
                                      requires_grad=False)

    def forward(self, x):
        return self.function(x, self.mean, self.var, self.training)


def batch_norm(x, mean, var, training):
    return F.batch_norm(x, mean, var, training=training)


def instance_norm(x, mean, var, training):
    return F.instance_norm(x[..., None].expand(-1, -1, 4) + x[:1, :1], mean,
                           var, use_input_stats=training)[..., 0]


def native_batch_norm(x, mean, var, training):
    return torch.native_batch_norm(x, None, None, mean, var, training, 0.1,
                                   1e-5)[0]


def torch_batch_norm(x, mean, var, training):
    return torch.batch_norm(x, None, None, mean, var, training, 0.1, 1e-5,
                            False)


def legit_batch_norm(x, mean, var, training):
    return torch.ops.aten._native_batch_norm_legit(x, None, None, mean, var,
                                                   training, 0.1, 1e-5)[0]


def updated_stats(x, mean, var, training):
    if training:
        torch.batch_norm_update_stats(x, mean, var, 0.1)
    return x


def normed(function):
    return torch.nn.Sequential(*(Norm(function) for _ in range(LAYERS)))


@pytest.mark.parametrize('function', [
    batch_norm, instance_norm, native_batch_norm, torch_batch_norm,
    legit_batch_norm, updated_stats])
@pytest.mark.parametrize('mode', ['eager', 'no_grad', 'inference_mode'])
def test_statistics_that_are_parameters(tmp_path, function, mode):
    x = torch.randn(16, WIDTH) + 3
    plain, model = normed(function), normed(function)
    around = getattr(torch, mode, torch.enable_grad)
    with around():
        plain(x)
        plain(x)
    with terrace.offload(model, memory_budget='10%', nvme_path=str(tmp_path)):
        with around():
            model(x)
            model(x)
    check_equal_values(values(model), values(plain))


@pytest.mark.parametrize('function', [batch_norm, instance_norm,
                                      native_batch_norm])
def test_statistics_of_evaluation_are_only_read(tmp_path, function):
    x = torch.randn(16, WIDTH) + 3
    model = normed(function).eval()
    with terrace.offload(model, memory_budget='10%',
                         nvme_path=str(tmp_path)) as offload:
        model(x)  # from here on what leaves has come from below
        before = offload.stats()
        for _ in range(3):
            model(x)
        after = offload.stats()
    assert after['evictions'] > before['evictions']
    assert after['bytes_written'] == before['bytes_written']


def scaled_in_place(tensor, factor):
    """Its first ones by their address, as a kernel of an extension does."""
    first = (ctypes.c_float * 64).from_address(tensor.data_ptr())
    first[:] = [factor * each for each in first]


@pytest.fixture
def library():
    made = torch.library.Library('terrace_effects', 'FRAGMENT')
    yield made
    made._destroy()


# What says too little of the write, and what LibTorch makes of it.
UNSAID = {
    'no mark': ('scale(Tensor x, float factor) -> ()', ''),
    'a result': ('scale(Tensor x, float factor) -> Tensor', ''),
    'a list': ('scale(Tensor[] x, float factor) -> ()', ''),
    'lists': ('scale(Tensor?[] x, float factor) -> ()', ''),
    'conservative': ('scale(Tensor(a!) y, Tensor x, float factor) -> ()',
                     'CONSERVATIVE'),
    'in place': ('scale_(Tensor x, float factor) -> Tensor', ''),
    'a keyword': ('scale(float factor, *, Tensor x) -> ()', ''),
}


@pytest.mark.parametrize('unsaid', UNSAID)
def test_an_operator_that_does_not_say_what_it_writes(tmp_path, library,
                                                      unsaid):
    schema, kind = UNSAID[unsaid]
    library.define(schema, kind)
    name = schema.split('(')[0]

    def kernel(*arguments, **keywords):
        arguments = [*arguments, *keywords.values()]
        factor = next(a for a in arguments if isinstance(a, float))
        x = [a for a in arguments if not isinstance(a, float)][-1]
        for each in x if isinstance(x, (list, tuple)) else [x]:
            scaled_in_place(each, factor)
        return None if '-> ()' in schema else torch.zeros(())

    library.impl(name, kernel, 'CPU')
    operator = getattr(torch.ops.terrace_effects, name)

    def scale(parameter):
        parameter = parameter.detach()
        if '[]' in schema:
            operator([parameter], 2.0)
        elif unsaid == 'conservative':
            operator(torch.zeros(2), parameter, 2.0)
        elif unsaid == 'a keyword':
            operator(2.0, x=parameter)
        else:
            operator(parameter, 2.0)

    plain, model = mlp(LAYERS), mlp(LAYERS)
    for parameter in plain.parameters():
        scaled_in_place(parameter, 2.0)
    with terrace.offload(model, memory_budget='10%', nvme_path=str(tmp_path)):
        for parameter in model.parameters():
            scale(parameter)
    check_equal_values(values(model), values(plain))


def written_by(offload, model, use):
    """Bytes that went below since use() was called for each parameter."""
    def go_through():
        for parameter in model.parameters():
            use(parameter.detach())

    return written_below(offload, go_through)


@torch.library.custom_op('terrace_effects_pure::summed', mutates_args=())
def summed(x: torch.Tensor) -> torch.Tensor:
    return x.sum()


# Each reads a parameter, and writes nothing of it.
READS = {
    'add': lambda p: p + 1,
    'mm': lambda p: p.view(-1)[:64] @ p.view(-1)[:64],
    'sum': lambda p: p.sum(),
    'clone': lambda p: p.clone(),
    'copy from': lambda p: torch.empty_like(p).copy_(p),
    'cat': lambda p: torch.cat([p, p]),
    'foreach': lambda p: torch._foreach_add([p, p], 1.0),
    'layer norm': lambda p: F.layer_norm(torch.ones(2, p.numel()),
                                         [p.numel()], p.view(-1)),
    'an operator that says it writes nothing': summed,
    'where': lambda p: torch.where(p > 0, p, 0),
    'equal': lambda p: torch.equal(p, p),
    'norm': lambda p: torch.nn.utils.get_total_norm([p]),
}


@pytest.mark.parametrize('read', READS)
def test_what_is_only_read_is_not_written_back(tmp_path, read):
    model = mlp(LAYERS)
    with terrace.offload(model, memory_budget='10%',
                         nvme_path=str(tmp_path)) as offload:
        assert written_by(offload, model, READS[read]) == 0


# Each looks at a shape alone; a fetch would be for nothing.
SHAPES = {
    'empty_like': torch.empty_like,
    'zeros_like': torch.zeros_like,
    'ones_like': torch.ones_like,
    'full_like': lambda p: torch.full_like(p, 3),
    'rand_like': torch.rand_like,
    'randn_like': torch.randn_like,
    'new_empty': lambda p: p.new_empty(3),
    'new_empty_strided': lambda p: p.new_empty_strided((2, 2), (2, 1)),
    'new_full': lambda p: p.new_full((3,), 2),
    'new_ones': lambda p: p.new_ones(3),
    'new_zeros': lambda p: p.new_zeros(3),
    'view': lambda p: p.view(-1),
    'as_strided': lambda p: p.as_strided((2,), (1,)),
    'chunk': lambda p: p.chunk(2),
    'diagonal': lambda p: p.view(-1, 1).diagonal(),
    'expand': lambda p: p[None].expand(3, *p.shape),
    'movedim': lambda p: p[None].movedim(0, -1),
    'narrow': lambda p: p.narrow(0, 1, 2),
    'permute': lambda p: p[None].permute(*range(p.dim(), -1, -1)),
    'select': lambda p: p[1],
    'slice': lambda p: p[1:3],
    'split': lambda p: p.split(3),
    'split_with_sizes': lambda p: p.split([1, p.shape[0] - 1]),
    'squeeze': lambda p: p[None].squeeze(0),
    'squeeze_': lambda p: p[None].squeeze_(0),
    't': lambda p: p.t(),
    't_': lambda p: p[:].t_(),
    'transpose': lambda p: p[None].transpose(0, 1),
    'transpose_': lambda p: p[None].transpose_(0, 1),
    'unbind': lambda p: p.unbind(),
    'unfold': lambda p: p.unfold(0, 2, 1),
    'unsqueeze': lambda p: p.unsqueeze(0),
    'unsqueeze_': lambda p: p[:].unsqueeze_(0),
    'view as': lambda p: p.view_as(p),
}


@pytest.mark.parametrize('look', SHAPES)
def test_what_looks_at_a_shape_fetches_nothing(tmp_path, look):
    model, plain = mlp(LAYERS), mlp(LAYERS)
    with terrace.offload(model, memory_budget='10%',
                         nvme_path=str(tmp_path)) as offload:
        data = [p.data for p in model.parameters()]
        before = offload.stats()
        made = [SHAPES[look](p) for p in data]
        assert offload.stats()['fetches'] == before['fetches']
        for mine, p in zip(made, plain.parameters()):
            theirs = SHAPES[look](p.data)
            for one, other in zip(*((x if isinstance(x, (tuple, list)) else [x])
                                    for x in (mine, theirs))):
                assert one.shape == other.shape
                if not look.startswith(('empty', 'new_empty', 'rand')):
                    assert torch.equal(one, other)


def test_a_script_s_writes_count_beside_what_its_stack_has(tmp_path):
    @torch.jit.script
    def grown(tensors: list[torch.Tensor], rounds: int):
        total, two = torch.zeros(1), torch.full((1,), 2.0)
        for i in range(rounds):
            for tensor in tensors:
                if i % 2 == 0:
                    total = total + tensor.view(-1)[0]
                    tensor.add_(two)
                else:
                    torch.mul(tensor, two, out=tensor)
        return total

    plain, model = mlp(LAYERS), mlp(LAYERS)
    want = grown([p.data for p in plain.parameters()], 4)
    with terrace.offload(model, memory_budget='10%', nvme_path=str(tmp_path)):
        assert torch.equal(grown([p.data for p in model.parameters()], 4),
                           want)
    check_equal_values(values(model), values(plain))


class WritesWhatItTakes(torch.autograd.Function):
    """Past the dispatcher, as a kernel of an extension does."""

    @staticmethod
    def forward(ctx, x, weight):
        scaled_in_place(weight, 2.0)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def test_a_function_of_a_program_may_write_what_it_takes(tmp_path):
    plain, model = mlp(LAYERS), mlp(LAYERS)
    x = torch.ones(3, requires_grad=True)
    for parameter in plain.parameters():
        WritesWhatItTakes.apply(x, parameter)
    with terrace.offload(model, memory_budget='10%', nvme_path=str(tmp_path)):
        for parameter in model.parameters():
            WritesWhatItTakes.apply(x, parameter).sum().backward()
    check_equal_values(values(model), values(plain))


def test_late_updates_see_the_same_writes(tmp_path):
    """Statistics beside parameters that are stepped late."""
    def train(model, optimizer):
        generator = torch.Generator().manual_seed(5)
        for _ in range(3):
            optimizer.zero_grad()
            mlp_loss(model, generator).backward()
            for parameter in model.parameters():
                F.batch_norm(torch.full((4, parameter.shape[0]), 3.0),
                             parameter.data.view(parameter.shape[0], -1)[:, 0],
                             torch.ones(parameter.shape[0]), training=True)
            optimizer.step()
            for parameter in model.parameters():
                F.batch_norm(torch.arange(4.0)[:, None].expand(
                    4, parameter.shape[0]),
                    parameter.data.view(parameter.shape[0], -1)[:, 0],
                    torch.ones(parameter.shape[0]), training=True)

    plain, model = mlp(LAYERS), mlp(LAYERS)
    train(plain, terrace.AdamW(plain.parameters()))
    with terrace.offload(model, memory_budget='20%', nvme_path=str(tmp_path)):
        train(model, terrace.AdamW(model.parameters(), overlap=True))
    check_equal_values(values(model), values(plain))
