"""A step that one rank finished and another did not: it is repeated with its
gradients, or nothing is done."""

import pytest
import torch
import torch.distributed as dist

import terrace
from conftest import compiled_of
from crew import bits, error_of
from test_ranks_failures import expected, give_gradients, make, weights

UNFINISHED = 'step 2 is unfinished on another rank'


def spoil(parameters):
    for parameter in parameters:
        parameter.grad = None
        parameter.grad_dtype = None
        parameter.grad = torch.zeros(len(parameter), dtype=torch.double)


def unfinished(**settings):
    """Rank 1 refuses step 2; rank 0 has finished it."""
    parameters = weights()
    optimizer = make(parameters, **settings)
    give_gradients(parameters, 1)
    optimizer.step()
    if dist.get_rank() == 1:
        spoil(parameters)
    else:
        give_gradients(parameters, 2)
    error = error_of(optimizer.step)
    assert error[0] == ('ValueError' if dist.get_rank() else 'RankError')
    return parameters, optimizer


def repeat(what, path):
    parameters, optimizer = unfinished()
    give_gradients(parameters, 3 if what == 'gradients' else 2)
    if what == 'rate':
        optimizer.param_groups[0]['lr'] = 0.5
    if what == 'skip':
        optimizer.found_inf = torch.tensor(float(dist.get_rank() == 1))
    calls = {'collect': optimizer.consolidate_state_dict,
             'group': lambda: optimizer.add_param_group(
                 {'params': [torch.nn.Parameter(torch.ones(3))]}),
             'load': lambda: terrace.load(
                 f'{path}/nothing', torch.nn.Linear(2, 2), optimizer)}
    error = error_of(calls.get(what, optimizer.step))
    groups = len(optimizer.param_groups)
    optimizer.param_groups[0]['lr'] = 1e-3
    give_gradients(parameters, 2)
    optimizer.step()
    give_gradients(parameters, 3)
    optimizer.step()
    optimizer.close()
    return error, groups, bits(parameters)


@pytest.mark.parametrize('what', ['gradients', 'rate', 'skip', 'collect',
                                  'group', 'load'])
def test_nothing_else_than_the_same_step(what, crew, tmp_path):
    results = crew.run(repeat, what, str(tmp_path))
    for rank, (error, groups, after) in enumerate(results):
        if what == 'load':
            assert error[0] == 'FileNotFoundError'
        else:
            assert error[0] == ('RankError' if rank else 'RuntimeError')
            assert UNFINISHED in error[1]
        assert groups == 1
        assert after == expected(3)


def load_and_go_on():
    parameters, optimizer = unfinished()
    states = terrace.AdamW(weights()).state_dict()
    optimizer.load_state_dict(states)
    with torch.no_grad():
        for parameter, first in zip(parameters, weights()):
            parameter.copy_(first)
    for seed in (1, 2):
        give_gradients(parameters, seed)
        optimizer.step()
    optimizer.close()
    return bits(parameters)


def test_a_state_that_is_loaded_ends_it(crew):
    for after in crew.run(load_and_go_on):
        assert after == expected(2)


def make_with_other_options(what):
    rank = dist.get_rank()
    if what == 'norm':
        return error_of(lambda: make(weights(), max_grad_norm=1.0 + rank))
    if what == 'class':
        kind = (terrace.AdamW, terrace.Adam)[rank]
        return error_of(lambda: kind(weights(), weight_decay=0.0,
                                     process_group=dist.group.WORLD))
    wrong = {'rate': {'lr': -1.0}, 'bad norm': {'max_grad_norm': -1.0},
             'paths': {'nvme_path': 7, 'memory_budget': 1}}[what]
    return error_of(lambda: make(weights(), **(wrong if rank else {})))


@pytest.mark.parametrize('what, text', [
    ('norm', 'ranks 0 and 1 differ in max grad norm'),
    ('class', 'ranks 0 and 1 differ in the class of the optimizer'),
    ('rate', 'Invalid learning rate'), ('bad norm', 'max_grad_norm is'),
    ('paths', 'nvme_path is')])
def test_other_options_are_refused_everywhere(what, text, crew):
    for error in crew.run(make_with_other_options, what):
        assert error[0] in ('ValueError', 'TypeError', 'RankError')
        assert text in error[1]
        assert error[3] < 20


class _Fails:
    def __init__(self, error):
        self._error = error

    def item(self):
        raise self._error

    __float__ = item


def fail_before_the_step(what):
    parameters = weights()
    optimizer = make(parameters)
    give_gradients(parameters, 1)
    optimizer.step()
    give_gradients(parameters, 2)
    closure = None
    if dist.get_rank() == 1:
        failure = (KeyboardInterrupt if what == 'interrupt' else
                   ZeroDivisionError)('of one rank')
        if what in ('found_inf', 'grad_scale'):
            setattr(optimizer, what, _Fails(failure))
        elif what == 'lr':
            optimizer.param_groups[0]['lr'] = _Fails(failure)
        else:
            closure = _Fails(failure).item
    error = error_of(lambda: optimizer.step(closure))
    optimizer.param_groups[0]['lr'] = 1e-3
    optimizer.step()
    optimizer.close()
    return error, bits(parameters)


@pytest.mark.parametrize('what', ['found_inf', 'grad_scale', 'lr', 'closure',
                                  'interrupt'])
def test_an_error_before_the_step_is_heard(what, crew):
    (first, after), (second, other) = crew.run(fail_before_the_step, what)
    assert first[0] == 'RankError' and 'of one rank' in first[1]
    assert first[2]['phase'] == 'beginning a step'
    assert second[0] == ('KeyboardInterrupt' if what == 'interrupt' else
                         'ZeroDivisionError')
    assert after == other == expected(2)


class _FailingLoad:
    def __init__(self, native):
        self._native = native

    def load(self, *_):
        raise MemoryError('of one rank')

    def __getattr__(self, name):
        return getattr(self._native, name)


def raise_in_load(path):
    module = torch.nn.Linear(3, 3)
    optimizer = make(module.parameters())
    terrace.save(path, module, optimizer)
    if dist.get_rank() == 1:
        compiled = compiled_of(optimizer)
        compiled._native = _FailingLoad(compiled._native)
    error = error_of(lambda: terrace.load(path, module, optimizer))
    optimizer.close()
    return error


def test_a_load_that_raises_is_heard(crew, tmp_path):
    first, second = crew.run(raise_in_load, str(tmp_path / 'saved'))
    assert second[0] == 'MemoryError'
    assert first[0] == 'RankError' and 'of one rank' in first[1]
    assert first[3] < 20


def without_a_buffer():
    """Small parameters travel together, through a buffer."""
    group = dist.new_group()
    parameters = weights()
    optimizer = make(parameters, process_group=group)
    give_gradients(parameters, 1)

    def cat(*_):
        raise RuntimeError("can't allocate memory")

    torch_cat, torch.cat = torch.cat, cat
    try:
        error = error_of(optimizer.step)
    finally:
        torch.cat = torch_cat
    again = error_of(optimizer.step)
    optimizer.close()
    return error, again


def test_a_lack_of_memory_is_no_lost_rank(crew):
    for error, again in crew.run(without_a_buffer):
        assert error[0] == 'MemoryError'
        assert "can't allocate" in error[1]
        assert again[0] == 'RankError'
        assert 'left the others' in again[1]
