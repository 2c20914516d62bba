"""The tests' accelerator does in Python what it is for: on_accelerator.py."""

import json
import pathlib
import signal
import subprocess
import sys

import pytest

import on_accelerator
from accelerator import needs_accelerator

LIVING = [name for name in on_accelerator.CHECKS if name != 'address']
pytestmark = needs_accelerator


def run(*names):
    return subprocess.run(
        [sys.executable, pathlib.Path(on_accelerator.__file__), *names],
        capture_output=True, text=True, timeout=300)


@pytest.fixture(scope='module')
def found():
    """Of all, in one process: importing torch takes longer than a check."""
    result = run(*LIVING)
    assert result.returncode == 0, result.stderr  # with work queued
    return json.loads(result.stdout)


@pytest.mark.parametrize('name', LIVING)
def test_accelerator(found, name):
    assert found[name] is None, found[name]


def test_an_address_cannot_be_read():
    result = run('address')
    assert result.returncode == -signal.SIGSEGV
    assert result.stdout == 'reads\n'
