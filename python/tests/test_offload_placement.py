"""Tensors that a program makes in offload.placement() live below: caches of
keys and values, copies of parameters, other models."""

import contextlib
import copy
import gc
import threading

import numpy
import pytest
import torch

import terrace
from offloaded import check_equal_values, mlp, values
from terrace._base.library import is_offloaded

LARGE = 32 << 10  # elements: 128 KiB


@pytest.fixture
def offloaded(tmp_path):
    model = mlp()
    with terrace.offload(model, memory_budget='512KiB',
                         nvme_path=str(tmp_path)) as offload:
        yield model, offload


def cache_bytes(cache):
    return sum(tensor.nbytes for layer in cache.layers
               for tensor in (layer.keys, layer.values))


@pytest.mark.parametrize('implementation', [None, 'static'])
def test_a_cache_of_three_times_the_budget_generates_the_same_tokens(
        tmp_path, implementation):
    transformers = pytest.importorskip('transformers')

    def build():
        torch.manual_seed(5)
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(
            hidden_size=256, num_hidden_layers=6, num_attention_heads=4,
            num_key_value_heads=4, intermediate_size=256, vocab_size=101))

    def generate(model):
        return model.generate(
            prompts, max_new_tokens=8, do_sample=False, use_cache=True,
            cache_implementation=implementation, return_dict_in_generate=True,
            pad_token_id=0, eos_token_id=None)

    torch.manual_seed(6)
    prompts = torch.randint(101, (8, 96))
    expected = generate(build()).sequences
    model = build()
    with terrace.offload(model, memory_budget='3MiB',
                         nvme_path=str(tmp_path)) as offload:
        with offload.placement():
            result = generate(model)
        stats = offload.stats()
        assert cache_bytes(result.past_key_values) >= 3 * stats['budget_bytes']
        assert all(is_offloaded(layer.keys)
                   for layer in result.past_key_values.layers)
        assert stats['memory_peak_bytes'] <= stats['budget_bytes']
        # Only of what an operation had no room for beside its operands.
        assert stats['placed_left_bytes'] < stats['placed_bytes'] / 10
        assert torch.equal(result.sequences, expected)


def test_copies_and_models_that_are_made_there_are_below(offloaded):
    model, offload = offloaded
    with offload.placement():
        ema = copy.deepcopy(model)
        other = mlp(seed=8)
    assert all(is_offloaded(layer.weight) for made in (ema, other)
               for layer in made if hasattr(layer, 'weight'))
    check_equal_values(values(ema), values(mlp()))
    check_equal_values(values(other), values(mlp(seed=8)))
    data = torch.ones(4, 128)
    assert torch.equal(other(data), mlp(seed=8)(data))
    with torch.no_grad():
        for mine, theirs in zip(ema.parameters(), other.parameters()):
            mine.lerp_(theirs, 0.25)
    plain = mlp()
    with torch.no_grad():
        for mine, theirs in zip(plain.parameters(),
                                mlp(seed=8).parameters()):
            mine.lerp_(theirs, 0.25)
    check_equal_values(values(ema), values(plain))


def test_a_tensor_whose_address_somebody_has_stays_where_it_is(offloaded):
    _, offload = offloaded
    readers = {
        'numpy': lambda tensor: tensor.numpy(),
        'dlpack': lambda tensor: numpy.from_dlpack(tensor),
        'data_ptr': lambda tensor: tensor.data_ptr(),
        'storage': lambda tensor: tensor.untyped_storage().data_ptr(),
        'in a thread': lambda tensor: in_a_thread(tensor.numpy)}
    with offload.placement():
        for name, read in readers.items():
            tensor = torch.empty(LARGE)
            held = read(tensor)
            tensor.fill_(3)
            assert not is_offloaded(tensor), name
            if isinstance(held, numpy.ndarray):
                held[:] = 5
                assert tensor.sum() == 5 * LARGE
        tensor = torch.empty(LARGE).fill_(3)
        assert is_offloaded(tensor)
        array = tensor.numpy()  # It is leased.
        tensor.mul_(2)
        assert array.sum() == 6 * LARGE


@torch.library.custom_op('terrace_test::exported', mutates_args=())
def exported(source: torch.Tensor) -> torch.Tensor:
    made = source + 1
    arrays.append(made.numpy())
    return made


arrays = []


def test_an_operator_whose_result_has_an_array_leaves_it_there(offloaded):
    _, offload = offloaded
    with offload.placement():
        result = exported(torch.ones(LARGE))
        array = arrays.pop()
        assert not is_offloaded(result)
        array[:] = 5
        assert result.sum() == 5 * LARGE
        result.mul_(2)
        assert array.sum() == 10 * LARGE


def in_a_thread(read):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(read()))
    thread.start()
    thread.join()
    return answers[0]


def test_tensors_of_lists_and_arrays_have_their_values(offloaded):
    _, offload = offloaded
    numbers = list(range(LARGE))
    array = numpy.arange(LARGE, dtype=numpy.float32)
    with offload.placement():
        made = [torch.tensor(numbers), torch.tensor(array),
                torch.from_numpy(array), torch.as_tensor(array),
                torch.tensor(numbers).float() + 0]
    assert is_offloaded(made[-1])
    offload.prefetch(made[-1:])
    for tensor in made:
        assert tensor.tolist() == numbers


def test_what_is_made_outside_stays_ordinary(offloaded):
    _, offload = offloaded
    with offload.placement():
        small = torch.ones((64 << 10) - 1, dtype=torch.uint8)
        with offload.placement():
            inner = torch.ones(LARGE)
        outer = torch.ones(LARGE)
        others = in_a_thread(lambda: torch.ones(LARGE))
    after = torch.ones(LARGE)
    assert is_offloaded(inner) and is_offloaded(outer)
    assert not any(map(is_offloaded, (small, others, after)))


def test_after_an_error_or_an_interrupt_the_scope_has_ended(offloaded):
    _, offload = offloaded
    for kind in (ValueError, KeyboardInterrupt):
        with pytest.raises(kind):
            with offload.placement():
                raise kind
        assert not is_offloaded(torch.ones(LARGE))


def test_a_close_brings_them_and_takes_no_more(tmp_path):
    model = mlp()
    offload = terrace.offload(model, memory_budget='512KiB',
                              nvme_path=str(tmp_path))
    with offload.placement():
        made = [torch.full((LARGE,), float(i)) for i in range(20)]
        offload.close()
        later = torch.ones(LARGE)
    assert not any(map(is_offloaded, [*made, later]))
    for i, tensor in enumerate(made):
        assert torch.equal(tensor, torch.full((LARGE,), float(i)))
    with pytest.raises(RuntimeError, match='closed'):
        with offload.placement():
            pass


def test_training_there_has_the_same_bits(tmp_path):
    def train(model, scope):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        data = torch.linspace(-1, 1, 256 * 128).view(256, 128)
        with scope():
            for _ in range(3):
                optimizer.zero_grad()
                model(data).square().mean().backward()
                optimizer.step()
        return values(model)

    expected = train(mlp(), contextlib.nullcontext)
    model = mlp()
    with terrace.offload(model, memory_budget='1MiB',
                         nvme_path=str(tmp_path)) as offload:
        train(model, offload.placement)
        check_equal_values(values(model), expected)
        assert offload.stats()['placed_tensors'] > 0


def test_a_budget_that_holds_everything_refuses(tmp_path):
    model = mlp()
    with terrace.offload(model, memory_budget='1GiB',
                         nvme_path=str(tmp_path)) as offload:
        with pytest.raises(RuntimeError, match='nothing is below it'):
            with offload.placement():
                pass


def test_their_memory_comes_back(offloaded):
    _, offload = offloaded
    before = offload.stats()['managed_tensors']
    with offload.placement():
        for _ in range(50):
            torch.ones(LARGE).add(1)
    gc.collect()
    assert offload.stats()['managed_tensors'] == before
