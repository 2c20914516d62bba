"""FullyShardedDataParallel, whose parameters are parts of flat tensors, and
DistributedDataParallel, against torch.optim.AdamW under the same."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel

import sharded
import terrace
from crew import bits, error_of, one_rank


def wrapped(how):
    network = sharded.network()
    if how == 'ddp':
        return DistributedDataParallel(network)
    return FSDP(network, use_orig_params=how == 'original',
                device_id=torch.device('cpu'))


def train(model, optimizer, first, last):
    losses = []
    for number in range(first, last):
        generator = torch.Generator().manual_seed(number)
        rows = torch.randn(12, 5, generator=generator)
        loss = model(rows[dist.get_rank()::2]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def run(who, how, optimizer_first):
    network = sharded.network()
    if optimizer_first:
        optimizer = sharded.optimizer_of(who, network.parameters())
        model = FSDP(network, use_orig_params=True,
                     device_id=torch.device('cpu'))
    else:
        model = wrapped(how)
        optimizer = sharded.optimizer_of(who, model.parameters())
    losses = train(model, optimizer, 0, 3)
    if how == 'ddp':
        return losses + train(model, optimizer, 3, 6), {}
    whole = FSDP.optim_state_dict(model, optimizer)
    shapes = {name: {key: value.shape for key, value in state.items()}
              for name, state in whole['state'].items()}
    optimizer.load_state_dict(
        FSDP.optim_state_dict_to_load(model, optimizer, whole))
    return losses + train(model, optimizer, 3, 6), shapes


@pytest.mark.parametrize('how, optimizer_first', [
    ('ddp', False), ('original', False), ('original', True), ('flat', False)])
def test_losses_are_those_of_torch(how, optimizer_first, crew):
    expected = crew.run(run, 'torch', how, optimizer_first)
    for ours, theirs in zip(crew.run(run, 'ours', how, optimizer_first),
                            expected):
        sharded.assert_near(ours[0], theirs[0], 2e-6)
        assert ours[1] == theirs[1]


def refusals(how, folder):
    model = wrapped(how)
    optimizer = terrace.AdamW(model.parameters())
    calls = [lambda: terrace.AdamW(model.parameters(), max_grad_norm=1.0),
             lambda: terrace.AdamW(model.parameters(),
                                   process_group=dist.group.WORLD),
             lambda: terrace.save(folder, model, optimizer)]
    return [error_of(call)[:2] for call in calls]


@pytest.mark.parametrize('how', ['original', 'flat'])
def test_what_cannot_be_followed_is_named(how, crew, tmp_path):
    for errors in crew.run(refusals, how, str(tmp_path)):
        for (kind, text), words in zip(errors, [
                'clip_grad_norm_() of FullyShardedDataParallel, before step()',
                'leave process_group out', 'each rank has a part']):
            assert kind == 'NotImplementedError' and words in text, text
            assert 'is sharded by FullyShardedDataParallel' in text
    assert not list(tmp_path.iterdir())


def losses_of_one(path, how, settings):
    """And the parameters, whole, of a model on one rank."""
    with one_rank(path):
        model = wrapped(how)
        optimizer = terrace.AdamW(model.parameters(), lr=1e-2, **settings)
        losses = train(model, optimizer, 0, 4)
        optimizer.close()
        with FSDP.summon_full_params(model):
            return losses, [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize('settings', [
    {'overlap': True}, {'step_in_backward': 1}],
                         ids=lambda settings: next(iter(settings)))
@pytest.mark.parametrize('how', ['original', 'flat'])
def test_on_one_rank_updates_may_be_late_and_early(how, settings, tmp_path):
    expected, theirs = losses_of_one(tmp_path, how, {})
    losses, ours = losses_of_one(tmp_path, how, settings)
    assert losses == expected
    assert all(map(torch.equal, ours, theirs)) and len(ours) == len(theirs)


def shards_after(how, settings):
    """Losses, and the bits of this rank's parts."""
    model = wrapped(how)
    optimizer = terrace.AdamW(model.parameters(), lr=1e-2, **settings)
    losses = train(model, optimizer, 0, 6)
    parts = bits(model.parameters())
    optimizer.close()
    return losses, parts


@pytest.mark.parametrize('how', ['original', 'flat'])
def test_on_two_ranks_updates_may_be_late(how, crew):
    assert (crew.run(shards_after, how, {'overlap': True})
            == crew.run(shards_after, how, {}))
