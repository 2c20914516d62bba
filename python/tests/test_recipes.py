"""The checkpoint recipes of examples/python, as a user runs them: a run that
was stopped and resumed ends with the bits of one that was not."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest
import torch

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / 'examples' / 'python'

# A program, what it needs, where it is stopped, between two checkpoints where
# the framework can, and what a run of all steps prints.
RECIPES = [('trainer_checkpoint.py', 'transformers', 13, 20),
           ('accelerate_checkpoint.py', 'accelerate', 17, 20),
           ('lightning_checkpoint.py', 'lightning', 2, 20)]


def run(name, folder, *arguments):
    """What it printed; its weights are in the folder."""
    disk = folder / 'disk'
    disk.mkdir(exist_ok=True)
    result = subprocess.run(
        [sys.executable, '-P', str(EXAMPLES / name), '--nvme-path', str(disk),
         '--output-dir', str(folder / 'runs'), '--weights',
         str(folder / 'weights.pt'), *map(str, arguments)],
        capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    assert not list(disk.iterdir())
    return [line for line in result.stdout.splitlines()
            if line.replace('.', '', 1).isdigit()]


@pytest.mark.parametrize('name, package, stop, count', RECIPES)
def test_a_resumed_run_has_the_bits_of_a_whole_one(name, package, stop, count,
                                                   tmp_path):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f'{package} is not installed')
    whole, parted = tmp_path / 'whole', tmp_path / 'parted'
    whole.mkdir()
    parted.mkdir()
    expected = run(name, whole)
    assert len(expected) == count
    first = run(name, parted, '--stop-after', stop)
    assert 0 < len(first) < count and first == expected[:len(first)]
    rest = run(name, parted, '--resume')
    assert rest[-1] == expected[-1]
    assert expected[-len(rest):] == rest
    theirs = torch.load(whole / 'weights.pt')
    ours = torch.load(parted / 'weights.pt')
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize('name, package, stop, count', RECIPES)
def test_the_state_is_in_the_streamed_checkpoint_alone(name, package, stop,
                                                       count, tmp_path):
    """Neither in the framework's file, nor in folders of removed ones."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f'{package} is not installed')
    run(name, tmp_path)
    runs = tmp_path / 'runs'
    streamed = sorted(path.parent for path in runs.rglob('checkpoint.json'))
    files = [path for pattern in ('optimizer.pt', 'optimizer.bin', '*.ckpt')
             for path in runs.rglob(pattern)]
    assert len(streamed) == len(files) > 0
    for path in files:
        kept = torch.load(path, weights_only=False)
        [kept] = kept.get('optimizer_states', [kept])
        assert kept['state'] == {} and kept['param_groups'][0]['params']
