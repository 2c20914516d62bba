"""terrace.offload over tiers other than one disk: far and persistent memory,
and two below memory."""

import os

import pytest
import torch

import terrace
from offloaded import (WIDTH, check_equal_values, check_same, is_cold, mlp,
                       sgd, train, values)

LAYERS = 24
PARAMETERS = 4 * LAYERS * (WIDTH + 1) * WIDTH

PERSISTENT, FAR, DISK, OTHER = ('pmem:{}/memory', 'far:node{}', 'nvme:{}/disk',
                                'nvme:{}/other')


def far_node():
    """Beside another node; a test that needs it ends without one."""
    nodes = [int(name[4:]) for name in os.listdir('/sys/devices/system/node')
             if name.startswith('node')]
    if len(nodes) < 2:
        pytest.skip('this machine has one memory node')
    return max(nodes)


@pytest.fixture(params=[
    [PERSISTENT + '=16MiB'], [FAR + '=16MiB'],
    [PERSISTENT + '=512KiB', DISK], [FAR + '=512KiB', DISK],
    [PERSISTENT + '=512KiB', FAR + '=16MiB'],
    [DISK + '=512KiB', OTHER + '=16MiB']],
    ids=lambda tiers: ' '.join(tier.replace('{}', '') for tier in tiers))
def below(request, tmp_path):
    """What is below memory: the last has room for all."""
    for name in ('memory', 'disk', 'other'):
        (tmp_path / name).mkdir()
    tiers = [tier.format(far_node() if tier.startswith('far') else tmp_path)
             for tier in request.param]
    terrace.use_unsafe_media(True)  # a file plays persistent memory
    yield tiers
    terrace.use_unsafe_media(False)


def loss_of(model, generator):
    """An activation has 64 KiB."""
    inputs = torch.randn(128, WIDTH, generator=generator)
    return model(inputs).square().mean()


def joining(parameters):
    return terrace.AdamW(parameters, lr=1e-2)


def check_gone(directory):
    """No file of it is there, mapped or open."""
    assert [name for _, _, names in os.walk(directory)
            for name in names] == []
    with open('/proc/self/maps', encoding='utf-8') as maps:
        assert str(directory) not in maps.read()
    for name in os.listdir('/proc/self/fd'):
        try:
            assert str(directory) not in os.readlink(f'/proc/self/fd/{name}')
        except FileNotFoundError:  # of listdir() itself
            continue


@pytest.mark.parametrize(('make', 'asked'), [
    (sgd, {}), (joining, {}),
    (sgd, {'activations': True, 'activations_above': '64KiB'})],
    ids=['others step', 'joined', 'activations'])
def test_a_step_has_the_bits_of_one_in_memory(tmp_path, below, make, asked):
    plain, model = mlp(LAYERS), mlp(LAYERS)
    expected = train(plain, loss_of, make, steps=3)
    try:
        offload = terrace.offload(model, tiers=['dram=640KiB', *below],
                                  **asked)
    except NotImplementedError as error:  # built without libpmem2
        pytest.skip(str(error))
    check_same(train(model, loss_of, make, steps=3), expected)

    cold = sum(parameter.untyped_storage().nbytes()
               for parameter in model.parameters() if is_cold(parameter))
    assert cold >= PARAMETERS - (640 << 10)
    stats = offload.stats()
    assert stats['failures'] == 0
    assert stats['memory_peak_bytes'] <= stats['budget_bytes'] == 640 << 10
    if asked:
        assert stats['activation_written_bytes'] > 0
    tiers = stats['tiers'][1:]
    assert [tier['name'] for tier in tiers] == [tier.partition('=')[0]
                                                for tier in below]
    assert sum(tier['used_bytes'] for tier in tiers) >= cold
    for tier in tiers:
        assert 0 < tier['used_bytes'] <= tier['peak_bytes']
        assert not tier['budget_bytes'] or (tier['peak_bytes']
                                            <= tier['budget_bytes'])
        assert tier['state'] in ('healthy', 'slow') and not tier['write_error']
    assert len(stats['links']) == 2 * len(below)
    assert all(link['bytes'] > 0 for link in stats['links'])

    offload.close()
    check_gone(tmp_path)
    check_equal_values(values(model), values(plain))
    assert not any(map(is_cold, model.parameters()))
