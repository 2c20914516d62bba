"""What export_torch and save find out before a file is put in place, and in
how much memory."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

import terrace
from conftest import model

# The process may map so many MiB more than it has.
LIMITED = '''
    import os, resource, sys, torch, terrace
    folder, room = sys.argv[1], int(sys.argv[2])
    network = torch.nn.Linear(4096, 4096, bias=False)
    optimizer = terrace.AdamW(network.parameters(), nvme_path=folder,
                              memory_budget='16MiB')
    network.weight.grad = torch.ones_like(network.weight)
    optimizer.step()
    network.weight.grad = None
    values = torch.ones(64 << 20, dtype=torch.uint8)
    small = torch.nn.Linear(2, 2)
    terrace.export_torch(folder + '/first', small)
    terrace.save(folder + '/small', small)
    with open('/proc/self/statm') as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (room << 20),) * 2)
    '''


def limited(folder, room, code):
    ended = subprocess.run(
        [sys.executable, '-P', '-c', textwrap.dedent(LIMITED)
         + textwrap.dedent(code), folder, str(room)],
        check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_a_file_larger_than_what_can_be_mapped(tmp_path):
    said = limited(tmp_path, 120, '''
        print(terrace.export_torch(folder + '/run', network, optimizer))
        ''')
    assert int(said) == (tmp_path / 'run').stat().st_size > 190 << 20
    content = torch.load(tmp_path / 'run', weights_only=True)
    assert content['optimizer']['state'][0]['step'] == 1


def test_no_room_for_the_copies_of_values_is_no_fault_of_theirs(tmp_path):
    said = limited(tmp_path, 100, '''
        try:
            terrace.save(folder + '/small', small, values={'v': values})
        except MemoryError as error:
            print('MemoryError', error)
        ''')
    assert said.startswith('MemoryError')
    assert terrace.load(tmp_path / 'small', torch.nn.Linear(2, 2)) == {}


@pytest.mark.parametrize('kind', [OSError, MemoryError])
def test_what_the_machine_lacks_is_no_fault_of_the_file(tmp_path, monkeypatch,
                                                        kind):
    path = tmp_path / 'run'
    terrace.export_torch(path, model(seed=1))
    before = path.read_bytes()
    plain = torch.load

    def lacking(file, *arguments, **named):
        if isinstance(file, (str, os.PathLike)):
            raise kind(12, 'Cannot allocate memory')
        return plain(file, *arguments, **named)

    monkeypatch.setattr(torch, 'load', lacking)
    with pytest.raises(kind):
        terrace.export_torch(path, model(seed=2))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_no_room_to_map_a_file_is_no_fault_of_the_file(tmp_path):
    torch.save({'weight': torch.ones(4096, 4096), 'x': torch.ones(96 << 20)},
               tmp_path / 'big')
    said = limited(tmp_path, 200, '''
        try:
            terrace.import_torch(folder + '/big', network)
        except MemoryError as error:
            print('MemoryError', error)
        ''')
    assert said.startswith(f'MemoryError terrace: {tmp_path}/big')


NOT_EXPORTED = {
    'storage': lambda: torch.ones(3).untyped_storage(),
    'typed storage': lambda: torch.ones(3).storage(),
    'nested': lambda: torch.nested.nested_tensor([torch.ones(2),
                                                  torch.ones(3)]),
    'meta': lambda: torch.empty(3, device='meta')}


@pytest.mark.parametrize('kind', NOT_EXPORTED)
@pytest.mark.filterwarnings('ignore')
def test_what_has_no_plain_elements_is_refused_before_anything(tmp_path, kind):
    path = tmp_path / 'run'
    terrace.export_torch(path, model(seed=1))
    before = path.read_bytes()
    with pytest.raises(NotImplementedError, match='^terrace: '):
        terrace.export_torch(path, model(seed=2),
                             values={'v': [NOT_EXPORTED[kind]()]})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_that_is_standard_output(tmp_path):
    said = limited(tmp_path, 500, '''
        for path in ('/dev/stdout', '/proc/self/fd/1'):
            try:
                terrace.export_torch(path, small)
            except ValueError as error:
                print(error)
        ''').splitlines()
    assert len(said) == 2
    assert all('is no regular file' in line for line in said)


@pytest.mark.parametrize('name', ['\ud800', 'a\0b'])
def test_a_name_that_no_file_can_have(tmp_path, name):
    with torch.device('meta'):
        bare = torch.nn.Linear(2, 2)
    path = f'{tmp_path}/{name}'
    for door in (lambda: terrace.export_torch(path, torch.nn.Linear(2, 2)),
                 lambda: terrace.import_torch(path, torch.nn.Linear(2, 2)),
                 lambda: terrace.offload(bare, checkpoint=path)):
        with pytest.raises(ValueError, match='^terrace: .*no name'):
            door()


@pytest.mark.parametrize('key', ['step', 'exp_avg', 'exp_avg_sq'])
def test_state_on_the_meta_device(key):
    network = torch.nn.Linear(2, 2)
    optimizer = terrace.AdamW(network.parameters())
    network(torch.ones(2)).sum().backward()
    optimizer.step()
    given = optimizer.state_dict()
    before = optimizer.state[network.weight]['exp_avg'].clone()
    given['state'][1] = {**given['state'][1],
                         key: given['state'][1][key].to('meta')}
    given['state'][0]['exp_avg'] = torch.ones(2, 2)
    with pytest.raises(ValueError, match=f'^terrace: .*{key} .*meta'):
        optimizer.load_state_dict(given)
    assert torch.equal(optimizer.state[network.weight]['exp_avg'], before)
