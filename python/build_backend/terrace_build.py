"""The build backend of pyproject.toml: scikit-build-core, told where torch is.

pip builds in an isolated environment that has no torch. The one to build
against is the one that the finished package will be imported beside, and none
is ever fetched. It is taken from, in this order:

  TERRACE_TORCH_ROOT   environment variable, or -Ccmake.define.TERRACE_TORCH_ROOT:
                       the `torch` folder itself
  the environment of the Python that pip runs in
  VIRTUAL_ENV          for front ends that run the build in a Python of its own

CUDA's modules are part of the package where that torch is built for CUDA 13.
They need one header that no torch brings: nvidia-cuda-crt's is fetched (130 kB),
unless the environment variable TERRACE_CUDA_ROOT says where a toolkit is, or that
it is off.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from scikit_build_core import build as _build

SUPPORTED = re.compile(r'2\.1[1-5]\.')
SETTING = 'cmake.define.TERRACE_TORCH_ROOT'

_LOCATE = """
import importlib.util, json, sys
spec = importlib.util.find_spec('torch')
print(json.dumps(list(spec.submodule_search_locations) if spec else []))
"""


def _located_by(python):
    """The `torch` that this Python would import, without importing it."""
    # Without the variables by which pip hides what is installed, and from an
    # empty folder, since `python -c` looks into the working folder first.
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith('PYTHON')}
    with tempfile.TemporaryDirectory() as empty:
        found = subprocess.run([python, '-c', _LOCATE], cwd=empty,
                               env=environment, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, check=False)
    return json.loads(found.stdout) if found.returncode == 0 else []


def _candidates():
    yield sys.executable
    if 'VIRTUAL_ENV' in os.environ:
        yield os.path.join(os.environ['VIRTUAL_ENV'], 'bin', 'python')


def _version(root):
    """'2.11.0' of a `torch` folder, or None where there is no C++ header."""
    header = pathlib.Path(root, 'include/torch/headeronly/version.h')
    if not header.is_file():
        return None
    parts = re.findall(r'^#define TORCH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)',
                       header.read_text(encoding='utf-8'), re.MULTILINE)
    return '.'.join(parts)


def torch_root(settings=None):
    """The folder of torch to build against; exits with one line without."""
    chosen = ((settings or {}).get(SETTING) or
              os.environ.get('TERRACE_TORCH_ROOT'))
    roots = [chosen] if chosen else [
        root for python in _candidates() for root in _located_by(python)]
    for root in roots:
        version = _version(root)
        if version and SUPPORTED.match(version):
            return root
    if not roots:
        _fail('no torch is installed beside ' + sys.executable + '; install '
              'torch 2.11 to 2.15 first, or set TERRACE_TORCH_ROOT to the '
              '`torch` folder of one')
    root = roots[0]
    _fail(f'torch in {root} is {_version(root) or "without C++ headers"}; '
          'Terrace needs 2.11 to 2.15')


def _cuda_headers(root):
    """What has to be fetched to build for this torch's CUDA, if anything."""
    version = pathlib.Path(root, 'version.py')
    found = version.is_file() and re.search(
        r"^cuda: .*= '(\d+)\.(\d+)", version.read_text(encoding='utf-8'),
        re.MULTILINE)
    if not found or os.environ.get('TERRACE_CUDA_ROOT'):
        return []
    headers = pathlib.Path(root, f'../nvidia/cu{found[1]}/include')
    if not (headers / 'cuda_runtime_api.h').exists() or (
            headers / 'crt/host_defines.h').exists():
        return []
    return [f'nvidia-cuda-crt=={found[1]}.{found[2]}.*']


def _fail(message):
    print(f'terrace: {message}', file=sys.stderr)
    raise SystemExit(1)


def _with_torch(settings):
    settings = dict(settings or {})
    settings[SETTING] = torch_root(settings)
    return settings


def get_requires_for_build_wheel(config_settings=None):
    root = torch_root(config_settings)  # says what is missing at once
    return (_build.get_requires_for_build_wheel(config_settings) +
            _cuda_headers(root))


def get_requires_for_build_editable(config_settings=None):
    root = torch_root(config_settings)
    return (_build.get_requires_for_build_editable(config_settings) +
            _cuda_headers(root))


def get_requires_for_build_sdist(config_settings=None):
    return _build.get_requires_for_build_sdist(config_settings)


def prepare_metadata_for_build_wheel(directory, config_settings=None):
    return _build.prepare_metadata_for_build_wheel(directory, config_settings)


def prepare_metadata_for_build_editable(directory, config_settings=None):
    return _build.prepare_metadata_for_build_editable(directory,
                                                      config_settings)


def build_wheel(directory, config_settings=None, metadata_directory=None):
    return _build.build_wheel(directory, _with_torch(config_settings),
                              metadata_directory)


def build_editable(directory, config_settings=None, metadata_directory=None):
    return _build.build_editable(directory, _with_torch(config_settings),
                                 metadata_directory)


def build_sdist(directory, config_settings=None):
    return _build.build_sdist(directory, config_settings)
