"""The programs of examples/python, as a user runs them, against the same with
torch.optim.AdamW: losses within 1e-4 over 30 steps."""

import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / 'examples' / 'python'


def losses(name, *arguments):
    result = subprocess.run(
        [sys.executable, '-P', str(EXAMPLES / name), *map(str, arguments)],
        capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    numbers = []
    for line in result.stdout.splitlines():
        try:
            numbers.append(float(line))
        except ValueError:
            pass  # a library's own report
    return numbers, result.stderr


@pytest.mark.parametrize('name', ['plain_loop.py', 'trainer.py',
                                  'accelerate_loop.py'])
def test_losses_are_those_of_torch(name, tmp_path):
    expected, _ = losses(name, '--optimizer', 'torch')
    actual, said = losses(name, '--nvme-path', tmp_path)
    assert len(expected) == 30 and len(actual) == 30
    assert expected[-1] < expected[0] - 0.3  # it learned something
    for step, (ours, theirs) in enumerate(zip(actual, expected)):
        assert abs(ours - theirs) <= 1e-4, step
    assert f'the rest in {tmp_path}' in said
    assert not list(tmp_path.iterdir())


def test_trainer_with_forked_workers(tmp_path):
    actual, _ = losses('trainer.py', '--steps', 8, '--workers', 2,
                       '--nvme-path', tmp_path)
    assert len(actual) == 8
    assert not list(tmp_path.iterdir())
