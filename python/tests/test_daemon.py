"""AdamW and Adam over a host's daemon, which is one of the project's build."""

import os
import pathlib
import signal
import time

import pytest
import torch
from daemons import Daemon, daemon, needs_terraced  # noqa: F401

import terrace

pytestmark = needs_terraced

MIB = 1 << 20


def model_of(dtype=torch.float32):
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(300, 400),
                               torch.nn.Linear(400, 300)).to(dtype)


def train(model, optimizer, steps=4):
    torch.manual_seed(5)
    for _ in range(steps):
        inputs = torch.randn(8, 300).to(next(model.parameters()).dtype)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize('kind', [terrace.AdamW, terrace.Adam])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_steps_are_those_of_memory(daemon, kind, dtype):
    model = model_of(dtype)
    below = kind(model.parameters(), lr=1e-3, memory_budget='20%',
                 daemon=f'unix:{daemon.socket}')
    got = train(model, below)
    stats = below.stats()
    assert stats['bytes_read'] > 0 and stats['disk_bytes'] > 0
    below.close()
    model = model_of(dtype)
    above = kind(model.parameters(), lr=1e-3)
    for one, other in zip(got, train(model, above), strict=True):
        assert torch.equal(one, other)
    above.close()
    if dtype != torch.float32:
        return
    model = model_of()
    torchs = getattr(torch.optim, kind.__name__)(model.parameters(), lr=1e-3)
    for one, other in zip(got, train(model, torchs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_its_state_is_saved_and_loaded(daemon, tmp_path):
    model = model_of()
    first = terrace.AdamW(model.parameters(), memory_budget='20%',
                          daemon=daemon.socket)
    train(model, first)
    state = first.state_dict()
    weights = {name: value.clone()
               for name, value in model.state_dict().items()}
    expected = train(model, first)
    first.close()
    model = model_of()
    model.load_state_dict(weights)
    second = terrace.AdamW(model.parameters(), memory_budget='50%',
                           daemon=pathlib.Path(daemon.socket))
    second.load_state_dict(state)
    for one, other in zip(expected, train(model, second), strict=True):
        assert torch.equal(one, other)
    second.close()


def test_all_of_the_state_may_be_in_its_memory(daemon):
    model = model_of()
    optimizer = terrace.AdamW(model.parameters(), memory_budget='300%',
                              daemon=daemon.socket)
    train(model, optimizer)
    assert optimizer.stats()['bytes_read'] == 0
    optimizer.close()


@pytest.mark.parametrize('beside', [
    {'nvme_path': '/tmp'}, {'tiers': ['dram=1MiB', 'nvme:/tmp']},
    {'io_engine': 'threads'}])
def test_what_the_daemon_says_is_not_said_twice(beside):
    with pytest.raises(ValueError, match=f'daemon and {next(iter(beside))}'):
        terrace.AdamW(model_of().parameters(), daemon='unix:/nowhere/s',
                      **beside)


def test_a_gpus_memory_beside_it_is_for_later():
    with pytest.raises(NotImplementedError, match='hbm'):
        terrace.AdamW(model_of().parameters(), daemon='unix:/nowhere/s',
                      tiers=['hbm:cuda:0=1GiB', 'dram=1GiB'])


def test_wrong_sockets():
    with pytest.raises(FileNotFoundError, match='/nowhere/s'):
        terrace.AdamW(model_of().parameters(), daemon='unix:/nowhere/s')
    with pytest.raises(ValueError, match='tcp:host'):
        terrace.AdamW(model_of().parameters(), daemon='tcp:host')
    with pytest.raises(TypeError, match='daemon is a socket'):
        terrace.AdamW(model_of().parameters(), daemon=7)


def test_beyond_a_quota_is_memory_error(tmp_path):
    daemon = Daemon(tmp_path, "[quota.user]\ntiers = ['dram=1MiB']\n")
    with pytest.raises(MemoryError, match=f'the limit is {MIB}'):
        terrace.AdamW(model_of().parameters(), memory_budget='1.5MiB',
                      daemon=daemon.socket)
    optimizer = terrace.AdamW(model_of().parameters(), memory_budget='1MiB',
                              daemon=daemon.socket)
    optimizer.close()
    assert daemon.end() == 0


def test_once_it_is_gone_a_step_says_so(daemon):
    model = model_of()
    optimizer = terrace.AdamW(model.parameters(), memory_budget='20%',
                              daemon=daemon.socket)
    train(model, optimizer)
    daemon.end(signal.SIGKILL)
    before = time.monotonic()
    with pytest.raises(ConnectionResetError, match='checkpoint') as caught:
        train(model, optimizer)
    assert caught.value.filename == daemon.socket
    assert time.monotonic() - before < 30
    optimizer.close()


@pytest.fixture
def no_job():
    yield
    terrace.use_job(None)


def test_a_job_has_a_quota_of_its_own(tmp_path, no_job):
    daemon = Daemon(tmp_path, "[quota.job]\ntiers = ['dram=1MiB']\n"
                              f"[users.{os.getuid()}.jobs.night]\n"
                              "tiers = ['dram=1792KiB']\n")
    with pytest.raises(MemoryError, match='the limit is 1048576'):
        terrace.AdamW(model_of().parameters(), memory_budget='1.5MiB',
                      daemon=daemon.socket)
    terrace.use_job('night')
    optimizer = terrace.AdamW(model_of().parameters(), memory_budget='1.5MiB',
                              daemon=daemon.socket)
    with pytest.raises(MemoryError, match="the job 'night'"):
        terrace.offload(model_of(), memory_budget='90%', daemon=daemon.socket)
    optimizer.close()
    terrace.use_job(None)
    with pytest.raises(MemoryError, match='the limit is 1048576'):
        terrace.AdamW(model_of().parameters(), memory_budget='1.5MiB',
                      daemon=daemon.socket)
    assert daemon.end() == 0


@pytest.mark.parametrize('name, error', [
    (7, TypeError), ('n' * 256, ValueError), ('a\nb', ValueError)])
def test_names_that_no_job_has(name, error, no_job):
    with pytest.raises(error, match='job'):
        terrace.use_job(name)
