"""CUDA's modules are in the package, and no process without a GPU has them."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

import terrace

FOLDER = pathlib.Path(terrace.__file__).parent
TORCH = '.'.join(torch.__version__.split('.')[:2])
MODULES = ['libterrace_cuda.so', f'libterrace_torch_cuda-{TORCH}.so']
pytestmark = [
    pytest.mark.skipif(torch.version.cuda is None,
                       reason='torch is built without CUDA'),
    pytest.mark.skipif(os.environ.get('TERRACE_CUDA_ROOT') == 'off',
                       reason='built without a toolkit: TERRACE_CUDA_ROOT')]

# The files of this process whose names have one of the words.
MAPPED = """
import pathlib
def mapped(*words):
    names = {line.split('/')[-1]
             for line in open('/proc/self/maps').read().splitlines()
             if '/' in line}
    return sorted(name for name in names if any(w in name for w in words))
"""


def run(code, *arguments):
    done = subprocess.run([sys.executable, '-P', '-c', MAPPED + code,
                           *map(str, arguments)],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def dynamic(module, tag):
    text = subprocess.run(['readelf', '-d', FOLDER / module], check=True,
                          capture_output=True, text=True).stdout
    return [line.split('[')[1].split(']')[0] for line in text.splitlines()
            if tag in line]


def test_the_package_has_them():
    assert sorted(path.name for path in FOLDER.glob('lib*.so')) == MODULES
    for module in MODULES:
        assert (FOLDER / module).stat().st_size < 1_000_000


@pytest.mark.parametrize('module', MODULES)
def test_they_have_torchs_libraries_and_no_path_of_their_builder(module):
    paths = dynamic(module, 'RUNPATH') + dynamic(module, 'RPATH')
    assert set(paths) <= {'$ORIGIN'}
    torchs = {'libc10.so', 'libc10_cuda.so', 'libcudart.so.13'}
    systems = {'libstdc++.so.6', 'libgcc_s.so.1', 'libc.so.6', 'libm.so.6',
               'ld-linux-x86-64.so.2', 'ld-linux-aarch64.so.1'}
    needed = set(dynamic(module, '(NEEDED)'))
    assert 'libcudart.so.13' in needed
    assert needed <= torchs | systems, needed - torchs - systems


def test_each_symbol_is_in_what_torch_has_loaded():
    """And the process has one runtime of CUDA, that of torch."""
    loaded = run("""
import ctypes, os, sys, torch
before = mapped('libcudart')
for module in sys.argv[1:]:
    entry = [name for name in ('terrace_torch_cuda_calls', 'terrace_cuda_calls')
             if hasattr(ctypes.CDLL(module, os.RTLD_NOW), name)]
    assert entry, module
assert len(before) == 1 and mapped('libcudart') == before, before
print(*mapped('libterrace'))
""", *[FOLDER / module for module in MODULES])
    assert loaded == MODULES


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_without_a_gpu_none_is_loaded(tmp_path):
    assert run("""
import sys, torch, terrace
model = torch.nn.Linear(64, 64)
offload = terrace.offload(model, memory_budget='50%', nvme_path=sys.argv[1])
optimizer = terrace.AdamW(model.parameters(), offload=offload)
model(torch.randn(2, 64)).sum().backward()
optimizer.step()
print(*mapped('libterrace', 'terrace_torch'))
optimizer.close()
offload.close()
""", tmp_path) == [f'terrace_torch-{TORCH}.so']


def test_an_import_loads_none():
    assert run('import terrace\nterrace.instruction_set()\n'
               "print(*mapped('libterrace', 'terrace_torch'))") == [
                   f'terrace_torch-{TORCH}.so']
