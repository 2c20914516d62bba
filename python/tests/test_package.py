"""The installed package: what it loads, refuses and says."""

import importlib
import importlib.metadata
import inspect
import json
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch

import terrace
from terrace._base import library

FOLDER = pathlib.Path(terrace.__file__).parent


def run(*arguments, **options):
    return subprocess.run([sys.executable, *map(str, arguments)],
                          capture_output=True, text=True, timeout=120,
                          **options)


def test_the_file_is_named_after_this_torch():
    version = '.'.join(torch.__version__.split('.')[:2])
    assert library.load() == FOLDER / f'terrace_torch-{version}.so'
    assert library.load() == library.load()


def test_another_torch_is_refused_in_one_line(tmp_path):
    package = tmp_path / 'terrace'
    shutil.copytree(FOLDER, package, ignore=shutil.ignore_patterns('*.so'))
    shutil.copy(library.load(), package / 'terrace_torch-2.99.so')
    result = run('-P', '-c', 'import sys; sys.path.insert(0, sys.argv[1])\n'
                 'import terrace', tmp_path)
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith('ImportError: terrace was built for torch 2.99 and '
                           f'this is torch {torch.__version__}')
    assert 'undefined symbol' not in result.stderr


def test_the_file_needs_no_path_of_its_builder():
    dynamic = subprocess.run(['readelf', '-d', library.load()], check=True,
                             capture_output=True, text=True).stdout
    paths = [line.split('[')[1].split(']')[0] for line in dynamic.splitlines()
             if 'RUNPATH' in line or 'RPATH' in line]
    assert all(path == '$ORIGIN' for path in paths), paths
    needed = [line.split('[')[1].split(']')[0] for line in dynamic.splitlines()
              if '(NEEDED)' in line]
    assert not [n for n in needed if 'gomp' in n or 'omp.so' in n
                or 'python' in n or 'cuda' in n], needed


def test_info():
    result = run('-P', '-m', 'terrace', 'info')
    assert result.returncode == 0, result.stderr
    for word in ('terrace', terrace.__version__, torch.__version__, 'engine',
                 terrace.instruction_set(), str(library.load())):
        assert word in result.stdout


def test_info_of_a_path(tmp_path):
    result = run('-P', '-m', 'terrace', 'info', '--json', '--nvme-path',
                 tmp_path)
    facts = json.loads(result.stdout)
    assert 'I/O' in facts[f'path {tmp_path}']
    assert not list(tmp_path.iterdir())
    missing = run('-P', '-m', 'terrace', 'info', '--nvme-path',
                  tmp_path / 'typo')
    assert missing.returncode == 1
    assert str(tmp_path / 'typo') in missing.stderr
    assert 'Traceback' not in missing.stderr


def test_signature_is_the_published_one():
    signature = inspect.signature(terrace.AdamW)
    assert [(p.name, p.default) for p in signature.parameters.values()][1:] == [
        ('lr', 1e-3), ('betas', (0.9, 0.999)), ('eps', 1e-8),
        ('weight_decay', 1e-2), ('amsgrad', False), ('maximize', False),
        ('foreach', None), ('capturable', False), ('differentiable', False),
        ('fused', None), ('memory_budget', None), ('nvme_path', None),
        ('tiers', None), ('daemon', None), ('max_grad_norm', None),
        ('io_engine', 'auto'),
        ('process_group', None), ('step_in_backward', 0), ('overlap', None),
        ('offload', None)]
    assert issubclass(terrace.AdamW, torch.optim.Optimizer)


def test_adam_takes_what_adamw_takes():
    """But for torch.optim.Adam's own; each with the same meaning."""
    def taken(kind):
        return {p.name: (p.default, p.kind)
                for p in inspect.signature(kind).parameters.values()}
    adamw, adam = taken(terrace.AdamW), taken(terrace.Adam)
    assert adam.pop('weight_decay')[0] == 0
    assert adam.pop('decoupled_weight_decay')[0] is False
    del adamw['weight_decay']
    assert adam == adamw
    assert inspect.signature(torch.optim.Adam).parameters.keys() <= (
        inspect.signature(terrace.Adam).parameters.keys())


@pytest.mark.parametrize('name', terrace.__all__)
def test_everything_public_is_there_and_documented(name):
    thing = getattr(terrace, name)
    assert isinstance(thing, str) or inspect.getdoc(thing)


def test_annotations_are_shipped():
    assert (FOLDER / 'py.typed').exists()
    for module in ('_optimizer.adamw', '_state.store', '_base.errors'):
        module = importlib.import_module(f'terrace.{module}')
        for _, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__:
                assert 'return' in function.__annotations__, function


def test_nothing_asks_for_a_torch():
    """An installer would fetch another than the one that it is built for."""
    folder = pathlib.Path(__file__).resolve().parents[2]
    tomllib = pytest.importorskip('tomllib')  # from Python 3.11 on
    project = tomllib.loads((folder / 'pyproject.toml').read_text())
    asked = project['build-system']['requires']
    asked += project['project'].get('dependencies', [])
    try:
        asked += importlib.metadata.requires('terrace') or []
    except importlib.metadata.PackageNotFoundError:
        pass  # run from the tree
    sys.path.insert(0, str(BACKEND))
    try:
        asked += importlib.import_module(
            'terrace_build').get_requires_for_build_wheel()
    finally:
        sys.path.remove(str(BACKEND))
    assert asked and not [name for name in asked if 'torch' in name], asked


BACKEND = pathlib.Path(__file__).resolve().parents[1] / 'build_backend'


def backend(expression, **environment):
    return run('-c', 'import sys; sys.path.insert(0, sys.argv[1])\n'
               f'import terrace_build\nprint({expression})', BACKEND,
               env={'PATH': '/usr/bin:/bin', **environment})


def test_the_build_finds_this_torch_in_spite_of_isolation(tmp_path):
    """As pip calls it: another site-packages by PYTHONPATH and a
    sitecustomize that hides the environment's."""
    (tmp_path / 'sitecustomize.py').write_text(
        'import sys\nsys.path = [p for p in sys.path\n'
        '            if not p.endswith("site-packages")]\n')
    for package in ('scikit_build_core', 'packaging', 'pathspec'):
        source = pathlib.Path(importlib.import_module(package).__file__).parent
        (tmp_path / package).symlink_to(source)
    hidden = run('-c', 'import torch', env={'PATH': '/usr/bin:/bin',
                                            'PYTHONPATH': str(tmp_path)})
    assert hidden.returncode == 1 and 'torch' in hidden.stderr
    result = backend('terrace_build.torch_root()', PYTHONPATH=str(tmp_path))
    assert result.stdout.strip() == str(pathlib.Path(torch.__file__).parent)


def test_the_build_refuses_a_torch_it_cannot_use(tmp_path):
    header = tmp_path / 'include/torch/headeronly/version.h'
    header.parent.mkdir(parents=True)
    header.write_text('#define TORCH_VERSION_MAJOR 2\n'
                      '#define TORCH_VERSION_MINOR 10\n'
                      '#define TORCH_VERSION_PATCH 1\n')
    result = backend('terrace_build.torch_root()',
                     TERRACE_TORCH_ROOT=str(tmp_path))
    assert result.returncode == 1
    assert result.stderr.strip() == (
        f'terrace: torch in {tmp_path} is 2.10.1; Terrace needs 2.11 to 2.15')


def test_the_build_fetches_the_header_that_a_torch_for_cuda_lacks(tmp_path):
    root, headers = tmp_path / 'torch', tmp_path / 'nvidia/cu13/include'
    root.mkdir()
    asked = f'terrace_build._cuda_headers({str(root)!r})'

    def version(cuda):
        (root / 'version.py').write_text(f'cuda: Optional[str] = {cuda}\n')

    version('None')
    assert backend(asked).stdout.strip() == '[]'
    version("'13.2'")
    assert backend(asked).stdout.strip() == '[]'  # nor is the runtime there
    headers.mkdir(parents=True)
    (headers / 'cuda_runtime_api.h').touch()
    assert backend(asked).stdout.strip() == "['nvidia-cuda-crt==13.2.*']"
    assert backend(asked, TERRACE_CUDA_ROOT='off').stdout.strip() == '[]'
    (headers / 'crt').mkdir()
    (headers / 'crt/host_defines.h').touch()
    assert backend(asked).stdout.strip() == '[]'


def test_the_build_says_that_there_is_no_torch(monkeypatch):
    result = backend('[setattr(terrace_build, "_candidates", lambda: []),'
                     ' terrace_build.torch_root()]')
    assert result.returncode == 1
    assert 'no torch is installed' in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
