"""terrace.offload changes no bit: losses and parameters are those of the same
script in memory."""

import copy
import functools

import pytest
import torch

import terrace
from offloaded import (adamw, check_equal_values, check_identical, check_same,
                       mlp, mlp_loss, sgd, token_loss, train, transformer,
                       values)


@pytest.mark.parametrize('make', [sgd, adamw])
def test_an_mlp(tmp_path, make):
    stats = check_identical(mlp, lambda m: train(m, mlp_loss, make), tmp_path)
    assert stats['clean_drops'] > 0 and stats['fetches_ahead'] > 0
    assert stats['disk_bytes'] > 0 and stats['bytes_written'] > 0
    # A step's end, two calls without gradients.
    assert stats['steps'] == 4 + 2


@pytest.mark.parametrize('checkpointing',
                         [None, 're-entrant', 'not re-entrant'])
@pytest.mark.parametrize('make', [sgd, adamw])
def test_a_transformer_with_ties_and_frozen_layers(tmp_path, checkpointing,
                                                   make):
    check_identical(lambda: transformer(checkpointing),
                    lambda m: train(m, token_loss, make), tmp_path)


def test_gradients_of_several_passes(tmp_path):
    check_identical(transformer, lambda m: train(m, token_loss, micro=3),
                    tmp_path)


def test_autocast(tmp_path):
    around = functools.partial(torch.autocast, 'cpu', torch.bfloat16)
    check_identical(transformer,
                    lambda m: train(m, token_loss, around=around), tmp_path)


def test_16_bit_parameters(tmp_path):
    check_identical(lambda: mlp(12, torch.bfloat16),
                    lambda m: train(m, mlp_loss), tmp_path)


def test_clipping(tmp_path):
    def run(model):
        def make(parameters):
            optimizer = sgd(parameters)
            optimizer.register_step_pre_hook(clip)
            return optimizer

        def clip(*_):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)

        return train(model, token_loss, make)

    check_identical(transformer, run, tmp_path)


def test_a_script_that_reads_parameters_at_any_moment(tmp_path):
    """An average, a copy, values as numbers, a norm over all, writes."""
    def run(model):
        average = torch.optim.swa_utils.AveragedModel(model)
        kept = copy.deepcopy(model)
        left = []
        for step in range(3):
            left += train(model, mlp_loss, steps=1)
            average.update_parameters(model)
            left.append(sum(p.detach().norm() for p in model.parameters()))
            left.append(torch.tensor(model[4].weight[step, 3].item()))
            with torch.no_grad():
                model[2].weight.mul_(0.99)
                model[6].weight.data[1] = 0.5
                kept[0].weight.lerp_(model[0].weight, 0.1)
        left += values(average).values()
        left += values(kept).values()
        left += [value.clone() for value in model.state_dict().values()]
        return left

    check_identical(mlp, run, tmp_path)


def test_a_model_that_is_trained_before_and_after(tmp_path):
    def run(model, directory=None):
        left = train(model, mlp_loss)
        offload = directory and terrace.offload(
            model, memory_budget='40%', nvme_path=str(directory))
        left += train(model, mlp_loss, adamw)
        if offload:
            offload.close()
        return left + train(model, mlp_loss)

    model, plain = mlp(), mlp()
    check_same(run(model, tmp_path), run(plain))
    check_equal_values(values(model), values(plain))


def test_an_optimizer_that_was_made_before(tmp_path):
    def run(model, directory=None):
        optimizer = adamw(model.parameters())
        if directory:
            terrace.offload(model, memory_budget='40%',
                            nvme_path=str(directory))
        return train(model, mlp_loss, lambda _: optimizer)

    check_same(run(mlp(), tmp_path), run(mlp()))


def test_two_models_at_a_time(tmp_path):
    first, second = mlp(seed=1), mlp(seed=2)
    expected = [train(copy.deepcopy(model), mlp_loss)
                for model in (first, second)]
    offloads = [terrace.offload(model, memory_budget='40%',
                                nvme_path=str(tmp_path))
                for model in (first, second)]
    got = [train(model, mlp_loss) for model in (first, second)]
    for mine, theirs in zip(got, expected):
        check_same(mine, theirs)
    # Of one optimizer's steps the other model hears nothing.
    assert [each.stats()['steps'] for each in offloads] == [6, 6]
    offloads[0].close()
    plain = mlp(seed=2)
    train(plain, mlp_loss)
    check_same(train(second, mlp_loss), train(plain, mlp_loss))
    offloads[1].close()


def test_views_and_shared_storages_stay(tmp_path):
    class Sliced(torch.nn.Module):
        def __init__(self):
            super().__init__()
            whole = torch.randn(2, 128, 128)
            self.first = torch.nn.Parameter(whole[0])
            self.second = torch.nn.Parameter(whole[1])
            self.other = torch.nn.ModuleList([mlp(2), mlp(2)])

        def forward(self, inputs):
            hidden = inputs @ self.first @ self.second.T
            for part in self.other:
                hidden = part(hidden)
            return hidden

    def build():
        torch.manual_seed(3)
        return Sliced()

    model = build()
    view = model.second.detach()[3]
    offload = terrace.offload(model, memory_budget='70%',
                              nvme_path=str(tmp_path))
    assert offload.stats()['managed_tensors'] == 9  # two parameters share one
    plain = build()
    check_same(train(model, mlp_loss), train(plain, mlp_loss))
    assert torch.equal(view, plain.second[3])
    offload.close()
    assert torch.equal(view, plain.second[3])
    assert (model.first.untyped_storage().data_ptr() ==
            model.second.untyped_storage().data_ptr())


def test_buffers_stay_in_memory(tmp_path):
    def build():
        torch.manual_seed(3)
        return torch.nn.Sequential(
            mlp(), torch.nn.BatchNorm1d(128), mlp())

    def run(model):
        left = train(model, mlp_loss)
        return left + [buffer.clone() for buffer in model.buffers()]

    check_identical(build, run, tmp_path)


def test_everything_in_memory():
    model, plain = mlp(), mlp()
    with terrace.offload(model) as offload:
        check_same(train(model, mlp_loss), train(plain, mlp_loss))
        stats = offload.stats()
        assert stats['evictions'] == stats['bytes_written'] == 0
        assert stats['paths'] == [] and stats['disk_bytes'] == 0
    check_equal_values(values(model), values(plain))
