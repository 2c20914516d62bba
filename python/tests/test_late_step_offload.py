"""The late step of an AdamW that joined an offloaded model: the bits of step()
and of a model in memory, at any budget, whatever looks at parameters while
updates go on."""

import gc
import os
import subprocess
import sys
import weakref

import pytest
import torch

import terrace
from offloaded import (check_equal_values, mlp, mlp_loss, token_loss,
                       transformer, values)
from terrace._base.library import is_offloaded
from test_step_in_backward import keyed

# The least that works, and a third.
BUDGETS = ['1%', '33%']


def run(build, loss_of, offloads, overlap, steps=4, passes=1, clip=None,
        set_to_none=True, kind=terrace.AdamW, look=None, **options):
    """Losses and norms; then parameters and state."""
    model = build()
    offload = offloads(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = kind(trained, lr=1e-2, overlap=overlap, **options)
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(4)  # of dropout
    left = []
    for _ in range(steps):
        for _ in range(passes):
            loss = loss_of(model, generator)
            loss.backward()
            left.append(loss.detach().clone())
        if clip is not None:
            left.append(clip(trained, 0.05).clone())
        optimizer.step()
        if look is not None:
            left += look(model, optimizer)
        optimizer.zero_grad(set_to_none=set_to_none)
    state = keyed(optimizer)
    stats = offload and offload.stats()
    if offload:
        offload.close()
        assert stats['failures'] == 0
        assert stats['memory_peak_bytes'] <= stats['budget_bytes']
    return left, values(model), state, stats


def check_run(build, loss_of, directory, budget, **options):
    """Late, in step(), and wholly in memory; the counters of the late one."""
    def below(model):
        return terrace.offload(model, memory_budget=budget,
                               nvme_path=str(directory))

    plain, parameters, state, _ = run(build, loss_of, lambda _: None, False,
                                      **options)
    stats = None
    for overlap in (False, None):
        ours, ours_parameters, our_state, stats = run(
            build, loss_of, below, overlap, **options)
        for a, b in zip(plain, ours, strict=True):
            assert torch.equal(a, b)
        check_equal_values(ours_parameters, parameters)
        assert our_state.keys() == state.keys() != set()
        for key, each in state.items():
            for name, tensor in each.items():
                assert torch.equal(tensor, our_state[key][name]), (key, name)
    assert not os.listdir(directory)
    return stats


@pytest.mark.parametrize('budget', BUDGETS)
@pytest.mark.parametrize('kind', [terrace.AdamW, terrace.Adam])
def test_a_deep_model(tmp_path, budget, kind):
    stats = check_run(lambda: mlp(24), mlp_loss, tmp_path, budget, kind=kind,
                      weight_decay=0.1)
    assert stats['evictions'] > 0 and stats['bytes_read'] > 0


@pytest.mark.parametrize('budget', BUDGETS)
@pytest.mark.parametrize('checkpointing', [None, 're-entrant', 'other'])
def test_tied_frozen_and_checkpointed(tmp_path, budget, checkpointing):
    check_run(lambda: transformer(checkpointing), token_loss, tmp_path, budget,
              passes=2)


@pytest.mark.parametrize('budget', BUDGETS)
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_16_bit_parameters(tmp_path, budget, dtype):
    check_run(lambda: mlp(12, dtype), mlp_loss, tmp_path, budget, passes=3)


@pytest.mark.parametrize('budget', BUDGETS)
def test_clipping_in_the_step(tmp_path, budget):
    check_run(lambda: mlp(12), mlp_loss, tmp_path, budget, max_grad_norm=1e-3)


@pytest.mark.parametrize('clip', [terrace.clip_grad_norm_,
                                  torch.nn.utils.clip_grad_norm_])
def test_clipping_before_it(tmp_path, clip):
    check_run(lambda: mlp(12), mlp_loss, tmp_path, '33%', clip=clip)


@pytest.mark.parametrize('budget', BUDGETS)
def test_gradients_that_are_zeroed_and_not_dropped(tmp_path, budget):
    check_run(lambda: mlp(12), mlp_loss, tmp_path, budget, set_to_none=False,
              passes=2)


def test_views_of_one_storage_and_odd_strides(tmp_path):
    def build():
        network = mlp(6)
        whole = torch.randn(2, 128, 128,
                            generator=torch.Generator().manual_seed(1)) / 16
        network[0].weight = torch.nn.Parameter(whole[0])
        network[2].weight = torch.nn.Parameter(whole[1].T)
        return network

    check_run(build, mlp_loss, tmp_path, '80%')


@pytest.mark.parametrize('budget', BUDGETS)
def test_what_looks_at_parameters_sees_them_updated(tmp_path, budget):
    """An average of them, addresses, arrays, copies, before any forward."""
    average = {}

    def look(model, optimizer):
        parts = dict(model.named_parameters())
        with torch.no_grad():
            for name, parameter in list(parts.items())[::-5]:
                average.setdefault(name, torch.zeros_like(parameter)).lerp_(
                    parameter, 0.5)
        last = list(parts.values())[-2]
        return [torch.from_numpy(last.detach().numpy().copy()),
                model.state_dict()['2.weight'].clone(),
                *(each.clone() for each in average.values())]

    def fresh(model, optimizer):
        if optimizer.stats()['steps'] == 1:  # another run
            average.clear()
        return look(model, optimizer)

    check_run(lambda: mlp(12), mlp_loss, tmp_path, budget, look=fresh)


def below(model, directory, budget='33%'):
    return terrace.offload(model, memory_budget=budget,
                           nvme_path=str(directory))


def stepped(model, steps=2, overlap=None, **options):
    """An optimizer whose last step's updates may go on."""
    optimizer = terrace.AdamW(model.parameters(), lr=1e-2, overlap=overlap,
                              **options)
    for seed in range(steps):
        optimizer.zero_grad()
        mlp_loss(model, torch.Generator().manual_seed(seed)).backward()
        optimizer.step()
    return optimizer


@pytest.fixture(scope='module')
def expected():
    plain = mlp(24)
    stepped(plain)
    return values(plain)


@pytest.mark.parametrize('budget', BUDGETS)
def test_a_lease_waits(tmp_path, budget, expected):
    model = mlp(24)
    with below(model, tmp_path, budget) as offload:
        stepped(model)
        # In an order in which nothing else takes them.
        for name, parameter in reversed(list(model.named_parameters())):
            with offload.lease(parameter):
                seen = parameter.detach().numpy().copy()
            assert (seen == expected[name].numpy()).all(), name


@pytest.mark.parametrize('how', ['flush', 'offload.flush', 'close',
                                 'offload.close', 'drop'])
def test_it_ends_with_updates_under_way(tmp_path, how, expected):
    model = mlp(24)
    offload = below(model, tmp_path)
    optimizer = stepped(model)
    if how == 'drop':
        del optimizer
        gc.collect()
    else:
        target = offload if how.startswith('offload') else optimizer
        getattr(target, how.split('.')[-1])()
    offload.flush()
    check_equal_values(values(model), expected)
    offload.close()
    check_equal_values(values(model), expected)
    assert not os.listdir(tmp_path)


def test_all_is_dropped_with_updates_under_way(tmp_path):
    model = mlp(24)
    below(model, tmp_path)
    optimizer = stepped(model)
    del model, optimizer
    gc.collect()
    assert not os.listdir(tmp_path)


def test_a_lease_holds_up_close_as_before(tmp_path, expected):
    model = mlp(24)
    offload = below(model, tmp_path)
    optimizer = stepped(model)
    with offload.lease(model[0].weight):
        with pytest.raises(RuntimeError, match='leased or in use'):
            offload.close()
    check_equal_values(values(model), expected)
    optimizer.zero_grad()
    mlp_loss(model, torch.Generator()).backward()
    optimizer.step()
    offload.close()


def test_files_are_right(tmp_path, expected):
    (tmp_path / 'below').mkdir()
    model = mlp(24)
    with below(model, tmp_path / 'below'):
        stepped(model)
        torch.save(model.state_dict(), tmp_path / 'all')
        check_equal_values(torch.load(tmp_path / 'all'), expected)


def test_a_checkpoint(tmp_path, expected):
    (tmp_path / 'below').mkdir()
    model, plain = mlp(24), mlp(24, seed=9)
    with below(model, tmp_path / 'below'):
        optimizer = stepped(model)
        terrace.save(tmp_path / 'saved', model, optimizer)
        mlp_loss(model, torch.Generator()).backward()
        optimizer.step()
        terrace.load(tmp_path / 'saved', model, optimizer)
        check_equal_values(values(model), expected)
    terrace.load(tmp_path / 'saved', plain)
    check_equal_values(values(plain), expected)


@pytest.mark.parametrize('budget', BUDGETS)
def test_gradients_below_go_as_they_are_used(tmp_path, budget):
    model = mlp(24)
    with below(model, tmp_path, budget) as offload:
        optimizer = terrace.AdamW(model.parameters())
        tensors = offload.stats()['managed_tensors']
        seen = []
        for seed in range(3):
            mlp_loss(model, torch.Generator().manual_seed(seed)).backward()
            gradients = [p.grad for p in model.parameters()]
            assert all(map(is_offloaded, gradients))
            assert offload.stats()['managed_tensors'] == 2 * tensors
            seen += [weakref.ref(each.untyped_storage()) for each in gradients]
            del gradients
            optimizer.step()
            optimizer.zero_grad()
        optimizer.flush()
        gc.collect()
        assert offload.stats()['managed_tensors'] == tensors
        assert all(each() is None for each in seen)


def test_a_graph_of_after_the_step_is_not_told_of_it(tmp_path):
    model = mlp(6)
    with below(model, tmp_path, '60%'):
        optimizer = stepped(model, 1)
        loss = mlp_loss(model, torch.Generator())
        optimizer.flush()
        loss.backward()
        loss = mlp_loss(model, torch.Generator())
        optimizer.step()
        with pytest.raises(RuntimeError, match='modified by an inplace'):
            loss.backward()


@pytest.mark.parametrize('budget', BUDGETS)
def test_two_optimizers_of_one_model(tmp_path, budget):
    def trained(model):
        parts = list(model.parameters())
        optimizers = [terrace.AdamW(parts[::2], lr=1e-2),
                      terrace.AdamW(parts[1::2], lr=2e-2, max_grad_norm=0.1)]
        generator = torch.Generator().manual_seed(3)
        for _ in range(4):
            mlp_loss(model, generator).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        return values(model)

    model, plain = mlp(24), mlp(24)
    with below(model, tmp_path, budget) as offload:
        check_equal_values(trained(model), trained(plain))
        stats = offload.stats()
        assert stats['memory_peak_bytes'] <= stats['budget_bytes']
        assert stats['failures'] == 0


@pytest.mark.parametrize('budget', BUDGETS)
def test_parameters_that_share_a_gradient(tmp_path, budget):
    def trained(model, directory):
        offload = below(model, directory, budget) if directory else None
        optimizer = terrace.AdamW(model.parameters(), lr=1e-2)
        generator = torch.Generator().manual_seed(3)
        for _ in range(3):
            mlp_loss(model, generator).backward()
            for other in (20, 46):  # in chunks of their own
                model[other].weight.grad = model[0].weight.grad
            optimizer.step()
            optimizer.zero_grad()
        if offload:
            offload.close()
        return values(model)

    check_equal_values(trained(mlp(24), tmp_path), trained(mlp(24), None))


def test_one_with_places_of_its_own(tmp_path, expected):
    """It is asked for there, and gradients stay in memory."""
    for name in ('below', 'state'):
        (tmp_path / name).mkdir()
    model = mlp(24)
    with below(model, tmp_path / 'below'):
        optimizer = stepped(model, overlap=True, memory_budget='1%',
                            nvme_path=str(tmp_path / 'state'))
        check_equal_values(values(model), expected)
        optimizer.close()


def test_what_was_in_memory_when_it_was_made(tmp_path):
    """And is again, in the middle of training."""
    def trained(model, directory):
        optimizer = terrace.AdamW(model.parameters(), lr=1e-2, overlap=True,
                                  memory_budget='1GiB')
        generator = torch.Generator().manual_seed(3)
        offload = None
        for step in range(6):
            mlp_loss(model, generator).backward()
            optimizer.step()
            optimizer.zero_grad()
            if directory and step == 1:
                offload = below(model, directory)
            if offload and step == 3:
                offload.close()
        return values(model)

    check_equal_values(trained(mlp(24), tmp_path), trained(mlp(24), None))


def test_a_process_that_ends_or_forks(tmp_path):
    ended = subprocess.run([sys.executable, '-c', '''
import os, sys, torch, terrace
from offloaded import mlp, mlp_loss
from test_late_step_offload import below, stepped
model = mlp(24)
offload = below(model, sys.argv[1])
optimizer = stepped(model)
child = os.fork()
if not child:
    try:
        model[0].weight.sum()
    except RuntimeError as error:
        os._exit(0 if 'forked child' in str(error) else 1)
    os._exit(2)
assert os.waitpid(child, 0)[1] == 0
mlp_loss(model, torch.Generator()).backward()
optimizer.step()
print('ended')
''', str(tmp_path)], text=True, capture_output=True, timeout=300,
                           cwd=os.path.dirname(__file__))
    assert ended.stdout == 'ended\n' and ended.returncode == 0, ended.stderr
    assert not os.listdir(tmp_path)
