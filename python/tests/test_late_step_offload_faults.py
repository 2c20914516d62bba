"""What a late update that fails leaves of an offloaded model."""

import contextlib
import errno
import gc
import os

import pytest
import torch

import terrace
from offloaded import check_equal_values, mlp, mlp_loss, values
from terrace._base.library import is_offloaded
from test_late_step_faults import no_large_files, step_all


def pair_of_runs(directory, **where):
    """Two models, in memory and offloaded there, with their optimizers, whose
    state is in memory, and on the path with an overlap; a step of both."""
    plain, model = mlp(24), mlp(24)
    reference = terrace.AdamW(plain.parameters(), lr=1e-2)
    offload = terrace.offload(model, **where)
    optimizer = terrace.AdamW(
        model.parameters(), lr=1e-2,
        **({} if where else {'overlap': True, 'memory_budget': '10%',
                             'nvme_path': str(directory)}))
    runs = [(each, one, torch.Generator().manual_seed(1))
            for each, one in ((plain, reference), (model, optimizer))]
    step_all(runs)
    return offload, runs


def fail_one(runs):
    """Of the second; the first has what it is to be. What was raised."""
    (plain, reference, drawn), (model, optimizer, generator) = runs
    mlp_loss(plain, drawn).backward()
    reference.step()
    reference.zero_grad()
    mlp_loss(model, generator).backward()
    with no_large_files():
        optimizer.step()  # returns
        with pytest.raises(OSError) as caught:
            optimizer.flush()
    return caught.value


def refused_in(model, offload):
    count = 0
    for name, parameter in model.named_parameters():
        try:
            parameter.sum()
        except RuntimeError as error:
            assert str(error).startswith(
                f"terrace: parameter '{name}' could not be updated: "), error
            assert offload.error.errno in (errno.EFBIG, errno.ENOSPC)
            assert 'could not be updated' in str(offload.error)
            count += 1
    return count


@pytest.mark.parametrize('look', [False, True])
@pytest.mark.parametrize('again', ['flush', 'step'])
def test_flush_tries_again_to_the_same_bits(tmp_path, look, again):
    offload, runs = pair_of_runs(tmp_path)
    fail_one(runs)
    (plain, reference, _), (model, optimizer, _) = runs
    if look:
        assert refused_in(model, offload) > 0
        refused = 0
        for parameter in model.parameters():
            try:
                with offload.lease(parameter):
                    pass
            except RuntimeError as error:
                assert 'could not be updated' in str(error)
                refused += 1
        assert refused > 0
    if again == 'flush':
        with contextlib.suppress(OSError):  # raised again by what comes first
            optimizer.flush()
        optimizer.flush()
    else:
        optimizer.zero_grad()
        optimizer.step()  # without gradients
        reference.step()
    assert refused_in(model, offload) == 0
    check_equal_values(values(model), values(plain))
    assert all(map(is_offloaded, model.parameters()))
    optimizer.zero_grad()
    step_all(runs)
    step_all(runs)
    check_equal_values(values(model), values(plain))
    assert offload.stats()['failures'] == 0
    offload.close()
    check_equal_values(values(model), values(plain))
    optimizer.close()


@pytest.mark.parametrize('look', [False, True])
def test_what_gives_it_up_leaves_parameters_that_can_be_used(tmp_path, look):
    offload, runs = pair_of_runs(tmp_path)
    fail_one(runs)
    model, optimizer, _ = runs[1]
    if look:
        assert refused_in(model, offload) > 0
    optimizer.close()  # it was told
    assert refused_in(model, offload) == 0
    assert all(map(is_offloaded, model.parameters()))
    offload.close()
    assert all(p.data_ptr() and p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize('restore', [True, False])
def test_an_offload_that_is_closed_first(tmp_path, restore):
    offload, runs = pair_of_runs(tmp_path)
    fail_one(runs)
    model, optimizer, _ = runs[1]
    assert refused_in(model, offload) > 0
    offload.close(restore)  # the optimizer is not its own
    if restore:
        optimizer.flush()
        assert refused_in(model, offload) == 0
        check_equal_values(values(model), values(runs[0][0]))
    else:
        with pytest.raises(RuntimeError):
            optimizer.flush()
        for parameter in model.parameters():
            with pytest.raises(RuntimeError, match='terrace:'):
                parameter.sum()
    with contextlib.suppress(RuntimeError):
        optimizer.close()


def test_one_that_joined(tmp_path):
    """Parameters and state are written to one path."""
    offload, runs = pair_of_runs(tmp_path, memory_budget='10%',
                                 nvme_path=str(tmp_path))
    error = fail_one(runs)
    model, optimizer, _ = runs[1]
    assert not isinstance(error, terrace.DataLossError)
    assert refused_in(model, offload) > 0
    optimizer.flush()
    assert refused_in(model, offload) == 0
    check_equal_values(values(model), values(runs[0][0]))
    optimizer.zero_grad()
    step_all(runs)
    check_equal_values(values(model), values(runs[0][0]))
    offload.close()
    gc.collect()
    assert not os.listdir(tmp_path)


def test_close_raises_it_and_closes(tmp_path):
    offload, runs = pair_of_runs(tmp_path, memory_budget='10%',
                                 nvme_path=str(tmp_path))
    model, optimizer, generator = runs[1]
    mlp_loss(model, generator).backward()
    with pytest.raises(OSError):
        with no_large_files():
            optimizer.step()
            offload.close()
    offload.close()
    with pytest.raises(RuntimeError, match='closed'):
        optimizer.step()


def test_the_end_of_a_with_raises_what_is_under_way(tmp_path):
    offload, runs = pair_of_runs(tmp_path, memory_budget='10%',
                                 nvme_path=str(tmp_path))
    model, optimizer, generator = runs[1]
    mlp_loss(model, generator).backward()
    with pytest.raises(KeyError), no_large_files(), offload:
        optimizer.step()
        raise KeyError('mine')


def test_what_was_refused_can_be_used_after_flush_leased_or_not(tmp_path):
    """Views that were made before too."""
    offload, runs = pair_of_runs(tmp_path)
    model, optimizer, _ = runs[1]
    with contextlib.ExitStack() as leases:
        for parameter in model.parameters():
            leases.enter_context(offload.lease(parameter))
        views = [parameter.detach().view(-1)
                 for parameter in model.parameters()]
        fail_one(runs)
        assert refused_in(model, offload) > 0
        optimizer.flush()
        assert refused_in(model, offload) == 0
        for view, value in zip(views, values(runs[0][0]).values()):
            assert torch.equal(view, value.view(-1))
    check_equal_values(values(model), values(runs[0][0]))
    optimizer.zero_grad()
    step_all(runs)
    check_equal_values(values(model), values(runs[0][0]))
    offload.close()


class Failing:
    """An optimizer that joined."""

    def __init__(self, name):
        self.name = name
        self.is_mended = False

    def flush(self):
        if not self.is_mended:
            raise OSError(f'{self.name} failed')

    def close(self):
        pass


@pytest.mark.parametrize('leased', [False, True])
@pytest.mark.parametrize('end', ['flush', 'close'])
def test_all_that_failed_are_told(end, leased):
    model = mlp(2)
    offload = terrace.offload(model)
    joined = [Failing('one'), Failing('another')]
    for each in joined:
        offload._managed.join(each)
    with contextlib.ExitStack() as lease:
        if leased:
            lease.enter_context(offload.lease(model[0].weight))
        is_refused = leased and end == 'close'
        with pytest.raises(RuntimeError if is_refused else OSError) as caught:
            getattr(offload, end)()
    error = caught.value
    # Before Python 3.11 an exception has no notes.
    told = ' '.join([str(error), *getattr(error, '__notes__', []),
                     str(error.__context__)])
    assert all(f'{each.name} failed' in told for each in joined)
    assert offload._managed.is_closed == (end == 'close' and not leased)
    for each in joined:
        each.is_mended = True
    offload.close()
