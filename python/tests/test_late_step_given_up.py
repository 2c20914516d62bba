"""What failed after step() is told, whoever hears of it: a state_dict() before
anything else, the error stream where the optimizer is dropped or the process
ends, and no ordinary step that is incomplete is followed by a late one."""

import subprocess
import sys

import pytest
import torch

from offloaded import check_equal_values, mlp, mlp_loss, values
from terrace._base.groups import numbers_of
from terrace._state.stepping.stepping import Stepping, Turn
from test_late_step_faults import made, no_large_files, pair_of_runs, step_all


def failed_first_step(tmp_path):
    network = mlp(24)
    optimizer = made(network, memory_budget='10%', nvme_path=str(tmp_path))
    mlp_loss(network, torch.Generator().manual_seed(1)).backward()
    with no_large_files():
        optimizer.step()
        optimizer._store.compiled.steps()  # waits, and tells nothing
    return network, optimizer


def test_a_state_dict_tells_of_a_first_step(tmp_path):
    _, optimizer = failed_first_step(tmp_path)
    for _ in range(2):
        with pytest.raises(OSError):
            optimizer.state_dict()
    optimizer.flush()
    assert optimizer.state_dict()['state']


def test_one_that_is_dropped_says_it(tmp_path, capfd):
    network, optimizer = failed_first_step(tmp_path)
    del optimizer
    assert 'whose last updates failed' in capfd.readouterr().err
    assert all(p.sum().isfinite() for p in network.parameters())


_AT_EXIT = """
import sys
sys.path.insert(0, sys.argv[2])
from test_late_step_given_up import failed_first_step
kept = failed_first_step(sys.argv[1])
"""


def test_the_end_of_a_process_says_it(tmp_path):
    here = __file__.rpartition('/')[0]
    done = subprocess.run(
        [sys.executable, '-c', _AT_EXIT, str(tmp_path), here],
        capture_output=True, text=True, timeout=300, check=True)
    assert 'OSError: [Errno 27] terrace: ' in done.stderr
    assert 'write failed' in done.stderr


def test_an_ordinary_step_that_is_incomplete_ends_as_one(tmp_path):
    runs = pair_of_runs(tmp_path)
    (plain, reference, drawn), (network, optimizer, generator) = runs
    mlp_loss(plain, drawn).backward()
    reference.step()
    reference.zero_grad()
    mlp_loss(network, generator).backward()
    store = optimizer._store
    with no_large_files(), pytest.raises(OSError):
        Stepping().make_turn(store, Turn(
            store.places.parameters, store.arrangement.turns[0],
            numbers_of(optimizer.param_groups), 1.0, []))
    assert store.is_unfinished()
    optimizer.step()
    optimizer.zero_grad()
    check_equal_values(values(network), values(plain))
    step_all(runs)
    check_equal_values(values(network), values(plain))
