"""What is saved of an offloaded model is what PyTorch saves of one in memory, at
the time of each save: the values, the ties and the size."""

import io
import pickle

import numpy
import pytest
import torch

import terrace
from offloaded import check_equal_values, is_cold, mlp, mlp_loss, sgd, values
from terrace._offload.readers import copies
from test_offload_close import below



def saved(value, **how):
    file = io.BytesIO()
    torch.save(value, file, **how)
    return file.getvalue()


def loaded(data):
    return torch.load(io.BytesIO(data), weights_only=False)


def by_safetensors(state):
    return pytest.importorskip('safetensors.torch').load(
        pytest.importorskip('safetensors.torch').save(state))


SAVES = {
    'torch.save': lambda state: loaded(saved(state)),
    'torch.save as of old': lambda state: loaded(
        saved(state, _use_new_zipfile_serialization=False)),
    'pickle': lambda state: pickle.loads(pickle.dumps(state)),
    'safetensors': by_safetensors,
    'numpy': lambda state: {name: torch.from_numpy(numpy.asarray(value))
                            for name, value in state.items()},
    'numpy()': lambda state: {name: torch.from_numpy(value.numpy().copy())
                              for name, value in state.items()},
    'storages': lambda state: {
        name: torch.tensor(value.untyped_storage().tolist(), dtype=torch.uint8
                           ).view(value.dtype).view(value.shape)
        for name, value in state.items()},
    'lists': lambda state: {name: torch.tensor(value.tolist())
                            for name, value in state.items()},
}


def train_sgd(model, offload):
    optimizer = sgd(model.parameters())
    mlp_loss(model, torch.Generator().manual_seed(1)).backward()
    optimizer.step()


def train_adamw(model, offload):
    optimizer = terrace.AdamW(model.parameters(), lr=1e-2, offload=offload)
    mlp_loss(model, torch.Generator().manual_seed(1)).backward()
    optimizer.step()


def write_data(model, offload):
    for parameter in model.parameters():
        parameter.data.mul_(3)


def write_without_an_operation(model, offload):
    for parameter in model.parameters():
        parameter.data.apply_(lambda value: value + 1)


def write_under_a_lease(model, offload):
    for parameter in model.parameters():
        with offload.lease(parameter, write=True):
            parameter.detach().numpy()[...] *= 2


WRITES = [train_sgd, train_adamw, write_data, write_without_an_operation,
          write_under_a_lease]


@pytest.mark.parametrize('write', WRITES)
def test_a_state_dict_that_is_kept_has_the_values_of_now(tmp_path, write):
    model = mlp(4)
    with below(model, tmp_path, '8MiB' if write is train_adamw else '200KiB'
               ) as offload:
        state = model.state_dict()
        for save in SAVES.values():
            check_equal_values(save(state), values(model))
        before = values(model)
        write(model, offload)
        assert not torch.equal(before['0.weight'], model[0].weight)
        for name, save in SAVES.items():
            print(name)
            check_equal_values(save(state), values(model))


class Views(torch.nn.Module):
    """Parameters that are parts of one storage, some of them the same."""

    def __init__(self, count=17):
        super().__init__()
        whole = torch.randn(count, 64, 64,
                            generator=torch.Generator().manual_seed(1))
        self.parts = torch.nn.ParameterList(
            torch.nn.Parameter(part) for part in whole)
        self.tied = self.parts[3]
        self.transposed = torch.nn.Parameter(self.parts[5].data.t())
        self.other = torch.nn.Linear(64, 64)


def check_same_file(write, read, model, plain):
    mine, theirs = write(model), write(plain)
    assert len(mine) <= len(theirs) + 4096
    got, expected = read(mine), read(theirs)
    for (name, value), (_, other) in zip(got, expected, strict=True):
        assert torch.equal(value, other), name
    tied = [[a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
             for _, b in each] for each in (got, expected) for _, a in each]
    assert tied[:len(got)] == tied[len(got):]


@pytest.mark.parametrize('how', [{}, {'_use_new_zipfile_serialization': False}])
@pytest.mark.parametrize('what', ['model', 'state_dict', 'list', 'pickle'])
def test_views_of_one_storage_are_saved_once(tmp_path, what, how):
    def write(model):
        if what == 'model':
            return saved(model, **how)
        if what == 'list':
            return saved([p.detach() for p in model.parameters()], **how)
        if what == 'pickle':
            return pickle.dumps(list(model.parameters()))
        return saved(model.state_dict(), **how)

    def read(data):
        if what == 'pickle':
            return list(enumerate(pickle.loads(data)))
        value = loaded(data)
        if what == 'model':
            return list(value.named_parameters())
        return list(value.items() if what == 'state_dict'
                    else enumerate(value))

    model, plain = Views(), Views()
    plain.load_state_dict(model.state_dict())
    with terrace.offload(model, memory_budget='600KiB',
                         nvme_path=str(tmp_path)) as offload:
        model.other.weight.sum()
        check_same_file(write, read, model, plain)
        assert offload.stats()['failures'] == 0


def test_a_save_takes_no_copies(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(copies, '_told', False)
    model = mlp(6)
    with caplog.at_level('INFO', 'terrace'), below(model, tmp_path) as offload:
        assert sum(map(is_cold, model.parameters())) > 3
        before = offload.stats()
        saved(model.state_dict())
        saved(model)
        after = offload.stats()
    assert after['memory_peak_bytes'] <= after['budget_bytes']
    assert before['over_budget_bytes'] == after['over_budget_bytes']
    assert not any('copies' in message for message in caplog.messages)
