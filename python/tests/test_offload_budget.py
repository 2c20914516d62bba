"""What terrace.offload takes of memory, as it was asked for."""

import os
import re

import pytest
import torch

import terrace
from offloaded import (check_equal_values, check_same, mlp, mlp_loss, train,
                       transformer, values)
from terrace._base.amounts import bytes_text

PARAMETERS = 6 * 4 * (128 * 128 + 128)
# A layer's weight and bias with their headers, twice.
MINIMUM = 2 * (64 * 1024 + 4096 + 4096 + 4096)


@pytest.mark.parametrize('below, asked', [
    (lambda path: {'nvme_path': path}, "memory_budget='10%'"),
    (lambda path: {'tiers': [f'nvme:{path}']}, "tiers: 'dram=10%'")])
def test_a_tenth_where_there_is_a_path_raised_to_what_works(
        tmp_path, caplog, below, asked):
    model = mlp()
    with caplog.at_level('INFO', 'terrace'):
        offload = terrace.offload(model, **below(str(tmp_path)))
        stats = offload.stats()
        assert stats['parameter_bytes'] == PARAMETERS
        assert stats['budget_bytes'] == stats['minimum_bytes'] == MINIMUM
        assert not caplog.messages
        train(model, mlp_loss)
    said, = caplog.messages
    assert '99,072 parameters' in said and str(tmp_path) in said
    assert f'the least that works; {asked} is 39.6 kB' in said
    assert '240.6 kB of memory saved' in said
    assert 'the first step read' in said and 'wrote' in said
    assert stats['memory_peak_bytes'] <= MINIMUM


@pytest.mark.parametrize('passes', [0, 1])
@pytest.mark.parametrize('budget', ['33%', '500KiB'])
def test_what_joins_is_told_with_the_parameters(tmp_path, caplog, budget,
                                                passes):
    """Gradients where they go below: a step in backward frees them."""
    model = mlp(24)
    model[0].bias.requires_grad_(False)  # neither has it one, nor state
    with caplog.at_level('INFO', 'terrace'):
        with terrace.offload(model, memory_budget=budget,
                             nvme_path=str(tmp_path)) as offload:
            train(model, mlp_loss, lambda parameters: terrace.AdamW(
                parameters, step_in_backward=passes), steps=1)
            memory = offload.stats()['budget_bytes']
    said = caplog.messages[-1]
    size = 4 * PARAMETERS
    trained = size - 4 * 128
    gradients = 0 if passes else trained
    told = ', 1.6 MB of gradients' if gradients else ''
    assert (f'396,288 parameters of the model, 1.6 MB{told}, and 3.2 MB of '
            'state, have') in said
    saved = size + gradients + 2 * trained - memory
    assert f'{bytes_text(saved)} of memory saved' in said
    assert 'least that works' not in said
    assert f', the rest in nvme:{tmp_path}' in said


def test_inference_is_told_what_its_first_pass_took(tmp_path, caplog):
    model = mlp()
    with caplog.at_level('INFO', 'terrace'), torch.no_grad():
        offload = terrace.offload(model, nvme_path=str(tmp_path))
        before = offload.stats()['bytes_read']
        assert not caplog.messages
        model(torch.ones(1, 128))
        said, = caplog.messages
        read = offload.stats()['bytes_read'] - before
        model(torch.ones(1, 128))
        model(torch.ones(1, 128))
    assert caplog.messages == [said]
    assert read > PARAMETERS // 2
    assert f'the first step read {read / 1e3:.1f} kB' in said


def test_one_pass_of_inference_is_told_of_once_it_has_ended(tmp_path, caplog):
    class Failing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rest = mlp()
            self.fails = True

        def forward(self, inputs):
            outputs = self.rest(inputs)
            assert not caplog.messages
            if self.fails:
                raise KeyError
            return outputs

    model = Failing()
    with caplog.at_level('INFO', 'terrace'), torch.inference_mode():
        with terrace.offload(model, nvme_path=str(tmp_path)):
            with pytest.raises(KeyError):
                model(torch.ones(1, 128))
    assert not caplog.messages  # it never came to an end
    model.fails = False
    with caplog.at_level('INFO', 'terrace'), torch.inference_mode():
        with terrace.offload(model, nvme_path=str(tmp_path)):
            model(torch.ones(1, 128))
            said, = caplog.messages
    assert '99,072 parameters' in said and 'the first step read' in said


def test_training_is_told_of_after_its_first_step(tmp_path, caplog):
    model = mlp()
    with caplog.at_level('INFO', 'terrace'):
        terrace.offload(model, nvme_path=str(tmp_path))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(1, 128)).sum().backward()
            assert not caplog.messages
        optimizer.step()
        said, = caplog.messages
        train(model, mlp_loss)
    assert caplog.messages == [said]


def test_a_budget_in_bytes_below_the_minimum_is_refused(tmp_path):
    model = mlp()
    with pytest.raises(ValueError) as raised:
        terrace.offload(model, memory_budget=MINIMUM - 1,
                        nvme_path=str(tmp_path))
    assert str(MINIMUM) in str(raised.value)
    assert "'0.weight'" in str(raised.value)
    assert f'memory_budget={MINIMUM - 1}' in str(raised.value)
    assert os.listdir(tmp_path) == []
    train(model, mlp_loss)  # as it was
    terrace.offload(model, memory_budget=MINIMUM, nvme_path=str(tmp_path))
    train(model, mlp_loss)


# Of five saved tensors of 16 KiB, or 4, with their headers.
ACTIVATIONS = 5 * (16 * 1024 + 4096)
SMALL_ACTIVATIONS = 5 * (4096 + 4096)


@pytest.mark.parametrize(('asked', 'least', 'reason'), [
    ({}, MINIMUM,
     f'twice the {MINIMUM // 2} that the operations of one module take, '
     "'0.weight' most of them"),
    ({'activations': True, 'activations_above': '16KiB'},
     ACTIVATIONS + MINIMUM // 2,
     f'{ACTIVATIONS} for 5 of the least activations, 16384 bytes each, and '
     f"{MINIMUM // 2} that the operations of one module take, '0.weight'"),
    ({'activations': True, 'activations_above': '4KiB'}, MINIMUM,
     f'twice the {MINIMUM // 2} that'),
    ({'activations': True, 'activations_above': '16KiB', 'parameters': False},
     ACTIVATIONS,
     f'{ACTIVATIONS} for 5 of the least activations, 16384 bytes each ('),
])
def test_what_stats_call_the_minimum_is_accepted(tmp_path, asked, least,
                                                 reason):
    def loss_of(model, generator):
        """An activation has 16 KiB."""
        return model(torch.randn(32, 128, generator=generator)).square().mean()

    assert SMALL_ACTIVATIONS < MINIMUM // 2 < ACTIVATIONS
    plain = mlp()
    expected = train(plain, loss_of)
    asked = {'nvme_path': str(tmp_path), **asked}
    with terrace.offload(mlp(), memory_budget='1%', **asked) as offload:
        assert offload.stats()['minimum_bytes'] == least
    with pytest.raises(ValueError) as raised:
        terrace.offload(mlp(), memory_budget=least - 1, **asked)
    assert f'the minimum of {least}: {reason}' in str(raised.value)
    model = mlp()
    with terrace.offload(model, memory_budget=least, **asked) as offload:
        check_same(train(model, loss_of), expected)
        stats = offload.stats()
        assert stats['budget_bytes'] == stats['minimum_bytes'] == least
        assert stats['memory_peak_bytes'] <= least
        # A fifth of what operations leave holds one, where these decide.
        assert (stats['activation_tensors'] > 0) == ('of the least' in reason)
    check_equal_values(values(model), values(plain))


def test_the_minimum_of_a_model_of_little(tmp_path):
    """Three of its only tensor, a block with its header; two, where it has not
    even gradients, and all is in memory."""
    for trained, least, reason in (
            (True, 3 * 8192, 'three tensors of the least size'),
            (False, 2 * 8192, 'all that the model has')):
        model = torch.nn.Embedding(3, 3).requires_grad_(trained)
        with pytest.raises(ValueError,
                           match=f'minimum of {least}: {reason}'):
            terrace.offload(model, memory_budget=least - 1,
                            nvme_path=str(tmp_path))
        with terrace.offload(model, memory_budget=least,
                             nvme_path=str(tmp_path)) as offload:
            assert model(torch.tensor([1])).shape == (1, 3)
            assert offload.stats()['minimum_bytes'] == least


def test_the_minimum_is_of_what_one_operation_takes(tmp_path):
    class Recurrent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.part = torch.nn.LSTM(32, 32, num_layers=3)
            self.other = mlp()

        def forward(self, inputs):
            return self.other(self.part(inputs.view(-1, 32))[0].reshape(-1,
                                                                        128))

    model = Recurrent()
    offload = terrace.offload(model, memory_budget='1%',
                              nvme_path=str(tmp_path))
    each = [p.untyped_storage().nbytes() for p in model.part.parameters()]
    least = 2 * sum(4096 + (size + 4095) // 4096 * 4096 for size in each)
    assert offload.stats()['minimum_bytes'] == least
    train(model, mlp_loss)
    assert offload.stats()['failures'] == 0


@pytest.mark.parametrize('budget', ['200KiB', '50%', '65%'])
def test_a_budget_is_a_budget(tmp_path, budget):
    model = mlp()
    offload = terrace.offload(model, memory_budget=budget,
                              nvme_path=str(tmp_path))
    for _ in range(3):
        train(model, mlp_loss)
        stats = offload.stats()
        asked = {'200KiB': 200 << 10, '50%': (PARAMETERS + 1) // 2,
                 '65%': -(-PARAMETERS * 65 // 100)}[budget]
        assert stats['budget_bytes'] == asked
        assert stats['memory_peak_bytes'] <= asked
        assert stats['window_peak_bytes'] <= stats['window_bytes'] < asked


def test_a_budget_that_holds_all_opens_no_path(tmp_path):
    offload = terrace.offload(mlp(), memory_budget='1GiB',
                              nvme_path=str(tmp_path))
    stats = offload.stats()
    assert os.listdir(tmp_path) == [] and stats['paths'] == []
    assert PARAMETERS < stats['budget_bytes'] < PARAMETERS + MINIMUM


def test_no_path_for_what_the_budget_does_not_hold():
    with pytest.raises(ValueError, match='there is no nvme_path for the rest'):
        terrace.offload(mlp(), memory_budget='200KiB')
    with pytest.raises(ValueError, match='there is no tier below'):
        terrace.offload(mlp(), tiers=['dram=200KiB'])


def test_tiers(tmp_path):
    model = mlp()
    offload = terrace.offload(
        model, tiers=['dram=200KiB', f'nvme:{tmp_path}=8MiB'])
    train(model, mlp_loss)
    stats = offload.stats()
    memory, disk = stats['tiers']
    assert memory['budget_bytes'] == 200 << 10
    assert memory['peak_bytes'] == stats['memory_peak_bytes'] <= 200 << 10
    assert disk['name'] == f'nvme:{tmp_path}=8MiB' or disk['used_bytes'] > 0
    assert disk['used_bytes'] == stats['disk_bytes'] >= PARAMETERS - (200 << 10)


def test_tiers_without_a_dram_have_a_tenth_as_a_path_alone(tmp_path):
    plain, model = mlp(24), mlp(24)
    expected = train(plain, mlp_loss)
    size = 4 * PARAMETERS
    with terrace.offload(model, tiers=[f'nvme:{tmp_path}=8MiB']) as offload:
        check_same(train(model, mlp_loss), expected)
        stats = offload.stats()
        memory, disk = stats['tiers']
        assert memory['name'] == 'dram'
        assert stats['budget_bytes'] == (size + 9) // 10 > MINIMUM
        assert disk['used_bytes'] >= size - stats['budget_bytes']
    with pytest.raises(ValueError, match='tiers names no tier'):
        terrace.offload(model, tiers=[])


def test_an_operation_that_takes_more_than_the_budget_goes_beyond(tmp_path,
                                                                  caplog):
    model, plain = mlp(12), mlp(12)
    offload = terrace.offload(model, memory_budget='200KiB',
                              nvme_path=str(tmp_path))
    assert offload.stats()['over_budget_operation'] == ''
    with caplog.at_level('INFO', 'terrace'), torch.no_grad():
        for _ in range(2):
            for mine, theirs in zip(
                    torch._foreach_norm(list(model.parameters())),
                    torch._foreach_norm(list(plain.parameters()))):
                assert torch.equal(mine, theirs)
            torch._foreach_mul_(list(model.parameters()), 0.5)
            torch._foreach_mul_(list(plain.parameters()), 0.5)
            for _ in range(3):
                model(torch.ones(1, 128))
    stats = offload.stats()
    assert stats['memory_peak_bytes'] <= stats['budget_bytes'] == 200 << 10
    assert stats['over_budget_operation'].startswith('aten::_foreach')
    assert (0 < stats['over_budget_bytes']
            <= stats['parameter_bytes'] + 24 * 8192)
    said = [text for text in caplog.messages if 'beyond the memory_budget' in
            text]
    assert len(said) == 1 and 'terrace.clip_grad_norm_()' in said[0]
    offload.close()
    for mine, theirs in zip(model.parameters(), plain.parameters()):
        assert torch.equal(mine, theirs)


def test_a_budget_for_the_largest_layer_of_a_transformer(tmp_path):
    offload = terrace.offload(transformer(), memory_budget='1%',
                              nvme_path=str(tmp_path))
    stats = offload.stats()
    # In eval() a layer is one operation.
    assert stats['minimum_bytes'] > 2 * 4 * (4 * 128 * 128 + 4 * 128 * 128)


def _refused(model, budget, directory):
    with pytest.raises(ValueError) as caught:
        terrace.AdamW(model.parameters(), memory_budget=budget,
                      nvme_path=str(directory))
    return str(caught.value)


def test_an_optimizers_budget_that_is_too_small_says_what_is_enough(tmp_path):
    """For the least of the state, and for what offloaded parameters pass
    through, which is much more."""
    parameters, state = tmp_path / 'parameters', tmp_path / 'state'
    parameters.mkdir()
    state.mkdir()
    plain = int(re.search(r'minimum of (\d+) bytes',
                          _refused(mlp(40), 4096, state))[1])
    least = plain + (4 << 20)
    model = mlp(40)
    with terrace.offload(model, nvme_path=str(parameters)):
        for budget in (4096, plain, 1 << 20, 4 << 20, least - 1):
            message = _refused(model, budget, state)
            assert f'a budget of {budget} bytes is below' in message
            assert f'minimum of {least} bytes: {plain} for state' in message
            assert f'{4 << 20} that parameters which are offloaded' in message
            assert f'(memory_budget={budget})' in message
            assert os.listdir(state) == []
        optimizer = terrace.AdamW(model.parameters(), memory_budget=least,
                                  nvme_path=str(state))
        train(model, mlp_loss, lambda _: optimizer, steps=1)
        assert optimizer.stats()['disk_bytes'] > 0
        optimizer.close()
