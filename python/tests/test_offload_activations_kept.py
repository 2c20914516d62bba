"""Tensors that autograd saved and the program has too: they are the same."""

import pytest
import torch

from offloaded import WIDTH, check_equal_values, is_cold, mlp
from test_offload_activations import gradients, offload


class Keeping(torch.nn.Module):
    """It gives all that it computed to whoever asks."""

    def __init__(self):
        super().__init__()
        self.parts = mlp(16)
        self.kept = []

    def forward(self, inputs):
        self.kept = []
        for part in self.parts:
            inputs = part(inputs)
            self.kept.append(inputs)
        return inputs


def test_what_the_program_keeps_stays_right(tmp_path):
    plain, model = Keeping(), Keeping()
    plain.load_state_dict(model.state_dict())
    inputs = torch.randn(256, WIDTH)
    with offload(model, tmp_path) as below:
        loss = model(inputs).square().mean()
        plain(inputs)
        assert is_cold(model.kept[1])  # a Tanh's
        view = model.kept[1].detach()[7:9]
        for mine, theirs in zip(model.kept, plain.kept):
            assert torch.equal(mine, theirs)
        assert torch.equal(view, plain.kept[1][7:9])
        # Numpy's array keeps it here.
        array = model.kept[3].detach().numpy()
        loss.backward()
        assert (array == plain.kept[3].detach().numpy()).all()
        # They outlive their graph, as what the program has.
        assert below.stats()['managed_tensors'] == 16
        written = model.kept[5].detach()
        written.add_(1)
        kept = model.kept
        for _ in range(3):  # others need the room
            model(torch.randn(256, WIDTH)).sum().backward()
        assert torch.equal(written, plain.kept[5] + 1)
        assert is_cold(kept[1])
        del array
    assert below.stats()['managed_tensors'] == 32
    assert not is_cold(kept[1])
    for index, (mine, theirs) in enumerate(zip(kept, plain.kept)):
        expected = theirs.detach() + 1 if index == 5 else theirs.detach()
        assert torch.equal(mine.detach(), expected)


def test_what_is_the_programs_own_is_left_alone(tmp_path):
    """Arguments, however they come, buffers, parameters, numpy's memory, and
    what an array of numpy shares."""
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.randn(256, WIDTH))
            self.register_buffer('mask', torch.rand(256, WIDTH))
            self.array = None

        def forward(self, first, others):
            hidden = self.scale * first * self.mask * others['second'][0]
            self.array = hidden.detach().numpy()
            return hidden * hidden * self.outer

    model = Scaled()
    memory = torch.rand(256, WIDTH).numpy()
    model.outer = torch.from_numpy(memory)
    first, second = (torch.rand(256, WIDTH, requires_grad=True)
                     for _ in range(2))
    addresses = [t.data_ptr() for t in (
        first, second, model.scale, model.mask, model.outer)]
    with offload(model, tmp_path) as below:
        result = model(first, {'second': [second]})
        # What `second` is multiplied by.
        assert below.stats()['activation_tensors'] == 1
        assert addresses == [t.data_ptr() for t in (
            first, second, model.scale, model.mask, model.outer)]
        expected = (model.scale * first * model.mask * second).detach()
        assert (model.array == expected.numpy()).all()
        memory[:] = 2
        result.sum().backward()
    plain = Scaled()
    plain.load_state_dict(model.state_dict())
    plain.outer = torch.full((256, WIDTH), 2.0)
    mine, first.grad, second.grad = (first.grad, second.grad), None, None
    plain(first, {'second': [second]}).sum().backward()
    assert torch.equal(mine[0], first.grad)
    assert torch.equal(mine[1], second.grad)
    assert torch.equal(model.scale.grad, plain.scale.grad)


def test_small_and_large_ones_stay_in_memory(tmp_path):
    model = mlp(6)
    with offload(model, tmp_path, activations_above='64KiB') as below:
        limit = below.stats()['activation_limit_bytes']
        assert limit < 256 << 10
        for rows, wanted in ((127, 0), (128, 6), (600, 0)):
            before = below.stats()['activation_tensors']
            model(torch.randn(rows, WIDTH)).sum().backward()
            assert below.stats()['activation_tensors'] - before == wanted


def test_close_while_they_live(tmp_path):
    def run(model, below=None):
        result = model(torch.randn(256, WIDTH,
                                   generator=torch.Generator().manual_seed(1)))
        if below is not None:
            below.close()
            assert below.stats()['managed_tensors'] == 20
        result.sum().backward()
        return gradients(model)

    model, plain = mlp(20), mlp(20)
    check_equal_values(run(model, offload(model, tmp_path)), run(plain))
    model(torch.randn(256, WIDTH)).sum().backward()  # as any model

    model = mlp(20)
    below = offload(model, tmp_path)
    result = model(torch.randn(256, WIDTH))
    below.close(restore=False)
    with pytest.raises(RuntimeError, match="terrace: 'activation [0-9]+ of "
                                           'step 1.* the hook is closed'):
        result.sum().backward()
