"""What is written through an entry of a state_dict() is the model's, as in
PyTorch, whichever way it goes past the operations of torch."""

import numpy
import pytest
import torch
import torch.utils.dlpack

from offloaded import WIDTH, check_equal_values, mlp, values
from test_offload_close import below


def bits(model):
    """Bytes that are swapped make no numbers."""
    return {name: value.view(torch.int32)
            for name, value in values(model).items()}


def set_item(values, index, value):
    values[index] = value


def filled_through(storage, count=9):
    torch.empty(0).set_(storage, 5, (count,)).fill_(2)


WRITES = {
    'an operation': lambda entry: entry.mul_(2),
    'from_dlpack': lambda entry: torch.from_dlpack(entry).fill_(3),
    'dlpack of numpy': lambda entry: set_item(
        torch.from_dlpack(entry).numpy(), 5, 3),
    'to_dlpack': lambda entry: torch.from_dlpack(
        torch.utils.dlpack.to_dlpack(entry)).mul_(2),
    'apply_': lambda entry: entry.apply_(lambda value: value + 1),
    'storage: fill_': lambda entry: entry.untyped_storage().fill_(0),
    'storage: set item': lambda entry: set_item(entry.untyped_storage(), 3, 7),
    'storage: slice': lambda entry: entry.untyped_storage()[8:24].fill_(1),
    'storage: copy_': lambda entry: entry.untyped_storage().copy_(
        torch.full(entry.shape, 5.).untyped_storage()),
    'storage: byteswap': lambda entry: entry.untyped_storage().byteswap(
        entry.dtype),
    'storage: set_': lambda entry: filled_through(entry.untyped_storage()),
    'storage of a view': lambda entry: entry[3:].untyped_storage().fill_(0),
    'typed storage: fill_': lambda entry: entry.storage().fill_(1.),
    'typed storage: set item': lambda entry: set_item(entry.storage(), 2, 1.),
    'typed storage: set_': lambda entry: filled_through(entry.storage()),
    'another set_': lambda entry: torch.empty(0).set_(entry).fill_(2),
}


@pytest.mark.parametrize('write', WRITES)
@pytest.mark.filterwarnings('ignore:TypedStorage')
def test_a_write_is_the_models(tmp_path, write):
    plain, model = mlp(), mlp()
    with below(model, tmp_path):
        for each in plain, model:
            state = each.state_dict()
            for _ in range(3):
                for name in '0.weight', '6.weight', '10.weight':
                    WRITES[write](state[name])
        check_equal_values(bits(model), bits(plain))
        state = model.state_dict()
        check_equal_values(
            {name: torch.tensor(entry.numpy()).view(torch.int32)
             for name, entry in state.items()}, bits(plain))
    check_equal_values(bits(model), bits(plain))


@pytest.mark.filterwarnings('ignore:TypedStorage')
def test_all_addresses_are_of_one_copy(tmp_path):
    model = mlp()
    with below(model, tmp_path):
        state = model.state_dict()
        for name, entry in state.items():
            address = entry.data_ptr()
            assert entry.untyped_storage().data_ptr() == address
            assert entry.storage().data_ptr() == address
            assert entry.flatten()[7:].untyped_storage().data_ptr() == address
        storage = entry.untyped_storage()
    assert storage.data_ptr() == model[10].bias.data_ptr()


ARRAYS = {
    'numpy': lambda entry: entry.numpy(),
    'numpy of a view': lambda entry: entry.t()[1:].numpy(),
    'asarray': numpy.asarray,
    'detached': lambda entry: entry.detach().cpu().numpy(),
}


@pytest.mark.parametrize('make', ARRAYS)
def test_arrays_have_the_values_and_take_no_write(tmp_path, make):
    """All at once, for which a budget has no room; they outlive the model."""
    model = mlp()
    expected = model(torch.ones(2, WIDTH))
    first = values(model)
    with below(model, tmp_path):
        arrays = {name: ARRAYS[make](entry)
                  for name, entry in model.state_dict().items()
                  if entry.dim() == 2}
        assert torch.equal(model(torch.ones(2, WIDTH)), expected)
        for array in arrays.values():
            with pytest.raises(ValueError, match='read-only'):
                array[...] = 3
    for name, array in arrays.items():
        assert numpy.array_equal(array, ARRAYS[make](first[name]))
    check_equal_values(values(model), first)
