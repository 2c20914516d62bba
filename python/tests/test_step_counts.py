"""What a counter of steps may be: a whole number that a run can count on
from."""

import collections

import pytest
import torch

import terrace
from conftest import batches, largest_difference, model, train

MOST = 1 << 53  # up to there a float has every whole number


def stepped(optimizer_kind=terrace.AdamW, **settings):
    network = model()
    optimizer = optimizer_kind(network.parameters(), **settings)
    train(network, optimizer, batches(2))
    return network, optimizer


def as_tensor(value):
    return torch.tensor(value, dtype=torch.float64)


BAD = [2 ** 63 - 1, 2 ** 63, 2 ** 64, 10 ** 400, MOST + 1, -1, 1e19, 1e300,
       float('inf'), float('nan'), -0.5, 0.5, True, False, 'three', '3', None,
       1 + 0j, [1], as_tensor(1e19), as_tensor(float('nan')), as_tensor(2.5),
       as_tensor(-1.0), torch.tensor([1.0, 2.0]), torch.tensor([]),
       torch.tensor(True), torch.tensor(2 ** 63 - 1)]


def given_by_state_dict(optimizer, parameter, step):
    state = optimizer.state_dict()
    state['state'][0]['step'] = step
    optimizer.load_state_dict(state)


def given_in_place(optimizer, parameter, step):
    optimizer.state[parameter]['step'] = step
    optimizer.state_dict()


def given_as_state(optimizer, parameter, step):
    optimizer.state[parameter] = {**dict(optimizer.state[parameter]),
                                  'step': step}
    optimizer.state_dict()


@pytest.mark.parametrize('step', BAD, ids=lambda bad: str(bad)[:24])
@pytest.mark.parametrize('give', [given_by_state_dict, given_in_place,
                                  given_as_state])
def test_what_is_no_count_is_refused(step, give, tmp_path):
    network, optimizer = stepped(memory_budget='256KiB',
                                 nvme_path=str(tmp_path))
    parameter = network[0].weight
    before = {key: value.clone() for key, value
              in optimizer.state[parameter].items()}
    with pytest.raises(ValueError, match='the step of .*whole number from 0'):
        give(optimizer, parameter, step)
    # It goes on, once what was written there is a count again.
    if give is not given_by_state_dict:
        optimizer.state[parameter]['step'] = before['step']
    assert all(torch.equal(value, before[key]) for key, value
               in optimizer.state[parameter].items())
    train(network, optimizer, batches(1))
    assert float(optimizer.state[parameter]['step']) == 3


@pytest.mark.parametrize('step', [0, 1, 7.0, MOST, float(MOST), 2 ** 24 + 1,
                                  torch.tensor(5), as_tensor(MOST),
                                  torch.tensor([3.0])],
                         ids=lambda good: str(good)[:24])
def test_a_count_is_taken(step):
    network, optimizer = stepped()
    given_by_state_dict(optimizer, network[0].weight, step)
    assert optimizer._store.steps_of(network[0].weight) == int(step)


def test_the_largest_count_steps_as_torch_does(tmp_path):
    """There it stays: of so many steps no bias is left to correct."""
    network, optimizer = stepped()
    other = model()
    theirs = torch.optim.AdamW(other.parameters())
    train(other, theirs, batches(2))
    for one in (optimizer, theirs):
        state = one.state_dict()
        for entry in state['state'].values():
            entry['step'] = torch.tensor(float(MOST))
        one.load_state_dict(state)
    for data in (batches(3, seed=5), batches(2, seed=6)):
        train(network, optimizer, data)
        train(other, theirs, data)
        assert largest_difference(network, other) <= 1e-5
        assert optimizer._store.steps_of(network[0].weight) == MOST
        terrace.save(tmp_path / 'c', network, optimizer)
        terrace.load(tmp_path / 'c', network, optimizer)
        terrace.export_torch(tmp_path / 'run.pt', network, optimizer)
        terrace.import_torch(tmp_path / 'run.pt', network, optimizer)


def test_a_file_of_torch_that_has_no_count(tmp_path):
    network, optimizer = stepped()
    state = collections.OrderedDict(optimizer.state_dict())
    state['state'][0]['step'] = torch.tensor(1e19)
    torch.save({'optimizer': state}, tmp_path / 'run.pt')
    with pytest.raises(ValueError, match='the step of'):
        terrace.import_torch(tmp_path / 'run.pt', optimizer=optimizer)
    assert float(optimizer.state[network[0].weight]['step']) == 2
