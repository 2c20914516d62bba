"""Ranks that differ, fail, or are gone: every one ends with an error of its
own, none waits for ever, and all can be closed."""

import os
import signal
import time
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import terrace
from crew import Crew, bits, error_of
from terrace._ranks import packs
from terrace._state import shared

TIMEOUT_SECONDS = 10  # more than a busy machine keeps a rank waiting


def weights(count=4, size=500):
    torch.manual_seed(11)
    return [torch.nn.Parameter(torch.randn(size + i)) for i in range(count)]


def give_gradients(parameters, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def make(parameters, **settings):
    settings.setdefault('process_group', dist.group.WORLD)
    return terrace.AdamW(parameters, **settings)


def make_different(what):
    rank = dist.get_rank()
    parameters = weights()
    if what == 'shape' and rank == 1:
        parameters[2] = torch.nn.Parameter(torch.zeros(3))
    if what == 'dtype' and rank == 1:
        parameters[1] = torch.nn.Parameter(parameters[1].half())
    if what == 'count' and rank == 1:
        parameters.pop()
    if what == 'groups' and rank == 1:
        return error_of(lambda: make([{'params': parameters[:2]},
                                      {'params': parameters[2:]}]))
    return error_of(lambda: make(parameters))


@pytest.mark.parametrize('what, text', [
    ('shape', 'parameter 2 of group 0 is [502] of float32 on rank 0 and [3] of '
              'float32 on rank 1'),
    ('dtype', 'parameter 1 of group 0 is [501] of float32 on rank 0 and [501] '
              'of float16 on rank 1'),
    ('count', 'parameter 3 of group 0 is [503] of float32 on rank 0 and '
              'missing on rank 1'),
    ('groups', '1 groups on rank 0, 2 on rank 1')])
def test_other_parameters_are_refused_everywhere(what, text, crew):
    for name, message, _, _ in crew.run(make_different, what):
        assert name == 'ValueError'
        assert text in message


def make_on_a_bad_path(path):
    path = path if dist.get_rank() == 0 else f'{path}/missing'
    return error_of(lambda: make(weights(size=20_000), memory_budget='50%',
                                 nvme_path=path))


def test_a_constructor_that_fails_on_one_rank(crew, tmp_path):
    first, second = crew.run(make_on_a_bad_path, str(tmp_path))
    assert second[0] == 'FileNotFoundError'
    assert first[0] == 'RankError'
    assert 'rank 1 of 2 failed while making the optimizer: ' in first[1]
    assert 'nvme_path does not exist' in first[1]
    assert first[2] == {'rank': 0, 'phase': 'making the optimizer',
                        'failed': (1,)}
    assert not list(tmp_path.iterdir())


def step_differently(what):
    parameters = weights()
    optimizer = make(parameters)
    give_gradients(parameters, 1)
    optimizer.step()
    before = bits(parameters)
    give_gradients(parameters, 2)
    if dist.get_rank() == 1:
        if what == 'rate':
            optimizer.param_groups[0]['lr'] = 0.5
        else:
            parameters[3].grad = None
    error = error_of(optimizer.step)
    unchanged = bits(parameters) == before
    optimizer.param_groups[0]['lr'] = 1e-3
    give_gradients(parameters, 2)
    optimizer.step()
    optimizer.close()
    return error, unchanged, bits(parameters)


def expected(steps):
    parameters = weights()
    optimizer = terrace.AdamW(parameters)
    for seed in range(1, steps + 1):
        give_gradients(parameters, seed)
        optimizer.step()
    optimizer.close()
    return bits(parameters)


@pytest.mark.parametrize('what, text', [
    ('rate', 'ranks 0 and 1 differ in the options of the groups'),
    ('gradient', 'ranks 0 and 1 differ in which parameters have a gradient')])
def test_a_step_that_differs_changes_nothing(what, text, crew):
    for error, unchanged, after in crew.run(step_differently, what):
        assert error[0] == 'ValueError' and text in error[1]
        assert unchanged
        assert after == expected(2)


def fail_and_finish(rank_that_fails):
    parameters = weights()
    optimizer = make(parameters)
    give_gradients(parameters, 1)
    optimizer.step()
    give_gradients(parameters, 2)
    here = dist.get_rank() == rank_that_fails
    good = [p.grad for p in parameters]
    if here:
        for parameter in parameters:
            parameter.grad = None
            parameter.grad_dtype = None
            parameter.grad = torch.zeros(len(parameter), dtype=torch.double)
    errors = [error_of(optimizer.step) for _ in range(2)]
    for parameter, gradient in zip(parameters, good):
        parameter.grad = gradient
    optimizer.step()
    optimizer.close()
    return errors, bits(parameters)


@pytest.mark.parametrize('failing', [0, 1])
def test_a_step_that_fails_on_one_rank_is_finished_by_the_next(failing, crew):
    results = crew.run(fail_and_finish, failing)
    for rank, (errors, after) in enumerate(results):
        for name, text, attributes, _ in errors:
            if rank == failing:
                assert name == 'ValueError' and 'Double' in text
            else:
                assert name == 'RankError' and 'Double' in text
                assert attributes['failed'] == (failing,)
                assert attributes['phase'] == 'stepping their shares'
        assert after == expected(2)


def add_and_fail():
    parameters = weights()
    optimizer = make(parameters)
    give_gradients(parameters, 1)
    optimizer.step()
    group = {'params': [torch.nn.Parameter(torch.zeros(400_000)),
                        torch.nn.Parameter(torch.zeros(400_000))]}
    if dist.get_rank() == 1:
        group['lr'] = -1.0
    error = error_of(lambda: optimizer.add_param_group(group))
    groups = len(optimizer.param_groups)
    give_gradients(parameters, 2)
    optimizer.step()
    optimizer.close()
    return error, groups, bits(parameters)


def test_a_group_that_one_rank_cannot_add(crew):
    results = crew.run(add_and_fail)
    assert [error[0] for error, _, _ in results] == ['RankError', 'ValueError']
    for _, groups, parameters in results:
        assert groups == 1
        assert parameters == expected(2)


def load_of_another_rank():
    parameters = weights()
    optimizer = make(parameters)
    give_gradients(parameters, 1)
    optimizer.step()
    states = [None, None]
    dist.all_gather_object(states, optimizer.state_dict())
    theirs = states[1 - dist.get_rank()]
    errors = [error_of(lambda: optimizer.load_state_dict(theirs)),
              error_of(lambda: terrace.AdamW(weights()).load_state_dict(
                  states[0])),
              error_of(lambda: optimizer.consolidate_state_dict(to=2))]
    optimizer.load_state_dict(states[dist.get_rank()])
    give_gradients(parameters, 2)
    optimizer.step()
    optimizer.close()
    return errors, bits(parameters)


def test_a_share_is_not_taken_for_another_or_the_whole(crew):
    for rank, (errors, after) in enumerate(crew.run(load_of_another_rank)):
        assert [name for name, _, _, _ in errors] == ['ValueError'] * 3
        assert f'the share of rank {1 - rank} of 2' in errors[0][1]
        assert 'the share of rank 0 of 2' in errors[1][1]
        assert 'no rank 2 of 2' in errors[2][1]
        assert after == expected(2)


def other_groups():
    single = [dist.new_group([0]), dist.new_group([1])]
    mine, theirs = single if dist.get_rank() == 0 else reversed(single)
    parameters = weights()
    optimizer = make(parameters, process_group=mine)
    for seed in (1, 2):
        give_gradients(parameters, seed)
        optimizer.step()
    stats = optimizer.stats()
    optimizer.close()
    return (bits(parameters), stats['ranks'], stats['state_bytes'],
            error_of(lambda: make(weights(), process_group=theirs)))


def test_a_group_of_one_and_one_without_this_rank(crew):
    for rank, (after, ranks, size, error) in enumerate(
            crew.run(other_groups)):
        assert after == expected(2)
        assert ranks == 1
        assert size == 8 * sum(w.numel() for w in weights())
        assert error[0] == 'ValueError'
        assert f'rank {rank} is not in the process_group' in error[1]


def test_without_a_group_there_are_no_ranks(monkeypatch):
    with pytest.raises(ValueError, match='init_process_group'):
        terrace.AdamW(weights(), process_group='gloo')
    monkeypatch.setattr(dist, 'is_initialized', lambda: True)
    with pytest.raises(TypeError, match='not str'):
        terrace.AdamW(weights(), process_group='gloo')


def interrupt_one(seed):
    parameters = weights()
    optimizer = make(parameters)
    give_gradients(parameters, seed)
    if dist.get_rank() == 1:
        # In the step, before anything is exchanged.
        numbers_of = shared.numbers_of

        def interrupted(groups):
            shared.numbers_of = numbers_of
            os.kill(os.getpid(), signal.SIGINT)
            return numbers_of(groups)

        shared.numbers_of = interrupted
    error = error_of(optimizer.step)
    values = bits(parameters)
    optimizer.close()
    return error[0], values


def test_ctrl_c_lets_the_step_finish_on_all_ranks(crew):
    first, second = crew.run(interrupt_one, 1)
    assert (first[0], second[0]) == ('nothing', 'KeyboardInterrupt')
    assert first[1] == second[1] == expected(1)


def lose_the_other(how, path):
    warnings.simplefilter('ignore')
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_SECONDS))
    parameters = weights(size=20_000)
    optimizer = make(parameters, process_group=group, memory_budget='50%',
                     nvme_path=path)
    give_gradients(parameters, 1)
    optimizer.step()
    if dist.get_rank() == 1 and how == 'stops':  # before a step, once
        hook = optimizer.register_step_pre_hook(lambda *_: (
            hook.remove(), os.kill(os.getpid(), signal.SIGSTOP))[0])
    elif dist.get_rank() == 1:  # when its share is stepped
        packs.broadcast = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    give_gradients(parameters, 2)
    errors = [error_of(optimizer.step), error_of(optimizer.step),
              error_of(optimizer.consolidate_state_dict)]
    state = len(optimizer.state_dict()['state'])
    optimizer.close()
    return errors, state


@pytest.fixture(scope='module')
def doomed(tmp_path_factory):
    crew = Crew(tmp_path_factory.mktemp('doomed'))
    yield crew
    crew.close()


@pytest.mark.alone
@pytest.mark.parametrize('how, phases', [
    ('stops', ['beginning a step']),
    # Its last words may or may not arrive.
    ('is killed', ['stepping their shares', 'exchanging the parameters'])])
def test_a_rank_that_is_gone(how, phases, doomed, tmp_path):
    doomed.start(lose_the_other, how, str(tmp_path))
    errors, state = doomed.result(0)
    for name, text, attributes, _ in errors:
        assert name == 'RankError'
        assert attributes['phase'] in phases
        assert attributes['rank'] == 0 and attributes['failed'] == ()
        assert f'rank 0 of 2 lost rank 1 while {attributes["phase"]}' in text
    # When it is known once, no call waits a second time.
    assert errors[0][3] < TIMEOUT_SECONDS + 20
    assert errors[1][3] < TIMEOUT_SECONDS / 2
    assert errors[2][3] < TIMEOUT_SECONDS / 2
    assert state == 2  # this rank's share is still there to read
    left = list(tmp_path.iterdir())
    assert len(left) == 1  # the other rank's, which could not remove it
    if how == 'stops':
        os.kill(doomed.processes[1].pid, signal.SIGCONT)
        others, _ = doomed.result(1)
        assert others[0][0] == 'RankError'
        assert not list(tmp_path.iterdir())
    else:
        doomed.processes[1].join(20)
        assert doomed.processes[1].exitcode == -signal.SIGKILL
        # The next optimizer on that path clears it away.
        terrace.AdamW(weights(size=20_000), memory_budget='50%',
                      nvme_path=str(tmp_path)).close()
        assert not list(tmp_path.iterdir())
