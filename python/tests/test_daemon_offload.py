"""terrace.offload over a host's daemon: the bits of memory, its quotas, and
its end."""

import signal
import time

import pytest
import torch

import terrace
from daemons import Daemon, daemon, needs_terraced  # noqa: F401
from offloaded import (check_equal_values, check_identical_runs, check_same,
                       mlp, mlp_loss, token_loss, train, transformer, values)

pytestmark = needs_terraced

MIB = 1 << 20


def below(model, daemon, **changed):
    return terrace.offload(model, **{'memory_budget': '40%',
                                     'daemon': f'unix:{daemon.socket}',
                                     **changed})


@pytest.mark.parametrize('build, loss_of', [
    (mlp, mlp_loss), (transformer, token_loss),
    (lambda: mlp(dtype=torch.bfloat16), mlp_loss)])
@pytest.mark.parametrize('make', [terrace.AdamW, terrace.Adam])
def test_a_model_and_its_state_have_the_bits_of_memory(
        daemon, build, loss_of, make):  # noqa: F811
    def run(model):
        return train(model, loss_of, lambda parameters: make(
            list(parameters), lr=1e-2))
    plain = build()
    expected = run(plain)
    model = build()
    offload = below(model, daemon)
    check_same(run(model), expected)
    stats = offload.stats()
    # Whole pages of it.
    assert daemon.used_bytes()['dram'] > stats['budget_bytes'] - 4096
    offload.close()
    check_equal_values(values(model), values(plain))
    assert stats['failures'] == 0 and stats['joined_bytes'] > 0
    assert stats['evictions'] > 0 and stats['disk_bytes'] > 0
    assert stats['fetches'] + stats['fetches_ahead'] > 0
    assert _is_empty(daemon)


def test_others_optimizers_and_threads_work_as_ever(daemon):  # noqa: F811
    check_identical_runs(
        transformer, lambda model: train(model, token_loss),
        lambda model: below(model, daemon))


@pytest.mark.parametrize('parameters', [True, False])
def test_activations_go_below_there(daemon, parameters):  # noqa: F811
    def wide_loss(model, generator):
        inputs = torch.randn(256, 128, generator=generator)
        return model(inputs).square().mean()
    stats = check_identical_runs(
        mlp, lambda model: train(model, wide_loss),
        lambda model: below(model, daemon, memory_budget='1MiB',
                            parameters=parameters, activations=True,
                            activations_above='16KiB'))
    assert stats['activation_written_bytes'] > 0
    assert stats['activation_fetched_bytes'] > 0


def test_a_checkpoint_is_brought_there(daemon, tmp_path):  # noqa: F811
    filled = mlp(seed=3)
    torch.save(filled.state_dict(), tmp_path / 'weights.pt')
    with torch.device('meta'):
        model = mlp(seed=4)
    offload = below(model, daemon, checkpoint=tmp_path / 'weights.pt')
    assert offload.stats()['disk_bytes'] > 0
    inputs = torch.randn(3, 128)
    assert torch.equal(model(inputs), filled(inputs))
    offload.close()


def test_all_of_a_model_may_be_in_its_memory(daemon):  # noqa: F811
    stats = check_identical_runs(
        mlp, lambda model: train(model, mlp_loss, lambda parameters:
                                 terrace.AdamW(list(parameters), lr=1e-2)),
        lambda model: below(model, daemon, memory_budget='24MiB'))
    assert stats['bytes_read'] == 0 and stats['budget_bytes'] < 8 * MIB


def test_a_model_of_next_to_nothing_has_the_least_there_is(
        daemon):  # noqa: F811
    def loss(model, generator):
        return model(torch.randn(3, 2, generator=generator)).square().mean()
    for budget in (None, '10%', '1MiB'):
        check_identical_runs(
            _tiny,
            lambda model: train(model, loss, lambda parameters: terrace.AdamW(
                list(parameters), lr=1e-2)),
            lambda model: below(model, daemon, memory_budget=budget))
    optimizer = terrace.AdamW(torch.nn.Linear(2, 1).parameters(),
                              daemon=daemon.socket)
    optimizer.close()


def test_two_models_of_a_process_share_it(daemon):  # noqa: F811
    one, two = mlp(seed=1), mlp(seed=2)
    before = values(one), values(two)
    first, second = below(one, daemon), below(two, daemon)
    used = daemon.used_bytes()['dram']
    assert used > (first.stats()['budget_bytes']
                   + second.stats()['budget_bytes'] - 2 * 4096)
    first.close()
    assert daemon.used_bytes()['dram'] < used
    second.close()
    check_equal_values(values(one), before[0])
    check_equal_values(values(two), before[1])


@pytest.mark.parametrize('beside', [
    {'nvme_path': '/tmp'}, {'tiers': ['dram=1MiB', 'nvme:/tmp']}])
def test_what_the_daemon_says_is_not_said_twice(beside):
    with pytest.raises(ValueError, match=f'daemon and {next(iter(beside))}'):
        terrace.offload(mlp(), daemon='unix:/nowhere/s', **beside)


def test_a_gpus_memory_beside_it_is_for_later():
    with pytest.raises(NotImplementedError, match='hbm'):
        terrace.offload(mlp(), daemon='unix:/nowhere/s',
                        tiers=['hbm:cuda:0=1GiB', 'dram=1GiB'])


def test_an_optimizer_that_joins_has_the_models_daemon(daemon):  # noqa: F811
    model = mlp()
    offload = below(model, daemon)
    with pytest.raises(ValueError, match='offload and daemon'):
        terrace.AdamW(model.parameters(), offload=offload,
                      daemon=daemon.socket)
    offload.close()


def test_beyond_a_quota_is_memory_error_and_the_model_as_it_was(tmp_path):
    daemon = Daemon(tmp_path, "[quota.user]\ntiers = ['dram=256KiB']\n")
    model = mlp()
    before = values(model)
    with pytest.raises(MemoryError, match='the limit is 262144'):
        below(model, daemon, memory_budget='300KiB')
    check_equal_values(values(model), before)
    # Within it is the model; what an optimizer adds is not.
    offload = below(model, daemon, memory_budget='40%')
    with pytest.raises(MemoryError, match='the limit is 262144'):
        terrace.AdamW(model.parameters(), lr=1e-2)
    train(model, mlp_loss, steps=1)
    before = values(model)
    offload.close()
    check_equal_values(values(model), before)
    assert daemon.end() == 0


def test_once_it_is_gone_an_operation_says_so(daemon):  # noqa: F811
    model = mlp()
    offload = below(model, daemon)
    train(model, mlp_loss, steps=2)
    daemon.end(signal.SIGKILL)
    before = time.monotonic()
    with pytest.raises(RuntimeError, match='^terrace: .*checkpoint'):
        for _ in range(3):
            train(model, mlp_loss)
    assert isinstance(offload.error, ConnectionResetError)
    assert offload.error.filename == daemon.socket
    with pytest.raises(OSError):
        offload.close()
    assert time.monotonic() - before < 60


def _tiny():
    torch.manual_seed(1)
    return torch.nn.Linear(2, 1)


def _is_empty(daemon):
    until = time.monotonic() + 30
    while any(daemon.used_bytes().values()):
        if time.monotonic() > until:
            return False
    return True


@pytest.mark.parametrize('offloads', ['state', 'parameters', 'all'])
def test_a_deepspeed_configuration_may_name_it(
        daemon, offloads):  # noqa: F811
    zero = {'stage': 3}
    if offloads != 'parameters':
        zero['offload_optimizer'] = {'device': 'nvme'}
    if offloads != 'state':
        zero['offload_param'] = {'device': 'nvme'}
    config = {'train_micro_batch_size_per_gpu': 5,
              'optimizer': {'type': 'AdamW', 'params': {'lr': 1e-2}},
              'zero_optimization': zero,
              'terrace': {'daemon': f'unix:{daemon.socket}'}}

    def run(model, **changed):
        optimizer, _, settings = terrace.from_deepspeed_config(
            model, {**config, **changed})
        left = train(model, mlp_loss, lambda _: optimizer)
        used = daemon.used_bytes()['dram']
        if settings['offload'] is not None:
            settings['offload'].close()
        optimizer.close()
        return left, used
    plain = mlp()
    expected, used = run(plain, zero_optimization={'stage': 3}, terrace={})
    assert used == 0
    model = mlp()
    left, used = run(model)
    check_same(left, expected)
    check_equal_values(values(model), values(plain))
    assert used > 0 and _is_empty(daemon)


def test_a_path_beside_it_is_said_twice():
    config = {'train_micro_batch_size_per_gpu': 5,
              'optimizer': {'type': 'AdamW'},
              'zero_optimization': {'offload_optimizer': {
                  'device': 'nvme', 'nvme_path': '/tmp'}},
              'terrace': {'daemon': 'unix:/nowhere/s'}}
    with pytest.raises(ValueError, match='nvme_path.*not beside terrace.dae'):
        terrace.from_deepspeed_config(mlp(), config)
