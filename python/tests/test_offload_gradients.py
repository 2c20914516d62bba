"""Gradients of an offloaded model, which live below where an AdamW joined."""

import contextlib

import pytest
import torch

import terrace
from offloaded import (check_equal_values, check_identical, check_same,
                       is_cold, mlp, mlp_loss, token_loss, train, transformer,
                       values)
from terrace._base.library import is_offloaded


def adamw(parameters):
    return terrace.AdamW(parameters, lr=1e-2)


@contextlib.contextmanager
def below(directory, build=lambda: mlp(12), budget='40%', **more):
    model = build()
    with terrace.offload(model, memory_budget=budget,
                         nvme_path=str(directory)) as offload:
        yield model, offload, terrace.AdamW(model.parameters(), lr=1e-2,
                                            **more)


def backward(model, seed=5):
    loss = mlp_loss(model, torch.Generator().manual_seed(seed))
    loss.backward()
    return loss


def copies(gradients):
    return [gradient.clone() for gradient in gradients]


def gradients_of(model):
    return [p.grad for p in model.parameters()]


def test_they_are_the_same_and_below(tmp_path):
    plain = mlp(12)
    backward(plain)
    with below(tmp_path) as (model, offload, _):
        before = offload.stats()
        backward(model)
        grads = gradients_of(model)
        assert all(map(is_offloaded, grads))
        assert any(map(is_cold, grads))
        stats = offload.stats()
        assert stats['managed_tensors'] == 2 * before['managed_tensors']
        assert stats['managed_bytes'] == 2 * stats['parameter_bytes']
        assert stats['memory_peak_bytes'] <= stats['budget_bytes']
        check_same(copies(grads), gradients_of(plain))
        assert offload.stats()['bytes_read'] > stats['bytes_read']


def test_of_other_memory_they_stay_in_memory(tmp_path):
    plain = mlp(12)
    backward(plain)
    with below(tmp_path) as (model, offload, _):
        for parameter in list(model.parameters())[::2]:
            parameter.data = parameter.detach().clone()
        backward(model)
        grads = gradients_of(model)
        assert [*map(is_offloaded, grads)] == [False, True] * 12
        check_same(copies(grads), gradients_of(plain))
        assert offload.error is None


def test_zero_grad_frees_them(tmp_path):
    with below(tmp_path) as (model, offload, optimizer):
        count = offload.stats()['managed_tensors']
        for _ in range(3):
            backward(model)
            assert offload.stats()['managed_tensors'] == 2 * count
            optimizer.zero_grad()
            assert offload.stats()['managed_tensors'] == count
        kept = None
        backward(model)
        kept = model[0].weight.grad
        expected = kept.clone()
        optimizer.zero_grad()
        backward(model, seed=6)  # another one, under a name of its own
        assert torch.equal(kept, expected)
        assert not torch.equal(model[0].weight.grad, expected)


def test_zero_grad_that_keeps_them(tmp_path):
    plain = mlp(12)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.0)
    with below(tmp_path) as (model, offload, optimizer):
        for seed in (1, 2):
            backward(model, seed)
            backward(plain, seed)
            grads = gradients_of(model)
            optimizer.zero_grad(set_to_none=False)
            theirs.zero_grad(set_to_none=False)
            assert all(mine is now for mine, now
                       in zip(grads, gradients_of(model)))
            check_same(copies(grads), gradients_of(plain))
        backward(model, 3)
        backward(plain, 3)
        check_same(copies(gradients_of(model)), gradients_of(plain))
        assert offload.stats()['failures'] == 0


def test_accumulation_and_programs_that_write_them(tmp_path):
    def run(model, make):
        optimizer = make(model)
        for step in range(3):
            for micro in range(3):
                backward(model, 7 * step + micro)
                for p in model.parameters():
                    p.grad.mul_(0.5)
            model[4].weight.grad = model[4].weight.grad.flip(0).clone()
            optimizer.step()
            optimizer.zero_grad()
        return values(model)

    plain = run(mlp(12), lambda model: adamw(model.parameters()))
    with below(tmp_path) as (model, _, optimizer):
        check_equal_values(run(model, lambda _: optimizer), plain)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('clip', [torch.nn.utils.clip_grad_norm_,
                                  terrace.clip_grad_norm_])
def test_clipping(tmp_path, clip, dtype):
    def run(model):
        optimizer = adamw(model.parameters())
        left = []
        generator = torch.Generator().manual_seed(4)
        for _ in range(3):
            mlp_loss(model, generator).backward()
            left.append(clip(model.parameters(), 0.01).clone())
            optimizer.step()
            optimizer.zero_grad()
        return left

    check_same_run(tmp_path, lambda: mlp(12, dtype), run)


def check_same_run(tmp_path, build, run):
    plain, model = build(), build()
    expected = run(plain)
    with terrace.offload(model, memory_budget='40%',
                         nvme_path=str(tmp_path)) as offload:
        check_same(run(model), expected)
        stats = offload.stats()
        assert stats['failures'] == 0
        assert stats['memory_peak_bytes'] <= stats['budget_bytes']
    check_equal_values(values(model), values(plain))


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
def test_a_grad_scaler(tmp_path, dtype):
    def run(model):
        optimizer = adamw(model.parameters())
        scaler = torch.amp.GradScaler('cpu', init_scale=2.0 ** 8,
                                      growth_interval=2)
        generator = torch.Generator().manual_seed(4)
        left = []
        for step in range(4):
            scaler.scale(mlp_loss(model, generator)).backward()
            if step == 2:
                with torch.no_grad():
                    model[2].weight.grad[0, 0] = float('inf')
            if dtype == torch.float32:
                scaler.unscale_(optimizer)
                left.append(terrace.clip_grad_norm_(model.parameters(),
                                                    0.05).clone())
            scaler.step(optimizer)
            scaler.update()
            left.append(torch.tensor(scaler.get_scale()))
            optimizer.zero_grad()
        return left

    def same(left, right):
        for mine, theirs in zip(left, right):
            assert torch.equal(mine, theirs) or (mine.isnan()
                                                 and theirs.isnan())

    plain, model = mlp(12, dtype), mlp(12, dtype)
    expected = run(plain)
    with terrace.offload(model, memory_budget='40%', nvme_path=str(tmp_path)):
        same(run(model), expected)
    check_equal_values(values(model), values(plain))


@pytest.mark.parametrize('checkpointing', [None, 're-entrant', 'other'])
def test_a_transformer_with_ties_and_frozen_layers(tmp_path, checkpointing):
    check_identical(
        lambda: transformer(checkpointing),
        lambda m: train(m, token_loss,
                        lambda p: terrace.AdamW(p, lr=1e-2,
                                                max_grad_norm=0.1), micro=2),
        tmp_path)


def test_hooks_of_the_program_run_too(tmp_path):
    with below(tmp_path) as (model, _, optimizer):
        heard = []
        weight = model[0].weight
        weight.register_post_accumulate_grad_hook(
            lambda p: heard.append(p.grad.sum().item()))
        backward(model)
        assert heard == [weight.grad.sum().item()]


def test_one_that_is_unfrozen_later_stays_in_memory(tmp_path):
    with below(tmp_path) as (model, _, optimizer):
        extra = torch.nn.Parameter(torch.ones(3))
        optimizer.add_param_group({'params': [extra]})
        (extra.sum() * 2).backward()
        assert not is_offloaded(extra.grad)
        backward(model)
        optimizer.step()
        assert is_offloaded(model[0].weight.grad)


def test_an_optimizer_with_places_of_its_own_leaves_them(tmp_path):
    model = mlp(12)
    with terrace.offload(model, memory_budget='40%', nvme_path=str(tmp_path)):
        terrace.AdamW(model.parameters(), memory_budget='1GiB')
        backward(model)
        assert not any(map(is_offloaded, gradients_of(model)))


def test_one_that_was_there_before_is_taken_over(tmp_path):
    model, plain = mlp(12), mlp(12)
    backward(plain)
    with terrace.offload(model, memory_budget='40%', nvme_path=str(tmp_path)):
        backward(model)
        assert not is_offloaded(model[0].weight.grad)
        optimizer = adamw(model.parameters())
        assert is_offloaded(model[0].weight.grad)
        check_same(copies(gradients_of(model)), gradients_of(plain))
        optimizer.step()
    adamw_of_plain = adamw(plain.parameters())
    adamw_of_plain.step()
    check_equal_values(values(model), values(plain))


def test_those_of_thawed_parameters_go_below(tmp_path):
    """Whose state was loaded while they were frozen."""
    plain = mlp(12)
    optimizer = adamw(plain.parameters())
    backward(plain)
    optimizer.step()
    saved = optimizer.state_dict()

    def frozen():
        model = mlp(12)
        for parameter in model[0].parameters():
            parameter.requires_grad_(False)
        return model

    with below(tmp_path, frozen) as (model, offload, joined):
        joined.load_state_dict(saved)
        joined.flush()
        assert not any(p.requires_grad for p in model[0].parameters())
        for parameter in model[0].parameters():
            parameter.requires_grad_(True)
        for _ in range(2):
            backward(model)
            assert all(map(is_offloaded, gradients_of(model)))
            joined.step()
            joined.zero_grad()
