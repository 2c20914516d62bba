"""Operators that keep tensors in objects of their own have copies of offloaded
ones, however they are called: each in a process that may end by it."""

import torch

import forks
from offloaded import is_cold
from test_offload_close import below


def build():
    torch.manual_seed(3)
    return torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(12))


def quantised(weight):
    return torch.quantize_per_tensor(weight, 0.01, 0, torch.qint8)


KEPT = torch.ops.quantized.linear_prepack
PACKS = {
    'quantized': lambda weight, bias: torch.ops.quantized.linear_prepack(
        quantised(weight), bias),
    'an overload': lambda weight, bias: (
        torch.ops.quantized.linear_prepack.default(quantised(weight), bias)),
    'of another namespace': lambda weight, bias: (
        torch.ops._quantized.linear_prepack(quantised(weight), B=bias)),
    'kept before': lambda weight, bias: KEPT(quantised(weight), bias),
}


def packs(directory):
    def check(pack):
        with torch.no_grad():
            packed = pack(model[0].weight, model[0].bias)
            for _ in range(3):
                for layer in model[1:]:
                    layer(torch.ones(1, 64))
            assert is_cold(model[0].bias)
            made = torch.ops.quantized.linear_dynamic(inputs, packed)
            right = pack(plain[0].weight, plain[0].bias)
            assert torch.equal(
                made, torch.ops.quantized.linear_dynamic(inputs, right))
        return 'right'

    inputs, plain, model = torch.ones(2, 64), build(), build()
    below(model, directory, '10%')
    return {name: lambda pack=pack: check(pack)
            for name, pack in PACKS.items()}


MAKES = {'packs': packs}


def test_packs(tmp_path):
    answers = forks.answers_of(__file__, 'MAKES', 'packs', tmp_path)
    assert answers == dict.fromkeys(PACKS, 'right')
