"""Steps in backward of gradients that DistributedDataParallel averages, where
it has not averaged them, and where one rank fails: no rank steps what is not
averaged, the error is that rank's own, the other one ends too, and what can be
tried again is."""

import errno
import os

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import terrace
from conftest import model
from crew import Crew, bits, error_of
from test_late_step_faults import no_large_files
from test_ranks import WIDTH, _one_thread_as_the_ranks  # noqa: F401

STEPS = 4
TIMEOUT_SECONDS = 10  # more than a busy machine keeps a rank waiting


def inputs_of(rank, number):
    generator = torch.Generator().manual_seed(100 * rank + number)
    return torch.randn(12, WIDTH, generator=generator)


def mine(number):
    return inputs_of(dist.get_rank(), number)


def made(wrapped_by={}, passes=1, **settings):
    network = model(WIDTH)
    wrapped = (network if wrapped_by is None else
               DistributedDataParallel(network, **wrapped_by))
    optimizer = terrace.AdamW(network.parameters(), lr=1e-2,
                              step_in_backward=passes, **settings)
    return network, wrapped, optimizer


def in_one_process(steps, passes=1):
    """Each pass's gradients are added to the rank's own."""
    network = model(WIDTH)
    optimizer = terrace.AdamW(network.parameters(), lr=1e-2)
    for step in range(steps):
        for rank in (0, 1):
            sums = [p.grad for p in network.parameters()]
            optimizer.zero_grad()
            for number in range(passes):
                network(inputs_of(rank, passes * step + number)
                        ).square().mean().backward()
            for parameter, other in zip(network.parameters(), sums):
                parameter.grad /= 2
                if other is not None:
                    parameter.grad += other
        optimizer.step()
        optimizer.zero_grad()
    return bits(network.parameters())


def loss_of(wrapped, number):
    return wrapped(mine(number)).square().mean()


def step_error(optimizer):
    return error_of(optimizer.step)[:2]


def backward_error(loss, **how):
    return error_of(lambda: loss.backward(**how))[:2]


# Gradients that are not averaged.

def last_pass_is_not_synchronised(wrapped_by):
    """The second of two is in no_sync() as the first was; a third one that is
    not ends the step."""
    network, wrapped, optimizer = made(wrapped_by, passes=2)
    before = bits(network.parameters())
    with wrapped.no_sync():
        loss_of(wrapped, 0).backward()
        said = [backward_error(loss_of(wrapped, 1)), step_error(optimizer)]
    assert bits(network.parameters()) == before
    loss_of(wrapped, 2).backward()
    optimizer.step()
    stats = optimizer.stats()
    optimizer.close()
    return said, bits(network.parameters()), stats['steps']


@pytest.mark.parametrize('wrapped_by', [{}, {'gradient_as_bucket_view': True}])
def test_a_last_pass_in_no_sync(wrapped_by, crew):
    expected = in_one_process(1, passes=3)
    for said, parameters, steps in crew.run(last_pass_is_not_synchronised,
                                            wrapped_by):
        for kind, text in said:
            assert kind == 'RuntimeError'
            assert text.startswith("terrace: the gradient of parameter 'group ")
            assert 'is not averaged' in text and 'no_sync()' in text
        assert parameters == expected and steps == 1


def twice_through_a_graph():
    """Only the first pass is averaged."""
    network, wrapped, optimizer = made(passes=2)
    before = bits(network.parameters())
    loss = loss_of(wrapped, 0)
    loss.backward(retain_graph=True)
    said = [backward_error(loss), step_error(optimizer)]
    assert bits(network.parameters()) == before
    optimizer.zero_grad()
    optimizer.step()
    optimizer.close()
    return said


def test_a_graph_that_was_averaged_before(crew):
    for said in crew.run(twice_through_a_graph):
        for kind, text in said:
            assert kind == 'RuntimeError' and 'was averaged before' in text


def without_a_layer(wrapped_by):
    """DistributedDataParallel waits for the last layer's gradients."""
    network, wrapped, optimizer = made(wrapped_by)
    before = bits(network.parameters())
    whole = network.forward
    network.forward = lambda inputs: network[:-2](inputs)
    said = [backward_error(loss_of(wrapped, 0)), step_error(optimizer)]
    network.forward = whole
    assert bits(network.parameters()) == before
    optimizer.close()
    return said


@pytest.mark.parametrize('wrapped_by', [{}, {'gradient_as_bucket_view': True}])
def test_parameters_that_are_not_known_to_be_unused(wrapped_by, crew):
    for said in crew.run(without_a_layer, wrapped_by):
        for kind, text in said:
            assert kind == 'RuntimeError'
            assert 'find_unused_parameters=True' in text


def frozen_as_it_was_wrapped():
    network = model(WIDTH)
    network[0].requires_grad_(False)
    wrapped = DistributedDataParallel(network)
    network[0].requires_grad_(True)
    optimizer = terrace.AdamW(network.parameters(), step_in_backward=1)
    before = bits(network.parameters())
    said = backward_error(loss_of(wrapped, 0))
    assert bits(network.parameters()) == before
    optimizer.close()
    return said


def test_a_parameter_that_was_thawed_since(crew):
    for kind, text in crew.run(frozen_as_it_was_wrapped):
        assert kind == 'RuntimeError' and 'wrap it anew' in text


def in_no_model(left_out):
    """Of the whole model, or of a layer that DistributedDataParallel is told to
    leave out."""
    network = model(WIDTH)
    if left_out:
        network._ddp_params_and_buffers_to_ignore = ['0.weight']
    wrapped = DistributedDataParallel(network) if left_out else network
    optimizer = terrace.AdamW(network.parameters(), lr=1e-2,
                              step_in_backward=1)
    before = bits(network.parameters())
    said = [backward_error(loss_of(wrapped, 0)), step_error(optimizer)]
    assert bits(network.parameters()) == before
    optimizer.zero_grad()
    parameters = before
    if not left_out:
        wrapped = DistributedDataParallel(network)
        loss_of(wrapped, 0).backward()
        optimizer.step()
        parameters = bits(network.parameters())
    optimizer.close()
    return said, parameters


@pytest.mark.parametrize('left_out', [False, True])
def test_a_parameter_of_no_model(left_out, crew):
    for said, parameters in crew.run(in_no_model, left_out):
        for kind, text in said:
            assert kind == 'NotImplementedError'
            assert "'group 0 parameter 0'" in text
            assert 'in no DistributedDataParallel' in text
            assert 'wrap the model' in text
        assert left_out or parameters == in_one_process(1)


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        raise ArithmeticError('in backward')


def broken_pass():
    """On both ranks, half-way; no averages come of it."""
    network, wrapped, optimizer = made()
    before = bits(network.parameters())
    whole = network.forward
    network.forward = lambda inputs: network[2:](
        Failing.apply(network[:2](inputs)))
    said = [backward_error(loss_of(wrapped, 0)), step_error(optimizer)]
    network.forward = whole
    assert bits(network.parameters()) == before
    optimizer.zero_grad()
    optimizer.step()
    optimizer.close()
    return said


def test_a_pass_that_broke(crew):
    for (first, _), (second, text) in crew.run(broken_pass):
        assert (first, second) == ('ArithmeticError', 'RuntimeError')
        assert 'a backward pass failed before it was' in text


# One rank fails.

def fail_before_the_step(wrapped_by):
    """In the second of the steps rank 1 has a rate that is no number."""
    network, wrapped, optimizer = made(wrapped_by)
    said = None
    for number in range(STEPS):
        loss = loss_of(wrapped, number)
        if number == 1 and dist.get_rank() == 1:
            optimizer.param_groups[0]['lr'] = 'fast'
            said = backward_error(loss)
            optimizer.param_groups[0]['lr'] = 1e-2
        else:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    parameters = bits(network.parameters())
    optimizer.close()
    return said, parameters


@pytest.mark.parametrize('wrapped_by', [{}, {'gradient_as_bucket_view': True}])
def test_what_fails_before_it_is_stepped_is_tried_again(wrapped_by, crew):
    (quiet, first), ((kind, text), second) = crew.run(fail_before_the_step,
                                                      wrapped_by)
    assert quiet is None
    assert kind == 'TypeError' and "lr is 'fast'" in text
    assert 'other ranks may have made this step' in text
    assert 'call step() here' in text
    assert first == second == in_one_process(STEPS)


def saved_at(path):
    return f'{path}/{dist.get_rank()}/saved'


def made_on_disk(path, wrapped_by):
    directory = f'{path}/{dist.get_rank()}'
    os.makedirs(directory, exist_ok=True)
    return made(wrapped_by, memory_budget='192KiB', nvme_path=directory)


def fail_in_the_step(path, wrapped_by):
    """Each rank saves after two steps; of the third rank 1 has parts."""
    network, wrapped, optimizer = made_on_disk(path, wrapped_by)
    said = []
    for number in range(STEPS):
        if number == 2:
            terrace.save(saved_at(path), network, optimizer)
        if number == 2 and dist.get_rank() == 1:
            loss = loss_of(wrapped, number)
            with no_large_files():
                try:
                    loss.backward()
                    optimizer.step()
                except OSError as error:
                    said = [error.errno, str(error)]
            said += [step_error(optimizer), error_of(optimizer.state_dict)[:2]]
            return said
        if number == 3:  # in which the other one is missing
            return error_of(lambda: loss_of(wrapped, number).backward())
        loss_of(wrapped, number).backward()
        optimizer.step()
        optimizer.zero_grad()


def resume(path, wrapped_by):
    network, wrapped, optimizer = made_on_disk(path, wrapped_by)
    terrace.load(saved_at(path), network, optimizer)
    for number in range(2, STEPS):
        loss_of(wrapped, number).backward()
        optimizer.step()
        optimizer.zero_grad()
    parameters = bits(network.parameters())
    optimizer.close()
    return parameters


@pytest.mark.parametrize('wrapped_by', [{}, {'gradient_as_bucket_view': True}])
def test_a_step_that_one_rank_has_in_part(wrapped_by, tmp_path):
    first = Crew(tmp_path, timeout_seconds=TIMEOUT_SECONDS)
    try:
        (kind, _, _, seconds), said = first.run(fail_in_the_step,
                                                str(tmp_path), wrapped_by)
    finally:
        first.close()
    assert kind == 'RuntimeError' or kind.startswith('Dist'), kind
    assert seconds < 3 * TIMEOUT_SECONDS
    number, text, *later = said
    assert number == errno.EFBIG, said
    assert 'other ranks may have made all of this step' in text
    for kind, text in later:
        assert kind == 'RuntimeError'
        assert 'resume from the last checkpoint' in text
        assert 'other ranks may have made all of this step' in text
    (tmp_path / 'store').unlink(missing_ok=True)
    second = Crew(tmp_path)
    try:
        results = second.run(resume, str(tmp_path), wrapped_by)
    finally:
        second.close()
    assert results == [in_one_process(STEPS)] * 2
