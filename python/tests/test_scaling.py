"""torch.amp.GradScaler and steps that raise: the run goes on as if nothing
had happened."""

import errno
import gc

import pytest
import torch

import terrace
from conftest import batches, largest_difference, model
from test_add_group import _NoLargerFiles

STEPS = 6


class Run:
    """With a step that unscales and skips by itself, as fused=True asks for."""

    def __init__(self, kind=terrace.AdamW, **settings):
        self.network = model()
        self.optimizer = kind(self.network.parameters(),
                              **{'fused': True, **settings})
        self.scaler = torch.amp.GradScaler('cpu', init_scale=2.0 ** 10,
                                           growth_interval=3)
        self.data = batches(STEPS)

    def backward(self, number):
        self.optimizer.zero_grad()
        inputs, targets = self.data[number]
        self.scaler.scale(torch.nn.functional.mse_loss(
            self.network(inputs), targets)).backward()

    def step(self, number):
        self.backward(number)
        self.scaler.step(self.optimizer)
        self.scaler.update()


def undisturbed():
    run = Run()
    for number in range(STEPS):
        run.step(number)
    return run


def same(run, other):
    assert run.scaler.get_scale() == other.scaler.get_scale()
    assert run.optimizer.stats()['steps'] == other.optimizer.stats()['steps']
    return largest_difference(run.network, other.network) == 0


def test_a_step_that_is_refused_and_repeated():
    run = Run()
    for number in range(STEPS):
        if number == 2:
            run.backward(number)
            weight = run.network[0].weight
            good = weight.grad
            weight.grad = None
            weight.grad_dtype = None
            weight.grad = good.double()
            for _ in range(2):
                with pytest.raises(ValueError, match='Double'):
                    run.scaler.step(run.optimizer)
            weight.grad = good
            run.scaler.step(run.optimizer)
            run.scaler.update()
        else:
            run.step(number)
    assert same(run, undisturbed())


def test_an_interrupt_after_the_finished_step():
    run = Run()
    for number in range(STEPS):
        if number != 2:
            run.step(number)
            continue
        run.backward(number)
        store = run.optimizer._store
        finish = store.step

        def interrupted(*arguments):
            finish(*arguments)
            raise KeyboardInterrupt

        store.step = interrupted
        with pytest.raises(KeyboardInterrupt):
            run.scaler.step(run.optimizer)
        del store.step
        run.scaler.update()
    assert same(run, undisturbed())


def test_a_skip_that_raises_skips_nothing_later():
    run = Run()
    run.backward(0)
    run.network[0].weight.grad[0, 0] = float('inf')

    def closure():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run.scaler.step(run.optimizer, closure)
    run.network[0].weight.grad[0, 0] = 0
    run.optimizer.step()
    assert run.optimizer.stats()['steps'] == 1


@pytest.mark.parametrize('register', ['register_step_pre_hook',
                                      'register_step_post_hook'])
def test_a_hook_that_raises_leaves_no_scale_behind(register):
    run = Run()
    for number in range(STEPS):
        if number != 2:
            run.step(number)
            continue

        def fail(*_):
            raise ZeroDivisionError

        run.backward(number)
        hook = getattr(run.optimizer, register)(fail)
        with pytest.raises(ZeroDivisionError):
            run.scaler.step(run.optimizer)
        hook.remove()
        assert not {'grad_scale', 'found_inf'} & vars(run.optimizer).keys()
        if 'pre' in register:  # else the step is done
            run.scaler.step(run.optimizer)
        run.scaler.update()
    assert same(run, undisturbed())


@pytest.mark.parametrize('by_the_scaler', [True, False])
def test_an_unfinished_step_keeps_its_scale(by_the_scaler, tmp_path):
    run = Run(memory_budget='256KiB', nvme_path=str(tmp_path))
    for number in range(STEPS):
        if number != 2:
            run.step(number)
            continue
        run.backward(number)
        with _NoLargerFiles(0), pytest.raises(OSError) as caught:
            run.scaler.step(run.optimizer)
        assert caught.value.errno == errno.EFBIG
        if by_the_scaler:
            run.scaler.step(run.optimizer)
        else:
            run.optimizer.step()
        run.scaler.update()
    assert same(run, undisturbed())


def test_a_step_that_is_refused_keeps_no_gradient():
    good, bad = (torch.nn.Parameter(torch.zeros(9)) for _ in range(2))
    optimizer = terrace.AdamW([good, bad])
    good.grad = torch.ones(9)
    bad.grad_dtype = None
    bad.grad = torch.ones(9, dtype=torch.double)
    storage = good.grad.untyped_storage()._cdata
    before = torch._C._storage_Use_Count(storage)
    with pytest.raises(ValueError, match='Double'):
        optimizer.step()
    gc.collect()
    assert torch._C._storage_Use_Count(storage) == before


def test_who_unscales_is_as_with_torch():
    """What clips in between, as Lightning, asks for this first."""
    weight = torch.nn.Parameter(torch.zeros(3))
    half = torch.nn.Parameter(torch.zeros(3, dtype=torch.float16))

    def unscales(parameter, **keywords):
        return terrace.AdamW([parameter], **keywords)._step_supports_amp_scaling

    assert not unscales(weight) and not unscales(weight, fused=False)
    assert not unscales(torch.nn.Parameter(weight.bfloat16()))
    assert unscales(weight, fused=True)
    # torch.amp.GradScaler refuses to unscale gradients of 16 bits.
    assert unscales(half)


def clipped(kind, by, seed=3, **settings):
    """A loop with a scaler, with gradients clipped by hand in between: as
    Lightning, Fabric, accelerate and Trainer do. An overflow in the fourth
    step."""
    run = Run(kind, **settings)
    for number in range(STEPS):
        run.backward(number)
        if number == 3:
            run.network[0].weight.grad[0, 0] = float('inf')
        if by == 'norm':
            run.scaler.unscale_(run.optimizer)
            torch.nn.utils.clip_grad_norm_(run.network.parameters(), 0.1)
        elif by == 'value':
            run.scaler.unscale_(run.optimizer)
            torch.nn.utils.clip_grad_value_(run.network.parameters(), 0.001)
        run.scaler.step(run.optimizer)
        run.scaler.update()
    return run


@pytest.mark.parametrize('by', ['norm', 'value', None])
@pytest.mark.parametrize('fused', [None, False, True])
def test_gradients_are_clipped_as_with_torch(by, fused, tier):
    run = clipped(terrace.AdamW, by, fused=fused, **tier)
    other = clipped(torch.optim.AdamW, by, fused=fused)
    assert run.scaler.get_scale() == other.scaler.get_scale()
    assert run.optimizer.stats()['steps'] == STEPS - 1
    assert largest_difference(run.network, other.network) < 2e-6
    run.optimizer.close()


def test_gradients_of_16_bits_are_unscaled_by_the_step():
    weight, other = (torch.nn.Parameter(torch.zeros(4, dtype=torch.float16))
                     for _ in range(2))
    optimizer, plain = terrace.AdamW([weight]), terrace.AdamW([other])
    scaler = torch.amp.GradScaler('cpu', init_scale=8.0)
    for number in range(3):
        scaler.scale((weight.float() * (number + 1)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        (other.float() * (number + 1)).sum().backward()
        plain.step()
        optimizer.zero_grad()
        plain.zero_grad()
    assert torch.equal(weight, other) and weight.abs().min() > 0
