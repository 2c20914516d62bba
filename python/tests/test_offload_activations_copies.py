"""A copy of a model whose activations are below is a model of its own, however
it was made: it has its own layers, and nothing of Terrace's."""

import copy
import io
import pickle

import pytest
import torch

from offloaded import WIDTH, mlp
from test_offload_activations import offload


class AsItIs(torch.nn.Module):
    """Its state is its dictionary, as of modules that torch.fx makes."""

    def __init__(self):
        super().__init__()
        self.parts = mlp(2)

    def forward(self, inputs):
        return self.parts(inputs)

    def __getstate__(self):
        return dict(vars(self))


def by_torch_save(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def by_its_dictionary(model):
    other = object.__new__(type(model))
    other.__dict__ = {**vars(model), '_modules': dict(model._modules)}
    return other


MODELS = {'modules': lambda: torch.nn.Sequential(mlp(2)),
          'its state is its dictionary': AsItIs,
          'torch.fx': lambda: torch.fx.symbolic_trace(AsItIs())}
COPIES = {'deepcopy': copy.deepcopy, 'torch.save': by_torch_save,
          'pickle': lambda model: pickle.loads(pickle.dumps(model)),
          'copy': copy.copy, 'its dictionary': by_its_dictionary,
          'data parallel': lambda model: model._replicate_for_data_parallel()}


@pytest.mark.parametrize('kind', MODELS)
def test_a_copy_is_a_model_of_its_own(tmp_path, kind):
    model = MODELS[kind]()
    inputs = torch.randn(256, WIDTH)
    expected = model(inputs)
    with offload(model, tmp_path) as under:
        for name, copy_of in COPIES.items():
            print(name)
            if (kind, name) == ('torch.fx', 'data parallel'):
                continue  # PyTorch has none of these
            other = copy_of(model)
            before = under.stats()['activation_tensors']
            assert torch.equal(other(inputs), expected)
            assert under.stats()['activation_tensors'] == before
            # Of its own, where a shallow one has those of what it is of.
            other._modules = {name: torch.nn.Tanh() for name in other._modules}
            if kind != 'torch.fx':  # which names parts of these
                assert torch.equal(other(inputs), inputs.tanh())
            assert torch.equal(model(inputs), expected)
            assert under.stats()['activation_tensors'] > before
    assert torch.equal(copy.deepcopy(model)(inputs), expected)


@pytest.mark.parametrize('first', ['compiled', 'offloaded'])
def test_a_model_that_is_compiled_in_place(tmp_path, first):
    model = mlp(2)
    inputs = torch.randn(256, WIDTH)
    if first == 'compiled':
        model.compile(backend='eager')
        model(inputs)
    under = offload(model, tmp_path)
    if first == 'offloaded':
        model.compile(backend='eager')
    model(inputs).sum().backward()
    assert under.stats()['activation_tensors'] > 0
    under.close()
    model(inputs).sum().backward()


def test_a_model_that_is_offloaded_twice(tmp_path):
    """Both have what is saved; the one that ends first leaves the other."""
    model = mlp(2)
    inputs = torch.randn(256, WIDTH)
    first = offload(model, tmp_path, parameters=False)
    second = offload(model, tmp_path, parameters=False)
    for under in first, second:
        model(inputs).sum().backward()
        assert under.stats()['activation_tensors'] > 0
        under.close()
    model(inputs).sum().backward()
