"""terrace.from_deepspeed_config(offload=True): parameters live below."""

import os

import pytest
import torch

import terrace
from conftest import batches, largest_difference, train
from crew import error_of
from offloaded import is_cold
from terrace._base.library import is_offloaded

WIDTH = 130
ADAMW = {'type': 'AdamW', 'params': {'lr': 2e-3, 'weight_decay': 0.1}}
PARAM = 'zero_optimization.offload_param'
OPTIMIZER = 'zero_optimization.offload_optimizer'
CPU_CHECKPOINTING = 'activation_checkpointing.cpu_checkpointing'
BELOW = {'activation_checkpointing': {'cpu_checkpointing': True}}


def model():
    """About 100,000 parameters; the least budget is a third of them."""
    torch.manual_seed(7)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(6)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 7))


def config(param=None, optimizer=None, stage=3, **changes):
    zero = {'stage': stage}
    if param is not None:
        zero['offload_param'] = param
    if optimizer is not None:
        zero['offload_optimizer'] = optimizer
    return {'train_micro_batch_size_per_gpu': 12, 'gradient_clipping': 0.5,
            'optimizer': ADAMW, 'zero_optimization': zero, **changes}


def nvme(path):
    return {'device': 'nvme', 'nvme_path': str(path)}


def in_memory(steps):
    """What the script leaves without any offload."""
    network = model()
    optimizer, _, settings = terrace.from_deepspeed_config(network,
                                                           config(stage=0))
    assert settings['offload'] is None
    return network, train(network, optimizer, batches(steps))


@pytest.fixture
def two_paths(tmp_path):
    paths = [tmp_path / 'parameters', tmp_path / 'state']
    for path in paths:
        path.mkdir()
    return paths


@pytest.mark.parametrize('state', ['memory', 'nvme'])
def test_parameters_on_nvme_train_to_the_bits_of_memory(state, two_paths):
    parameters, below = two_paths
    network = model()
    optimizer, _, settings = terrace.from_deepspeed_config(
        network, config(nvme(parameters),
                        nvme(below) if state == 'nvme' else None),
        offload=True)
    offload = settings['offload']
    losses = train(network, optimizer, batches(6))
    assert os.listdir(parameters)
    assert bool(os.listdir(below)) == (state == 'nvme')
    assert any(map(is_cold, network.parameters()))
    stats = offload.stats()
    assert stats['budget_bytes'] < stats['parameter_bytes']
    assert stats['joined_bytes'] == 0  # the text says where the state is
    assert stats['bytes_read'] > 0 and stats['bytes_written'] > 0
    optimizer.close()
    offload.close()
    assert not os.listdir(parameters) and not os.listdir(below)
    other, expected = in_memory(6)
    assert losses == expected
    assert largest_difference(network, other) == 0


def test_a_list_of_paths_is_striped_over(two_paths):
    network = model()
    _, _, settings = terrace.from_deepspeed_config(
        network, config({'device': 'nvme',
                         'nvme_path': [str(path) for path in two_paths]}),
        offload=True)
    assert all(map(os.listdir, two_paths))
    settings['offload'].close()
    assert not any(map(os.listdir, two_paths))


def test_a_share_is_the_parameters_too(two_paths):
    parameters, below = two_paths
    least, most = (
        terrace.from_deepspeed_config(
            model(), config(nvme(parameters), nvme(below)), offload=True,
            memory_budget=share)[2]['offload'].stats()
        for share in (None, '95%'))
    assert abs(most['budget_bytes'] - 0.95 * most['parameter_bytes']) <= 1
    assert least['budget_bytes'] < most['budget_bytes']


def test_bytes_are_the_states_alone(two_paths):
    parameters, below = two_paths
    _, _, settings = terrace.from_deepspeed_config(
        model(), config(nvme(parameters), nvme(below)), offload=True,
        memory_budget='5MiB')
    stats = settings['offload'].stats()
    assert stats['budget_bytes'] == stats['minimum_bytes']  # a tenth is less


def test_parameters_in_cpu_memory_are_the_librarys_and_all_there():
    network = model()
    optimizer, _, settings = terrace.from_deepspeed_config(
        network, config({'device': 'cpu'}), offload=True)
    losses = train(network, optimizer, batches(6))
    with settings['offload'] as offload:
        stats = offload.stats()
        assert stats['managed_bytes'] == stats['parameter_bytes'] > 0
        assert stats['budget_bytes'] >= stats['parameter_bytes']
        assert stats['disk_bytes'] == stats['evictions'] == 0
        assert not any(map(is_cold, network.parameters()))
    other, expected = in_memory(6)
    assert losses == expected
    assert largest_difference(network, other) == 0
    assert PARAM not in {note['path'] for note in settings['notes']}


@pytest.mark.parametrize('param, stage', [
    (None, 3), ({'device': 'none'}, 3), ({'device': 'cpu'}, 2)])
def test_nothing_to_offload_is_a_note(param, stage):
    network = model()
    _, _, settings = terrace.from_deepspeed_config(
        network, config(param, stage=stage), offload=True)
    assert settings['offload'] is None
    [note] = [note for note in settings['notes'] if note['path'] == PARAM]
    assert 'they stay where the model has them' in note['text']
    assert not any(map(is_offloaded, network.parameters()))


def test_without_offload_cpu_is_so_already(tmp_path):
    network = model()
    settings = terrace.from_deepspeed_config(
        network, config({'device': 'cpu'}))[2]
    assert settings['offload'] is None
    assert not any(map(is_offloaded, network.parameters()))
    with pytest.raises(NotImplementedError, match=rf'{PARAM}\.device.*nvme'):
        terrace.from_deepspeed_config(network, config(nvme(tmp_path)),
                                      offload=False)
    assert os.listdir(tmp_path) == []


def test_a_path_that_is_not_there_is_named_and_not_made(tmp_path):
    network = model()
    with pytest.raises(FileNotFoundError,
                       match=rf'{PARAM}\.nvme_path') as caught:
        terrace.from_deepspeed_config(network, config(nvme(tmp_path / 'typo')),
                                      offload=True)
    assert caught.value.filename == str(tmp_path / 'typo')
    assert os.listdir(tmp_path) == []
    assert not any(map(is_offloaded, network.parameters()))


def test_another_file_of_the_path_is_left_alone(tmp_path):
    file = tmp_path / 'theirs'
    file.write_bytes(b'bytes')
    network = model()
    with pytest.raises((ValueError, OSError), match='theirs'):
        terrace.from_deepspeed_config(network, config(nvme(file)),
                                      offload=True)
    assert file.read_bytes() == b'bytes'
    assert not any(map(is_offloaded, network.parameters()))


def test_no_path_is_named_by_its_line(tmp_path):
    file = tmp_path / 'ds.json'
    file.write_text('{"train_batch_size": 1,\n"zero_optimization": {"stage": 3,'
                    '\n"offload_param": {"device": "nvme"}}}')
    with pytest.raises(ValueError, match=rf'{PARAM}\.device.*line 3.*'
                                         rf'{PARAM}\.nvme_path'):
        terrace.from_deepspeed_config(model(), file, offload=True,
                                      learning_rate=1e-3)


def test_an_optimizer_that_fails_leaves_the_model_as_it_was(two_paths,
                                                            monkeypatch):
    from terrace._deepspeed import config as module

    def fail(*_):
        raise MemoryError('terrace: as if')
    monkeypatch.setattr(module, 'ConfiguredAdamW', fail)
    network, same = model(), model()
    with pytest.raises(MemoryError, match='as if'):
        terrace.from_deepspeed_config(network, config(nvme(two_paths[0])),
                                      offload=True)
    assert not any(map(is_offloaded, network.parameters()))
    assert largest_difference(network, same) == 0
    assert not os.listdir(two_paths[0])


def test_a_model_that_is_offloaded_already_is_refused(two_paths):
    network = model()
    with terrace.offload(network, nvme_path=str(two_paths[0])):
        with pytest.raises(RuntimeError, match='offloaded already'):
            terrace.from_deepspeed_config(network, config(nvme(two_paths[1])),
                                          offload=True)
        assert not os.listdir(two_paths[1])


def _on_ranks(path):
    return error_of(lambda: terrace.from_deepspeed_config(
        model(), config({'device': 'nvme', 'nvme_path': path}), offload=True))


def test_several_ranks_are_refused(crew, tmp_path):
    for error in crew.run(_on_ranks, str(tmp_path)):
        assert error[0] == 'NotImplementedError'
        assert 'zero_optimization.stage' in error[1]
    assert not os.listdir(tmp_path)


class Deep(torch.nn.Module):
    """What each layer saves is 16 MiB, 320 MiB of all, which is more than the
    256 MiB that activations may have."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.scales = torch.nn.ParameterList(
            torch.rand(2048) + 0.5 for _ in range(20))

    def forward(self, inputs):
        hidden = inputs
        for scale in self.scales:
            hidden = (hidden * scale).tanh()
        return hidden


def places(stats):
    return [tier['name'] for tier in stats['tiers'][1:]]


def deep_gradients(**changes):
    """Of two passes, the second with the order of the first in mind."""
    network = Deep()
    optimizer, _, settings = terrace.from_deepspeed_config(network, **changes)
    inputs = torch.randn(2048, 2048,
                         generator=torch.Generator().manual_seed(5))
    left = []
    for _ in range(2):
        network(inputs).square().mean().backward()
        left += [scale.grad.clone() for scale in network.scales]
        optimizer.step()
        optimizer.zero_grad()
    return left, network, settings['offload'], settings['notes']


@pytest.mark.parametrize('param', [None, 'nvme', 'cpu'])
def test_cpu_checkpointing_takes_activations_below(param, two_paths):
    mine, below = two_paths
    section = {None: None, 'nvme': nvme(mine), 'cpu': {'device': 'cpu'}}[param]
    left, network, offload, notes = deep_gradients(
        config=config(section, nvme(below), **BELOW), offload=True)
    stats = offload.stats()
    assert stats['activation_tensors'] == 2 * 20
    assert stats['activation_bytes'] == 2 * 20 * (16 << 20)
    assert stats['activation_written_bytes'] > 2 * (32 << 20)
    assert stats['activation_fetched_bytes'] > 2 * (32 << 20)
    assert stats['failures'] == 0
    assert any(map(is_offloaded, network.parameters())) == (param == 'nvme')
    assert (stats['parameter_bytes'] > 0) == (param == 'nvme')
    # With the parameters where they have a path, else with the state.
    assert places(stats) == [f'nvme:{mine if param == "nvme" else below}']
    paths = {note['path'] for note in notes}
    assert CPU_CHECKPOINTING not in paths and PARAM not in paths
    assert (f'{PARAM}.device' in paths) == (param == 'cpu')
    offload.close()
    expected, other, nothing, _ = deep_gradients(config=config(stage=0))
    assert nothing is None
    for gradient, same in zip(left, expected, strict=True):
        assert torch.equal(gradient, same)
    assert largest_difference(network, other) == 0


@pytest.mark.parametrize('stage', [0, 3])
@pytest.mark.parametrize('device', [None, 'cpu'])
def test_a_path_for_activations_alone(stage, device, two_paths):
    section = {'nvme_path': str(two_paths[0])}
    if device is not None:
        section['device'] = device
    network = model()
    _, _, settings = terrace.from_deepspeed_config(
        network, config(section, stage=stage, **BELOW), offload=True)
    with settings['offload'] as offload:
        assert places(offload.stats()) == [f'nvme:{two_paths[0]}']
        assert not any(map(is_offloaded, network.parameters()))
    assert f'{PARAM}.nvme_path' not in {note['path']
                                        for note in settings['notes']}


def test_activations_without_a_path_stay_in_memory():
    settings = terrace.from_deepspeed_config(
        model(), config(None, **BELOW), offload=True)[2]
    assert settings['offload'] is None
    [note] = [note for note in settings['notes']
              if note['path'] == CPU_CHECKPOINTING]
    for part in (f'{PARAM}.nvme_path', f'{OPTIMIZER}.nvme_path'):
        assert part in note['text']


@pytest.mark.parametrize('key', [PARAM, OPTIMIZER])
def test_a_path_of_activations_is_named_by_its_key(key, tmp_path):
    section = {'nvme_path': str(tmp_path / 'typo')}
    sections = {PARAM: (section, None), OPTIMIZER: (None, section)}[key]
    with pytest.raises(FileNotFoundError, match=rf'{key}\.nvme_path'):
        terrace.from_deepspeed_config(model(), config(*sections, **BELOW),
                                      offload=True)
    assert os.listdir(tmp_path) == []


def test_activations_stay_where_they_are_not_asked_for(two_paths):
    for wish, offload in ((True, False), (False, True)):
        settings = terrace.from_deepspeed_config(
            model(), config(None, nvme(two_paths[0]), activation_checkpointing={
                'cpu_checkpointing': wish}), offload=offload)[2]
        assert settings['offload'] is None
        paths = {note['path'] for note in settings['notes']}
        assert (CPU_CHECKPOINTING in paths) == (not offload)
        assert (PARAM in paths) == offload


def _activations_on_ranks(path):
    return error_of(lambda: terrace.from_deepspeed_config(
        model(), config(None, nvme(path), stage=1, **BELOW), offload=True))


def test_activations_of_several_ranks_are_refused(crew, tmp_path):
    for error in crew.run(_activations_on_ranks, str(tmp_path)):
        assert error[0] == 'NotImplementedError'
        assert CPU_CHECKPOINTING in error[1]
    assert not os.listdir(tmp_path)
