"""What scripts give an optimizer and torch.optim.AdamW takes in its own way:
betas, parameters without a shape, what stands beside state in a state_dict."""

import copy

import pytest
import torch

import terrace

KINDS = [terrace.AdamW, torch.optim.AdamW]


@pytest.mark.parametrize('kind', KINDS)
def test_betas_are_the_optimizers_own(kind):
    given = [0.8, 0.9]
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = kind([weight], betas=given)
    given[0] = 0.1
    for kept in (optimizer.defaults, optimizer.param_groups[0]):
        assert kept['betas'] == (0.8, 0.9) and type(kept['betas']) is tuple


@pytest.mark.parametrize('kind', KINDS)
def test_betas_may_be_tensors(kind):
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = kind([weight], betas=(torch.tensor([[0.8]]),
                                      torch.tensor(0.9)))
    assert [beta.shape for beta in optimizer.param_groups[0]['betas']] == [
        (), ()]


def test_a_beta_is_one_number():
    weight = torch.nn.Parameter(torch.ones(4))
    with pytest.raises(ValueError, match=r'Tensor betas\[1\] must be 1-elem'):
        terrace.AdamW([weight], betas=(torch.tensor(0.8), torch.ones(2) * 0.9))


@pytest.mark.parametrize('bias', [True, False])
def test_lazy_parameters_get_state_with_their_first_gradient(bias, tier):
    results = []
    for kind, settings in ((terrace.AdamW, tier), (torch.optim.AdamW, {})):
        torch.manual_seed(3)
        module = torch.nn.Sequential(torch.nn.LazyLinear(200, bias=bias),
                                     torch.nn.Linear(200, 3))
        optimizer = kind(module.parameters(), lr=0.1, **settings)
        optimizer.step()
        assert len(optimizer.state_dict()['state']) == 0
        for _ in range(3):
            optimizer.zero_grad()
            module(torch.ones(4, 300)).sum().backward()
            optimizer.step()
        results.append((module, optimizer))
    (ours, optimizer), (theirs, reference) = results
    assert len(optimizer.state) == len(reference.state) == 3 + bias
    for weight, other in zip(ours.parameters(), theirs.parameters(),
                             strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-5, atol=1e-5)
    optimizer.close()


def test_state_of_a_lazy_parameter_waits_for_a_forward():
    module = torch.nn.LazyLinear(2)
    optimizer = terrace.AdamW(module.parameters())
    known = torch.nn.Linear(3, 2)
    other = torch.optim.AdamW(known.parameters())
    known(torch.ones(1, 3)).sum().backward()
    other.step()
    with pytest.raises(ValueError, match="'group 0 parameter 0' has no shape "
                       'yet: give it state after the first forward'):
        optimizer.load_state_dict(other.state_dict())
    module(torch.ones(1, 3))
    optimizer.load_state_dict(other.state_dict())
    assert len(optimizer.state) == 2


def test_what_is_no_state_is_not_dropped_by_a_load():
    weight = torch.nn.Parameter(torch.ones(4))
    reference = torch.optim.AdamW([weight])
    weight.grad = torch.ones(4)
    reference.step()
    optimizer = terrace.AdamW([weight])
    good = reference.state_dict()
    optimizer.load_state_dict(good)
    expected = optimizer.state[weight]['exp_avg'].clone()
    beside = copy.deepcopy(good)
    beside['state'][0]['ema'] = torch.ones(4)
    with pytest.raises(ValueError, match='no place for ema; keep it beside'):
        optimizer.load_state_dict(beside)
    noted = copy.deepcopy(good)
    noted['state']['note'] = {'a': 1}
    with pytest.raises(ValueError, match="has state of 'note', which is in "
                       'none of its groups; keep'):
        optimizer.load_state_dict(noted)
    assert torch.equal(optimizer.state[weight]['exp_avg'], expected)
    optimizer.load_state_dict({**good, 'epoch': 3})
