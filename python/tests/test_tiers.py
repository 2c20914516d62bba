"""terrace.AdamW(tiers=[...])."""

import errno
import os

import pytest
import torch

import terrace


def _model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(256, 512),
                               torch.nn.Linear(512, 64))


def _train(model, optimizer, steps=4):
    losses = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(8, 256, generator=generator)
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _tier(stats, name):
    return next(tier for tier in stats['tiers'] if tier['name'] == name)


@pytest.mark.parametrize('kind', [terrace.AdamW, terrace.Adam])
def test_tiers_are_what_the_short_forms_are(kind, tmp_path):
    model = _model()
    expected = _train(model, kind(
        model.parameters(), memory_budget='256KiB', nvme_path=str(tmp_path)))
    other = _model()
    optimizer = kind(other.parameters(), tiers=[
        'dram=256KiB', f'nvme:{tmp_path}'])
    assert _train(other, optimizer) == expected
    for mine, theirs in zip(other.parameters(), model.parameters()):
        assert torch.equal(mine, theirs)
    stats = optimizer.stats()
    assert stats['memory_peak_bytes'] <= 256 << 10
    memory, disk = stats['tiers']
    assert memory == {'name': 'dram', 'kind': 'dram',
                      'budget_bytes': 256 << 10,
                      'used_bytes': memory['used_bytes'],
                      'peak_bytes': stats['memory_peak_bytes'],
                      'hits': memory['hits'],
                      'evictions': memory['evictions']}
    assert disk['name'] == f'nvme:{tmp_path}' and disk['kind'] == 'nvme'
    assert disk['budget_bytes'] == 0
    assert disk['used_bytes'] == stats['disk_bytes'] > 0
    down, up = stats['links']
    assert (down['from'], down['to']) == ('dram', disk['name'])
    assert down['bytes'] == stats['bytes_written'] > 0
    assert (up['from'], up['to']) == (disk['name'], 'dram')
    assert up['bytes'] == stats['bytes_read'] > 0
    assert down['seconds_blocked'] >= 0 and up['seconds_blocked'] >= 0


def test_without_a_dram_memory_has_a_tenth_as_with_a_path_alone(tmp_path):
    torch.manual_seed(3)
    model = torch.nn.Linear(1024, 2048)
    state = 8 * sum(parameter.numel() for parameter in model.parameters())
    for places in ({'tiers': [f'nvme:{tmp_path}']},
                   {'nvme_path': str(tmp_path)}):
        optimizer = terrace.AdamW(model.parameters(), **places)
        model(torch.ones(1, 1024)).sum().backward()
        optimizer.step()
        stats = optimizer.stats()
        assert stats['tiers'][0]['name'] == 'dram'
        assert stats['tiers'][0]['budget_bytes'] == (state + 9) // 10
        assert stats['disk_bytes'] > 0
        optimizer.close()


def test_a_disks_budget_is_held_and_the_next_takes_the_rest(tmp_path):
    first, second = tmp_path / 'first', tmp_path / 'second'
    first.mkdir()
    second.mkdir()
    model, plain = _model(), _model()
    optimizer = terrace.AdamW(model.parameters(), tiers=[
        f'nvme:{first}=300KiB', 'dram=256KiB', f'nvme:{second}=4MiB'])
    losses = _train(model, optimizer)
    reference = _train(plain, torch.optim.AdamW(plain.parameters()))
    assert losses == pytest.approx(reference, rel=1e-5)
    stats = optimizer.stats()
    assert 0 < _tier(stats, f'nvme:{first}')['peak_bytes'] <= 300 << 10
    assert _tier(stats, f'nvme:{second}')['used_bytes'] > 0
    on_disk = sum(os.stat(os.path.join(folder, name)).st_size
                  for folder, _, names in os.walk(first) for name in names)
    assert on_disk <= 300 << 10


def test_too_little_disk_is_no_room(tmp_path):
    model = _model()
    with pytest.raises(OSError, match='budget') as caught:
        optimizer = terrace.AdamW(model.parameters(), tiers=[
            'dram=256KiB', f'nvme:{tmp_path}=300KiB'])
        _train(model, optimizer)
    assert str(tmp_path) in str(caught.value)
    assert caught.value.errno == errno.EDQUOT  # the disk itself has room


def test_memory_alone(tmp_path):
    model = _model()
    optimizer = terrace.AdamW(model.parameters(), tiers=['dram=64MiB'])
    _train(model, optimizer)
    stats = optimizer.stats()
    assert stats['disk_bytes'] == 0
    assert stats['tiers'] == [{
        'name': 'dram', 'kind': 'dram', 'budget_bytes': 64 << 20,
        'used_bytes': stats['resident_bytes'],
        'peak_bytes': stats['memory_peak_bytes'],
        'hits': stats['tiers'][0]['hits'], 'evictions': 0}]
    assert stats['tiers'][0]['hits'] > 0
    assert 0 < stats['memory_bytes'] <= 64 << 20


def test_a_disk_below_enough_memory_is_not_opened(tmp_path):
    model = _model()
    optimizer = terrace.AdamW(model.parameters(), tiers=[
        'dram=64MiB', f'nvme:{tmp_path}=1GiB'])
    _train(model, optimizer)
    assert not list(tmp_path.iterdir())
    stats = optimizer.stats()
    assert [(tier['name'], tier['budget_bytes'])
            for tier in stats['tiers']] == [('dram', 64 << 20)]
    assert stats['links'] == [] and stats['paths'] == []


@pytest.mark.parametrize('memory', ['256KiB', '64MiB'])
def test_memory_of_a_node(memory, tmp_path):
    plain = _model()
    expected = _train(plain, terrace.AdamW(plain.parameters()))
    model = _model()
    optimizer = terrace.AdamW(model.parameters(), tiers=[
        f'dram:node0={memory}', f'nvme:{tmp_path}'])
    assert _train(model, optimizer) == expected
    first = optimizer.stats()['tiers'][0]
    assert (first['name'], first['kind']) == ('dram:node0', 'dram')
    optimizer.close()
    other = _model()
    with pytest.raises(Exception,
                       match='no memory node 1023; it has 0'):
        _train(other, terrace.AdamW(other.parameters(), tiers=[
            f'dram:node1023={memory}', f'nvme:{tmp_path}']))
    assert not list(tmp_path.iterdir())


def test_a_models_memory_of_a_node_is_its_optimizers_too(tmp_path):
    model = _model()
    with terrace.offload(model, tiers=['dram:node0=16MiB',
                                       f'nvme:{tmp_path}']) as offload:
        optimizer = terrace.AdamW(model.parameters(), offload=offload)
        _train(model, optimizer)
        for stats in (offload.stats(), optimizer.stats()):
            assert stats['tiers'][0]['name'] == 'dram:node0'


def test_without_a_budget_memory_has_none():
    model = _model()
    optimizer = terrace.AdamW(model.parameters())
    _train(model, optimizer)
    assert [tier['budget_bytes']
            for tier in optimizer.stats()['tiers']] == [0]


def test_a_path_with_an_equals_sign(tmp_path):
    folder = tmp_path / 'run=64MiB'
    folder.mkdir()
    model = _model()
    optimizer = terrace.AdamW(model.parameters(), tiers=[
        'dram=256KiB', f'nvme:{folder}=all'])
    _train(model, optimizer)
    assert _tier(optimizer.stats(), f'nvme:{folder}')['used_bytes'] > 0


def test_memory_without_a_disk_for_the_rest_says_so():
    with pytest.raises(ValueError, match='no tier below') as caught:
        terrace.AdamW(_model().parameters(), tiers=['dram=256KiB'])
    assert 'nvme_path' not in str(caught.value)
    assert 'memory_budget' not in str(caught.value)


def test_less_memory_than_works_names_the_tier(tmp_path):
    with pytest.raises(ValueError, match='below the minimum') as caught:
        terrace.AdamW(_model().parameters(), tiers=[
            'dram=4KiB', f'nvme:{tmp_path}'])
    assert str(caught.value).endswith("(tiers: 'dram=4KiB')")


@pytest.mark.parametrize('tiers, error, text', [
    ('dram=1GiB', TypeError, 'tiers is a list of texts'),
    (5, TypeError, 'tiers is a list of texts'),
    ([5], TypeError, 'a tier is a text'),
    ([], ValueError, 'tiers names no tier'),
    (['nvme:/tmp/none/at/all'], FileNotFoundError, 'a path of tiers'),
    (['dram=1GiB', 'dram=2GiB'], ValueError, 'not 2'),
    (['dram'], ValueError, 'dram needs a budget'),
    (['dram=much'], ValueError, 'its budget is much'),
    (['tape:/dev/st0'], ValueError, "not 'tape'"),
    (['dram=1GiB', 'hbm:cuda:0=1GiB'], NotImplementedError, 'hbm:cuda:0'),
    (['dram=1GiB', 'dram:node0=1GiB'], ValueError, 'not 2'),
])
def test_what_cannot_be_is_refused_by_its_name(tiers, error, text):
    with pytest.raises(error, match=text):
        terrace.AdamW(_model().parameters(), tiers=tiers)


@pytest.mark.parametrize('kind', [terrace.AdamW, terrace.Adam])
@pytest.mark.parametrize('short', [{'memory_budget': '1GiB'},
                                   {'nvme_path': '/tmp'}])
def test_tiers_beside_a_short_form_are_refused(kind, short):
    name = next(iter(short))
    with pytest.raises(ValueError, match=f'tiers and {name} together'):
        kind(_model().parameters(), tiers=['dram=1GiB'], **short)


@pytest.mark.parametrize('kind', [terrace.AdamW, terrace.Adam])
def test_tiers_beside_a_models_memory_are_refused(kind):
    model = _model()
    with terrace.offload(model) as offload:
        with pytest.raises(ValueError, match='offload and tiers together'):
            kind(model.parameters(), tiers=['dram=1GiB'], offload=offload)
    with pytest.raises(TypeError, match='offload is what terrace.offload'):
        kind(model.parameters(), offload=5)


def test_a_path_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match='a path of tiers'):
        terrace.AdamW(_model().parameters(), tiers=[
            'dram=256KiB', f'nvme:{tmp_path}/missing'])


def test_more_than_the_disk_has_is_refused(tmp_path):
    model = _model()
    with pytest.raises(ValueError, match='and there are'):
        _train(model, terrace.AdamW(model.parameters(), tiers=[
            'dram=256KiB', f'nvme:{tmp_path}=1000000TiB']))


def test_far_memory_that_is_not_there_is_refused_with_what_is():
    with pytest.raises(Exception, match='there is no node1023; this machine '
                                        'has node0 with') as caught:
        terrace.AdamW(_model().parameters(),
                      tiers=['dram=256KiB', 'far:node1023=8MiB'])
    assert "tier 'far:node1023=8MiB'" in str(caught.value)


def test_a_file_system_is_no_persistent_memory(tmp_path):
    places = [tmp_path / 'memory', tmp_path / 'disk']
    for place in places:
        place.mkdir()
    with pytest.raises(Exception, match='libpmem2|no persistent memory: .*'
                                        'granularity PAGE'):
        terrace.AdamW(_model().parameters(), tiers=[
            'dram=256KiB', f'pmem:{places[0]}=8MiB', f'nvme:{places[1]}'])
    assert [os.listdir(place) for place in places] == [[], []]


@pytest.fixture
def unsafe_media():
    terrace.use_unsafe_media(True)
    yield
    terrace.use_unsafe_media(False)


def test_a_file_plays_persistent_memory_and_it_is_said(tmp_path, unsafe_media,
                                                       caplog):
    places = [tmp_path / 'memory', tmp_path / 'disk']
    for place in places:
        place.mkdir()
    pmem, disk = f'pmem:{places[0]}', f'nvme:{places[1]}'
    model, plain = _model(), _model()
    with caplog.at_level('INFO', logger='terrace'):
        try:
            optimizer = terrace.AdamW(model.parameters(), tiers=[
                'dram=256KiB', f'{pmem}=300KiB', disk])
        except NotImplementedError as error:
            pytest.skip(str(error))
    assert any('unsafe media' in text and str(places[0]) in text
               for text in caplog.messages)
    reference = terrace.AdamW(plain.parameters())
    assert _train(model, optimizer) == _train(plain, reference)
    for mine, theirs in zip(model.parameters(), plain.parameters()):
        assert torch.equal(mine, theirs)
    stats = optimizer.stats()
    assert [tier['name'] for tier in stats['tiers']] == ['dram', pmem, disk]
    assert 0 < _tier(stats, pmem)['peak_bytes'] <= 300 << 10
    assert all(link['bytes'] > 0 for link in stats['links'])
    for tier in stats['tiers'][1:]:
        assert tier['state'] in ('healthy', 'slow') and not tier['write_error']
        assert tier['read_bytes_per_second'] > 0
        assert tier['write_bytes_per_second'] > 0
    assert 'state' not in stats['tiers'][0]
    assert 'hits' not in stats['tiers'][1]
    optimizer.close()
    assert [os.listdir(place) for place in places] == [[], []]


def test_without_the_word_it_is_refused_again(tmp_path, unsafe_media):
    terrace.use_unsafe_media(False)
    with pytest.raises(Exception, match='libpmem2|no persistent memory'):
        terrace.AdamW(_model().parameters(), tiers=[
            'dram=256KiB', f'pmem:{tmp_path}=8MiB'])


# Named, so it is wanted, whether memory holds all of the state or not.
@pytest.mark.parametrize('memory', ['256KiB', '64MiB'])
def test_a_tier_that_is_not_there_is_refused_beside_enough_memory(
        memory, tmp_path):
    dram = f'dram={memory}'
    for tier, why in [('far:node1023=8MiB', 'there is no node1023'),
                      (f'pmem:{tmp_path}=8MiB',
                       'libpmem2|no persistent memory: .*granularity PAGE'),
                      (f'pmem:{tmp_path}/none=8MiB', 'libpmem2|ENOENT')]:
        with pytest.raises(Exception, match=why) as caught:
            terrace.AdamW(_model().parameters(), tiers=[dram, tier])
        assert f"tier '{tier}'" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_not_taken_beside_enough_memory(tmp_path,
                                                         unsafe_media):
    model = _model()
    try:
        optimizer = terrace.AdamW(model.parameters(), tiers=[
            'dram=64MiB', f'pmem:{tmp_path}=8MiB'])
    except NotImplementedError as error:
        pytest.skip(str(error))
    _train(model, optimizer)
    assert not list(tmp_path.iterdir())
    assert [tier['name'] for tier in optimizer.stats()['tiers']] == ['dram']
    with pytest.raises(Exception, match='a budget of .*, and there are'):
        terrace.AdamW(_model().parameters(), tiers=[
            'dram=64MiB', f'pmem:{tmp_path}=1000000TiB'])
