"""terrace.from_deepspeed_config(offload=True): where parameters and state have
one place the optimizer joins the model, and elsewhere it does not."""

import os

import pytest
import torch

import terrace
from conftest import batches, largest_difference, train
from offloaded import check_equal_values, is_cold, values
from terrace._base.library import is_offloaded
from terrace._offload.offload import managed_by
from test_deepspeed_offload import (ADAMW, BELOW, config, in_memory, model,
                                    nvme)
from test_step_in_backward import keyed

CPU = {'device': 'cpu'}
SCHEDULED = {'scheduler': {'type': 'WarmupLR',
                           'params': {'warmup_num_steps': 6}}}


def two_directories(path):
    paths = [path / 'parameters', path / 'state']
    for each in paths:
        each.mkdir()
    return paths


def one_path(path, **changes):
    """Parameters and state, by two names of one directory."""
    return config(nvme(path), nvme(f'{path}/'), **changes)


def gradients_below(network):
    loss = network(torch.ones(2, network[0].in_features)).square().mean()
    loss.backward()
    return [is_offloaded(p.grad) for p in network.parameters()]


def check_same_state(mine, theirs):
    mine, theirs = keyed(mine), keyed(theirs)
    assert mine.keys() == theirs.keys() != set()
    for key, state in theirs.items():
        for name, tensor in state.items():
            assert torch.equal(mine[key][name], tensor), (key, name)


def test_of_one_path_it_joins_to_the_bits_of_memory(tmp_path):
    network = model()
    optimizer, _, settings = terrace.from_deepspeed_config(
        network, one_path(tmp_path), offload=True)
    offload = settings['offload']
    losses = train(network, optimizer, batches(6))
    [job] = os.listdir(tmp_path)  # one for both
    stats = offload.stats()
    assert stats['joined_bytes'] > 0
    assert stats['memory_peak_bytes'] <= stats['budget_bytes']
    # Updates went on after step(), and forward waited for some of them.
    assert optimizer.stats()['updates_waited_seconds'] > 0
    other, expected = in_memory(6)
    assert losses == expected
    check_equal_values(values(network), values(other))
    optimizer.zero_grad()
    before = offload.stats()['managed_bytes']
    assert all(gradients_below(network))
    assert any(is_cold(p.grad) for p in network.parameters())
    assert before == stats['parameter_bytes']
    assert offload.stats()['managed_bytes'] == 2 * before
    offload.close()
    assert os.listdir(tmp_path) == []
    with pytest.raises(RuntimeError, match='closed'):
        optimizer.step()


def test_the_numbers_are_torchs(tmp_path):
    network, other = model(), model()
    optimizer, _, settings = terrace.from_deepspeed_config(
        network, one_path(tmp_path), offload=True)
    theirs = torch.optim.AdamW(other.parameters(), **ADAMW['params'])

    def clip(*_):
        torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)

    theirs.register_step_pre_hook(clip)
    mine = train(network, optimizer, batches(8))
    assert mine == pytest.approx(train(other, theirs, batches(8)), rel=1e-5)
    settings['offload'].close()
    assert largest_difference(network, other) <= 1e-5


@pytest.mark.parametrize('budget', ['700KiB', '1MiB'])
def test_a_budget_in_bytes_is_for_all_of_it(tmp_path, budget):
    network = model()
    optimizer, _, settings = terrace.from_deepspeed_config(
        network, one_path(tmp_path), offload=True, memory_budget=budget)
    losses = train(network, optimizer, batches(6))
    with settings['offload'] as offload:
        stats = offload.stats()
    asked = {'700KiB': 700 << 10, '1MiB': 1 << 20}[budget]
    assert stats['memory_peak_bytes'] <= stats['budget_bytes'] <= asked
    other, expected = in_memory(6)
    assert losses == expected
    check_equal_values(values(network), values(other))


def test_a_share_is_of_everything(tmp_path):
    network = model()
    _, _, settings = terrace.from_deepspeed_config(
        network, one_path(tmp_path), offload=True, memory_budget='60%')
    stats = settings['offload'].stats()
    training = sum(12 * p.numel() for p in network.parameters())
    assert stats['joined_bytes'] >= 0.6 * training
    assert (stats['budget_bytes'] - stats['joined_bytes']
            <= 0.6 * stats['parameter_bytes'] + 1)
    assert 'memory_budget' not in {note['path'] for note in settings['notes']}


def test_a_budget_that_holds_no_optimizer_leaves_the_model_as_it_was(tmp_path):
    network, same = model(), model()
    least = 2 * (4 * 130 * 130 + 3 * 4096) + 4096  # of the parameters
    with pytest.raises(ValueError, match='below the minimum') as caught:
        terrace.from_deepspeed_config(network, one_path(tmp_path),
                                      offload=True, memory_budget=least)
    assert f'memory_budget={least}' in str(caught.value)
    assert not any(map(is_offloaded, network.parameters()))
    check_equal_values(values(network), values(same))
    assert os.listdir(tmp_path) == []


def test_a_file_holds_both(tmp_path):
    file = tmp_path / 'given'
    file.touch()
    network = model()
    optimizer, _, settings = terrace.from_deepspeed_config(
        network, config(nvme(file), nvme(file)), offload=True)
    train(network, optimizer, batches(2))
    settings['offload'].close()
    check_equal_values(values(network), values(in_memory(2)[0]))


def test_both_in_cpu_memory_join_too():
    network = model()
    optimizer, _, settings = terrace.from_deepspeed_config(
        network, config(CPU, CPU), offload=True)
    losses = train(network, optimizer, batches(6))
    stats = settings['offload'].stats()
    assert stats['managed_bytes'] == stats['parameter_bytes'] > 0
    assert stats['disk_bytes'] == stats['evictions'] == 0
    settings['offload'].close()
    with pytest.raises(RuntimeError, match='closed'):
        optimizer.step()
    other, expected = in_memory(6)
    assert losses == expected
    check_equal_values(values(network), values(other))


def test_a_budget_of_cpu_memory_is_for_all_of_it():
    for param, budget in ((None, '4MiB'), (CPU, '8MiB')):
        network = model()
        optimizer, _, _ = terrace.from_deepspeed_config(
            network, config(param, CPU), offload=True, memory_budget=budget)
        train(network, optimizer, batches(1))
    # It holds the state, as it did above, and not what passes through besides.
    network = model()
    with pytest.raises(ValueError, match='below the minimum'):
        terrace.from_deepspeed_config(network, config(CPU, CPU), offload=True,
                                      memory_budget='4MiB')
    assert not any(map(is_offloaded, network.parameters()))


@pytest.mark.parametrize('places', [
    'other path', 'more paths', 'memory', 'no device', 'state on nvme',
    'activations alone'])
def test_of_two_places_it_does_not_join(places, tmp_path):
    mine, other = two_directories(tmp_path)
    both = {'device': 'nvme', 'nvme_path': [str(mine), str(other)]}
    param, state, more = {
        'other path': (nvme(mine), nvme(other), {}),
        'more paths': (nvme(mine), both, {}),
        'memory': (nvme(mine), CPU, {}),
        'no device': (nvme(mine), None, {}),
        'state on nvme': (CPU, nvme(other), {}),
        'activations alone': (CPU, {**CPU, 'nvme_path': str(other)}, BELOW),
    }[places]
    network = model()
    optimizer, _, settings = terrace.from_deepspeed_config(
        network, config(param, state, **more), offload=True)
    assert not any(gradients_below(network))
    optimizer.step()
    assert optimizer.stats()['updates_waited_seconds'] == 0
    assert settings['offload'].stats()['joined_bytes'] == 0
    settings['offload'].close()
    optimizer.step()  # it is its own
    optimizer.close()


def test_with_activations_below(tmp_path):
    def run(**changes):
        torch.manual_seed(7)
        network = torch.nn.Sequential(*(torch.nn.Linear(256, 256)
                                        for _ in range(4)))
        optimizer, _, settings = terrace.from_deepspeed_config(network,
                                                               **changes)
        generator = torch.Generator().manual_seed(5)
        for _ in range(3):
            network(torch.randn(1200, 256, generator=generator)
                    ).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        offload = settings['offload']
        stats = offload and offload.stats()
        if offload:
            offload.close()
        return values(network), stats

    mine, stats = run(config=one_path(tmp_path, **BELOW), offload=True)
    assert stats['joined_bytes'] > 0 and stats['failures'] == 0
    assert stats['activation_tensors'] > 0
    check_equal_values(mine, run(config=config(stage=0))[0])


def test_a_skipped_step_and_a_schedule(tmp_path):
    """Of 16-bit parameters: nothing changes, the rate neither."""
    def run(text, **more):
        network = model().bfloat16()
        optimizer, scheduler, settings = terrace.from_deepspeed_config(
            network, {**text, **SCHEDULED, 'bf16': {'enabled': True}}, **more)
        rates = []
        for step, (inputs, _) in enumerate(batches(6, dtype=torch.bfloat16)):
            optimizer.zero_grad()
            network(inputs * (float('inf') if step == 3 else 1)
                    ).float().square().mean().backward()
            optimizer.step()
            scheduler.step()
            rates.append(optimizer.param_groups[0]['lr'])
        return network, optimizer, settings['offload'], rates

    network, optimizer, offload, rates = run(one_path(tmp_path), offload=True)
    other, theirs, _, expected = run(config(stage=0))
    assert rates == expected and rates[3] == rates[2] != rates[4]
    check_same_state(optimizer, theirs)
    offload.close()
    check_equal_values(values(network), values(other))


def test_a_schedule_where_no_step_is_skipped(tmp_path):
    def run(text, **more):
        network = model()
        optimizer, scheduler, settings = terrace.from_deepspeed_config(
            network, {**text, **SCHEDULED}, **more)
        train(network, optimizer, batches(4), scheduler.step)
        if settings['offload']:
            settings['offload'].close()
        return values(network)

    expected = run(config(stage=0))
    check_equal_values(run(one_path(tmp_path), offload=True), expected)


def test_groups_of_the_callers_optimizer(tmp_path):
    def run(text, **more):
        network = model()
        parts = list(network.parameters())
        optimizer, _, settings = terrace.from_deepspeed_config(
            network, {key: value for key, value in text.items()
                      if key != 'optimizer'},
            optimizer=torch.optim.Adam([
                {'params': parts[:5], 'lr': 1e-3}, {'params': parts[6:]}]),
            **more)
        return network, optimizer, settings, train(network, optimizer,
                                                   batches(4))

    network, optimizer, settings, losses = run(one_path(tmp_path),
                                               offload=True)
    assert settings['offload'].stats()['joined_bytes'] > 0
    other, theirs, _, expected = run(config(stage=0))
    assert losses == expected
    check_same_state(optimizer, theirs)
    settings['offload'].close()
    check_equal_values(values(network), values(other))


def test_a_checkpoint_goes_from_one_arrangement_to_another(tmp_path):
    mine, other = two_directories(tmp_path)
    texts = [one_path(mine), config(nvme(mine), nvme(other)), config(stage=0)]
    data = batches(6)

    def made(text):
        network = model()
        optimizer, _, settings = terrace.from_deepspeed_config(
            network, text, offload='offload_param' in text['zero_optimization'])
        return network, optimizer, settings['offload']

    network, optimizer, offload = made(texts[0])
    train(network, optimizer, data[:3])
    terrace.save(tmp_path / 'saved', network, optimizer)
    offload.close()
    expected = values(in_memory(6)[0])
    for text in texts:
        network, optimizer, offload = made(text)
        terrace.load(tmp_path / 'saved', network, optimizer)
        train(network, optimizer, data[3:])
        optimizer.close()
        if offload is not None:
            offload.close()
        check_equal_values(values(network), expected)


def test_threads_are_those_of_the_text(tmp_path):
    cores = len(os.sched_getaffinity(0))
    _, _, settings = terrace.from_deepspeed_config(
        model(), config(nvme(tmp_path), {
            **nvme(tmp_path), 'cpuadam_cores_perc': 0.5}), offload=True)
    assert managed_by(settings['offload']).settings.threads == max(
        1, cores // 2)
