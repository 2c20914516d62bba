"""A host's daemon that a test starts; the program is one of the project's
build."""

import json
import os
import pathlib
import signal
import subprocess

import pytest

_BUILT = pathlib.Path(__file__).parents[2] / 'build' / 'host' / 'bin'
TERRACED = os.environ.get('TERRACED') or str(_BUILT / 'terraced')

needs_terraced = pytest.mark.skipif(
    not os.path.exists(TERRACED), reason='no terraced has been built')


class Daemon:
    def __init__(self, folder, text='', memory='32MiB', disk='64MiB'):
        self.path = folder / 'path'
        self.path.mkdir()
        self.socket = f'{folder}/s'
        config = folder / 'terraced.toml'
        config.write_text(
            f"tiers = ['dram={memory}', 'nvme:{self.path}={disk}']\n{text}")
        self.process = subprocess.Popen(
            [TERRACED, '--config', config, '--socket', self.socket],
            stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if 'serves' in line:
                return
        raise AssertionError('it ended')

    def used_bytes(self):
        """Of each tier, as the command line tells it."""
        program = pathlib.Path(TERRACED).with_name('terrace')
        told = json.loads(subprocess.run(
            [program, 'status', '--daemon', self.socket, '--json'],
            check=True, capture_output=True, text=True).stdout)
        return {tier['name']: tier['used_bytes'] for tier in told['tiers']}

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        self.process.stderr.close()
        return self.process.wait(timeout=60)


@pytest.fixture
def daemon(tmp_path):
    made = Daemon(tmp_path)
    yield made
    if made.process.poll() is None:
        assert made.end() == 0
