"""What terrace.offload(checkpoint=...) takes of memory before it knows that a
file is one of weights: as much as the file has, up to a limit."""

import subprocess
import sys
import textwrap

import pytest
import torch

import terrace

# The process may map so much more than it has, as under a batch system.
LIMITED = '''
    import resource, sys, torch, terrace
    terrace.offload(torch.nn.Linear(4, 4), memory_budget='64MiB').close()
    with torch.device('meta'):
        model = torch.nn.Linear(4, 4)
    with open('/proc/self/statm') as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (700 << 20),) * 2)
    try:
        with terrace.offload(model, checkpoint=sys.argv[1],
                             memory_budget='64MiB'):
            print(model.weight.sum().item())
    except ValueError as error:
        print(error)
    '''


def limited(path):
    ended = subprocess.run(
        [sys.executable, '-P', '-c', textwrap.dedent(LIMITED), path],
        check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def write_own(folder):
    terrace.save(folder, torch.nn.Linear(4, 4))


def write_indexed(folder):
    from safetensors.torch import save_file
    folder.mkdir()
    save_file(torch.nn.Linear(4, 4).state_dict(), folder / 'part')
    (folder / 'model.safetensors.index.json').write_text(
        '{"weight_map": {"weight": "part", "bias": "part"}}')


@pytest.mark.parametrize('write', [write_own, write_indexed])
def test_a_small_file_takes_little(tmp_path, write):
    write(tmp_path / 'c')
    assert float(limited(tmp_path / 'c')) != 0


@pytest.mark.parametrize('name', ['checkpoint.json',
                                  'model.safetensors.index.json'])
@pytest.mark.parametrize('size', [(1 << 30) + 1, 1 << 40])
def test_a_file_beyond_the_limit_is_not_read(tmp_path, name, size):
    with open(tmp_path / name, 'wb') as file:
        file.truncate(size)
    said = limited(tmp_path)
    assert said.startswith(f'terrace: {tmp_path / name}: ')
    assert f'{size} bytes' in said


@pytest.mark.parametrize('places', [
    '["ab"]', '[["weight", "part"], ["bias", "part"]]',
    '{"weight": "\\ud800", "bias": "part"}'])
def test_an_index_that_maps_no_names_to_files(tmp_path, places):
    write_indexed(tmp_path / 'c')
    (tmp_path / 'c' / 'model.safetensors.index.json').write_text(
        f'{{"weight_map": {places}}}')
    with torch.device('meta'):
        model = torch.nn.Linear(4, 4)
    with pytest.raises(ValueError, match='index.json: is no index of weights'):
        terrace.offload(model, checkpoint=tmp_path / 'c')
