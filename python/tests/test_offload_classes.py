"""Tensors of a program's own classes beside an offloaded model."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

import terrace
from offloaded import mlp


class Named(torch.Tensor):
    """Asks each call for its name, as classes do that log them."""

    names = []

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        cls.names.append(function.__name__)
        return super().__torch_function__(function, types, arguments,
                                          named or {})


class NamedMode(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), named=None):
        Named.names.append(function.__name__)
        return function(*arguments, **(named or {}))


def jagged():
    return torch.nested.nested_tensor([torch.ones(3, 128), torch.ones(5, 128)],
                                      layout=torch.jagged)


READS = {
    'tolist': lambda: torch.ones(3).as_subclass(Named).tolist(),
    'numpy': lambda: torch.ones(3).as_subclass(Named).numpy().sum(),
    'jagged tolist': lambda: jagged().tolist(),
    'jagged address': lambda: jagged().data_ptr()}


@pytest.mark.parametrize('activations', [False, True])
@pytest.mark.parametrize('name', READS)
def test_a_class_sees_torchs_calls_alone(tmp_path, name, activations):
    def outcome():
        Named.names.clear()
        try:
            answer = READS[name]()
        except RuntimeError as error:
            answer = str(error).splitlines()[0]
        return answer, list(Named.names)

    expected = outcome()
    with terrace.offload(mlp(), memory_budget='30%', nvme_path=str(tmp_path),
                         activations=activations):
        assert outcome() == expected
    assert outcome() == expected


@pytest.mark.parametrize('activations', [False, True])
@pytest.mark.parametrize('make', [
    jagged, lambda: torch.ones(3, 128).as_subclass(Named)])
def test_a_model_takes_them(tmp_path, make, activations):
    model, plain = mlp(), mlp()
    with terrace.offload(model, memory_budget='30%', nvme_path=str(tmp_path),
                         activations=activations, activations_above=1):
        found, expected = model(make()), plain(make())
        if found.is_nested:
            found, expected = found.values(), expected.values()
        assert torch.equal(found.as_subclass(torch.Tensor),
                           expected.as_subclass(torch.Tensor))
        found.sum().backward()
        expected.sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(),
                            strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_a_mode_sees_torchs_calls_alone(tmp_path):
    model, plain = mlp(), mlp()
    offload = terrace.offload(model, memory_budget='30%',
                              nvme_path=str(tmp_path), activations=True,
                              activations_above=1)
    optimizer = terrace.AdamW(model.parameters(), lr=1e-3, offload=offload)
    expected = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    for each, stepped in ((model, optimizer), (plain, expected)):
        with NamedMode():
            each(torch.ones(3, 128)).sum().backward()
            stepped.step()
    offload.close()
    for ours, theirs in zip(model.parameters(), plain.parameters(),
                            strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize('parameter', [
    lambda: torch.eye(60).to_sparse(), lambda: torch.eye(60).to_mkldnn(),
    lambda: torch.eye(60).to_sparse_csr()], ids=['coo', 'mkldnn', 'csr'])
def test_a_parameter_without_a_storage_is_refused_by_name(tmp_path, parameter):
    model = mlp()
    model.register_parameter('odd', torch.nn.Parameter(
        parameter(), requires_grad=False))
    with pytest.raises((ValueError, NotImplementedError, TypeError),
                       match="terrace: .*odd"):
        terrace.offload(model, memory_budget='30%', nvme_path=str(tmp_path))
