"""Checkpoints of ranks: those of one process, for any number of ranks."""

import os
import pathlib
import signal

import pytest
import torch
import torch.distributed as dist

import terrace
from crew import bits, error_of
from test_ranks import CASES, Job, _one_thread_as_the_ranks  # noqa: F401

FIRST, LAST = 6, 12
NAMES = ['disk', 'bf16 clipped on disk', 'groups']


def together(name, path):
    return Job(CASES[name], path, [dist.get_rank()], dist.group.WORLD)


def save(job, directory):
    return terrace.save(directory, job.network, job.optimizer,
                        scheduler=job.scheduler, values={'next': FIRST})


def go_on(job, directory):
    values = terrace.load(directory, job.network, job.optimizer,
                          scheduler=job.scheduler)
    assert values == {'next': FIRST}
    losses = job.run(FIRST, LAST)
    state = {i: bits(state.values()) for i, state in
             enumerate(job.optimizer.state.values())}
    job.optimizer.close()
    return losses, bits(job.network.parameters()), state


def save_together(name, path):
    job = together(name, path)
    job.run(0, FIRST)
    size = save(job, f'{path}/ranks')
    random = torch.rand(3).tolist()
    job.optimizer.close()
    return size, random


def go_on_together(name, path, directory):
    job = together(name, path)
    torch.manual_seed(dist.get_rank())
    losses, parameters, state = go_on(job, directory)
    return losses, parameters, len(state)


@pytest.mark.parametrize('name', NAMES)
def test_any_number_of_ranks_goes_on(name, crew, tmp_path):
    path, case = str(tmp_path), CASES[name]
    alone = Job(case, path, [0, 1])
    alone.run(0, FIRST)
    size = save(alone, f'{path}/alone')
    alone.run(FIRST, LAST)
    expected = bits(alone.network.parameters())
    states = [bits(s.values()) for s in alone.optimizer.state.values()]
    alone.optimizer.close()

    sizes = [size for size, _ in crew.run(save_together, name, path)]
    # The same tensors; rank 0's also has the random state of each rank.
    assert sizes[0] == sizes[1] and abs(sizes[0] - size) < 20_000
    kinds = [sorted(p.name.split('-')[0] for p in (tmp_path / made).iterdir())
             for made in ('alone', 'ranks')]
    assert kinds == [['checkpoint.json', 'optimizer', 'parameters', 'values'],
                     ['checkpoint.json', 'optimizer', 'optimizer',
                      'parameters', 'values']]
    for directory in ('alone', 'ranks'):
        results = crew.run(go_on_together, name, path, f'{path}/{directory}')
        for _, parameters, _ in results:
            assert parameters == expected, directory
        assert sum(count for _, _, count in results) == len(states)
        again = Job(case, path, [0, 1])
        _, parameters, state = go_on(again, f'{path}/{directory}')
        assert parameters == expected, directory
        assert list(state.values()) == states
    assert {p.name for p in tmp_path.iterdir()} == {'alone', 'ranks'}


def random_goes_on(path):
    rank = dist.get_rank()
    torch.manual_seed(100 + rank)
    weight = torch.nn.Linear(4, 4)
    optimizer = terrace.AdamW(weight.parameters(),
                              process_group=dist.group.WORLD)
    terrace.save(path, weight, optimizer)
    expected = torch.rand(3).tolist()
    torch.manual_seed(0)
    terrace.load(path, weight, optimizer)
    actual = torch.rand(3).tolist()
    optimizer.close()
    return expected, actual


def test_each_rank_has_its_random_state_again(crew, tmp_path):
    results = crew.run(random_goes_on, f'{tmp_path}/saved')
    for expected, actual in results:
        assert actual == expected
    assert results[0][0] != results[1][0]


def under_a_default_device(path):
    weight = torch.nn.Linear(40, 40).bfloat16()
    optimizer = terrace.AdamW(weight.parameters(),
                              process_group=dist.group.WORLD)
    torch.set_default_device('meta')
    try:
        for parameter in weight.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        optimizer.consolidate_state_dict()
        whole = optimizer.state_dict()
        terrace.save(path, weight, optimizer)
        terrace.load(path, weight, optimizer)
        optimizer.step()
    finally:
        torch.set_default_device(None)
    optimizer.close()
    devices = {str(value.device) for state in whole['state'].values()
               for value in state.values()}
    return devices, bits(weight.parameters()), len(whole['state'])


def test_a_default_device_does_not_matter(crew, tmp_path):
    first, second = crew.run(under_a_default_device, f'{tmp_path}/saved')
    assert first[0] == second[0] == {'cpu'}
    assert first[1] == second[1]
    assert (first[2], second[2]) == (2, 1)


def fail(path):
    weight = torch.nn.Linear(4, 4)
    optimizer = terrace.AdamW(weight.parameters(),
                              process_group=dist.group.WORLD)
    errors = [error_of(lambda: terrace.save(f'{path}/no/where', weight,
                                            optimizer)),
              error_of(lambda: terrace.load(f'{path}/nothing', weight,
                                            optimizer))]
    terrace.save(f'{path}/saved', weight, optimizer)
    values = {'next': (lambda: 1) if dist.get_rank() == 1 else 2}
    errors.append(error_of(lambda: terrace.save(f'{path}/saved', weight,
                                                optimizer, values=values)))
    dist.barrier()
    if dist.get_rank() == 1:
        weight = torch.nn.Linear(4, 5)  # of another model, on one rank
    errors.append(error_of(lambda: terrace.load(f'{path}/saved', weight,
                                                optimizer)))
    optimizer.close()
    return errors


def test_errors_are_heard_on_all_ranks(crew, tmp_path):
    first, second = crew.run(fail, str(tmp_path))
    assert [error[0] for error in first] == [
        'FileNotFoundError', 'FileNotFoundError', 'RankError', 'RankError']
    assert [error[0] for error in second[:2] + second[3:]] == [
        'RankError', 'FileNotFoundError', 'ValueError']
    assert 'rank 0 of 2 failed while saving' in second[0][1]
    assert 'lambda' in second[2][1]
    assert 'rank 1 of 2 failed while saving' in first[2][1]
    assert 'rank 1 of 2 failed while loading' in first[3][1]


class Interrupted:
    """Ctrl-C reaches this rank while it is asked, when it is to."""

    when = None

    def state_dict(self):
        self.come('state_dict')
        return {'of': 'nothing'}

    def load_state_dict(self, state):
        self.come('load_state_dict')

    def come(self, at):
        if self.when == at:
            os.kill(os.getpid(), signal.SIGINT)


def interrupted(path, when):
    weight, thing = torch.nn.Linear(4, 4), Interrupted()
    optimizer = terrace.AdamW(weight.parameters(),
                              process_group=dist.group.WORLD)
    terrace.save(path, weight, optimizer, thing=thing)
    if dist.get_rank() == 1:
        thing.when = when
    work = terrace.save if when == 'state_dict' else terrace.load
    error = error_of(lambda: work(path, weight, optimizer, thing=thing))
    thing.when = None
    terrace.load(path, weight, optimizer, thing=thing)
    optimizer.close()
    return error[0]


@pytest.mark.parametrize('when', ['state_dict', 'load_state_dict'])
def test_ctrl_c_on_one_rank_waits_for_all(when, crew, tmp_path):
    assert crew.run(interrupted, f'{tmp_path}/saved', when) == [
        'nothing', 'KeyboardInterrupt']


def save_with_a_path(path):
    """On rank 1 a value that no load could read."""
    job = together('disk', path)
    save(job, f'{path}/ranks')
    before = sorted(os.listdir(f'{path}/ranks'))
    dist.barrier()
    given = {'next': pathlib.Path('x') if dist.get_rank() else 1}
    error = error_of(lambda: terrace.save(f'{path}/ranks', job.network,
                                          job.optimizer, values=given))
    dist.barrier()
    after = sorted(os.listdir(f'{path}/ranks'))
    job.optimizer.close()
    return error, before == after


def test_a_value_that_one_rank_may_not_save(crew, tmp_path):
    (first, kept), (second, kept_too) = crew.run(save_with_a_path,
                                                 str(tmp_path))
    assert first[0] == 'RankError' and second[0] == 'ValueError'
    assert "values['next'] is a pathlib.PosixPath" in second[1]
    assert kept and kept_too
