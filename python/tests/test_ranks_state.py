"""The state of a share, parameter by parameter."""

import torch
import torch.distributed as dist

import terrace
from conftest import compiled_of
from crew import bits

_COUNT = 40


def look(path):
    """(how often the steps were looked up, own positions, whether the state came
    back)."""
    torch.manual_seed(5)
    weights = [torch.nn.Parameter(torch.randn(3 + i)) for i in range(_COUNT)]
    optimizer = terrace.AdamW(weights, process_group=dist.group.WORLD)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    compiled, looked = compiled_of(optimizer), []

    class Counted:
        def __init__(self, native):
            self._native = native

        def __getattr__(self, name):
            if name == 'steps':
                looked.append(1)
            return getattr(self._native, name)

    compiled._native = Counted(compiled._native)
    mine = [i for i, weight in enumerate(weights)
            if weight in optimizer.state]
    assert len(optimizer.state) == len(mine)
    each = {i: bits(optimizer.state[weights[i]].values()) for i in mine}
    share = optimizer.state_dict()['state']
    assert {i: bits(state.values()) for i, state in share.items()} == each
    looks = len(looked)
    optimizer.consolidate_state_dict()
    whole = optimizer.state_dict()
    if dist.get_rank() == 0:
        torch.save(whole, path)
    dist.barrier()
    optimizer.load_state_dict(torch.load(path, weights_only=True))
    again = {i: bits(optimizer.state[weights[i]].values()) for i in mine}
    optimizer.close()
    return looks, mine, each == again


def test_steps_are_looked_up_once_for_all_looks(crew, tmp_path):
    first, second = crew.run(look, f'{tmp_path}/whole')
    for looks, mine, same in (first, second):
        assert looks <= 1 and same
        assert len(mine) == _COUNT // 2
    assert sorted(first[1] + second[1]) == list(range(_COUNT))


def collect_reshaped():
    """What each rank hears of a parameter that rank 1 keeps and that was
    transposed in place."""
    torch.manual_seed(5)
    weights = [torch.nn.Parameter(torch.randn(3, 4)) for _ in range(2)]
    optimizer = terrace.AdamW(weights, process_group=dist.group.WORLD)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    for weight in weights:
        weight.data = weight.data.t().contiguous()
    try:
        optimizer.consolidate_state_dict()
        heard = 'nothing'
    except Exception as error:
        heard = f'{type(error).__name__}: {error}'
    optimizer.close()
    return heard


def test_state_of_another_shape_is_not_collected(crew):
    for heard in crew.run(collect_reshaped):
        assert '[3, 4]' in heard and '[4, 3]' in heard, heard
