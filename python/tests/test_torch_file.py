"""export_torch and import_torch: runs come from plain torch and go to it."""

import copy
import errno
import io
import os
import resource
import stat
import zipfile

import pytest
import torch

import terrace
from conftest import batches, largest_difference, model, train
from terrace._state.store import StateStore


def groups_of(network):
    """Three groups: weights, biases, one at its own rate."""
    return [{'params': [network[0].weight, network[2].weight],
             'weight_decay': 0.1},
            {'params': [network[0].bias, network[2].bias,
                        *network[3].parameters()], 'weight_decay': 0.0},
            {'params': list(network[4].parameters()), 'lr': 5e-3,
             'betas': (0.8, 0.99), 'eps': 1e-7}]


def stepped(tier, dtype, steps=4):
    network = model(dtype=dtype)
    optimizer = terrace.AdamW(groups_of(network), lr=2e-3, **tier)
    train(network, optimizer, batches(steps, dtype=dtype))
    return network, optimizer


def same(one, other):
    """Whether two state_dicts say the same, bit for bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize('mapped', [False, True])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_plain_torch_reads_all_that_the_state_dicts_say(tier, dtype, mapped,
                                                        tmp_path):
    network, optimizer = stepped(tier, dtype)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    size = terrace.export_torch(tmp_path / 'run.pt', network, optimizer,
                                scheduler=scheduler, values={'epoch': 3})
    assert size == (tmp_path / 'run.pt').stat().st_size
    content = torch.load(tmp_path / 'run.pt', weights_only=True, mmap=mapped)
    assert same(content['optimizer'], optimizer.state_dict())
    assert same(dict(content['model']), dict(network.state_dict()))
    assert same(content['scheduler'], scheduler.state_dict())
    assert content['values'] == {'epoch': 3}
    assert zipfile.ZipFile(tmp_path / 'run.pt').testzip() is None
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ['run.pt']


def test_torch_goes_on_from_the_file(tier, tmp_path):
    network, optimizer = stepped(tier, torch.float32)
    terrace.export_torch(tmp_path / 'run.pt', network, optimizer)
    content = torch.load(tmp_path / 'run.pt', weights_only=True)
    other = model(seed=1)
    other.load_state_dict(content['model'])
    successor = torch.optim.AdamW(groups_of(other))
    successor.load_state_dict(content['optimizer'])
    assert [group['lr'] for group in successor.param_groups] == [
        2e-3, 2e-3, 5e-3]
    for ours, theirs in zip(optimizer.param_groups, successor.param_groups):
        for p, q in zip(ours['params'], theirs['params']):
            assert same(optimizer.state[p], successor.state[q])
    more = batches(5, seed=7)
    train(network, optimizer, more)
    train(other, successor, more)
    assert largest_difference(network, other) <= 1e-5


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_terrace_goes_on_from_its_own_file_exactly(tier, dtype, tmp_path):
    network, optimizer = stepped(tier, dtype)
    terrace.export_torch(tmp_path / 'run.pt', network, optimizer,
                         values={'epoch': 3})
    other = model(dtype=dtype, seed=1)
    resumed = terrace.AdamW(groups_of(other), lr=9.0, memory_budget='300KiB',
                            nvme_path=str(tmp_path))
    rest = terrace.import_torch(tmp_path / 'run.pt', other, resumed)
    assert rest == {'values': {'epoch': 3}}
    assert same(resumed.state_dict(), optimizer.state_dict())
    more = batches(3, dtype=dtype, seed=7)
    train(network, optimizer, more)
    train(other, resumed, more)
    assert largest_difference(network, other) == 0
    assert same(resumed.state_dict(), optimizer.state_dict())


FORMS = {
    'as here': lambda m, o: ({'model': m, 'optimizer': o}, None),
    'as in tutorials': lambda m, o: (
        {'model_state_dict': m, 'optimizer_state_dict': o, 'epoch': 2}, None),
    'alone': lambda m, o: (o, m),
}


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('zipped', [True, False])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_terrace_goes_on_from_a_file_of_torch(tier, dtype, zipped, form,
                                              tmp_path):
    network = model(dtype=dtype)
    predecessor = torch.optim.AdamW(groups_of(network), lr=2e-3)
    train(network, predecessor, batches(4, dtype=dtype))
    first, second = FORMS[form](network.state_dict(), predecessor.state_dict())
    torch.save(first, tmp_path / 'run.pt',
               _use_new_zipfile_serialization=zipped)
    other = model(dtype=dtype, seed=1)
    optimizer = terrace.AdamW(groups_of(other), **tier)
    if second is None:
        rest = terrace.import_torch(tmp_path / 'run.pt', other, optimizer)
        assert rest == ({'epoch': 2} if 'epoch' in first else {})
    else:
        terrace.import_torch(tmp_path / 'run.pt', optimizer=optimizer)
        torch.save(second, tmp_path / 'model.pt')
        assert terrace.import_torch(tmp_path / 'model.pt', other) == {}
    assert largest_difference(network, other) == 0
    for theirs, ours in zip(predecessor.param_groups, optimizer.param_groups):
        assert all(theirs[key] == ours[key] for key in
                   ('lr', 'betas', 'eps', 'weight_decay'))
        for p, q in zip(theirs['params'], ours['params']):
            for key in ('exp_avg', 'exp_avg_sq', 'step'):
                # Of 16-bit parameters torch has 16-bit moments.
                assert torch.equal(predecessor.state[p][key].float(),
                                   optimizer.state[q][key])
    more = batches(4, dtype=dtype, seed=7)
    train(network, predecessor, more)
    train(other, optimizer, more)
    assert largest_difference(network, other) <= (
        1e-5 if dtype == torch.float32 else 0.05)


def test_tensors_of_every_kind_come_back(tmp_path):
    class Holder:
        def __init__(self, state):
            self.state = state

        def state_dict(self):
            return self.state

        def load_state_dict(self, state):
            self.state = state

    weight = torch.randn(6, 4)
    state = {'tied': [weight, weight.detach()], 'strided': weight[:, ::2],
             'transposed': weight.t(), 'empty': torch.empty(0, 3),
             'scalar': torch.tensor(2.5, dtype=torch.float64),
             'yes': torch.tensor([True, False]), 'large': torch.arange(3 << 20),
             'conjugate': torch.randn(3, dtype=torch.complex64).conj(),
             'numbers': [1, 2.5, None, 'text', (3,)]}
    terrace.export_torch(tmp_path / 'it.pt', things=Holder(state))
    taken = Holder(None)
    terrace.import_torch(tmp_path / 'it.pt', things=taken)
    assert same(taken.state, state)
    one, other = taken.state['tied']
    assert one.data_ptr() == other.data_ptr()
    assert taken.state['transposed'].stride() == (1, 4)
    with pytest.raises(NotImplementedError, match='sparse'):
        terrace.export_torch(tmp_path / 'it.pt',
                             things=Holder({'s': weight.to_sparse()}))
    terrace.import_torch(tmp_path / 'it.pt', things=taken)  # still the old one


def test_parameters_without_steps_and_masters(tmp_path):
    """Of a parameter that was never stepped there is no state; a master that
    was not made yet is what the next step would make."""
    network = model(dtype=torch.bfloat16)
    network[0].bias.requires_grad_(False)
    predecessor = torch.optim.AdamW(network.parameters())
    train(network, predecessor, batches(2, dtype=torch.bfloat16))
    optimizer = terrace.AdamW(network.parameters())
    optimizer.load_state_dict(predecessor.state_dict())
    terrace.export_torch(tmp_path / 'run.pt', network, optimizer)
    state = torch.load(tmp_path / 'run.pt', weights_only=True)['optimizer']
    assert 1 not in state['state']
    assert torch.equal(state['state'][0]['master_param'],
                       network[0].weight.float())
    assert same(state, optimizer.state_dict())


def test_what_is_not_there_is_said(tmp_path):
    network = model()
    optimizer = terrace.AdamW(network.parameters())
    with pytest.raises(FileNotFoundError):
        terrace.import_torch(tmp_path / 'no.pt', network)
    with pytest.raises(FileNotFoundError):
        terrace.export_torch(tmp_path / 'no' / 'run.pt', network)
    torch.save({'weights': network.state_dict()}, tmp_path / 'run.pt')
    with pytest.raises(ValueError, match="under 'model'.*it has 'weights'"):
        terrace.import_torch(tmp_path / 'run.pt', network)
    with pytest.raises(ValueError, match='of the optimizer'):
        terrace.import_torch(tmp_path / 'run.pt', optimizer=optimizer)
    torch.save([1], tmp_path / 'run.pt')
    with pytest.raises(ValueError, match='holds a list'):
        terrace.import_torch(tmp_path / 'run.pt', network)


def test_other_optimizers_are_objects(tmp_path):
    network = model()
    other = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    train(network, other, batches(2))
    with pytest.raises(TypeError, match='SGD'):
        terrace.export_torch(tmp_path / 'run.pt', network, other)
    terrace.export_torch(tmp_path / 'run.pt', network, sgd=other)
    resumed = torch.optim.SGD(network.parameters(), lr=9.0)
    terrace.import_torch(tmp_path / 'run.pt', network, sgd=resumed)
    assert same(resumed.state_dict(), other.state_dict())


def test_another_models_file_changes_nothing(tmp_path):
    network, optimizer = stepped({}, torch.float32)
    before = copy.deepcopy(optimizer.state_dict())
    other = model(width=64)
    foreign = torch.optim.AdamW(groups_of(other))
    train(other, foreign, batches(1, width=64))
    torch.save({'optimizer': foreign.state_dict()}, tmp_path / 'run.pt')
    with pytest.raises(ValueError, match=r'exp_avg of .* is \(64, 64\)'):
        terrace.import_torch(tmp_path / 'run.pt', optimizer=optimizer)
    assert same(before, optimizer.state_dict())


def test_a_full_disk_leaves_the_old_file(tmp_path):
    network, optimizer = stepped({}, torch.float32)
    path = tmp_path / 'run.pt'
    path.write_bytes(b'old')
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError) as caught:
            terrace.export_torch(path, network, optimizer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b'old'
    assert list(tmp_path.iterdir()) == [path]


def test_a_closed_optimizer_is_not_exported(tmp_path):
    network, optimizer = stepped({}, torch.float32)
    path = tmp_path / 'run.pt'
    path.write_bytes(b'old')
    child = os.fork()
    if child == 0:  # nor one of the parent process
        try:
            terrace.export_torch(path, network, optimizer)
        except RuntimeError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    optimizer.close()
    with pytest.raises(RuntimeError, match='is closed'):
        terrace.export_torch(path, network, optimizer)
    assert path.read_bytes() == b'old'
    assert list(tmp_path.iterdir()) == [path]


def test_state_that_is_lost_is_not_called_a_fault_of_the_file(tmp_path,
                                                              monkeypatch):
    network, optimizer = stepped({}, torch.float32)
    lost = terrace.DataLossError(errno.EIO, 'terrace: tensor 7 is gone')

    def read(*_):
        raise lost

    monkeypatch.setattr(StateStore, 'read', read)
    with pytest.raises(terrace.DataLossError) as caught:
        terrace.export_torch(tmp_path / 'run.pt', network, optimizer)
    assert caught.value is lost
    assert not list(tmp_path.iterdir())


def test_names_that_cannot_be_flushed_are_said_so(tmp_path, monkeypatch):
    network, optimizer = stepped({}, torch.float32)
    fsync = os.fsync

    def fail(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, 'Input/output error')
        fsync(descriptor)

    monkeypatch.setattr(os, 'fsync', fail)
    path = tmp_path / 'run.pt'
    with pytest.raises(OSError, match='the new file is there') as caught:
        terrace.export_torch(path, network, optimizer)
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == str(path)
    assert same(torch.load(path)['model'], network.state_dict())


def test_the_file_is_what_torch_would_have_written(tmp_path):
    """Also for other tools that read its pickle."""
    network, optimizer = stepped({}, torch.float32)
    terrace.export_torch(tmp_path / 'run.pt', network, optimizer)
    file = io.BytesIO()
    torch.save({'model': network.state_dict(),
                'optimizer': optimizer.state_dict()}, file)
    ours, theirs = zipfile.ZipFile(tmp_path / 'run.pt'), zipfile.ZipFile(file)
    def records(archive):
        return {name.split('/', 1)[1]: archive.read(name)
                for name in archive.namelist()}
    mine, others = records(ours), records(theirs)
    assert mine.keys() <= others.keys()
    for name, record in mine.items():
        if name != 'data.pkl':
            assert record == others[name], name
