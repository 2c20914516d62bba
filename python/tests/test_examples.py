"""The programs of examples/python, as a user runs them, against the same with
torch.optim.AdamW: losses within 1e-4 over 30 steps."""

import json
import pathlib
import re
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


def test_the_readme_shows_what_is_run(tmp_path):
    program = EXAMPLES / 'first_steps.py'
    readme = (EXAMPLES.parents[1] / 'README.md').read_text(encoding='utf-8')
    [block] = re.findall(r'^```python\n(.*?)^```$', readme,
                         re.DOTALL | re.MULTILINE)
    assert block == program.read_text(encoding='utf-8')
    result = subprocess.run(
        [sys.executable, '-P', '-', str(tmp_path)], input=block,
        capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 11
    assert lines[-1] == '67 MB of state in 7 MB of memory'
    losses = [float(line.split()[-1]) for line in lines[:10]]
    assert losses[-1] < losses[0]
    assert 'of memory saved' in result.stderr


@pytest.mark.parametrize('family', ['GPT2', 'Llama'])
def test_a_large_model_generates_the_same(family, tmp_path):
    pytest.importorskip('transformers')
    from test_offload_families import build
    folder, below = tmp_path / 'model', tmp_path / 'below'
    build(family).save_pretrained(folder)
    below.mkdir()

    def said(*arguments):
        result = subprocess.run(
            [sys.executable, '-P', str(EXAMPLES / 'run_large.py'),
             str(folder), *map(str, arguments)],
            capture_output=True, text=True, timeout=240)
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()

    expected, = said('--plain')
    tokens, memory = said('--nvme-path', below, '--memory-budget', '40%')
    assert tokens == expected and len(tokens.split()) > 3
    whole, peak, written, read = map(int, re.findall(r'\d+', memory))
    assert peak <= whole * 0.7 and read > whole
    assert written < 1.2 * whole + (1 << 20)  # once, with headers
    assert not list(below.iterdir())


def test_the_benchmark_runs():
    bench = EXAMPLES.parents[1] / 'python' / 'bench' / 'step_time.py'
    for dtype in ('fp32', 'bf16'):
        result = subprocess.run(
            [sys.executable, '-P', str(bench), '--parameters', '1e6',
             '--rounds', '3', '--dtype', dtype],
            capture_output=True, text=True, timeout=240)
        assert result.returncode == 0, result.stderr
        report = json.loads(result.stdout.splitlines()[-1])
        assert report['median_ratio'] > 0 and report['parameters'] == 1_000_000


def test_the_benchmark_of_offloaded_memory_runs(tmp_path):
    bench = EXAMPLES.parents[1] / 'python' / 'bench' / 'offload_memory.py'
    result = subprocess.run(
        [sys.executable, '-P', str(bench), '--parameters', '2e6', '--path',
         str(tmp_path), '--memory-budget', '60%'],
        capture_output=True, text=True, timeout=400)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    assert report['parameters'] > 1_900_000 and report['differ'] == []
    assert len(report['rows']) == 6
    assert all(row['bytes'] > 0 and len(set(row['answers'])) == 3
               for row in report['rows'])
    assert not list(tmp_path.iterdir())
