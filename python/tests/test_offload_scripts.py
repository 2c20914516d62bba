"""What TorchScript makes of an offloaded model reads its tensors past the
dispatcher: it is refused, by one error, and what packs tensors into objects of
its own takes copies."""

import io

import pytest
import torch

import terrace
from offloaded import WIDTH, mlp
from test_offload_close import below

MAKES = {
    'script': lambda model, inputs: torch.jit.script(model),
    'trace': lambda model, inputs: torch.jit.trace(model, inputs),
    'trace_module': lambda model, inputs: torch.jit.trace_module(
        model, {'forward': inputs}),
    'trace of a function': lambda model, inputs: torch.jit.trace(
        lambda values: model(values), inputs),
    'trace of a method': lambda model, inputs: torch.jit.trace(
        model.forward, inputs),
    'script of a part': lambda model, inputs: torch.jit.script(
        torch.nn.Sequential(model[2])),
}


@pytest.mark.parametrize('make', MAKES)
def test_a_script_of_an_offloaded_model_is_refused(tmp_path, make):
    # A function that is traced has them as constants.
    model, inputs = mlp().requires_grad_(False), torch.ones(2, WIDTH)
    expected = model(inputs)
    with below(model, tmp_path):
        with pytest.raises(RuntimeError, match='terrace: .*before .*offload'):
            MAKES[make](model, inputs)
        assert torch.equal(model(inputs), expected)
        other = torch.nn.Linear(3, 3)  # is not
        torch.jit.script(other)
        torch.jit.trace(other, torch.ones(1, 3))
    made = MAKES[make](model, inputs)
    if 'part' not in make:
        assert torch.equal(made(inputs), expected)


@pytest.mark.parametrize('save', [
    lambda script: torch.jit.save(script, io.BytesIO()),
    lambda script: script.save_to_buffer(),
    lambda script: torch.jit.freeze(script)])
def test_a_script_that_shares_parameters_is_not_written(tmp_path, save):
    model = mlp().eval()
    script = torch.jit.script(torch.nn.Sequential(*model).eval())
    with below(model, tmp_path):
        with pytest.raises(RuntimeError, match='terrace: '):
            save(script)
    save(script)


def test_layers_that_are_quantised_in_place(tmp_path):
    def build():
        torch.manual_seed(3)
        return torch.nn.Sequential(
            *(torch.nn.Embedding(512, 64) for _ in range(6)),
            torch.nn.Linear(64, 64)).eval().requires_grad_(False)

    def quantised(model):
        torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear},
                                               inplace=True)
        for embedding in model[:6]:
            embedding(torch.arange(9))
        return model[6](torch.ones(1, 64))

    before = torch.ops.quantized.linear_prepack
    expected, model = quantised(build()), build()
    with terrace.offload(model, memory_budget='5%', nvme_path=str(tmp_path)):
        assert torch.equal(quantised(model), expected)
        assert torch.ops.quantized.linear_prepack.default is before.default
    assert torch.ops.quantized.linear_prepack is before
    assert torch.equal(model[6](torch.ones(1, 64)), expected)


def test_a_script_is_not_offloaded(tmp_path):
    script = torch.jit.script(mlp())
    with pytest.raises(NotImplementedError, match='terrace: a ScriptModule'):
        below(script, tmp_path)
    assert list(tmp_path.iterdir()) == []
