"""terrace.AdamW(..., overlap=True): what step() does, bit for bit, after it has
returned; whatever looks at a parameter sees it updated."""

import copy
import gc
import os
import subprocess
import sys
import weakref

import pytest
import torch

import terrace
from conftest import batches, model, train
from offloaded import (check_equal_values, mlp, mlp_loss, token_loss,
                       trained_in_groups, transformer, values)
from test_step_in_backward import keyed, model_loss


@pytest.fixture(params=['memory', 'disk'])
def tight(request, tmp_path):
    """All in memory; or three small chunks at a time."""
    if request.param == 'memory':
        return {}
    return {'memory_budget': '1%', 'nvme_path': str(tmp_path)}


def check_same_run(make, loss_of, tier, steps=5, passes=1, kind=terrace.AdamW,
                   around=None, set_to_none=True, **options):
    """Once without overlap, once with it: parameters, state, losses."""
    left = []
    for overlap in (False, True):
        network = make()
        optimizer = kind(network.parameters(), lr=1e-2, overlap=overlap,
                         **options, **tier)
        generator = torch.Generator().manual_seed(3)
        torch.manual_seed(4)  # of dropout
        losses = []
        for step in range(steps):
            for _ in range(passes):
                loss = loss_of(network, generator)
                loss.backward()
                losses.append(loss.detach().clone())
            optimizer.step()
            if around is not None:
                around(network, optimizer, step, losses)
            optimizer.zero_grad(set_to_none=set_to_none)
        left.append(([p.detach().clone() for p in network.parameters()],
                     keyed(optimizer), losses))
        waited = optimizer.stats()['updates_waited_seconds']
        assert waited >= 0 if overlap else waited == 0
        optimizer.close()
    (plain, plain_state, plain_losses), (ours, our_state, losses) = left
    for a, b in zip(plain + plain_losses, ours + losses, strict=True):
        assert torch.equal(a, b)
    assert plain_state.keys() == our_state.keys() != set()
    for key, state in plain_state.items():
        for name, tensor in state.items():
            assert torch.equal(tensor, our_state[key][name]), (key, name)


@pytest.mark.parametrize('passes', [1, 3])
def test_a_model_of_few_chunks(tier, passes):
    check_same_run(model, model_loss, tier, passes=passes)


@pytest.mark.parametrize('kind', [terrace.AdamW, terrace.Adam])
@pytest.mark.parametrize('norm', [None, 1e-3])
def test_a_deep_one_of_many(tight, kind, norm):
    check_same_run(lambda: mlp(12), mlp_loss, tight, kind=kind,
                   weight_decay=0.1, max_grad_norm=norm)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_16_bit_parameters(tight, dtype):
    check_same_run(lambda: mlp(8, dtype), mlp_loss, tight, passes=2)


@pytest.mark.parametrize('checkpointing', [None, 're-entrant', 'other'])
def test_tied_frozen_and_checkpointed(tight, checkpointing):
    check_same_run(lambda: transformer(checkpointing), token_loss, tight,
                   passes=2, max_grad_norm=0.1)


def test_gradients_that_are_zeroed_and_not_dropped(tight):
    check_same_run(lambda: mlp(12), mlp_loss, tight, set_to_none=False)


def test_gradients_that_are_kept_and_added_to(tight):
    class Kept(terrace.AdamW):
        def zero_grad(self, set_to_none=True):
            pass

    check_same_run(lambda: mlp(12), mlp_loss, tight, kind=Kept)


def test_odd_strides(tight):
    def make():
        network = mlp(4)
        for part in network[::2]:
            part.weight = torch.nn.Parameter(part.weight.detach().T)
        return network

    def look(network, optimizer, step, losses):
        losses += values(network).values()

    check_same_run(make, mlp_loss, tight)
    check_same_run(make, mlp_loss, tight, around=look)


def test_parameters_without_a_gradient_and_in_another_order(tight):
    class Some(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = mlp(12)
            self.calls = 0

        def forward(self, inputs):
            self.calls += 1
            places = list(range(0, 12, 1 + self.calls % 3))
            for place in places[::-1 if self.calls % 2 else 1]:
                inputs = self.parts[2 * place](inputs).tanh()
            return inputs

    check_same_run(Some, mlp_loss, tight, steps=8)


def test_one_storage_for_all(tight):
    """As of flat parameters."""
    def make():
        network = mlp(6)
        flat = torch.cat([p.detach().flatten() for p in network.parameters()])
        first = 0
        for p in network.parameters():
            p.data = flat[first:first + p.numel()].view_as(p)
            first += p.numel()
        return network

    check_same_run(make, mlp_loss, tight)


def test_groups_and_a_scheduler(tight):
    for a, b in zip(trained_in_groups(overlap=False, **tight),
                    trained_in_groups(overlap=True, **tight), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
@pytest.mark.parametrize('fused', [None, True])
def test_a_grad_scaler(tight, dtype, fused):
    def run(overlap):
        network = mlp(6, dtype)
        optimizer = terrace.AdamW(network.parameters(), lr=1e-2, fused=fused,
                                  max_grad_norm=1.0, overlap=overlap, **tight)
        scaler = torch.amp.GradScaler('cpu', init_scale=1024.0,
                                      growth_interval=2)
        generator = torch.Generator().manual_seed(3)
        scales = []
        for step in range(5):
            loss = mlp_loss(network, generator)
            scaler.scale(loss * (float('inf') if step == 2 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
        steps = optimizer.stats()['steps']
        optimizer.close()
        return values(network), scales, steps

    (plain, scales, steps), (ours, our_scales, our_steps) = run(False), run(True)
    check_equal_values(ours, plain)
    assert scales == our_scales and steps == our_steps == 4


def test_a_group_and_an_unfrozen_parameter_later(tight):
    def run(overlap):
        network = mlp(6)
        parameters = list(network.parameters())
        parameters[0].requires_grad_(False)
        optimizer = terrace.AdamW(parameters[:6], lr=1e-2, overlap=overlap,
                                  **tight)
        generator = torch.Generator().manual_seed(3)
        for step in range(6):
            if step == 2:
                optimizer.add_param_group({'params': parameters[6:]})
            if step == 4:
                parameters[0].requires_grad_(True)
            mlp_loss(network, generator).backward()
            optimizer.step()
            network.zero_grad()
        steps = [int(optimizer.state[p]['step']) for p in parameters]
        optimizer.close()
        return parameters, steps

    (plain, steps), (ours, our_steps) = run(False), run(True)
    assert steps == our_steps and steps[0] == 2 and steps[-1] == 4
    for a, b in zip(plain, ours, strict=True):
        assert torch.equal(a, b)


def test_a_parameter_twice_in_its_group(tight):
    def run(overlap):
        network = model()
        with pytest.warns(UserWarning, match='duplicate'):
            optimizer = terrace.AdamW(
                [*network.parameters(), network[0].weight], overlap=overlap,
                **tight)
        for step in range(3):
            model_loss(network, torch.Generator().manual_seed(step)).backward()
            optimizer.step()
        optimizer.close()
        return values(network)

    check_equal_values(run(True), run(False))


def test_a_closure(tier):
    left = []
    for overlap in (False, True):
        network = model()
        optimizer = terrace.AdamW(network.parameters(), overlap=overlap, **tier)
        generator = torch.Generator().manual_seed(3)

        def closure():
            optimizer.zero_grad()
            loss = model_loss(network, generator)
            loss.backward()
            return loss

        for _ in range(3):
            assert optimizer.step(closure).item() > 0
        optimizer.close()
        left.append(values(network))
    check_equal_values(*left)


def test_saved_loaded_and_resumed(tmp_path):
    (tmp_path / 'state').mkdir()
    where = {'memory_budget': '1%', 'nvme_path': str(tmp_path / 'state'),
             'overlap': True}
    network = mlp(6)
    optimizer = terrace.AdamW(network.parameters(), **where)
    generator = torch.Generator().manual_seed(3)

    def step(network, optimizer):
        mlp_loss(network, generator).backward()
        optimizer.step()
        optimizer.zero_grad()

    step(network, optimizer)
    step(network, optimizer)
    terrace.save(tmp_path / 'saved', network, optimizer)
    kept = copy.deepcopy(optimizer.state_dict())
    at = values(network)
    drawn = generator.get_state()
    step(network, optimizer)
    after = values(network)
    step(network, optimizer)  # goes on while it is loaded over
    terrace.load(tmp_path / 'saved', network, optimizer)
    check_equal_values(values(network), at)
    generator.set_state(drawn)
    step(network, optimizer)
    check_equal_values(values(network), after)
    step(network, optimizer)
    network.load_state_dict(at)
    optimizer.load_state_dict(kept)
    generator.set_state(drawn)
    step(network, optimizer)
    optimizer.close()
    check_equal_values(values(network), after)


def test_a_graph_of_before_step_is_told_of_it(tight):
    network = mlp(4)
    optimizer = terrace.AdamW(network.parameters(), overlap=True, **tight)
    generator = torch.Generator().manual_seed(3)
    loss = mlp_loss(network, generator)
    mlp_loss(network, generator).backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match='modified by an inplace operation'):
        loss.backward()


def test_one_of_after_step_is_not(tight):
    network = mlp(4)
    optimizer = terrace.AdamW(network.parameters(), overlap=True, **tight)
    generator = torch.Generator().manual_seed(3)
    mlp_loss(network, generator).backward()
    optimizer.step()
    loss = mlp_loss(network, generator)
    optimizer.flush()
    loss.backward()


def test_gradients_are_freed(tight):
    network = mlp(12)
    optimizer = terrace.AdamW(network.parameters(), overlap=True, **tight)
    mlp_loss(network, torch.Generator()).backward()
    storages = [weakref.ref(p.grad.untyped_storage())
                for p in network.parameters()]
    seen = [p.grad for p in network.parameters()]
    optimizer.step()
    optimizer.zero_grad()
    del seen
    mlp_loss(network, torch.Generator()).backward()
    gc.collect()
    assert all(storage() is None for storage in storages)


@pytest.mark.parametrize('end', ['close', 'drop'])
def test_closed_or_dropped_with_updates_under_way(tight, end):
    left = []
    for overlap in (False, True):
        network = mlp(12)
        optimizer = terrace.AdamW(network.parameters(), lr=1e-2,
                                  overlap=overlap, **tight)
        for seed in range(2):  # the first is waited for by its message
            mlp_loss(network, torch.Generator().manual_seed(seed)).backward()
            optimizer.step()
        if end == 'close':
            optimizer.close()
            optimizer.flush()
            with pytest.raises(RuntimeError, match='closed'):
                optimizer.step()
        del optimizer
        gc.collect()
        left.append(values(network))
    check_equal_values(*left)


def test_the_end_of_a_process(tmp_path):
    ended = subprocess.run([sys.executable, '-c', '''
import sys, torch, terrace
from offloaded import mlp, mlp_loss
network = mlp(12)
optimizer = terrace.AdamW(network.parameters(), overlap=True,
                          memory_budget='1%', nvme_path=sys.argv[1])
for _ in range(2):
    mlp_loss(network, torch.Generator()).backward()
    optimizer.step()
print('ended')
''', str(tmp_path)], text=True, capture_output=True, timeout=120,
                           cwd=os.path.dirname(__file__))
    assert ended.stdout == 'ended\n' and ended.returncode == 0, ended.stderr
    assert not list(tmp_path.iterdir())


def test_torchs_own_values():
    """Beside torch.optim.AdamW over the same gradients: as near as step()."""
    ours, theirs = model(), model()
    left = [train(network, make(network.parameters()), batches(5))
            for network, make in (
                (ours, lambda p: terrace.AdamW(p, overlap=True)),
                (theirs, torch.optim.AdamW))]
    assert left[0] == pytest.approx(left[1], rel=1e-4)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
