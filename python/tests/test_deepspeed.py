"""terrace.from_deepspeed_config: DeepSpeed's JSON from Python."""

import base64
import json
import math

import pytest
import torch

import terrace
from conftest import batches, largest_difference, model, train

PLAIN = {
    'train_micro_batch_size_per_gpu': 12,
    'gradient_clipping': 0.0,
    'optimizer': {'type': 'AdamW', 'params': {
        'lr': 2e-3, 'betas': [0.8, 0.99], 'eps': 1e-7, 'weight_decay': 0.1}},
}


def with_nvme(path, **changes):
    return {**PLAIN, 'zero_optimization': {
        'stage': 2, 'offload_optimizer': {'device': 'nvme',
                                          'nvme_path': str(path)}}, **changes}


def test_the_optimizer_is_the_one_that_is_asked_for():
    network, other = model(), model()
    optimizer, scheduler, settings = terrace.from_deepspeed_config(network,
                                                                   PLAIN)
    assert isinstance(optimizer, terrace.AdamW) and scheduler is None
    theirs = torch.optim.AdamW(other.parameters(), 2e-3, (0.8, 0.99), 1e-7, 0.1)
    train(network, optimizer, batches(10))
    train(other, theirs, batches(10))
    assert largest_difference(network, other) <= 1e-5
    assert settings['micro_batch'] == settings['train_batch'] == 12
    assert optimizer.stats()['disk_bytes'] == 0


def test_state_goes_to_the_path_in_the_text(tmp_path):
    network, other = model(300), model(300)
    optimizer, _, settings = terrace.from_deepspeed_config(
        network, with_nvme(tmp_path))
    plain, _, _ = terrace.from_deepspeed_config(other, PLAIN)
    train(network, optimizer, batches(4, 300))
    train(other, plain, batches(4, 300))
    assert largest_difference(network, other) == 0
    assert settings['offload_device'] == 'nvme'
    assert optimizer.stats()['bytes_written'] > 0
    assert list(tmp_path.iterdir())
    optimizer.close()


def test_a_budget_may_be_given(tmp_path):
    network = model(300)
    optimizer, _, _ = terrace.from_deepspeed_config(
        network, with_nvme(tmp_path), memory_budget='700KiB')
    assert optimizer.stats()['memory_bytes'] == 700 << 10


def test_a_share_below_the_minimum_is_raised_to_it_and_told(tmp_path, caplog):
    network = model(300)
    optimizer, _, settings = terrace.from_deepspeed_config(
        network, with_nvme(tmp_path, dump_state=True), memory_budget='0.1%')
    with caplog.at_level('INFO', logger='terrace'):
        train(network, optimizer, batches(1, 300))
    stats = optimizer.stats()
    assert ("(the least that works; memory_budget='0.1%' is "
            in caplog.messages[-1])
    [note] = [note['text'] for note in settings['notes']
              if note['path'] == 'memory_budget']
    assert note.endswith(f'the least that works is {stats["memory_bytes"]}')
    with pytest.raises((ValueError, MemoryError), match='below the minimum'):
        terrace.from_deepspeed_config(model(300), with_nvme(tmp_path),
                                      memory_budget=4096)


def test_a_tenth_that_nobody_asked_for_is_a_share_too(tmp_path, caplog):
    network = model(200)
    optimizer, _, _ = terrace.from_deepspeed_config(network,
                                                    with_nvme(tmp_path))
    with caplog.at_level('INFO', logger='terrace'):
        train(network, optimizer, batches(1, 200))
    assert ("(the least that works; memory_budget='10%' is "
            in caplog.messages[-1])


@pytest.mark.parametrize('kind', ['dict', 'file', 'base64'])
def test_sources_of_the_text(kind, tmp_path):
    text = json.dumps(PLAIN)
    if kind == 'file':
        config = tmp_path / 'ds.json'
        config.write_text('// with a comment\n' + text)
    elif kind == 'base64':
        config = base64.urlsafe_b64encode(text.encode()).decode()
    else:
        config = PLAIN
    optimizer, _, _ = terrace.from_deepspeed_config(model(), config)
    assert optimizer.param_groups[0]['lr'] == 2e-3


def test_no_text():
    with pytest.raises(ValueError, match='neither a file'):
        terrace.from_deepspeed_config(model(), 'no/such/file.json')


def warmup_decay(step):
    """DeepSpeed's WarmupDecayLR with linear warm-up; `step` counts from 0. Its
    constructor and its first step() both set the rate of iteration 0."""
    iteration = max(0, step - 1)
    if iteration < 4:
        return 1e-4 + (1e-2 - 1e-4) * iteration / 4
    return 1e-4 + (1e-2 - 1e-4) * max(0, (10 - iteration) / (10 - 4))


def test_the_schedule_is_stepped_after_each_step():
    config = {**PLAIN, 'scheduler': {'type': 'WarmupDecayLR', 'params': {
        'warmup_min_lr': 1e-4, 'warmup_max_lr': 1e-2, 'warmup_num_steps': 4,
        'total_num_steps': 10, 'warmup_type': 'linear'}}}
    network = model()
    optimizer, scheduler, _ = terrace.from_deepspeed_config(network, config)
    rates = []
    data = batches(10)
    for batch in data:
        rates.append(optimizer.param_groups[0]['lr'])
        train(network, optimizer, [batch])
        scheduler.step()
    for step, rate in enumerate(rates):
        assert math.isclose(rate, warmup_decay(step), rel_tol=1e-6), step
    saved = json.loads(json.dumps(scheduler.state_dict()))
    again = terrace.from_deepspeed_config(model(), config)[1]
    again.load_state_dict(saved)
    assert again.last_epoch == 10


def test_a_step_that_is_not_finite_is_skipped_and_not_counted():
    config = {**PLAIN, 'bf16': {'enabled': True},
              'scheduler': {'type': 'WarmupLR', 'params': {
                  'warmup_num_steps': 10, 'warmup_max_lr': 1e-2}}}
    network = model(dtype=torch.bfloat16)
    optimizer, scheduler, settings = terrace.from_deepspeed_config(network,
                                                                   config)
    assert settings['skip_nonfinite']
    data = batches(2, dtype=torch.bfloat16)
    train(network, optimizer, data)
    scheduler.step()
    before = [p.detach().clone() for p in network.parameters()]
    rate = optimizer.param_groups[0]['lr']
    network[0].weight.grad[0, 0] = float('nan')
    optimizer.step()
    scheduler.step()
    assert all(torch.equal(p, q) for p, q in zip(network.parameters(), before))
    assert optimizer.param_groups[0]['lr'] == rate
    assert optimizer.stats()['steps'] == 2
    train(network, optimizer, data)
    scheduler.step()
    assert optimizer.param_groups[0]['lr'] > rate


def test_adam_trap_and_plain_adam():
    network, other = model(), model()
    config = {**PLAIN, 'optimizer': {'type': 'Adam', 'params': {
        'lr': 1e-3, 'weight_decay': 0.1, 'adam_w_mode': False}}}
    optimizer, _, _ = terrace.from_deepspeed_config(network, config)
    theirs = torch.optim.Adam(other.parameters(), 1e-3, weight_decay=0.1)
    train(network, optimizer, batches(6))
    train(other, theirs, batches(6))
    assert largest_difference(network, other) <= 1e-5
    del config['optimizer']['params']['adam_w_mode']
    optimizer, _, settings = terrace.from_deepspeed_config(model(), config)
    assert optimizer.param_groups[0]['decoupled_weight_decay']
    assert any('optimizer' in note['path'] for note in settings['notes'])


def test_clipping_of_the_configuration():
    network, other = model(), model()
    config = {**PLAIN, 'gradient_clipping': 0.05}
    optimizer, _, _ = terrace.from_deepspeed_config(network, config)
    theirs = torch.optim.AdamW(other.parameters(), 2e-3, (0.8, 0.99), 1e-7, 0.1)
    for batch in batches(5):
        train(network, optimizer, [batch])
        inputs, targets = batch
        theirs.zero_grad()
        torch.nn.functional.mse_loss(other(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 0.05)
        theirs.step()
    assert largest_difference(network, other) <= 1e-5


@pytest.mark.parametrize('change, exception, text', [
    ({'zero_optimisation': {}}, ValueError, 'zero_optimization'),
    ({'optimizer': {'type': 'AdamW', 'params': {'amsgrad': True}}},
     NotImplementedError, 'amsgrad'),
    ({'optimizer': {'type': 'Lion', 'params': {}}}, NotImplementedError,
     'Lion'),
    ({'zero_optimization': {'stage': 3, 'offload_param': {
        'device': 'nvme'}}}, ValueError, 'offload_param.nvme_path'),
    ({'amp': {'enabled': False}}, ValueError, 'amp'),
    ({'zero_optimization': {'stage': 2, 'offload_optimizer': {
        'device': 'nvme'}}}, ValueError, 'nvme_path'),
    ({'train_batch_size': 7}, ValueError, 'train_batch_size'),
    ({'bf16': {'enabled': True, 'bf16_master_weights_and_grads': True}},
     NotImplementedError, 'bf16_master_weights_and_grads'),
])
def test_what_is_wrong_or_not_built_is_named(change, exception, text):
    with pytest.raises(exception, match=text):
        terrace.from_deepspeed_config(model(), {**PLAIN, **change})


def test_a_path_with_a_typo(tmp_path):
    with pytest.raises(FileNotFoundError, match='nvme_path'):
        terrace.from_deepspeed_config(model(), with_nvme(tmp_path / 'typo'))
    assert not list(tmp_path.iterdir())


def test_auto_takes_what_the_caller_knows():
    config = {**PLAIN, 'optimizer': {'type': 'AdamW', 'params': {
        'lr': 'auto', 'weight_decay': 'auto'}}}
    optimizer, _, _ = terrace.from_deepspeed_config(
        model(), config, learning_rate=7e-4, weight_decay=0.3)
    assert optimizer.param_groups[0]['lr'] == 7e-4
    assert optimizer.param_groups[0]['weight_decay'] == 0.3
    with pytest.raises(TypeError, match='learning_rates'):
        terrace.from_deepspeed_config(model(), config, learning_rates=1)


def test_there_are_no_buffers_to_run_out_of(tmp_path):
    """Row 26 of docs/deepspeed.md."""
    config = with_nvme(tmp_path)
    config['zero_optimization']['offload_optimizer'].update(
        pipeline_read=True, pipeline_write=True, buffer_count=4)
    config['zero_optimization'].update(offload_param={
        'device': 'none', 'buffer_size': 1000, 'buffer_count': 1})
    network, other = model(300), model(300)
    optimizer, _, settings = terrace.from_deepspeed_config(network, config)
    plain, _, _ = terrace.from_deepspeed_config(other, PLAIN)
    train(network, optimizer, batches(4, 300))
    train(other, plain, batches(4, 300))
    assert largest_difference(network, other) == 0
    assert optimizer.stats()['bytes_written'] > 0
    said = {note['path'] for note in settings['notes']}
    assert 'zero_optimization.offload_optimizer.buffer_count' in said


@pytest.mark.parametrize('tile', [1, 1000, 100_000])
def test_tiles_smaller_than_a_block_are_offloaded(tile, tmp_path):
    """Row 33 of docs/deepspeed.md."""
    config = with_nvme(tmp_path, aio={'block_size': 1 << 20})
    config['zero_optimization']['sub_group_size'] = tile
    network, other = model(300), model(300)
    optimizer, _, _ = terrace.from_deepspeed_config(network, config)
    plain, _, _ = terrace.from_deepspeed_config(other, PLAIN)
    train(network, optimizer, batches(4, 300))
    train(other, plain, batches(4, 300))
    assert largest_difference(network, other) == 0
    stats = optimizer.stats()
    assert stats['disk_bytes'] > stats['state_bytes'] / 2
    assert stats['bytes_written'] > 0


def test_sizes_off_every_grid_give_the_bits_of_memory(tmp_path):
    """Row 29 of docs/deepspeed.md: biases of 928 elements, 3712 bytes."""
    def make(config):
        torch.manual_seed(1)
        network = torch.nn.Sequential(*(
            torch.nn.Sequential(torch.nn.LayerNorm(928),
                                torch.nn.Linear(928, 928))
            for _ in range(2)), torch.nn.Linear(928, 7))
        return network, *terrace.from_deepspeed_config(network, config)[:1]

    network, optimizer = make(with_nvme(tmp_path))
    other, plain = make(PLAIN)
    losses = train(network, optimizer, batches(8, 928))
    assert losses == train(other, plain, batches(8, 928))
    assert largest_difference(network, other) == 0
    stats = optimizer.stats()
    assert stats['disk_bytes'] > stats['state_bytes'] / 2
