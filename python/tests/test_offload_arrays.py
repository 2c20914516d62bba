"""Arrays of numpy and DLPack that were made before a model is offloaded, in a
process of their own, whose end would be the alternative."""

import os
import subprocess
import sys
import textwrap

import pytest

BEGIN = '''
import gc, sys, threading
import numpy as np
import torch, terrace
from offloaded import *
kind = sys.argv[2]

def made():
    model, plain = mlp(), mlp()
    if kind == 'frozen':
        model.requires_grad_(False)
    return model, plain, model[4].weight

model, plain, weight = made()
expected = weight.detach().numpy().copy()
model, plain, weight = made()

def used(offload):
    """Each layer goes away, and comes again."""
    generator, other = torch.Generator(), torch.Generator()
    for step in range(3):
        with torch.no_grad():
            assert torch.equal(mlp_loss(model, generator.manual_seed(step)),
                               mlp_loss(plain, other.manual_seed(step)))
'''

ARRAYS = {
    'numpy': 'array = weight.detach().numpy()',
    'data': 'array = weight.data.numpy()',
    'asarray': 'array = np.asarray(weight.detach())',
    'forced': 'array = weight.numpy(force=True)',
    'a view of an array': 'array = weight.detach().numpy()[:].reshape(128, -1)',
    'an array of a view':
        'array = weight.detach().view(-1).numpy().reshape(128, 128)',
    'an array of a transposed view': 'array = weight.detach().t().numpy().T',
    'a memoryview': 'array = memoryview(weight.detach().numpy())',
    'a tensor of an array': 'array = torch.from_numpy(weight.detach().numpy())',
    'in a container': '''
        array = [{"weight": weight.detach().numpy()}][0]["weight"]''',
    'DLPack': 'array = np.from_dlpack(weight.detach())',
    'DLPack of a frozen weight': '''
        weight.requires_grad_(False)
        array = np.from_dlpack(weight)''',
    'a capsule': '''
        capsule = torch.utils.dlpack.to_dlpack(weight.detach())
        array = torch.utils.dlpack.from_dlpack(capsule)
        del capsule''',
    'a tensor of DLPack': 'array = torch.from_dlpack(weight.detach())',
    'two': '''
        array = weight.detach().numpy()
        other = np.from_dlpack(weight.detach())''',
    'one of two': '''
        array = weight.detach().numpy()
        other = weight.detach().numpy()
        del other''',
    'before it was thawed': '''
        weight.requires_grad_(False)
        array = weight.numpy()
        weight.requires_grad_(True)''',
    'one of each': '''
        arrays = [each.detach().numpy() for each in model.parameters()]
        array = arrays[4]''',
    'of a tied weight': '''
        model.tied = model[4].weight
        plain.tied = plain[4].weight
        array = model.tied.detach().numpy()''',
    'of a thread': '''
        answers = []
        thread = threading.Thread(
            target=lambda: answers.append(weight.detach().numpy()))
        thread.start(), thread.join()
        array = answers.pop()''',
}


def run(code, tmp_path, kind='trained'):
    ended = subprocess.run(
        [sys.executable, '-c', BEGIN + textwrap.dedent(code), str(tmp_path),
         kind], capture_output=True, text=True, timeout=120,
        cwd=os.path.dirname(__file__))
    assert ended.returncode == 0, ended.stderr
    return ended


SHOWN = '''
offload = terrace.offload(model, memory_budget='30%', nvme_path=sys.argv[1])
used(offload)
assert (np.asarray(array) == expected).all()
with torch.no_grad():
    weight.add_(1), plain[4].weight.add_(1)
used(offload)
assert (np.asarray(array) == expected).all()
offload.close()
assert (np.asarray(array) == expected).all()
assert torch.equal(weight, plain[4].weight)
del model, weight, offload
gc.collect()
assert (np.asarray(array) == expected).all()
del array
model, plain, weight = made()
'''


@pytest.mark.parametrize('kind', ['trained', 'frozen'])
def test_an_array_shows_what_it_showed(tmp_path, kind):
    run(''.join(f'print({name!r}, file=sys.stderr)\n{textwrap.dedent(make)}\n'
                f'{SHOWN}' for name, make in ARRAYS.items()), tmp_path, kind)


LARGE = '''
def resident():
    gc.collect()
    with open('/proc/self/statm') as file:
        return int(file.read().split()[1]) * 4096

model = torch.nn.Sequential(*(torch.nn.utils.skip_init(
    torch.nn.Linear, 4096, 4096, bias=False) for _ in range(4)))
for each in model.parameters():
    torch.nn.init.constant_(each, 0.5)
SIZE = 4 * 64 << 20
offered = dict(memory_budget='60%', nvme_path=sys.argv[1])
'''


def test_the_memory_lives_as_long_as_the_array(tmp_path):
    run(LARGE + textwrap.dedent('''
        arrays = [each.detach().numpy() for each in model.parameters()]
        offload = terrace.offload(model, **offered)
        with_arrays = resident()
        del arrays
        assert resident() < with_arrays - SIZE * 0.9
        '''), tmp_path)


@pytest.mark.parametrize('make', [
    'holders = [np.from_dlpack(each.detach()) for each in model.parameters()]',
    '''
    for each in model.parameters():
        each.requires_grad_(False)
    holders = [np.from_dlpack(each) for each in model.parameters()]
    ''',
    'holders = model(torch.ones(1, 4096)).sum()'])
def test_of_what_ends_unseen_it_goes_at_the_next_step(tmp_path, make):
    run(LARGE + textwrap.dedent(make) + textwrap.dedent('''
        offload = terrace.offload(model, **offered)
        held = resident()
        del holders
        with torch.no_grad():
            model(torch.ones(1, 4096))
        assert resident() < held - SIZE * 0.7
        '''), tmp_path)


@pytest.mark.parametrize('made', [
    'passed = [each.detach().numpy().sum() for each in model.parameters()]',
    '''
    for each in model.parameters():
        each.requires_grad_(False)
        each.numpy().sum()
    ''',
    'aliases = [each.data for each in model.parameters()]',
    'views = {name: p.view(-1) for name, p in model.named_parameters()}',
    '''
    model.requires_grad_(False)
    views = {name: p.view(-1)[1:] for name, p in model.named_parameters()}
    ''',
    '''
    from safetensors.torch import load_file, save_file
    path = sys.argv[1] + '/weights'
    save_file(model.state_dict(), path)
    model.load_state_dict(load_file(path), assign=True)
    ''',
    '''
    path = sys.argv[1] + '/weights'
    torch.save(model.state_dict(), path)
    model.load_state_dict(torch.load(path), assign=True)
    ''',
    '''
    optimizer = torch.optim.AdamW(model.parameters())
    mlp_loss(model, torch.Generator().manual_seed(1)).backward()
    optimizer.step()
    '''])
def test_where_there_is_no_array_no_memory_stays(tmp_path, made):
    ended = run(textwrap.dedent(made) + '''
offload = terrace.offload(model, memory_budget='30%', nvme_path=sys.argv[1])
''', tmp_path)
    assert 'an array' not in ended.stderr


def test_it_is_told(tmp_path):
    ended = run('''
        array = weight.detach().numpy()
        offload = terrace.offload(model, memory_budget='30%',
                                  nvme_path=sys.argv[1])
        ''', tmp_path)
    assert "'4.weight': an array" in ended.stderr
    assert str(128 * 128 * 4) in ended.stderr


def test_what_is_refused_stays_the_arrays(tmp_path):
    run('''
        array = weight.detach().numpy()
        try:
            terrace.offload(model, memory_budget=4096,
                            nvme_path=sys.argv[1])
        except ValueError:
            pass
        model[6].weight.data = model[6].weight.detach().clone().share_memory_()
        try:
            terrace.offload(model, memory_budget='30%',
                            nvme_path=sys.argv[1])
        except ValueError as error:
            assert "'6.weight'" in str(error), error
        else:
            raise AssertionError('it was taken')
        with torch.no_grad():
            weight.add_(1)
        assert (array == expected + 1).all()
        ''', tmp_path)


@pytest.mark.parametrize('made', ['array = weight.grad.numpy()',
                                  'array = weight.grad.data.numpy()[:]'])
def test_of_a_gradient_that_an_optimizer_finds(tmp_path, made):
    run(textwrap.dedent('''
        mlp_loss(model, torch.Generator().manual_seed(1)).backward()
        mlp_loss(plain, torch.Generator().manual_seed(1)).backward()
        ''') + made + textwrap.dedent('''
        offload = terrace.offload(model, memory_budget='20%',
                                  nvme_path=sys.argv[1])
        optimizer = terrace.AdamW(model.parameters(), lr=1e-2, offload=offload)
        used(offload)
        assert (array == plain[4].weight.grad.numpy()).all()
        with torch.no_grad():
            weight.grad.mul_(2), plain[4].weight.grad.mul_(2)
        assert (array == plain[4].weight.grad.numpy()).all()
        optimizer.step()
        terrace.AdamW(plain.parameters(), lr=1e-2).step()
        optimizer.zero_grad()
        used(offload)
        ''') , tmp_path)
