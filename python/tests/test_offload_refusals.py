"""What terrace.offload refuses, by name and with the way out."""

import multiprocessing
import os

import pytest
import torch

import terrace
from offloaded import mlp, mlp_loss, train


@pytest.mark.parametrize('arguments, kind, text', [
    ({'activations_above': 'much'}, ValueError, 'much'),
    ({'activations_above': '10%'}, ValueError, 'activations_above'),
    ({'init_buffers': print}, ValueError, 'init_buffers goes with checkpoint'),
    ({'parameters': False}, ValueError, 'nothing to offload'),
    ({'memory_budget': '0%'}, ValueError, 'no memory at all'),
    ({'memory_budget': True}, TypeError, 'memory_budget is bytes'),
    ({'memory_budget': '10%', 'tiers': ['dram=1GiB']}, ValueError,
     'tiers and memory_budget together'),
    ({'nvme_path': '/tmp', 'tiers': ['dram=1GiB']}, ValueError,
     'tiers and nvme_path together'),
    ({'nvme_path': '/not/there'}, FileNotFoundError, 'does not exist'),
])
def test_arguments(arguments, kind, text):
    with pytest.raises(kind, match=text):
        terrace.offload(mlp(), **arguments)


def test_what_is_no_module():
    with pytest.raises(TypeError, match='a torch.nn.Module, not list'):
        terrace.offload([torch.zeros(3)])


def test_parameters_without_values():
    with torch.device('meta'):
        model = mlp()
    with pytest.raises(ValueError, match="'0.weight' is on the meta device"):
        terrace.offload(model)
    with pytest.raises(ValueError, match="'weight' has no shape yet"):
        terrace.offload(torch.nn.LazyLinear(3))


def test_memory_that_other_processes_share(tmp_path):
    model = mlp()
    model[4].weight.data.share_memory_()
    with pytest.raises(ValueError, match="'4.weight' is in memory shared"):
        terrace.offload(model, memory_budget='40%', nvme_path=str(tmp_path))
    assert os.listdir(tmp_path) == []
    train(model, mlp_loss)  # as it was


def test_a_model_that_is_offloaded_already(tmp_path):
    model = mlp()
    offload = terrace.offload(model, memory_budget='40%',
                              nvme_path=str(tmp_path))
    with pytest.raises(RuntimeError, match="'0.weight' is offloaded already"):
        terrace.offload(model)
    train(model, mlp_loss)
    offload.close()
    with terrace.offload(model):
        train(model, mlp_loss)


def test_distributed_data_parallel(tmp_path):
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(mlp())
        with pytest.raises(NotImplementedError,
                           match='DistributedDataParallel'):
            terrace.offload(model)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize('named', [True, False])
def test_another_engine_for_an_optimizer_that_joins(tmp_path, named):
    model = mlp()
    with terrace.offload(model, memory_budget='40%',
                         nvme_path=str(tmp_path)) as offload:
        joins = {'offload': offload} if named else {}
        with pytest.raises(ValueError, match="io_engine='threads': the "
                           "optimizer joins .* io_engine='auto' for"):
            terrace.AdamW(model.parameters(), io_engine='threads', **joins)
        terrace.AdamW(model.parameters(), io_engine='auto', **joins)
        # Of one with a budget of its own it is its own.
        if not named:
            terrace.AdamW(model.parameters(), io_engine='threads',
                          memory_budget='1GiB')


def test_a_lease_of_another_tensor():
    model = mlp()
    with terrace.offload(model) as offload:
        with pytest.raises(ValueError, match='not managed'):
            with offload.lease(torch.zeros(3)):
                pass


def test_copies_and_pickles():
    import copy
    import pickle
    model = mlp()
    with terrace.offload(model) as offload:
        for spoil in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match='cannot be pickled or copied'):
                spoil(offload)


@pytest.fixture
def one_thread():
    """A forked child has none of OpenMP's. Of another number later tests would
    have other bits than processes of their own."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_forked_child_has_nothing_and_does_no_harm(tmp_path, one_thread):
    model = mlp()
    offload = terrace.offload(model, memory_budget='40%',
                              nvme_path=str(tmp_path))
    def child(pipe):
        said = []
        for use in (lambda: model[0].weight.sum(), offload.stats,
                    lambda: offload.prefetch(list(model.parameters()))):
            try:
                use()
                said.append('nothing')
            except RuntimeError as error:
                said.append(str(error))
        pipe.send(said)

    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context('fork').Process(target=child,
                                                          args=(theirs,))
    process.start()
    assert ours.poll(60)
    said = ours.recv()
    process.join(60)
    assert process.exitcode == 0
    assert 'terrace:' in said[0] and 'forked child' in said[0]
    assert 'forked child' in said[1] and 'forked child' in said[2]
    train(model, mlp_loss)
    offload.close()
