"""terrace.from_deepspeed_config does with a file what DeepSpeed does with it:
casts the model, offloads what the file offloads, takes the optimizers of
torch.optim and the values that programs write."""

import copy
import json
import pathlib

import numpy
import pytest
import torch

import terrace
from conftest import batches, largest_difference, model

PLAIN = {'train_micro_batch_size_per_gpu': 4}
LR = {'learning_rate': 1e-2}


def adamw(**more):
    return {**PLAIN, 'optimizer': {'type': 'AdamW', 'params': {'lr': 1e-2}},
            **more}


def train(network, optimizer, steps=4):
    for inputs, targets in batches(steps):
        dtype = next(network.parameters()).dtype
        torch.nn.functional.mse_loss(
            network(inputs.to(dtype)).float(), targets).backward()
        optimizer.step()
        optimizer.zero_grad()


def made(network, config, **more):
    return terrace.from_deepspeed_config(network, config, **more)


@pytest.mark.parametrize('name, dtype', [('bf16', torch.bfloat16),
                                         ('fp16', torch.float16)])
def test_an_fp32_model_is_cast(name, dtype):
    network, other = model(), model().to(dtype)
    network.register_buffer('table', torch.arange(3.0))
    before = list(network.parameters())
    config = adamw(**{name: {'enabled': True}, 'gradient_clipping': 0.5})
    optimizer, _, settings = made(network, config)
    assert [id(p) for p in network.parameters()] == list(map(id, before))
    assert {p.dtype for p in network.parameters()} == {dtype}
    assert network.table.dtype == torch.float32
    assert f'{name}.enabled' in [note['path'] for note in settings['notes']]
    train(network, optimizer)
    train(other, made(other, config)[0])
    assert largest_difference(network, other) == 0


def test_a_model_of_parts_in_several_types_is_cast_with_its_buffers():
    network = torch.nn.Sequential(torch.nn.BatchNorm1d(8),
                                  torch.nn.Linear(8, 8).half())
    network[1].weight.grad = torch.ones_like(network[1].weight)
    made(network, adamw(bf16={'enabled': True},
                        data_types={'buffer_dtype': 'bfloat16'}))
    assert {p.dtype for p in network.parameters()} == {torch.bfloat16}
    assert network[1].weight.grad.dtype == torch.bfloat16
    assert network[0].running_mean.dtype == torch.bfloat16
    assert network[0].num_batches_tracked.dtype == torch.int64


def test_a_refused_file_casts_nothing():
    network = model()
    config = adamw(bf16={'enabled': True}, zero_optimization={
        'stage': 2, 'offload_optimizer': {'device': 'nvme',
                                          'nvme_path': '/no/such/place'}})
    with pytest.raises(OSError):
        made(network, config)
    assert {p.dtype for p in network.parameters()} == {torch.float32}


@pytest.mark.parametrize('on_nvme', [False, True])
def test_parameters_on_nvme_are_not_asked_for_twice(tmp_path, on_nvme):
    place = {'device': 'nvme', 'nvme_path': str(tmp_path)}
    zero = {'stage': 3, 'offload_param': place}
    if on_nvme:
        zero['offload_optimizer'] = place
    network, other = model(), model()
    optimizer, _, settings = made(network, adamw(zero_optimization=zero))
    assert settings['offload'] is not None
    train(network, optimizer)
    settings['offload'].close()
    train(other, made(other, adamw())[0])
    assert largest_difference(network, other) == 0
    with pytest.raises(NotImplementedError, match='offload_param'):
        made(model(), adamw(zero_optimization=zero), offload=False)


@pytest.mark.parametrize('kind, params', [
    ('SGD', {'lr': 0.05, 'momentum': 0.9}), ('RMSprop', {'lr': 1e-3}),
    ('adagrad', {'lr': 1e-2}), ('NAdam', {'betas': [0.8, 0.9]})])
def test_other_optimizers_are_torchs(kind, params):
    network, other = model(), model()
    optimizer, _, settings = made(network, {
        **PLAIN, 'gradient_clipping': 0.1,
        'optimizer': {'type': kind, 'params': params}})
    assert 'optimizer.type' in [note['path'] for note in settings['notes']]
    torchs = getattr(torch.optim, 'Adagrad' if kind == 'adagrad' else kind)(
        other.parameters(), **{key: tuple(value) if key == 'betas' else value
                               for key, value in params.items()})
    train(network, optimizer)
    for inputs, targets in batches(4):
        torch.nn.functional.mse_loss(other(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 0.1)
        torchs.step()
        torchs.zero_grad()
    assert largest_difference(network, other) < 1e-6
    assert optimizer.state_dict()['state'].keys() == (
        torchs.state_dict()['state'].keys())


def test_torchs_optimizer_steps_fp32_masters():
    config = {**PLAIN, 'gradient_clipping': 0, 'bf16': {'enabled': True},
              'optimizer': {'type': 'SGD', 'params': {'lr': 1e-4}}}
    network = torch.nn.Linear(4, 4)
    optimizer, _, _ = made(network, config)
    start = network.weight.detach().float().clone()
    for _ in range(100):
        network.weight.grad = torch.ones_like(network.weight)
        network.bias.grad = torch.ones_like(network.bias)
        optimizer.step()
    expected = (start - 100 * 1e-4).bfloat16()
    assert torch.equal(network.weight.detach(), expected)
    again = copy.deepcopy(network)
    resumed, _, _ = made(again, config)
    resumed.load_state_dict(optimizer.state_dict())
    for each, stepped in ((network, optimizer), (again, resumed)):
        each.weight.grad = torch.full_like(each.weight, 3)
        each.bias.grad = torch.full_like(each.bias, 3)
        stepped.step()
    assert torch.equal(network.weight, again.weight)


def test_a_skipped_step_of_torchs_leaves_the_rate():
    network = model()
    optimizer, scheduler, _ = made(network, {
        **PLAIN, 'fp16': {'enabled': True},
        'optimizer': {'type': 'SGD', 'params': {'lr': 1.0}},
        'scheduler': {'type': 'WarmupLR', 'params': {'warmup_num_steps': 9}}})
    scheduler.step()
    scheduler.step()
    rate, before = optimizer.param_groups[0]['lr'], copy.deepcopy(network)
    for p in network.parameters():
        p.grad = torch.full_like(p, float('inf'))
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]['lr'] == rate > 0
    assert largest_difference(network, before) == 0


def test_params_that_torch_does_not_know_are_named_together():
    with pytest.raises(ValueError) as said:
        made(model(), {**PLAIN, 'optimizer': {'type': 'SGD', 'params': {
            'lr': 1e-3, 'betas': [0.9, 0.9], 'eps': 1e-8}}})
    for name in ('optimizer.params.betas', 'optimizer.params.eps', 'SGD'):
        assert name in str(said.value)


@pytest.mark.parametrize('value', [float('inf'), numpy.float64('inf')])
def test_a_trainers_dict_prints_never(value):
    made(model(), adamw(steps_per_print=value, gradient_accumulation_steps=1,
                        zero_allow_untested_optimizer=True))


def test_values_are_taken_as_what_they_are(tmp_path):
    network = model()
    config = {
        'train_micro_batch_size_per_gpu': numpy.int64(4),
        'gradient_clipping': numpy.float32(0.5),
        'optimizer': {'type': 'AdamW', 'params': {
            'lr': torch.tensor(0.25), 'betas': (0.5, numpy.float64(0.75))}},
        'zero_optimization': {'stage': numpy.int32(2), 'offload_optimizer': {
            'device': 'nvme', 'nvme_path': pathlib.Path(tmp_path),
            'pin_memory': numpy.bool_(True)}}}
    optimizer, _, settings = made(network, config)
    assert settings['nvme_path'] == [str(tmp_path)]
    assert settings['micro_batch'] == 4
    assert optimizer.param_groups[0]['lr'] == 0.25
    assert optimizer.param_groups[0]['betas'] == (0.5, 0.75)


def test_a_value_that_is_none_is_named():
    for config, name in (
            ({**PLAIN, 'gradient_clipping': float('nan')}, 'gradient_clipping'),
            ({**PLAIN, 'zero_optimization': {'stage': object()}},
             'zero_optimization.stage'),
            ({**PLAIN, 3: 4}, '3')):
        with pytest.raises(ValueError, match=name):
            made(model(), config, **LR)


def test_numbers_of_numpy_are_passed_too():
    optimizer, _, settings = made(
        model(), {}, learning_rate=numpy.float32(0.5),
        micro_batch=numpy.int64(2))
    assert settings['micro_batch'] == 2
    assert optimizer.param_groups[0]['lr'] == 0.5


def test_a_file_that_is_not_utf8_is_named(tmp_path):
    for content in (b'{"a": "\xff"}', '{"train_batch_size": 1}'.encode(
            'utf-16')):
        file = tmp_path / 'ds_config.json'
        file.write_bytes(content)
        with pytest.raises(ValueError, match='UTF-8') as said:
            made(model(), file, **LR)
        assert type(said.value) is ValueError
        assert str(file) in str(said.value)


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path):
    file = tmp_path / 'ds_config.json'
    file.write_bytes(b'\xef\xbb\xbf' + json.dumps(adamw()).encode())
    made(model(), file)
