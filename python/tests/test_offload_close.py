"""How an Offload ends, leases, and what is left of it."""

import gc
import os
import subprocess
import sys
import textwrap

import pytest
import torch

import terrace
from offloaded import (check_equal_values, is_cold, mlp, mlp_loss, train,
                       values)


def below(model, directory, budget='200KiB'):
    return terrace.offload(model, memory_budget=budget,
                           nvme_path=str(directory))


def cold_parameter(model):
    return next(p for p in model.parameters() if p.dim() == 2 and is_cold(p))


def test_close_brings_all_into_ordinary_memory(tmp_path):
    model, plain = mlp(), mlp()
    offload = below(model, tmp_path)
    assert os.listdir(tmp_path)
    assert any(map(is_cold, model.parameters()))
    offload.close()
    offload.close()
    assert os.listdir(tmp_path) == []
    for mine, theirs in zip(model.parameters(), plain.parameters()):
        assert mine.data_ptr() % 64 == 0
        assert (mine.detach().numpy() == theirs.detach().numpy()).all()
    assert offload.stats()['managed_tensors'] == 12  # as it was at the end
    with pytest.raises(RuntimeError, match='closed'):
        offload.prefetch([])
    assert not model._forward_pre_hooks
    assert offload.error is None


def test_close_without_restoring_leaves_nothing_to_use(tmp_path):
    model = mlp()
    offload = below(model, tmp_path)
    offload.close(restore=False)
    assert os.listdir(tmp_path) == []
    for parameter in model.parameters():
        with pytest.raises(RuntimeError, match=r"terrace: '\d+\.(weight|bias)"):
            parameter.sum()
    with pytest.raises(RuntimeError, match='terrace: '):
        model(torch.zeros(1, 128))


def test_the_end_of_a_with(tmp_path):
    model = mlp()
    with below(model, tmp_path):
        train(model, mlp_loss)
    assert os.listdir(tmp_path) == []
    with pytest.raises(KeyError), below(model, tmp_path):
        raise KeyError('mine')
    assert os.listdir(tmp_path) == []
    train(model, mlp_loss)


def test_a_lease_shows_and_takes_bytes(tmp_path):
    model, plain = mlp(), mlp()
    offload = below(model, tmp_path)
    for (name, mine), theirs in zip(model.named_parameters(),
                                    plain.parameters()):
        with offload.lease(mine) as tensor:
            assert tensor is mine and not is_cold(mine)
            assert (tensor.detach().numpy() == theirs.detach().numpy()).all()
        with offload.lease(mine[0:1], write=True) as tensor:
            tensor.detach().numpy()[...] = len(name)
        with torch.no_grad():
            theirs[0:1] = len(name)
    offload.close()
    check_equal_values(values(model), values(plain))


def test_a_lease_keeps_the_rest_within_the_budget_and_holds_up_close(tmp_path):
    model = mlp()
    offload = below(model, tmp_path)
    with offload.lease(model[0].weight) as leased:
        address = leased.data_ptr()
        train(model, mlp_loss)
        assert leased.data_ptr() == address
        with pytest.raises(RuntimeError, match=r"'0\.weight' is leased"):
            offload.close()
        with pytest.raises(RuntimeError, match='is leased'):
            offload.close(restore=False)
        train(model, mlp_loss)
        assert leased.data_ptr() == address
    assert offload.stats()['failures'] == 0
    offload.close()
    assert os.listdir(tmp_path) == []


def test_prefetch_and_flush(tmp_path):
    model = mlp()
    offload = below(model, tmp_path)
    wanted = model[10].weight
    for _ in range(200):  # a hint: it needs room at once
        train(model, mlp_loss, steps=0)
        ahead = offload.stats()['fetches_ahead']
        model[:2](torch.zeros(1, 128))
        model[:4](torch.zeros(1, 128))
        offload.prefetch([wanted, torch.zeros(3)])
        wanted.detach().sum()
        if offload.stats()['fetches_ahead'] > ahead:
            break
    else:
        raise AssertionError('never')
    assert offload.stats()['share_ahead'] > 0
    offload.flush()


def test_a_model_that_goes_gives_all_back(tmp_path):
    model = mlp()
    below(model, tmp_path)
    gc.collect()
    train(model, mlp_loss)  # the Offload need not be kept
    view = model[4].weight.detach()[1]
    kept = view.clone()
    del model
    gc.collect()
    assert os.listdir(tmp_path) == []
    assert torch.equal(view, kept)


def test_a_parameter_that_is_kept_keeps_the_offload(tmp_path):
    model = mlp()
    below(model, tmp_path)
    parameter, kept = model[6].weight, model[6].weight.detach().clone()
    del model
    gc.collect()
    assert os.listdir(tmp_path)
    assert torch.equal(parameter, kept)
    del parameter
    gc.collect()
    assert os.listdir(tmp_path) == []


def run(directory, code, *arguments):
    code = ('import os, sys\nimport torch, terrace\n'
            'from offloaded import *\n' + textwrap.dedent(code))
    return subprocess.run(
        [sys.executable, '-c', code, str(directory), *arguments],
        capture_output=True, text=True, timeout=120,
        cwd=os.path.dirname(__file__))


def test_what_memory_has_no_room_for_stays_away(tmp_path):
    """Some of what close() brings; the model is closed all the same."""
    ended = run(tmp_path, '''
        import resource
        torch.manual_seed(1)
        width = 2048  # a weight is 16 MiB
        model = torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False)
                                    for _ in range(6))
        sums = [float(layer.weight.sum()) for layer in model]
        offload = terrace.offload(model, memory_budget='40MiB',
                                  nvme_path=sys.argv[1])
        with open('/proc/self/status') as status:
            now = next(int(line.split()[1]) << 10 for line in status
                       if line.startswith('VmSize:'))
        room = now + (40 << 20)  # for two and a half
        resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
        try:
            offload.close()
        except MemoryError as error:
            assert 'weight' in str(error), error
        else:
            raise AssertionError('there was room for all')
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        assert os.listdir(sys.argv[1]) == []
        away = 0
        for i, layer in enumerate(model):
            try:
                assert float(layer.weight.sum()) == sums[i]
            except RuntimeError as error:
                assert str(error).startswith(f"terrace: '{i}.weight'"), error
                away += 1
        assert 1 <= away < len(model), away
        offload.close()
        ''')
    assert ended.returncode == 0, ended.stderr


def test_a_process_that_ends_leaves_nothing(tmp_path):
    ended = run(tmp_path, '''
        model = mlp()
        terrace.offload(model, memory_budget='200KiB', nvme_path=sys.argv[1])
        train(model, mlp_loss)
        assert os.listdir(sys.argv[1])
        ''')
    assert ended.returncode == 0, ended.stderr
    assert os.listdir(tmp_path) == []


def test_compiled_regions_run_eagerly_meanwhile(tmp_path):
    ended = run(tmp_path, '''
        calls = []
        def backend(graph, inputs):
            calls.append(graph)
            return graph.forward
        model, plain = mlp(), mlp()
        compiled = torch.compile(model, backend=backend)
        inputs = torch.ones(2, 128)
        with terrace.offload(model, memory_budget='200KiB',
                             nvme_path=sys.argv[1]):
            with terrace.offload(plain):
                torch.compile(plain, backend=backend)(inputs)
            result = compiled(inputs)
        assert not calls
        assert torch.equal(compiled(inputs), result) and calls
        ''')
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize('when', ['before', 'meanwhile'])
def test_that_they_run_eagerly_is_told_once(tmp_path, when):
    ended = run(tmp_path, f"""
        def backend(graph, inputs):
            return graph.forward
        before = {when == 'before'}
        inputs = torch.ones(2, 128)
        original = torch.compile
        if before:
            torch.compile(mlp(), backend=backend)(inputs)
        for _ in range(2):
            model = mlp()
            with terrace.offload(model, memory_budget='200KiB',
                                 nvme_path=sys.argv[1]):
                if not before:
                    torch.compile(model, backend=backend)(inputs)
            assert torch.compile is original
        """)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count('runs eagerly') == 1


def test_that_nothing_is_compiled_is_not_told(tmp_path):
    ended = run(tmp_path, """
        with terrace.offload(mlp(), nvme_path=sys.argv[1]) as offload:
            pass
        """)
    assert ended.returncode == 0, ended.stderr
    assert 'eagerly' not in ended.stderr
