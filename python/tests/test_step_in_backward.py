"""terrace.AdamW(..., step_in_backward=k): what step() after backward does, bit
for bit, while backward goes on."""

import copy
import gc
import weakref

import pytest
import torch

import terrace
from conftest import batches, model
from offloaded import (check_equal_values, check_identical, mlp, mlp_loss,
                       token_loss, trained_in_groups, transformer, values)


def keyed(optimizer):
    """All of its state, as bits."""
    return {key: {name: tensor.clone() for name, tensor in state.items()}
            for key, state in optimizer.state_dict()['state'].items()}


def check_same_run(make, loss_of, passes, tier, steps=4, after_step=None,
                   kind=terrace.AdamW, **options):
    """Once stepped in step(), once in backward: parameters and state."""
    left = []
    for in_backward in (0, passes):
        network = make()
        optimizer = kind(network.parameters(), lr=1e-2,
                         step_in_backward=in_backward, **options, **tier)
        generator = torch.Generator().manual_seed(3)
        torch.manual_seed(4)  # of dropout
        for step in range(steps):
            for _ in range(passes):
                loss_of(network, generator).backward()
            if in_backward:
                assert all(p.grad is None for p in network.parameters())
            optimizer.step()
            optimizer.zero_grad()
            if after_step is not None:
                after_step(optimizer, step)
        left.append(([p.detach().clone() for p in network.parameters()],
                     keyed(optimizer)))
        optimizer.close()
    (plain, plain_state), (ours, our_state) = left
    for a, b in zip(plain, ours, strict=True):
        assert torch.equal(a, b)
    assert plain_state.keys() == our_state.keys() != set()
    for key, state in plain_state.items():
        for name, tensor in state.items():
            assert torch.equal(tensor, our_state[key][name]), (key, name)


@pytest.fixture(params=['memory', 'disk'])
def tight(request, tmp_path):
    """All in memory; or three small chunks at a time."""
    if request.param == 'memory':
        return {}
    return {'memory_budget': '1%', 'nvme_path': str(tmp_path)}


def model_loss(network, generator):
    inputs = torch.randn(12, 130, generator=generator)
    dtype = next(network.parameters()).dtype
    return network(inputs.to(dtype)).float().square().mean()


@pytest.mark.parametrize('passes', [1, 3])
def test_a_model_of_few_chunks(tier, passes):
    check_same_run(model, model_loss, passes, tier)


@pytest.mark.parametrize('kind', [terrace.AdamW, terrace.Adam])
@pytest.mark.parametrize('passes', [1, 2])
def test_a_deep_one_of_many(tight, passes, kind):
    check_same_run(lambda: mlp(12), mlp_loss, passes, tight, kind=kind,
                   weight_decay=0.1)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_16_bit_parameters(tight, dtype):
    check_same_run(lambda: mlp(8, dtype), mlp_loss, 2, tight)


@pytest.mark.parametrize('checkpointing', [None, 're-entrant', 'other'])
@pytest.mark.parametrize('passes', [1, 2])
def test_tied_frozen_and_checkpointed(tight, checkpointing, passes):
    check_same_run(lambda: transformer(checkpointing), token_loss, passes,
                   tight)


def test_the_first_layer_first(tight):
    """Gradients come in the order of the parameters, not against it."""
    class Backwards(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(5)
            self.parts = torch.nn.ModuleList(
                torch.nn.Linear(128, 128) for _ in range(12))

        def forward(self, inputs):
            for part in reversed(self.parts):
                inputs = part(inputs).tanh()
            return inputs

    check_same_run(Backwards, mlp_loss, 1, tight)


def test_another_order_in_each_pass(tight):
    class Drawn(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = mlp(12)

        def forward(self, inputs):
            for place in torch.randperm(12).tolist():  # seeded by the test
                inputs = self.parts[2 * place](inputs).tanh()
            return inputs

    check_same_run(Drawn, mlp_loss, 1, tight, steps=6)


def test_parameters_without_a_gradient(tight):
    class Some(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = mlp(12)
            self.calls = 0

        def forward(self, inputs):
            self.calls += 1
            for place in range(0, 12, 1 + self.calls % 3):
                inputs = self.parts[2 * place](inputs).tanh()
            return inputs

    check_same_run(Some, mlp_loss, 1, tight, steps=6)


def test_odd_strides(tight):
    def make():
        network = mlp(4)
        for part in network[::2]:
            part.weight = torch.nn.Parameter(part.weight.detach().T)
        return network

    check_same_run(make, mlp_loss, 1, tight)


def test_groups_and_a_scheduler(tight):
    for a, b in zip(trained_in_groups(step_in_backward=0, **tight),
                    trained_in_groups(step_in_backward=1, **tight),
                    strict=True):
        assert torch.equal(a, b)


def test_torchs_own_values():
    """Beside torch.optim.AdamW over the same gradients: as near as step()."""
    ours, theirs = model(), model()
    optimizers = (terrace.AdamW(ours.parameters(), step_in_backward=1),
                  torch.optim.AdamW(theirs.parameters()))
    for inputs, targets in batches(5):
        for network, optimizer in zip((ours, theirs), optimizers):
            loss = torch.nn.functional.mse_loss(network(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_offloaded_parameters(tmp_path):
    def train(network):
        optimizer = terrace.AdamW(network.parameters(), lr=1e-2,
                                  step_in_backward=1)
        generator = torch.Generator().manual_seed(3)
        for _ in range(3):
            mlp_loss(network, generator).backward()
            optimizer.step()
        return [state['exp_avg'].clone() for state
                in optimizer.state_dict()['state'].values()]

    check_identical(mlp, train, tmp_path)


def test_gradients_are_freed_before_backward_ends(tmp_path):
    """`.grad` is None once each has come; and nothing else holds them after
    step()."""
    network = mlp(12)
    optimizer = terrace.AdamW(network.parameters(), step_in_backward=1,
                              memory_budget='30%', nvme_path=str(tmp_path))
    storages, left = [], []

    def after(parameter):  # registered later than the optimizer's
        assert parameter.grad is None

    def look(gradient):
        storages.append(weakref.ref(gradient.untyped_storage()))

    def count(_):
        left.append(sum(p.grad is not None for p in network.parameters()))

    for parameter in network.parameters():
        parameter.register_post_accumulate_grad_hook(after)
        parameter.register_hook(look)
        parameter.register_hook(count)
    mlp_loss(network, torch.Generator()).backward()
    assert left == [0] * len(left) and len(left) == 24
    optimizer.step()
    gc.collect()
    assert all(storage() is None for storage in storages)


@pytest.mark.parametrize('strides', ['in order', 'odd'])
def test_values_read_before_the_step_are_old(tight, strides):
    """A graph that holds them must notice, as after an ordinary step."""
    weight = torch.randn(64, 48)
    parameter = torch.nn.Parameter(weight.t() if strides == 'odd' else weight)
    optimizer = terrace.AdamW([parameter], step_in_backward=1, **tight)
    parameter.square().sum().backward()
    read = parameter.square().sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match='modified by an inplace operation'):
        read.backward()


def test_bits_written_between_steps_count(tight):
    """Into parameters and state, as with step()."""
    def write(optimizer, step):
        if step == 1:
            parameter = optimizer.param_groups[0]['params'][2]
            with torch.no_grad():
                parameter.mul_(0.5)
            optimizer.state[parameter]['exp_avg'].mul_(3)

    check_same_run(lambda: mlp(6), mlp_loss, 1, tight, after_step=write)


def test_a_group_and_an_unfrozen_parameter_later(tight):
    def run(in_backward):
        network = mlp(6)
        parameters = list(network.parameters())
        parameters[0].requires_grad_(False)
        optimizer = terrace.AdamW(parameters[:6], lr=1e-2,
                                  step_in_backward=in_backward, **tight)
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

    (plain, steps), (ours, our_steps) = run(0), run(1)
    assert steps == our_steps and steps[0] == 2 and steps[-1] == 4
    for a, b in zip(plain, ours, strict=True):
        assert torch.equal(a, b)


def test_other_parameters_in_place_of_those_that_were_learnt(tier):
    """Fewer of them, before any has state."""
    left = []
    for passes in (0, 2):
        network, other = model(), model(seed=5)
        optimizer = terrace.AdamW(network.parameters(),
                                  step_in_backward=passes, **tier)
        model_loss(network, torch.Generator().manual_seed(1)).backward()
        parameters = list(other.parameters())[:2]
        optimizer.param_groups[0]['params'] = parameters
        generator = torch.Generator().manual_seed(2)
        for _ in range(3):
            for _ in range(2):
                model_loss(other, generator).backward()
            optimizer.step()
            other.zero_grad()
        left.append([p.detach().clone() for p in parameters])
        optimizer.close()
    for a, b in zip(*left, strict=True):
        assert torch.equal(a, b)


def test_fewer_passes_are_stepped_in_step(tier):
    plain, ours = model(), model()
    reference = terrace.AdamW(plain.parameters())
    optimizer = terrace.AdamW(ours.parameters(), step_in_backward=3, **tier)
    for count in (1, 3, 2):
        for network, each in ((plain, reference), (ours, optimizer)):
            generator = torch.Generator().manual_seed(count)
            for _ in range(count):
                model_loss(network, generator).backward()
            each.step()
            each.zero_grad()
    for a, b in zip(plain.parameters(), ours.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_closure(tier):
    plain, ours = model(), model()
    for network, passes in ((plain, 0), (ours, 1)):
        optimizer = terrace.AdamW(network.parameters(), step_in_backward=passes,
                                  **tier)
        generator = torch.Generator().manual_seed(3)

        def closure():
            optimizer.zero_grad()
            loss = model_loss(network, generator)
            loss.backward()
            return loss

        for _ in range(3):
            assert optimizer.step(closure).item() > 0
        optimizer.close()
    for a, b in zip(plain.parameters(), ours.parameters(), strict=True):
        assert torch.equal(a, b)


def test_saved_between_steps_and_resumed(tmp_path):
    (tmp_path / 'state').mkdir()
    where = {'memory_budget': '30%', 'nvme_path': str(tmp_path / 'state')}
    network = mlp(6)
    optimizer = terrace.AdamW(network.parameters(), step_in_backward=2, **where)
    generator = torch.Generator().manual_seed(3)

    def step(network, optimizer):
        for _ in range(2):
            mlp_loss(network, generator).backward()
        optimizer.step()

    step(network, optimizer)
    mlp_loss(network, generator).backward()  # the first of two: none began
    assert len(optimizer.state_dict()['state']) == 12
    optimizer.zero_grad()
    optimizer.step()
    terrace.save(tmp_path / 'saved', network, optimizer)
    drawn = generator.get_state()
    step(network, optimizer)
    after = values(network)
    optimizer.close()
    other = mlp(6, seed=99)
    resumed = terrace.AdamW(other.parameters(), step_in_backward=2, **where)
    terrace.load(tmp_path / 'saved', other, resumed)
    generator.set_state(drawn)
    step(other, resumed)
    check_equal_values(values(other), after)


def test_copies_of_the_model_are_free_of_it():
    network = model()
    optimizer = terrace.AdamW(network.parameters(), step_in_backward=1)
    twin = copy.deepcopy(network)
    model_loss(twin, torch.Generator()).backward()
    assert all(p.grad is not None for p in twin.parameters())
    model_loss(network, torch.Generator()).backward()
    optimizer.step()


def test_closed_in_the_middle_or_dropped(tier):
    network = model()
    optimizer = terrace.AdamW(network.parameters(), step_in_backward=1, **tier)
    model_loss(network, torch.Generator()).backward()
    optimizer.close()
    with pytest.raises(RuntimeError, match='closed'):
        optimizer.step()
    model_loss(network, torch.Generator()).backward()
    assert all(p.grad is not None for p in network.parameters())
    second = terrace.AdamW(network.parameters(), step_in_backward=1)
    gone = weakref.ref(second)
    network.zero_grad()
    model_loss(network, torch.Generator()).backward()
    del second
    gc.collect()
    assert gone() is None
    model_loss(network, torch.Generator()).backward()
    assert all(p.grad is not None for p in network.parameters())
