"""Libraries that read a tensor's memory without an operation of torch write a
right file of parameters that are away, or say so: each in a process of its own,
whose end would be the alternative."""

import os
import subprocess
import sys
import textwrap

import pytest

BEGIN = '''
import sys
import torch, terrace
from offloaded import *
path = sys.argv[1] + '/file'
model, plain = mlp(), mlp()
offload = terrace.offload(model, memory_budget='400KiB', nvme_path=sys.argv[2])
cold = {name: p for name, p in model.named_parameters() if is_cold(p)}
assert len(cold) > 4
expected = values(plain)

def right(read):
    """Exits well if that reads what was to be written."""
    got = read()
    assert got and all(torch.equal(got[name], expected[name]) for name in got)
    print('right')

def attempt(write, read):
    try:
        write()
    except Exception as error:
        print(f'{type(error).__name__}: {error}')
    else:
        right(read)
'''

READERS = {
    'torch.save of a state_dict': '''
        attempt(lambda: torch.save(model.state_dict(), path),
                lambda: torch.load(path))''',
    'torch.save of cold tensors': '''
        cold = {name: p.detach() for name, p in cold.items()}
        for p in plain.parameters():  # something else
            p.sum()
        for p in model.parameters():
            p.detach().sum()
        attempt(lambda: torch.save(cold, path), lambda: torch.load(path))''',
    'torch.save of a model': '''
        attempt(lambda: torch.save(model, path),
                lambda: values(torch.load(path, weights_only=False)))''',
    'safetensors.save_file': '''
        from safetensors.torch import load_file, save_file
        attempt(lambda: save_file(model.state_dict(), path),
                lambda: load_file(path))''',
    'safetensors.save_model': '''
        from safetensors.torch import load_file, save_model
        attempt(lambda: save_model(model, path), lambda: load_file(path))''',
    'numpy': '''
        import numpy
        def write():
            numpy.savez(path, **{name: p.detach().numpy()
                                 for name, p in model.named_parameters()})
        attempt(write, lambda: {
            name: torch.from_numpy(value)
            for name, value in numpy.load(path + '.npz').items()})''',
    'safetensors.save_file of cold tensors': '''
        from safetensors.torch import load_file, save_file
        cold = {name: p.detach() for name, p in cold.items()}
        for p in model.parameters():
            p.detach().sum()
        attempt(lambda: save_file(cold, path), lambda: load_file(path))''',
    'an array': '''
        array = model[10].weight.detach().numpy()[..., 1:]
        train(model, mlp_loss, steps=0)  # fetches the others
        assert (array == expected['10.weight'].numpy()[..., 1:]).all()
        array[...] = 7
        try:
            offload.close()
        except RuntimeError as error:
            assert 'is leased' in str(error)
        else:
            raise AssertionError('closed')
        del array
        offload.close()
        assert (model[10].weight[:, 1:] == 7).all()
        print('right')''',
    'pickle': '''
        import pickle
        attempt(lambda: pickle.dump(cold, open(path, 'wb')),
                lambda: pickle.load(open(path, 'rb')))''',
    'share_memory_': '''
        attempt(lambda: model[10].weight.share_memory_(),
                lambda: {'10.weight': model[10].weight})''',
    'terrace.save': '''
        optimizer = torch.optim.SGD(model.parameters(), lr=1)
        import safetensors.torch, glob
        def read():
            loaded = mlp(seed=9)
            other = terrace.AdamW(loaded.parameters())
            terrace.load(path, loaded, other)
            return values(loaded)
        optimizer = terrace.AdamW(model.parameters())
        attempt(lambda: terrace.save(path, model, optimizer), read)''',
}


def result_of(code, tmp_path):
    (tmp_path / 'below').mkdir()
    ended = subprocess.run(
        [sys.executable, '-c', BEGIN + textwrap.dedent(code), str(tmp_path),
         str(tmp_path / 'below')], capture_output=True, text=True, timeout=120,
        cwd=os.path.dirname(__file__))
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.mark.parametrize('reader', READERS)
def test_a_right_file_or_an_exception_that_says_why(tmp_path, reader):
    said = result_of(READERS[reader], tmp_path)
    print(reader, said)
    assert said == 'right' or 'terrace:' in said


def test_save_pretrained_of_a_tied_model(tmp_path):
    pytest.importorskip('transformers')
    said = result_of('''
        from test_offload_families import build
        model, plain = build('GPT2'), build('GPT2')
        offload = terrace.offload(model, memory_budget='33%',
                                  nvme_path=sys.argv[2])
        assert sum(map(is_cold, model.parameters())) > 10
        model.save_pretrained(sys.argv[1] + '/saved')
        again = type(model).from_pretrained(sys.argv[1] + '/saved')
        assert again.lm_head.weight is again.transformer.wte.weight
        expected = values(plain)
        right(lambda: values(again))
        ''', tmp_path)
    assert said.splitlines()[-1] == 'right'


def test_tensors_of_a_state_dict_are_the_parameters(tmp_path):
    said = result_of('''
        import copy
        made = model.state_dict()
        name = next(name for name, p in model.named_parameters()
                    if is_cold(p) and p.dim() == 2)
        entry, parameter = made[name], dict(model.named_parameters())[name]
        assert isinstance(entry, torch.Tensor) and not entry.requires_grad
        assert entry.data_ptr() != 0  # of a copy
        assert torch.equal(entry, expected[name])
        entry.mul_(2)
        assert torch.equal(parameter, 2 * expected[name])
        assert type(entry + 1) is type(copy.deepcopy(entry)) is torch.Tensor
        assert torch.equal(copy.deepcopy(entry), parameter)
        plain.load_state_dict(made)
        expected = values(plain)
        offload.close()
        right(lambda: {name: p.detach() for name, p
                       in model.named_parameters()})
        assert entry.data_ptr() == parameter.data_ptr()
        assert type(model.state_dict()[name]) is torch.Tensor
        ''', tmp_path)
    assert said == 'right'


def test_views_of_a_state_dict_have_addresses_in_its_copy(tmp_path):
    said = result_of('''
        made = model.state_dict()
        name = next(name for name, p in model.named_parameters()
                    if is_cold(p) and p.dim() == 2)
        entry = made[name]
        end = entry.view(-1)[-1].data_ptr() + entry.element_size()
        assert end - entry.data_ptr() == entry.nbytes
        for view in entry[3], entry.t(), entry.detach()[1:], entry.data.view(-1):
            offset = view.storage_offset() * view.element_size()
            assert view.data_ptr() == entry.data_ptr() + offset
            view.mul_(2)  # of the parameter
        parameter = dict(model.named_parameters())[name]
        assert not torch.equal(parameter, expected[name])
        assert torch.equal(entry, parameter)
        assert type(entry.sum()) is type(entry[3] + 1) is torch.Tensor
        print('right')
        ''', tmp_path)
    assert said == 'right'


def test_the_address_of_a_view_that_is_away_is_refused(tmp_path):
    said = result_of('''
        matrices = [p for p in cold.values() if p.dim() == 2]
        assert matrices
        for parameter in matrices:
            for view in parameter, parameter.view(-1)[5:], parameter.t()[3:]:
                try:
                    view.data_ptr()
                except RuntimeError as error:
                    assert 'terrace:' in str(error)
                else:
                    raise AssertionError(view.shape)
        print('right')
        ''', tmp_path)
    assert said == 'right'
