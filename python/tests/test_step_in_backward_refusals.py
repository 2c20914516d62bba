"""What step_in_backward refuses, and what a failure in it leaves."""

import contextlib
import os

import pytest
import torch

import terrace
from conftest import model
from crew import one_rank, refused_on_a_rank
from offloaded import mlp, mlp_loss, transformer, token_loss
from test_faults import doomed_disk  # noqa: F401
from test_step_in_backward import model_loss


def made(network, **settings):
    return terrace.AdamW(network.parameters(), lr=1e-2,
                         **{'step_in_backward': 1, **settings})


def check_resume(optimizer, network, tmp_path):
    """Every later use says so."""
    for use in (optimizer.step, optimizer.state_dict,
                lambda: optimizer.add_param_group(
                    {'params': torch.nn.Parameter(torch.ones(3))}),
                lambda: optimizer.load_state_dict(
                    {'state': {}, 'param_groups': [
                        {**group, 'params': list(range(len(group['params'])))}
                        for group in optimizer.param_groups]}),
                lambda: terrace.save(tmp_path / 'saved', network, optimizer)):
        with pytest.raises(RuntimeError, match='resume from the last checkp'):
            use()
    with contextlib.suppress(OSError):  # files of a disk that is gone
        optimizer.close()


@pytest.mark.parametrize('value', [-1, True, 1.0, 'one'])
def test_no_number_of_passes(value):
    with pytest.raises(ValueError, match='step_in_backward is a number'):
        made(model(), step_in_backward=value)


def test_a_norm():
    with pytest.raises(ValueError, match='step_in_backward and max_grad_norm'):
        made(model(), max_grad_norm=1.0)


def test_ranks_that_share_the_state(crew):
    for said in crew.run(refused_on_a_rank, True, {'step_in_backward': 1}):
        assert 'step_in_backward with a process_group' in said
        assert 'without process_group' in said


def test_a_group_of_one_rank(tmp_path):
    with one_rank(tmp_path):
        with pytest.raises(NotImplementedError, match='with a process_group'):
            made(model(), process_group=torch.distributed.group.WORLD)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
def test_a_grad_scaler(tmp_path, dtype):
    network = model(dtype=dtype)
    optimizer = made(network)
    scaler = torch.amp.GradScaler('cpu')
    scaler.scale(model_loss(network, torch.Generator())).backward()
    with pytest.raises(NotImplementedError, match='GradScaler'):
        scaler.step(optimizer)
    check_resume(optimizer, network, tmp_path)


def test_a_parameter_twice_in_its_group():
    network = model()
    with pytest.warns(UserWarning, match='duplicate'):
        optimizer = terrace.AdamW([*network.parameters(), network[0].weight],
                                  step_in_backward=1)
    with pytest.raises(ValueError, match='several times'):
        model_loss(network, torch.Generator()).backward()
    optimizer.close()


def test_more_passes():
    network = model()
    optimizer = made(network, step_in_backward=2)
    for _ in range(2):
        model_loss(network, torch.Generator()).backward()
    with pytest.raises(RuntimeError, match='pass 3 since the last step'):
        model_loss(network, torch.Generator()).backward()
    with pytest.raises(RuntimeError, match='has another gradient'):
        optimizer.step()
    optimizer.zero_grad()
    optimizer.step()
    assert optimizer.stats()['steps'] == 1


def test_options_that_change_before_step():
    network = model()
    optimizer = made(network)
    model_loss(network, torch.Generator()).backward()
    optimizer.param_groups[0]['lr'] = 3.0
    with pytest.raises(RuntimeError, match='options of a group were changed'):
        optimizer.step()
    optimizer.param_groups[0]['lr'] = 1e-2
    optimizer.step()
    assert optimizer.stats()['steps'] == 1


def test_half_a_step_is_neither_copied_nor_saved(tmp_path):
    network = model()
    optimizer = made(network)
    for _ in range(2):  # without state, and with
        model_loss(network, torch.Generator()).backward()
        for use in (optimizer.state_dict,
                    lambda: terrace.save(tmp_path / 'saved', network,
                                         optimizer),
                    lambda: optimizer.add_param_group(
                        {'params': torch.nn.Parameter(torch.ones(3))})):
            with pytest.raises(RuntimeError, match='in the middle of a step'):
                use()
        optimizer.step()
    assert len(optimizer.state_dict()['state']) == 8
    assert len(optimizer.param_groups) == 1


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        raise ArithmeticError('in backward')


def failing_loss(network, layer):
    hidden = torch.ones(2, 128)
    for place, part in enumerate(network):
        hidden = part(hidden)
        if place == layer:
            hidden = Failing.apply(hidden)
    return hidden.sum()


def test_a_backward_that_fails_before_anything_was_stepped(tmp_path):
    """In the first of two passes, and in one that is stepped at its end."""
    plain, ours = mlp(6), mlp(6)
    reference = terrace.AdamW(plain.parameters(), lr=1e-2)
    optimizer = made(ours, step_in_backward=2)
    for network, each in ((plain, reference), (ours, optimizer)):
        with pytest.raises(ArithmeticError):
            failing_loss(network, 4).backward()
        each.zero_grad()
        for _ in range(2):
            mlp_loss(network, torch.Generator().manual_seed(1)).backward()
        each.step()
    for a, b in zip(plain.parameters(), ours.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize('then', ['step', 'backward'])
def test_a_backward_that_fails_after_that(tmp_path, then):
    network = mlp(6)
    optimizer = made(network)
    optimizer._store.stepping._passes._is_flat = True  # of Python's functions
    with pytest.raises(ArithmeticError):
        failing_loss(network, 4).backward()
    with pytest.raises(RuntimeError, match='failed after it had stepped'):
        if then == 'step':
            optimizer.step()
        else:
            mlp_loss(network, torch.Generator()).backward()
    check_resume(optimizer, network, tmp_path)


def test_a_function_that_is_learnt_to_be_flat(tmp_path):
    """After one pass a custom function does not hold back the updates."""
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(context, inputs):
            return inputs * 2

        @staticmethod
        def backward(context, gradient):
            return gradient * 2

    network = model()
    optimizer = made(network)
    taken = []
    network[0].weight.register_hook(
        lambda _: taken.append(network[4].weight.grad is None))
    for _ in range(2):
        network(Twice.apply(torch.ones(2, 130, requires_grad=True))
                ).sum().backward()
        optimizer.step()
    assert taken == [False, True]


class Recomputed(torch.autograd.Function):
    """Runs backward within itself, and is not called after checkpoints."""

    @staticmethod
    def forward(context, inputs, layer):
        context.layer = layer
        context.save_for_backward(inputs)
        return layer(inputs)

    @staticmethod
    def backward(context, gradient):
        inputs, = context.saved_tensors
        inputs = inputs.detach().requires_grad_()
        with torch.enable_grad():
            context.layer(inputs).backward(gradient)
        return inputs.grad, None


def shared(network, within):
    """The layer is used behind the function too."""
    layer = network[0]
    hidden = torch.ones(2, 130, requires_grad=True)
    hidden = Recomputed.apply(hidden, layer) if within else layer(hidden)
    return network(hidden).square().sum()


def test_another_function_that_runs_backward(tier):
    plain, ours = model(), model()
    for network, passes in ((plain, 0), (ours, 1)):
        optimizer = made(network, step_in_backward=passes, **tier)
        for _ in range(3):
            shared(network, True).backward()
            optimizer.step()
            optimizer.zero_grad()
    for a, b in zip(plain.parameters(), ours.parameters(), strict=True):
        assert torch.equal(a, b)


def test_one_that_was_not_met_before_is_told(tmp_path):
    network = model()
    optimizer = made(network)
    optimizer._store.stepping._passes._is_flat = True  # others were met
    with pytest.raises(RuntimeError, match='another gradient by the same'):
        shared(network, True).backward()
    check_resume(optimizer, network, tmp_path)


def test_a_sparse_gradient(tmp_path):
    network = torch.nn.Sequential(torch.nn.Embedding(50, 128, sparse=True),
                                  torch.nn.Linear(128, 4))
    optimizer = made(network)
    with pytest.raises(ValueError, match="gradient of parameter 'group 0"):
        network(torch.arange(9)).sum().backward()
    check_resume(optimizer, network, tmp_path)


def test_a_disk_that_fails(doomed_disk, tmp_path):  # noqa: F811
    directory, doom, number = doomed_disk
    network = mlp(24)
    optimizer = made(network, memory_budget='10%', nvme_path=str(directory))
    generator = torch.Generator().manual_seed(1)
    mlp_loss(network, generator).backward()
    optimizer.step()
    doom()
    with pytest.raises(OSError) as caught:
        for _ in range(3):
            mlp_loss(network, generator).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert caught.value.errno == number
    assert os.fspath(directory) in str(caught.value.filename)
    check_resume(optimizer, network, tmp_path)


def test_a_forked_child(tier):
    network = model()
    optimizer = made(network, **tier)
    model_loss(network, torch.Generator()).backward()
    child = os.fork()
    if child == 0:
        try:
            optimizer.step()
        except RuntimeError as error:
            os._exit(0 if 'forked child' in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    optimizer.step()
    assert optimizer.stats()['steps'] == 1


def test_checkpoints_that_begin_later(tight_tier):
    """Re-entrant ones, after passes without any."""
    left = []
    for passes in (0, 1):
        network = transformer()
        optimizer = made(network, step_in_backward=passes, **tight_tier)
        generator = torch.Generator().manual_seed(3)
        torch.manual_seed(4)
        for step in range(4):
            network.checkpointing = 're-entrant' if step >= 2 else None
            token_loss(network, generator).backward()
            optimizer.step()
            optimizer.zero_grad()
        left.append([p.detach().clone() for p in network.parameters()])
        optimizer.close()
    for a, b in zip(*left, strict=True):
        assert torch.equal(a, b)


@pytest.fixture
def tight_tier(tmp_path):
    return {'memory_budget': '1%', 'nvme_path': str(tmp_path)}
