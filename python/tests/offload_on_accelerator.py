"""Checks of models on the tests' accelerator that are offloaded: run as a
program with their names it tells, as JSON, what each found
(test_offload_on_accelerator.py)."""

import contextlib
import gc
import json
import os
import sys
import tempfile
import traceback

import torch
from torch import nn

import accelerator
import terrace
from offloaded import mlp, sgd
from test_offload_families import FAMILIES, batch_of, build

DEVICE = 'testdev'
# The CPU's math path is what the device has as well.
MATH = [nn.attention.SDPBackend.MATH]
# Not all of any family's parameters and state.
STATE_IN_PART = 768 << 10
ACTIVATIONS = {'activations': True, 'activations_above': 4096}


def on_device(batch):
    return {name: value.to(DEVICE) for name, value in batch.items()}


def run(model, make, begin=lambda: None):
    """Losses, then answers of the trained model, on the CPU."""
    torch.manual_seed(4)
    optimizer = make(model.parameters())
    left = []
    with nn.attention.sdpa_kernel(MATH):
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(**on_device(batch_of(model))).loss
            loss.backward()
            optimizer.step()
            left.append(loss.detach().cpu())
        model.eval()
        with torch.no_grad():
            left.append(model(**on_device(batch_of(model))).logits.cpu())
    return left


def values(model):
    return [tensor.detach().cpu() for tensor in model.parameters()]


def check_equal(left, right):
    assert len(left) == len(right)
    assert all(map(torch.equal, left, right))


def check_within(stats):
    """The device's budget holds to the byte, and was too small for all."""
    [hbm] = [tier for tier in stats['tiers'] if tier['name'].startswith('hbm')]
    assert hbm['name'] == 'hbm:testdev:0'
    assert hbm['peak_bytes'] <= hbm['budget_bytes'], hbm
    assert stats['evictions'] > 0 and stats['fetches'] > 0, stats
    assert stats['failures'] == 0, stats


def least_for_activations(name):
    """Bytes, as a share has 256 MiB beside it for activations."""
    with tempfile.TemporaryDirectory() as folder, terrace.offload(
            build(name).to(DEVICE), hbm_budget='1%', nvme_path=folder,
            **ACTIVATIONS) as offload:
        return 2 * offload.stats()['minimum_bytes']


def family(name, make_plain, make_joined, hbm_budget='30%',
           memory_budget=None, **how):
    plain = build(name).to(DEVICE)
    expected = run(plain, make_plain)
    model = build(name).to(DEVICE)
    half = sum(p.nbytes for p in model.parameters()) // 2
    with tempfile.TemporaryDirectory() as folder, terrace.offload(
            model, hbm_budget=hbm_budget, memory_budget=memory_budget or half,
            nvme_path=folder, **how) as offload:
        check_equal(run(model, make_joined(offload)), expected)
        check_within(offload.stats())
        assert offload.stats()['bytes_read'] > 0
        assert offload.error is None
    check_equal(values(model), values(plain))
    assert all(p.device.type == DEVICE for p in model.parameters())


def check_tiers(calls):
    plain, model = mlp().to(DEVICE), mlp().to(DEVICE)
    batch = torch.randn(4, 128).to(DEVICE)
    size_bytes = sum(p.nbytes for p in model.parameters())

    def train(trained):
        optimizer = sgd(trained.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            trained(batch).square().mean().backward()
            optimizer.step()
        return values(trained)
    with tempfile.TemporaryDirectory() as folder, terrace.offload(
            model, tiers=[f'hbm:testdev:0={size_bytes // 2}',
                          f'dram={size_bytes}', f'nvme:{folder}']) as offload:
        trained = train(model)
        check_within(offload.stats())
    check_equal(trained, train(plain))


def check_refusals(calls):
    model = mlp().to(DEVICE)
    for how, text in [
            ({'nvme_path': '/tmp'}, 'the model is on testdev:0: tiers begins'),
            ({'tiers': ['hbm:testdev:1=1MiB', 'dram=1MiB']},
             'the model is on testdev:0'),
            ({'tiers': ['hbm:testdev:0=4KiB', 'dram=1MiB']},
             'below the minimum'),
            ({'hbm_budget': 'much'}, 'hbm_budget'),
            ({'hbm_budget': '50%', 'tiers': ['dram=1MiB']}, 'hbm_budget')]:
        try:
            terrace.offload(model, **how)
            raise AssertionError(f'{how} was taken')
        except ValueError as error:
            assert text in str(error), error
    try:
        terrace.offload(mlp(), hbm_budget='50%')
        raise AssertionError('a model in CPU memory was taken')
    except ValueError as error:
        assert 'in CPU memory' in str(error)
    try:
        terrace.AdamW(model.parameters(), tiers=['hbm:testdev:0=1MiB'])
        raise AssertionError('an optimizer took hbm')
    except NotImplementedError as error:
        assert 'hbm:testdev:0' in str(error)
    check_equal(values(model), values(mlp()))


def check_lease_and_files(calls):
    model = mlp().to(DEVICE)
    expected = values(model)
    with tempfile.TemporaryDirectory() as folder, terrace.offload(
            model, hbm_budget='40%', nvme_path=folder) as offload:
        with offload.lease(model[0].weight, write=True) as weight:
            assert weight.device.type == DEVICE
        state = {key: value.cpu() for key, value in model.state_dict().items()}
        check_equal(list(state.values()), expected)
        path = os.path.join(folder, 'model.pt')
        torch.save(state, path)
        check_equal(list(torch.load(path).values()), expected)


class Stepped(nn.Module):
    """It has a buffer that files have, and one that none has."""

    def __init__(self):
        super().__init__()
        self.layers = mlp()
        self.register_buffer('scale', torch.full((128,), 3.0))
        self.register_buffer('shift', torch.ones(128), persistent=False)

    def forward(self, batch):
        return self.layers(batch) * self.scale + self.shift


def check_checkpoint(calls):
    """Weights come from a file to a model that never was anywhere."""
    plain = Stepped().to(DEVICE)
    batch = torch.randn(4, 128).to(DEVICE)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'model.pt')
        torch.save({key: value.cpu()
                    for key, value in plain.state_dict().items()}, path)
        for how in ({'device': DEVICE, 'hbm_budget': '40%'},
                    {'tiers': ['hbm:testdev:0=160KiB', 'dram=160KiB',
                               f'nvme:{folder}']}):
            with torch.device('meta'):
                model = Stepped()
            model.shift = torch.ones(128)
            if 'tiers' not in how:
                how['nvme_path'] = folder
            with terrace.offload(model, checkpoint=path, **how) as offload:
                assert torch.equal(model(batch).cpu(), plain(batch).cpu())
                check_within(offload.stats())
                for tensor in (*model.parameters(), *model.buffers()):
                    assert str(tensor.device) == 'testdev:0', tensor.device
            check_equal(values(model), values(plain))
    for model, how, text in [
            (mlp(), {'device': DEVICE}, 'the model is on the CPU'),
            (mlp().to(DEVICE), {'device': 'testdev:1'}, 'testdev:0'),
            (mlp(), {'device': 'nowhere:0'}, 'nowhere')]:
        try:
            terrace.offload(model, **how)
            raise AssertionError(f'{how} was taken')
        except (ValueError, RuntimeError) as error:
            assert text in str(error), error


def check_collectives(calls):
    """Those of a device are no streams of the model's."""
    model = mlp().to(DEVICE)
    with tempfile.TemporaryDirectory() as folder, terrace.offload(
            model, hbm_budget='40%', nvme_path=folder):
        torch.distributed.init_process_group(
            'gloo', init_method=f'file://{folder}/store', rank=0, world_size=1)
        try:
            torch.distributed.broadcast(model[0].weight.data, 0)
            raise AssertionError('a collective took an offloaded tensor')
        except NotImplementedError as error:
            assert "'0.weight'" in str(error), error
        finally:
            torch.distributed.destroy_process_group()


def check_tiers_without_memory(calls):
    """What is below the device is in memory, all of it."""
    model = mlp().to(DEVICE)
    expected = values(model)
    with terrace.offload(model, tiers=['hbm:testdev:0=160KiB']) as offload:
        check_equal(values(model), expected)
        assert offload.stats()['disk_bytes'] == 0


def check_last_reference(calls):
    """A model that is gone gives the device's memory back."""
    torch.accelerator.synchronize()
    before = torch.accelerator.memory_allocated(0)
    model = mlp().to(DEVICE)
    with tempfile.TemporaryDirectory() as folder:
        terrace.offload(model, hbm_budget='40%', nvme_path=folder)
        model(torch.randn(4, 128).to(DEVICE)).sum().backward()
        del model
        gc.collect()
        torch.accelerator.synchronize()
        assert torch.accelerator.memory_allocated(0) == before


def of_family(name, how):
    if how == 'sgd':
        return lambda calls: family(name, sgd, lambda offload: sgd)
    if how == 'activations':
        return lambda calls: family(name, sgd, lambda offload: sgd,
                                    least_for_activations(name), **ACTIVATIONS)
    return lambda calls: family(
        name, lambda parameters: terrace.AdamW(parameters, lr=1e-2),
        lambda offload: lambda parameters: terrace.AdamW(
            parameters, lr=1e-2, offload=offload),
        memory_budget=STATE_IN_PART)


CHECKS = {name.removeprefix('check_'): check
          for name, check in list(globals().items())
          if name.startswith('check_')
          and name not in ('check_equal', 'check_within')}
for _name in FAMILIES:
    for _how in ('sgd', 'adamw', 'activations'):
        CHECKS[f'{_name}-{_how}'] = of_family(_name, _how)


def found_by(check, calls):
    """Nothing, or the error."""
    calls.set_delays(5, 6)
    try:
        check(calls)
        torch.accelerator.synchronize()
        assert calls.take_reports() == []
    except Exception:
        return traceback.format_exc()
    finally:
        with contextlib.suppress(RuntimeError):
            torch.accelerator.synchronize()
        calls.take_reports()


if __name__ == '__main__':
    torch.set_num_threads(1)
    own = accelerator.load()
    print(json.dumps({name: found_by(CHECKS[name], own)
                      for name in sys.argv[1:]}))
