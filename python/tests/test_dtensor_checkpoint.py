"""Runs over DTensors that torch.distributed.checkpoint saves and resumes."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_optimizer_state_dict,
    get_state_dict, set_model_state_dict, set_optimizer_state_dict,
    set_state_dict)
from torch.distributed.tensor import DTensor

import sharded
from crew import Crew, error_of

SAVED, STEPS = 4, 8
FULL = {'full_state_dict': True, 'cpu_offload': True}


@pytest.fixture(scope='module')
def crew_of_three(tmp_path_factory):
    made = Crew(tmp_path_factory.mktemp('three'), 3)
    yield made
    made.close()


def made(who, dtype=torch.float32, path=None):
    """With a path the state is on disk."""
    sizes = sharded.SIZES if path is None else (400, 600, 7)
    tier = {} if path is None else {'memory_budget': '512KiB',
                                    'nvme_path': path}
    model = sharded.sharded(sizes, dtype)
    return model, sharded.optimizer_of(who, model.parameters(), **tier)


def zeroed(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()


def run_and_save(who, folder, dtype=torch.float32, path=None):
    model, optimizer = made(who, dtype, path)
    sharded.train(model, optimizer, 0, SAVED, dtype=dtype)
    parameters, state = get_state_dict(model, optimizer)
    dcp.save({'model': parameters, 'optimizer': state},
             checkpoint_id=folder)
    return sharded.train(model, optimizer, SAVED, STEPS, dtype=dtype)


def resume(who, folder, dtype=torch.float32, path=None):
    model, optimizer = made(who, dtype, path)
    zeroed(model)
    parameters, state = get_state_dict(model, optimizer)
    loaded = {'model': parameters, 'optimizer': state}
    dcp.load(loaded, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=loaded['model'],
                   optim_state_dict=loaded['optimizer'])
    return sharded.train(model, optimizer, SAVED, STEPS, dtype=dtype)


@pytest.mark.parametrize('saver', ['ours', 'torch'])
@pytest.mark.parametrize('loader', ['ours', 'torch'])
def test_each_resumes_what_the_other_saved(saver, loader, crew, tmp_path):
    losses = crew.run(run_and_save, saver, str(tmp_path))
    for ours, theirs in zip(crew.run(resume, loader, str(tmp_path)), losses):
        sharded.assert_near(ours, theirs, 0 if saver == loader else 2e-6)


def test_another_number_of_ranks_resumes(crew, crew_of_three, tmp_path):
    two, three = tmp_path / 'two', tmp_path / 'three'
    losses = crew.run(run_and_save, 'ours', str(two))[0]
    for ours in crew_of_three.run(resume, 'ours', str(two)):
        sharded.assert_near(ours, losses, 2e-6)
    losses = crew_of_three.run(run_and_save, 'ours', str(three))[0]
    for ours in crew.run(resume, 'ours', str(three)):
        sharded.assert_near(ours, losses, 2e-6)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_state_on_disk_resumes_bit_for_bit(dtype, crew, tmp_path):
    paths = [tmp_path / name for name in ('nvme', 'checkpoint')]
    paths[0].mkdir()
    nvme, checkpoint = map(str, paths)
    losses = crew.run(run_and_save, 'ours', checkpoint, dtype, nvme)
    assert crew.run(resume, 'ours', checkpoint, dtype, nvme) == losses


def save_whole(who, file):
    model, optimizer = made(who)
    sharded.train(model, optimizer, 0, SAVED)
    states = get_state_dict(model, optimizer, options=StateDictOptions(**FULL))
    if dist.get_rank() == 0:
        torch.save(states, file)
    dist.barrier()
    return sharded.train(model, optimizer, SAVED, STEPS)


def resume_whole(who, file, from_first):
    model, optimizer = made(who)
    zeroed(model)
    parameters, state = {}, {}
    if dist.get_rank() == 0 or not from_first:
        parameters, state = torch.load(file, weights_only=True)
    options = StateDictOptions(full_state_dict=True,
                               broadcast_from_rank0=from_first)
    set_model_state_dict(model, parameters, options=options)
    set_optimizer_state_dict(model, optimizer, state, options=options)
    return sharded.train(model, optimizer, SAVED, STEPS)


@pytest.mark.parametrize('from_first', [False, True])
def test_whole_tensors_in_one_file(from_first, crew, tmp_path):
    file = str(tmp_path / 'whole.pt')
    losses = crew.run(save_whole, 'ours', file)
    for who, tolerance in (('ours', 0), ('torch', 2e-6)):
        for ours, theirs in zip(crew.run(resume_whole, who, file, from_first),
                                losses):
            sharded.assert_near(ours, theirs, tolerance)


def run_with_empty_ranks(who):
    """All of the state is on the first rank; each has its steps."""
    model = sharded.sharded((5, 1, 1))
    optimizer = sharded.optimizer_of(who, model.parameters())
    losses = sharded.train(model, optimizer, 0, 2)
    get_optimizer_state_dict(model, optimizer,
                             options=StateDictOptions(**FULL))
    state = get_optimizer_state_dict(
        model, optimizer,
        options=StateDictOptions(flatten_optimizer_state_dict=True))
    shapes = {key: (type(value).__name__, getattr(value, 'shape', None))
              for key, value in state.items()}
    set_optimizer_state_dict(
        model, optimizer, state,
        options=StateDictOptions(flatten_optimizer_state_dict=True))
    optimizer.load_state_dict(optimizer.state_dict())
    return losses + sharded.train(model, optimizer, 2, 4), shapes


def test_ranks_without_elements_take_part(crew_of_three):
    expected = crew_of_three.run(run_with_empty_ranks, 'torch')
    for ours, theirs in zip(crew_of_three.run(run_with_empty_ranks, 'ours'),
                            expected):
        assert ours[1] == theirs[1]
        sharded.assert_near(ours[0], theirs[0], 2e-6)


def look_at_state(who):
    model, optimizer = made(who)
    first = get_optimizer_state_dict(model, optimizer)  # by a step of its own
    untouched = torch.equal(sharded.whole(model[0].weight),
                            sharded.network()[0].weight)
    sharded.train(model, optimizer, 0, 1)
    said = []
    for source in (first, optimizer.state_dict()):
        for state in source['state'].values():
            for key, value in state.items():
                said.append((key, type(value).__name__, value.dtype,
                             value.shape, float(sharded.whole(value).max() > 0)
                             if key != 'step' else value.item(),
                             getattr(value, 'placements', None)))
    return untouched, said, [group['lr'] for group in optimizer.param_groups]


def test_state_dicts_are_as_those_of_torch(crew):
    expected = crew.run(look_at_state, 'torch')
    # Placements and all; the state that its step without gradients makes too.
    assert crew.run(look_at_state, 'ours')[0][0] is True
    for ours, theirs in zip(crew.run(look_at_state, 'ours'), expected):
        assert ours[1][len(ours[1]) // 2:] == theirs[1][len(theirs[1]) // 2:]
        assert ours[2] == theirs[2]


def load_wrong():
    model, optimizer = made('ours')
    sharded.train(model, optimizer, 0, 2)
    before = sharded.state_of(model, optimizer)
    given = optimizer.state_dict()
    errors = []
    for wrong in (sharded.whole,
                  lambda value: DTensor.from_local(
                      sharded.whole(value), value.device_mesh)):
        state = {position: {key: value if key == 'step' else wrong(value)
                            for key, value in one.items()}
                 for position, one in given['state'].items()}
        errors.append(error_of(lambda: optimizer.load_state_dict(
            {**given, 'state': state}))[:2])
    sharded.assert_near(sharded.state_of(model, optimizer), before, 0)
    return errors


def test_state_of_another_kind_is_refused(crew):
    for errors in crew.run(load_wrong):
        (kind, plain), (other_kind, placed) = errors
        assert kind == other_kind == 'ValueError'
        assert "exp_avg of 'group 0 parameter 0' is a plain tensor" in plain
        assert 'full_state_dict=True' in plain
        assert 'is placed (Replicate(),), its parameter (Shard(dim=0),' in placed


def train_and_get_both(who):
    model, optimizer = made(who)
    sharded.train(model, optimizer, 0, 2)
    get_model_state_dict(model)
    optimizer.state.clear()
    assert not optimizer.state
    state = get_optimizer_state_dict(model, optimizer)
    return {name: one['step'].item() for name, one in state['state'].items()}


def test_state_is_made_where_there_is_none(crew):
    assert (crew.run(train_and_get_both, 'ours')
            == crew.run(train_and_get_both, 'torch'))
