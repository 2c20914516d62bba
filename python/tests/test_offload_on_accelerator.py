"""Models on an accelerator are offloaded there: offload_on_accelerator.py."""

import json
import pathlib
import subprocess
import sys

import pytest

from accelerator import needs_accelerator

pytest.importorskip('transformers')

import offload_on_accelerator  # noqa: E402

pytestmark = needs_accelerator
CHECKS = list(offload_on_accelerator.CHECKS)


@pytest.fixture(scope='module')
def found():
    """Of all, in one process, in which the device stays for good."""
    result = subprocess.run(
        [sys.executable, pathlib.Path(offload_on_accelerator.__file__),
         *CHECKS], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize('name', CHECKS)
def test_offload(found, name):
    assert found[name] is None, found[name]
