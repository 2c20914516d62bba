"""terrace.AdamW that joins an offloaded model: one memory, one budget."""

import gc
import os

import pytest
import torch

import terrace
from crew import Crew, error_of
from offloaded import (check_equal_values, check_same, mlp, mlp_loss, train,
                       values)
from terrace._base.library import is_offloaded


def joined(offload=None):
    def make(parameters):
        more = {} if offload is None else {'offload': offload}
        return terrace.AdamW(parameters, lr=1e-2, **more)
    return make


def place_bytes(size):
    """Of the Runtime: whole blocks and a header's."""
    return 4096 + -(-size // 4096) * 4096


def test_it_joins_by_name_and_by_its_parameters(tmp_path):
    plain = mlp(12)
    expected = train(plain, mlp_loss, joined())
    for by_name in (True, False):
        model = mlp(12)
        offload = terrace.offload(model, memory_budget='40%',
                                  nvme_path=str(tmp_path))
        before = offload.stats()['budget_bytes']
        optimizer = joined(offload if by_name else None)(model.parameters())
        # Nothing of its own: one folder of one job.
        assert len(os.listdir(tmp_path)) == 1
        own, shared = optimizer.stats(), offload.stats()
        assert (own['tiers'][0]['budget_bytes']
                == shared['tiers'][0]['budget_bytes'])
        assert shared['budget_bytes'] > before
        check_same(train(model, mlp_loss, lambda _: optimizer), expected)
        stats = offload.stats()
        assert stats['memory_peak_bytes'] <= stats['budget_bytes']
        assert stats['over_budget_bytes'] == 0
        # The state does not fit: it was written and read there.
        # Reading ahead goes on.
        assert 0 < stats['bytes_read'] <= optimizer.stats()['bytes_read']
        offload.close()
        check_equal_values(values(model), values(plain))
        assert os.listdir(tmp_path) == []


def test_a_share_grows_by_that_share_of_gradients_and_state(tmp_path):
    model = mlp(24)
    offload = terrace.offload(model, memory_budget='30%',
                              nvme_path=str(tmp_path))
    before = offload.stats()
    optimizer = terrace.AdamW(model.parameters(), offload=offload)
    stats = offload.stats()
    most = sum(place_bytes(4 * p.numel()) + 8 * p.numel()
               for p in model.parameters())
    share = before['budget_bytes'] / before['parameter_bytes']
    assert abs(stats['joined_bytes'] - share * most) <= 1
    assert (stats['budget_bytes']
            == before['budget_bytes'] + stats['joined_bytes'])
    assert stats['window_bytes'] > before['window_bytes']
    # The next one has the memory of the one before.
    optimizer.close()
    assert offload.stats()['joined_bytes'] == stats['joined_bytes']
    terrace.AdamW(model.parameters(), offload=offload)
    assert offload.stats()['budget_bytes'] == stats['budget_bytes']


def test_frozen_parameters_add_nothing(tmp_path):
    model = mlp(24)
    for parameter in list(model.parameters())[:-2]:
        parameter.requires_grad_(False)
    offload = terrace.offload(model, memory_budget='30%',
                              nvme_path=str(tmp_path))
    terrace.AdamW([p for p in model.parameters() if p.requires_grad])
    # What the least takes: three slots of the smallest chunks, and a gradient.
    assert 0 < offload.stats()['joined_bytes'] <= 3 * (66 << 10) + (68 << 10)


@pytest.mark.parametrize('budget', ['448KiB', '1MiB'])
def test_a_budget_in_bytes_is_for_all_of_it(tmp_path, budget):
    plain = mlp(12)
    expected = train(plain, mlp_loss, joined())
    model = mlp(12)
    offload = terrace.offload(model, memory_budget=budget,
                              nvme_path=str(tmp_path))
    optimizer = terrace.AdamW(model.parameters(), lr=1e-2, offload=offload)
    check_same(train(model, mlp_loss, lambda _: optimizer), expected)
    stats = offload.stats()
    asked = {'448KiB': 448 << 10, '1MiB': 1 << 20}[budget]
    assert stats['budget_bytes'] <= asked
    assert stats['memory_peak_bytes'] <= asked
    offload.close()
    check_equal_values(values(model), values(plain))


def test_a_budget_that_holds_no_optimizer_names_the_one_that_does(tmp_path):
    model = mlp(12)
    least = 2 * (64 * 1024 + 3 * 4096)
    offload = terrace.offload(model, memory_budget=least,
                              nvme_path=str(tmp_path))
    with pytest.raises(ValueError, match='below the minimum of') as raised:
        terrace.AdamW(model.parameters(), offload=offload)
    assert f'memory_budget={least}' in str(raised.value)
    train(model, mlp_loss)  # as it was
    offload.close()
    named = int(str(raised.value).split('minimum of ')[1].split()[0])
    for budget, works in ((named - 4096, False), (named, True)):
        model = mlp(12)
        with terrace.offload(model, memory_budget=budget,
                             nvme_path=str(tmp_path)):
            if works:
                train(model, mlp_loss, joined())
            else:
                with pytest.raises(ValueError, match=str(named)):
                    terrace.AdamW(model.parameters())


@pytest.mark.parametrize('overlap', [False, True])
@pytest.mark.parametrize('budget', ['20%', '40%'])
def test_a_step_writes_all_of_it_once(tmp_path, budget, overlap):
    model = mlp(24)
    most = sum(2 * place_bytes(4 * p.numel()) + 8 * p.numel()
               for p in model.parameters())
    with terrace.offload(model, memory_budget=budget,
                         nvme_path=str(tmp_path)) as offload:
        optimizer = terrace.AdamW(model.parameters(), offload=offload,
                                  overlap=overlap)
        generator = torch.Generator().manual_seed(5)
        written = []
        for _ in range(6):
            mlp_loss(model, generator).backward()
            optimizer.step()
            optimizer.zero_grad()
            optimizer.flush()
            written.append(offload.stats()['bytes_written'])
    # The rest is in memory meanwhile, and chunks have headers and padding.
    # Parameters, or gradients, that are written twice would be 1.27 of it.
    steps = [after - before for before, after in zip(written, written[1:])]
    assert 0.4 * most < sum(steps) / len(steps) < 1.2 * most


def test_where_all_is_in_memory_so_is_the_state(tmp_path):
    model, plain = mlp(), mlp()
    with terrace.offload(model) as offload:
        optimizer = terrace.AdamW(model.parameters(), lr=1e-2,
                                  offload=offload)
        check_same(train(model, mlp_loss, lambda _: optimizer),
                   train(plain, mlp_loss, joined()))
        assert optimizer.stats()['paths'] == []
    check_equal_values(values(model), values(plain))
    model = mlp()
    with terrace.offload(model, memory_budget='600KiB'):
        with pytest.raises(ValueError, match='nvme_path|below the minimum'):
            terrace.AdamW(model.parameters())


def test_of_a_budget_in_bytes_it_takes_what_it_has(tmp_path):
    """Neither what activations have, nor what others may want."""
    model = mlp(24)
    for activations in (False, True):
        with terrace.offload(model, memory_budget='4MiB',
                             activations=activations,
                             activations_above='4KiB',
                             nvme_path=str(tmp_path)) as offload:
            optimizers = [terrace.AdamW([p], offload=offload)
                          for p in list(model.parameters())[:2]]
            stats = offload.stats()
            assert stats['budget_bytes'] <= 4 << 20
            assert stats['tiers'][0]['budget_bytes'] <= 4 << 20
            assert stats['joined_bytes'] <= 2 * (3 * (64 << 10) + (20 << 10))
            assert stats['activation_limit_bytes'] < (4 << 20) / 5
            del optimizers


def test_more_than_all_is_all(tmp_path):
    model, plain = mlp(), mlp()
    with terrace.offload(model, memory_budget='200%',
                         nvme_path=str(tmp_path)) as offload:
        check_same(train(model, mlp_loss, joined()),
                   train(plain, mlp_loss, joined()))
        stats = offload.stats()
        assert stats['memory_peak_bytes'] <= stats['budget_bytes']
    check_equal_values(values(model), values(plain))


def test_gradients_are_torchs_own_once_it_is_closed(tmp_path):
    model = mlp(12)
    with terrace.offload(model, memory_budget='40%', nvme_path=str(tmp_path)):
        optimizer = joined()(model.parameters())
        train(model, mlp_loss, lambda _: optimizer)
        optimizer.close()
        model.zero_grad()
        mlp_loss(model, torch.Generator()).backward()
        assert not any(is_offloaded(p.grad) for p in model.parameters())


def test_what_is_said_twice_or_wrong(tmp_path):
    model = mlp()
    offload = terrace.offload(model, memory_budget='60%',
                              nvme_path=str(tmp_path))
    for name, value in (('memory_budget', '10%'), ('nvme_path', str(tmp_path)),
                        ('tiers', ['dram=1GiB'])):
        with pytest.raises(ValueError, match=f'offload and {name} together'):
            terrace.AdamW(model.parameters(), offload=offload, **{name: value})
    with pytest.raises(TypeError, match='not str'):
        terrace.AdamW(model.parameters(), offload='cpu')
    offload.close()
    with pytest.raises(RuntimeError, match='Offload is closed'):
        terrace.AdamW(model.parameters(), offload=offload)
    terrace.AdamW(model.parameters())  # of ordinary ones


def test_an_optimizer_of_two_models_joins_none(tmp_path):
    models = [mlp(seed=1), mlp(seed=2)]
    offloads = [terrace.offload(model, memory_budget='60%',
                                nvme_path=str(tmp_path)) for model in models]
    optimizer = terrace.AdamW([p for model in models
                               for p in model.parameters()], lr=1e-2)
    assert optimizer.stats()['paths'] == []
    for model in models:
        mlp_loss(model, torch.Generator().manual_seed(5)).backward()
    optimizer.step()
    for offload in offloads:
        assert offload.stats()['joined_bytes'] == 0
        offload.close()
    optimizer.step()  # it is its own


def test_close_ends_it_and_a_lease_keeps_all_open(tmp_path):
    model = mlp(12)
    offload = terrace.offload(model, memory_budget='40%',
                              nvme_path=str(tmp_path))
    optimizer = terrace.AdamW(model.parameters(), lr=1e-2)
    train(model, mlp_loss, lambda _: optimizer)
    with offload.lease(model[0].weight):
        with pytest.raises(RuntimeError, match='leased or in use'):
            offload.close()
        train(model, mlp_loss, lambda _: optimizer)  # nothing has changed
    mlp_loss(model, torch.Generator()).backward()
    kept = [p.grad for p in model.parameters()]
    sums = [g.sum().item() for g in kept]
    offload.close()
    assert os.listdir(tmp_path) == []
    for use in (optimizer.step, optimizer.state_dict):
        with pytest.raises(RuntimeError, match='closed'):
            use()
    optimizer.close()
    # Gradients are ordinary tensors again.
    assert [g.sum().item() for g in kept] == sums
    assert all(g.data_ptr() != 0 for g in kept)
    offload.close()


def test_what_nobody_closes_ends_with_its_parameters(tmp_path):
    model = mlp(12)
    terrace.offload(model, memory_budget='40%', nvme_path=str(tmp_path))
    train(model, mlp_loss, joined())
    assert len(os.listdir(tmp_path)) == 1
    del model
    gc.collect()
    assert os.listdir(tmp_path) == []


def test_groups_that_are_added(tmp_path):
    def run(model):
        parts = list(model.parameters())
        optimizer = terrace.AdamW(parts[:8], lr=1e-2)
        left = train(model, mlp_loss, lambda _: optimizer)
        optimizer.add_param_group({'params': parts[8:], 'lr': 3e-2})
        return left + train(model, mlp_loss, lambda _: optimizer)

    model, plain = mlp(12), mlp(12)
    offload = terrace.offload(model, memory_budget='40%',
                              nvme_path=str(tmp_path))
    check_same(run(model), run(plain))
    stats = offload.stats()
    assert stats['memory_peak_bytes'] <= stats['budget_bytes']
    offload.close()
    check_equal_values(values(model), values(plain))


def test_two_that_share_a_model(tmp_path):
    def run(model):
        parts = list(model.parameters())
        optimizers = [terrace.AdamW(parts[::2], lr=1e-2),
                      terrace.AdamW(parts[1::2], lr=2e-2, max_grad_norm=0.1)]
        generator = torch.Generator().manual_seed(3)
        for _ in range(3):
            loss = mlp_loss(model, generator)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        return optimizers

    model, plain = mlp(12), mlp(12)
    with terrace.offload(model, memory_budget='40%', nvme_path=str(tmp_path)):
        ours = run(model)
        for mine, theirs in zip(ours, run(plain)):
            mine, theirs = mine.state_dict(), theirs.state_dict()
            for place, state in theirs['state'].items():
                for key, value in state.items():
                    assert torch.equal(mine['state'][place][key], value)
    check_equal_values(values(model), values(plain))


def step_without_joining(folder):
    """Of two ranks: a step without offload=."""
    rank = torch.distributed.get_rank()
    path = os.path.join(folder, str(rank))
    os.mkdir(path)
    group = torch.distributed.group.WORLD
    model, plain = mlp(), mlp()
    with terrace.offload(model, memory_budget='60%',
                         nvme_path=path) as offload:
        optimizer = terrace.AdamW(model.parameters(), lr=1e-2,
                                  process_group=group)
        left = train(model, mlp_loss, lambda _: optimizer)
        below = [parameter.grad is not None and is_offloaded(parameter.grad)
                 for parameter in model.parameters()]
        assert offload.stats()['joined_bytes'] == 0
    expected = train(plain, mlp_loss, joined())
    check_same(left, expected)
    return any(below)


def test_ranks_that_do_not_join_have_gradients_in_memory(tmp_path):
    crew = Crew(tmp_path)
    try:
        assert crew.run(step_without_joining, str(tmp_path)) == [False, False]
    finally:
        crew.close()


def test_with_a_process_group(tmp_path):
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1)
    (tmp_path / 'nvme').mkdir()
    try:
        model = mlp()
        offload = terrace.offload(model, memory_budget='60%',
                                  nvme_path=str(tmp_path / 'nvme'))
        group = torch.distributed.group.WORLD
        optimizer = terrace.AdamW(model.parameters(), offload=offload,
                                  process_group=group)  # one rank
        optimizer.close()
    finally:
        torch.distributed.destroy_process_group()
