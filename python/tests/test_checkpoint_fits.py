"""A checkpoint that does not fit is refused before anything is changed."""

import re
import sys

import pytest
import torch
import torch.distributed as dist

import terrace
from conftest import batches, model, train
from crew import bits, error_of


def grouped(network, *sizes):
    parameters, groups = list(network.parameters()), []
    for size in sizes:
        groups.append({'params': parameters[:size], 'lr': 1e-3 * size})
        parameters = parameters[size:]
    return terrace.AdamW(groups)


def everything(network, optimizer):
    """All that a load could change."""
    return (bits(network.state_dict().values()),
            {i: bits(state.values())
             for i, state in enumerate(optimizer.state.values())},
            [{key: value for key, value in group.items() if key != 'params'}
             for group in optimizer.param_groups],
            torch.get_rng_state().tolist())


def refused(path, network, optimizer, error, text, **objects):
    """load() raises that, and all is as it was."""
    before = everything(network, optimizer)
    states = {name: str(thing.state_dict()) for name, thing in objects.items()}
    with pytest.raises(error, match=text):
        terrace.load(path, network, optimizer, **objects)
    assert everything(network, optimizer) == before
    assert states == {name: str(thing.state_dict())
                      for name, thing in objects.items()}


def trained():
    network = model()
    optimizer = grouped(network, 3, 5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    train(network, optimizer, batches(2), scheduler.step)
    return network, optimizer, scheduler


@pytest.fixture
def saved(tmp_path):
    network, optimizer, scheduler = trained()
    terrace.save(tmp_path / 'run', network, optimizer, scheduler=scheduler,
                 scaler=torch.amp.GradScaler('cpu', enabled=False))
    return tmp_path / 'run'


@pytest.mark.parametrize('sizes, text', [
    ((8,), '2 groups of 3 and 5 parameters, the optimizer has 1 group of 8 '
           'parameters'),
    ((3, 4, 1), '2 groups of 3 and 5 parameters, the optimizer has 3 groups of '
                '3 and 4 and 1 parameters'),
    ((5, 3), '2 groups of 3 and 5 parameters, the optimizer has 2 groups of 5 '
             'and 3 parameters')])
def test_other_groups(saved, sizes, text):
    network = model(seed=1)
    optimizer = grouped(network, *sizes)
    train(network, optimizer, batches(1))
    refused(saved, network, optimizer, ValueError,
            re.escape(f'{saved} is of another optimizer: it has {text}'))


def test_groups_of_other_parameters(saved):
    """As many in each, but options would go to parameters they are not of."""
    network = model(seed=1)
    parameters = list(network.parameters())
    optimizer = terrace.AdamW([{'params': parameters[5:]},
                               {'params': parameters[:5]}])
    refused(saved, network, optimizer, ValueError,
            "parameter '3.bias' is in group 0 of the optimizer and in group 1 "
            'there')


def test_the_order_within_a_group_does_not_matter(saved):
    network = model(seed=1)
    named = dict(network.named_parameters())
    first = [(name, named.pop(name)) for name in list(named)[:3]]
    optimizer = terrace.AdamW([{'params': first[::-1]},
                               {'params': list(named.items())}])
    terrace.load(saved, network, optimizer)
    assert optimizer.param_groups[0]['param_names'] == [
        name for name, _ in first[::-1]]
    assert optimizer.param_groups[1]['lr'] == pytest.approx(5e-3 * 0.01)
    source, saved_one, _ = trained()
    for (name, parameter), other in zip(network.named_parameters(),
                                        source.parameters(), strict=True):
        assert torch.equal(parameter, other), name
        for key, value in saved_one.state[other].items():
            assert torch.equal(optimizer.state[parameter][key], value), name


def test_an_optimizer_where_none_was_saved(tmp_path):
    network = model()
    terrace.save(tmp_path / 'run', network)
    optimizer = terrace.AdamW(network.parameters())
    train(network, optimizer, batches(1))
    refused(tmp_path / 'run', network, optimizer, ValueError,
            'it has 0 groups of no parameters, the optimizer has 1')


class Counting(torch.nn.Module):
    def __init__(self, *shape, dtype=torch.int64, name='count'):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
        self.register_buffer(name, torch.ones(shape, dtype=dtype))


@pytest.mark.parametrize('other, text', [
    (lambda: Counting(1), "'count'"),
    (lambda: Counting(2, dtype=torch.int32), "'count'.*int32"),
    (lambda: Counting(2, name='number'), "'number'"),
    (lambda: torch.nn.ModuleDict({'inner': torch.nn.Linear(3, 3)}),
     "'count'")])
def test_other_buffers(tmp_path, other, text):
    network = Counting(2)
    terrace.save(tmp_path / 'run', network,
                 terrace.AdamW(network.parameters()))
    network = other()
    refused(tmp_path / 'run', network, terrace.AdamW(network.parameters()),
            ValueError, text)


def test_missing_objects(saved):
    network = model(seed=1)
    optimizer = grouped(network, 3, 5)
    refused(saved, network, optimizer, ValueError, 'has no average, other',
            other=torch.nn.Linear(1, 1), average=torch.nn.Linear(1, 1))


def test_an_object_that_cannot_be_loaded(saved):
    """A GradScaler that is enabled does not take the state of one that is
    not; the scheduler before it has taken over its own by then."""
    network = model(seed=1)
    optimizer = grouped(network, 3, 5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    refused(saved, network, optimizer, RuntimeError, 'state dict is empty',
            scheduler=scheduler, scaler=torch.amp.GradScaler('cpu'))


def test_objects_of_another_model_stay(saved):
    network = model(width=64)
    optimizer = grouped(network, 3, 5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    refused(saved, network, optimizer, ValueError, '0.weight',
            scheduler=scheduler)


def test_a_checkpoint_of_Adam_leaves_AdamW_what_it_is(tmp_path):
    network = model()
    terrace.save(tmp_path / 'run', network, terrace.Adam(network.parameters()))
    optimizer = terrace.AdamW(network.parameters())
    terrace.load(tmp_path / 'run', network, optimizer)
    assert optimizer.param_groups[0]['decoupled_weight_decay'] is True


def load_other_groups(path):
    network = model()
    terrace.save(path, network, terrace.AdamW(
        network.parameters(), process_group=dist.group.WORLD))
    network = model(seed=1)
    parameters = list(network.parameters())
    one = dist.get_rank() == 1
    optimizer = terrace.AdamW(parameters, process_group=dist.group.WORLD)
    before = everything(network, optimizer)
    if one:  # its groups were changed by hand
        optimizer.param_groups.append({**optimizer.param_groups[0],
                                       'params': []})
    error = error_of(lambda: terrace.load(path, network, optimizer))
    if one:
        optimizer.param_groups.pop()
    unchanged = everything(network, optimizer) == before
    optimizer.close()
    return error[:2], unchanged


def load_another_buffer(path):
    network = Counting(2)
    terrace.save(path, network, terrace.AdamW(
        network.parameters(), process_group=dist.group.WORLD))
    network = Counting(2 + dist.get_rank())
    for parameter in network.parameters():
        torch.nn.init.constant_(parameter, 7)
    network.count.fill_(7)
    optimizer = terrace.AdamW(network.parameters(),
                              process_group=dist.group.WORLD)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = everything(network, optimizer), scheduler.state_dict()
    error = error_of(lambda: terrace.load(path, network, optimizer))
    unchanged = before == (everything(network, optimizer),
                           scheduler.state_dict())
    optimizer.close()
    return error[:2], unchanged


def test_a_streamed_buffer_of_one_rank_leaves_all_as_they_are(crew, tmp_path):
    first, second = crew.run(load_another_buffer, str(tmp_path / 'run'))
    assert second[0][0] == 'ValueError' and "'count'" in second[0][1]
    assert first[0][0] == 'RankError' and "'count'" in first[0][1]
    assert first[1] and second[1]


def test_one_rank_that_does_not_fit_leaves_all_as_they_are(crew, tmp_path):
    first, second = crew.run(load_other_groups, str(tmp_path / 'run'))
    assert second[0][0] == 'ValueError' and 'another optimizer' in second[0][1]
    assert first[0][0] == 'RankError' and 'another optimizer' in first[0][1]
    assert first[1] and second[1]


class Thing:
    """Takes every state but those that it is told to refuse."""

    def __init__(self, value, *refused):
        self.state, self.refused = {'value': value}, refused

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        if state['value'] in self.refused:
            raise KeyError(f'not {state["value"]}')
        self.state.update(state)


def test_an_object_that_stays_changed_hides_neither_cause_nor_others(tmp_path):
    module = torch.nn.Linear(2, 2)
    terrace.save(tmp_path / 'run', module, first=Thing(1), second=Thing(1),
                 third=Thing(1), last=Thing(1))
    first, second, third, last = (Thing(5), Thing(6, 6), Thing(7, 1), Thing(8))
    with pytest.raises(KeyError, match='not 1') as caught:
        terrace.load(tmp_path / 'run', module, second=second, first=first,
                     third=third, last=last)
    assert [thing.state['value'] for thing in (first, second, third, last)
            ] == [5, 1, 7, 8]
    if sys.version_info >= (3, 11):
        assert 'second could not be given' in caught.value.__notes__[0]


def test_a_state_that_cannot_be_copied_is_loaded(tmp_path):
    module, weight = torch.nn.Linear(2, 2), torch.ones(2, requires_grad=True)
    terrace.save(tmp_path / 'run', module, thing=Thing(weight * 2))
    thing = Thing(weight * 3)
    thing.load_state_dict = lambda state: thing.state.update(state)
    terrace.load(tmp_path / 'run', module, thing=thing)
    assert torch.equal(thing.state['value'], torch.full((2,), 2.))
