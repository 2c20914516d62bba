"""Parameters that share memory are refused: the step writes all of them at
once. Views that share none are stepped."""

import pytest
import torch
import torch.distributed as dist

import terrace
from crew import bits, error_of

HINT = 'overlap in memory: give one of them, or tie the modules'


def tied(width=8):
    """Two Parameters on one storage, as `head.data = embedding.data` makes."""
    module = torch.nn.Module()
    module.embedding = torch.nn.Embedding(width, 4)
    module.head = torch.nn.Linear(4, width, bias=False)
    module.head.weight = torch.nn.Parameter(module.embedding.weight.data)
    return module


def parameter(tensor):
    return torch.nn.Parameter(tensor.detach())


OVERLAPS = {
    'the same': lambda x: (x, x),
    'halves and one more': lambda x: (x[:3], x[2:]),
    'one row': lambda x: (x, x[1]),
    'transposed': lambda x: (x.t(), x[2:]),
    'columns': lambda x: (x[:, :3], x[:, 2:]),
    'every second and all': lambda x: (x[:, ::2], x),
    'another dtype': lambda x: (x, x.view(torch.bfloat16)[:, 1:2]),
}
APART = {
    'halves': lambda x: (x[:3], x[3:]),
    'columns': lambda x: (x[:, :3], x[:, 3:]),
    'every second': lambda x: (x[:, ::2], x[:, 1::2]),
    'transposed halves': lambda x: (x[:3].t(), x[3:].t()),
    'another dtype': lambda x: (x[:, :1], x.view(torch.bfloat16)[:, 2:]),
    'nothing': lambda x: (x, x[:0]),
}


@pytest.mark.parametrize('views', OVERLAPS.values(), ids=OVERLAPS)
def test_parameters_that_overlap_are_refused(views):
    first, second = map(parameter, views(torch.ones(6, 6)))
    with pytest.raises(ValueError, match=HINT) as caught:
        terrace.AdamW([torch.nn.Parameter(torch.ones(5)), first, second])
    assert "'group 0 parameter 1' and 'group 0 parameter 2'" in str(
        caught.value)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize('views', APART.values(), ids=APART)
def test_views_that_share_no_element_are_stepped(views):
    base = torch.ones(6, 6)
    parameters = list(map(parameter, views(base)))
    others = [parameter(p.detach().float().clone()) for p in parameters]
    optimizer = terrace.AdamW(parameters)
    theirs = torch.optim.AdamW(others)
    for p in (*parameters, *others):
        p.grad = torch.ones_like(p)
    optimizer.step()
    theirs.step()
    for p, q in zip(parameters, others):
        torch.testing.assert_close(p.float(), q, rtol=1e-2, atol=1e-5)
    assert (base < 1).any()


def test_names_are_those_of_the_model():
    module = tied()
    with pytest.raises(ValueError,
                       match="'embedding.weight' and 'head.weight' overlap"):
        terrace.AdamW(module.named_parameters())


def test_an_added_group_that_overlaps_is_refused_and_nothing_changes():
    weight = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = terrace.AdamW([weight])
    weight.grad = torch.ones(4, 4)
    optimizer.step()
    with pytest.raises(ValueError, match=HINT):
        optimizer.add_param_group({'params': [parameter(weight[2:])]})
    assert len(optimizer.param_groups) == 1
    optimizer.step()
    assert optimizer.state[weight]['step'] == 2


def test_data_that_moves_onto_anothers_is_refused_before_the_step():
    first, second = (torch.nn.Parameter(torch.ones(64)) for _ in range(2))
    optimizer = terrace.AdamW([first, second])
    first.grad, second.grad = torch.ones(64), torch.ones(64)
    optimizer.step()
    second.data = first.data[:64]
    before = first.detach().clone()
    with pytest.raises(ValueError, match=HINT):
        optimizer.step()
    assert torch.equal(first, before)
    second.data = torch.ones(64)
    optimizer.step()
    assert optimizer.state[second]['step'] == 2


def overlap_on_ranks(when):
    first, second = (torch.nn.Parameter(torch.ones(64)) for _ in range(2))
    if when == 'made':
        second = parameter(first[:64])
        return error_of(lambda: terrace.AdamW(
            [first, second], process_group=dist.group.WORLD))[:2], []
    optimizer = terrace.AdamW([first, second], process_group=dist.group.WORLD)
    first.grad, second.grad = torch.ones(64), torch.ones(64)
    if dist.get_rank() == 1:
        second.data = first.data
    error = error_of(optimizer.step)[:2]
    values = bits([first])
    optimizer.close()
    return error, values


def test_parameters_of_two_ranks_are_looked_at_together(crew):
    """Each rank has one of them, and all are given to every rank."""
    for (name, text), _ in crew.run(overlap_on_ranks, 'made'):
        assert name == 'ValueError' and HINT in text
    results = crew.run(overlap_on_ranks, 'stepped')
    assert [error[0] for error, _ in results] == ['RankError', 'ValueError']
    for (_, text), values in results:
        assert HINT in text and values == bits([torch.ones(64)])
