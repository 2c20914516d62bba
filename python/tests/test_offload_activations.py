"""Activations below change no bit: losses, gradients and parameters are those
of the same script in memory."""

import copy
import functools

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import terrace
from offloaded import (WIDTH, adamw, check_equal_values, check_same, mlp, sgd,
                       token_loss, train, transformer, values)

BELOW = {'memory_budget': '1MiB', 'parameters': False, 'activations': True,
         'activations_above': '16KiB'}


def offload(model, directory, **changed):
    return terrace.offload(model, nvme_path=str(directory),
                           **{**BELOW, **changed})


def wide_loss(model, generator):
    """An activation of the mlp is 128 KiB."""
    inputs = torch.randn(256, WIDTH, generator=generator)
    return model(inputs.to(next(model.parameters()).dtype)).float(
        ).square().mean()


def long_loss(model, generator):
    """Of a transformer: 96 KiB, 192 KiB and of attention 192 KiB."""
    tokens = torch.randint(97, (4, 48), generator=generator)
    return torch.nn.functional.cross_entropy(
        model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def gradients(model):
    return {name: parameter.grad.clone()
            for name, parameter in model.named_parameters()
            if parameter.grad is not None}


def check_identical(build, run, directory, **changed):
    """`run` of both leaves the same, and the same parameters and gradients;
    the counters of the one with activations below."""
    plain = build()
    expected = run(plain)
    model = build()
    below = offload(model, directory, **changed)
    check_same(run(model), expected)
    stats = below.stats()
    check_equal_values(gradients(model), gradients(plain))
    below.close()
    check_equal_values(values(model), values(plain))
    assert stats['failures'] == 0
    assert stats['memory_peak_bytes'] <= stats['budget_bytes']
    assert stats['activation_tensors'] > 0
    # All of them are gone, with what they had below.
    if changed.get('parameters') is not True:
        assert stats['managed_bytes'] == stats['managed_tensors'] == 0
        assert stats['disk_bytes'] == 0
    return stats


@pytest.mark.parametrize('make', [sgd, adamw])
def test_an_mlp(tmp_path, make):
    stats = check_identical(lambda: mlp(20),
                            lambda m: train(m, wide_loss, make), tmp_path)
    assert stats['parameter_bytes'] == 0
    # Of each Tanh the result, which the next Linear has too; the argument of
    # the model is its own.
    assert stats['activation_tensors'] == 4 * 20
    assert stats['activation_bytes'] == 4 * 20 * (128 << 10)
    assert stats['activation_peak_bytes'] == 20 * (128 << 10)
    assert stats['activation_written_bytes'] > 4 * 10 * (128 << 10)
    assert stats['activation_fetched_bytes'] > 4 * 10 * (128 << 10)
    assert stats['bytes_written'] > 4 * 10 * (128 << 10)
    assert stats['fetches_ahead'] > 0


@pytest.mark.parametrize('parameters', [False, True])
@pytest.mark.parametrize('checkpointing',
                         [None, 're-entrant', 'not re-entrant'])
def test_a_transformer(tmp_path, checkpointing, parameters):
    check_identical(lambda: transformer(checkpointing),
                    lambda m: train(m, long_loss), tmp_path,
                    parameters=parameters, memory_budget='2MiB')


def test_the_results_of_operations(tmp_path):
    """Which are nobody's input: the indices of a pooling, the state of a norm
    and of a recurrent layer."""
    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Conv2d(3, 8, 3)
            self.norm = torch.nn.BatchNorm2d(8)
            self.recurrent = torch.nn.LSTM(60, 64, batch_first=True)

        def forward(self, inputs):
            hidden = torch.relu_(self.norm(self.first(inputs)))
            hidden = torch.nn.functional.max_pool2d(hidden, 2)
            hidden, _ = self.recurrent(hidden.flatten(0, 1)[:, :30].flatten(1)
                                       .view(4, -1, 60))
            return torch.nn.functional.dropout(hidden, 0.3).softmax(-1)

    def build():
        torch.manual_seed(3)
        return Mixed()

    def loss_of(model, generator):
        images = torch.randn(4, 3, 62, 62, generator=generator)
        return model(images).square().sum()

    def run(model):
        left = train(model, loss_of)
        return left + [buffer.clone() for buffer in model.buffers()]

    check_identical(build, run, tmp_path, memory_budget='3MiB')


def test_gradients_of_several_passes(tmp_path):
    check_identical(lambda: mlp(12), lambda m: train(m, wide_loss, micro=3),
                    tmp_path)


@pytest.mark.parametrize('parameters', [False, True])
def test_autocast(tmp_path, parameters):
    around = functools.partial(torch.autocast, 'cpu', torch.bfloat16)
    check_identical(transformer,
                    lambda m: train(m, long_loss, around=around), tmp_path,
                    parameters=parameters, memory_budget='2MiB')


def test_a_program_without_an_optimizer(tmp_path):
    """No step ever ends: backward is the reverse of forward."""
    def run(model):
        generator = torch.Generator().manual_seed(5)
        left = []
        for _ in range(3):
            loss = wide_loss(model, generator)
            loss.backward()
            left.append(loss.detach())
        return left

    stats = check_identical(lambda: mlp(20), run, tmp_path)
    assert stats['steps'] == 0 and stats['fetches_ahead'] > 0


def test_steps_that_differ(tmp_path):
    """In length, in what is called, and in the size of what is saved."""
    def loss_of(model, generator):
        rows = int(torch.randint(40, 300, (1,), generator=generator))
        layers = int(torch.randint(4, 24, (1,), generator=generator))
        hidden = torch.randn(rows, WIDTH, generator=generator)
        for part in model[:layers]:
            hidden = part(hidden)
        return hidden.square().mean()

    class Called(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = mlp(12)

        def forward(self, generator):
            return loss_of(self.parts, generator)

    check_identical(Called,
                    lambda m: train(m, lambda m, g: m(g), steps=12), tmp_path)


def test_backward_twice_and_of_gradients(tmp_path):
    def run(model):
        generator = torch.Generator().manual_seed(5)
        inputs = torch.randn(256, WIDTH, generator=generator,
                             requires_grad=True)
        result = model(inputs).square().mean()
        result.backward(retain_graph=True)
        result.backward(retain_graph=True)
        (slope,) = torch.autograd.grad(result, inputs, create_graph=True)
        slope.square().sum().backward()
        return [result.detach(), slope.detach(), inputs.grad]

    check_identical(lambda: mlp(16), run, tmp_path)


def test_two_models_in_a_row(tmp_path):
    """What one saves the other saves too."""
    def run(models, below=lambda model: None):
        offloads = [below(model) for model in models]
        generator = torch.Generator().manual_seed(5)
        left = []
        for _ in range(3):
            hidden = torch.randn(256, WIDTH, generator=generator)
            for model in models:
                hidden = model(hidden)
            loss = hidden.square().mean()
            loss.backward()
            left.append(loss.detach())
        left += [value for model in models
                 for value in gradients(model).values()]
        for each in offloads:
            if each is not None:
                assert each.stats()['activation_tensors'] > 0
                each.close()
        return left

    check_same(run([mlp(8, seed=1), mlp(8, seed=2)],
                   lambda model: offload(model, tmp_path)),
               run([mlp(8, seed=1), mlp(8, seed=2)]))


def test_without_gradients_nothing_is_saved(tmp_path):
    model = mlp(6)
    with offload(model, tmp_path) as below:
        with torch.no_grad():
            model(torch.randn(256, WIDTH))
        with torch.inference_mode():
            model(torch.randn(256, WIDTH))
        assert below.stats()['activation_tensors'] == 0
        # What the program computes beside the model is its own.
        weight = torch.randn(256, WIDTH, requires_grad=True)
        (weight * weight).tanh().sum().backward()
        assert below.stats()['activation_tensors'] == 0


def test_an_activation_that_ends_gives_its_place_back(tmp_path):
    model = mlp(20)
    with offload(model, tmp_path) as below:
        result = model(torch.randn(256, WIDTH))
        assert below.stats()['managed_tensors'] == 20
        assert below.stats()['disk_bytes'] > 0
        del result
        stats = below.stats()
        assert stats['managed_tensors'] == stats['disk_bytes'] == 0


def test_a_forward_that_raises(tmp_path):
    class Raising(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = mlp(4)
            self.raises = True

        def forward(self, inputs):
            hidden = self.parts(inputs)
            if self.raises:
                raise KeyError('of the model')
            return hidden

    model = Raising()
    inputs = torch.randn(256, WIDTH)
    with offload(model, tmp_path) as below:
        with pytest.raises(KeyError, match='of the model'):
            model(inputs)
        before = below.stats()['activation_tensors']
        weight = torch.randn(256, WIDTH, requires_grad=True)
        (weight * weight).sum().backward()
        assert below.stats()['activation_tensors'] == before == 4
        model.raises = False
        model(inputs).sum().backward()
        assert below.stats()['activation_tensors'] == 8


def test_hooks_of_the_program(tmp_path):
    """The innermost are asked, as without an offload."""
    model = mlp(4)
    seen = []

    class Inner(torch.nn.Module):
        def forward(self, inputs):
            with torch.autograd.graph.saved_tensors_hooks(
                    lambda t: seen.append(t) or t.clone(), lambda t: t):
                return inputs.exp()

    whole = torch.nn.Sequential(model, Inner())
    with offload(whole, tmp_path) as below:
        whole(torch.randn(256, WIDTH)).sum().backward()
        assert len(seen) == 1
        assert below.stats()['activation_tensors'] == 4


def test_a_checkpointed_segments_inputs_go_below(tmp_path):
    class Segments(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.ModuleList(mlp(2, seed=i)
                                             for i in range(10))

        def forward(self, hidden):
            for part in self.parts:
                hidden = checkpoint(part, hidden, use_reentrant=False)
            return hidden

    stats = check_identical(Segments, lambda m: train(m, wide_loss), tmp_path)
    assert stats['activation_tensors'] >= 4 * 9
    assert stats['activation_written_bytes'] > 0


def test_a_copy_of_the_model_is_not_offloaded(tmp_path):
    model = mlp(6)
    with offload(model, tmp_path) as below:
        other = copy.deepcopy(model)
        other(torch.randn(256, WIDTH)).sum().backward()
        assert below.stats()['activation_tensors'] == 0


def test_a_share_has_room_for_activations_beside_it(tmp_path):
    model = mlp(20)
    with terrace.offload(model, memory_budget='20%', activations=True,
                         nvme_path=str(tmp_path)) as below:
        stats = below.stats()
        assert stats['activation_budget_bytes'] == 256 << 20
        assert stats['budget_bytes'] > 256 << 20
        assert stats['activation_limit_bytes'] > 48 << 20


def test_what_was_waited_for_is_told(tmp_path):
    model = mlp(20)
    with offload(model, tmp_path) as below:
        train(model, wide_loss)
        stats = below.stats()
        assert list(stats['blocked_modules']) == ['activations']
        assert stats['blocked_modules']['activations'] == pytest.approx(
            sum(stats['blocked_seconds'].values()))


def test_the_first_step_says_what_went_below(tmp_path, caplog):
    model = mlp(20)
    with caplog.at_level('INFO', 'terrace'), offload(model, tmp_path):
        train(model, wide_loss)
    said, = caplog.messages
    assert said.startswith('20 activations of the first step, 2.6 MB '
                           '(at most 2.6 MB at a time), ')


def test_passes_without_gradients_are_no_first_step_of_activations(tmp_path,
                                                                   caplog):
    model = mlp(20)
    with caplog.at_level('INFO', 'terrace'):
        with offload(model, tmp_path, parameters=True, memory_budget='2MiB'):
            with torch.no_grad():
                wide_loss(model, torch.Generator())
            said, = caplog.messages  # on the parameters
            assert 'parameters of the model' in said
            train(model, wide_loss)
    _, said = caplog.messages
    assert said.startswith('20 activations of the first step')


def test_a_model_of_tokens_with_all_below(tmp_path):
    check_identical(transformer, lambda m: train(m, token_loss, adamw),
                    tmp_path, parameters=True, memory_budget='1280KiB',
                    activations_above='4KiB')
