"""What users of a torch.optim.Optimizer expect of one."""

import copy
import pickle

import pytest
import torch

import terrace
from conftest import batches, largest_difference, model, pair, train

lr_scheduler = torch.optim.lr_scheduler

SCHEDULERS = {
    'lambda': lambda o: lr_scheduler.LambdaLR(o, lambda e: 0.9 ** e),
    'multiplicative': lambda o: lr_scheduler.MultiplicativeLR(
        o, lambda e: 0.95),
    'step': lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    'multistep': lambda o: lr_scheduler.MultiStepLR(o, [2, 5], 0.3),
    'constant': lambda o: lr_scheduler.ConstantLR(o, 0.5, 4),
    'linear': lambda o: lr_scheduler.LinearLR(o, 0.3, 1.0, 5),
    'exponential': lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    'cosine': lambda o: lr_scheduler.CosineAnnealingLR(o, 8, 1e-5),
    'restarts': lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    'polynomial': lambda o: lr_scheduler.PolynomialLR(o, 9, 2.0),
    'cyclic': lambda o: lr_scheduler.CyclicLR(o, 1e-4, 1e-2, 3,
                                              cycle_momentum=True),
    'one cycle': lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=20),
    'sequential': lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 2),
            lr_scheduler.ExponentialLR(o, 0.9)], [3]),
    'chained': lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, 2),
         lr_scheduler.ExponentialLR(o, 0.9)]),
    'swa': lambda o: torch.optim.swa_utils.SWALR(o, 0.02, 4),
}


@pytest.mark.parametrize('name', SCHEDULERS)
def test_schedulers(name):
    (network, optimizer), (other, theirs) = pair({}, lr=2e-3)
    schedulers = SCHEDULERS[name](optimizer), SCHEDULERS[name](theirs)
    data = batches(10)
    train(network, optimizer, data, schedulers[0].step)
    train(other, theirs, data, schedulers[1].step)
    group, expected = optimizer.param_groups[0], theirs.param_groups[0]
    assert group['lr'] == expected['lr']
    assert group['betas'] == expected['betas']  # cyclic ones change them
    assert largest_difference(network, other) <= 1e-5


def test_reduce_on_plateau():
    (network, optimizer), (other, theirs) = pair({}, lr=2e-3)
    for net, opt in ((network, optimizer), (other, theirs)):
        scheduler = lr_scheduler.ReduceLROnPlateau(opt, patience=1)
        train(net, opt, batches(8), lambda s=scheduler: s.step(1.0))
    assert optimizer.param_groups[0]['lr'] == theirs.param_groups[0]['lr']
    assert theirs.param_groups[0]['lr'] < 2e-3
    assert largest_difference(network, other) <= 1e-5


def groups_of(network):
    decayed = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    return [{'params': decayed, 'weight_decay': 0.2, 'lr': 3e-3},
            {'params': others, 'weight_decay': 0.0, 'betas': (0.8, 0.99),
             'eps': 1e-6}]


def test_groups_have_their_own_numbers(tier):
    network, other = model(), model()
    optimizer = terrace.AdamW(groups_of(network), lr=1e-3, **tier)
    theirs = torch.optim.AdamW(groups_of(other), lr=1e-3)
    train(network, optimizer, batches(6))
    train(other, theirs, batches(6))
    for opt in (optimizer, theirs):  # between steps, by hand
        opt.param_groups[1].update(lr=5e-3, weight_decay=0.1, eps=1e-7,
                                   betas=(0.7, 0.9))
    train(network, optimizer, batches(6))
    train(other, theirs, batches(6))
    assert largest_difference(network, other) <= 1e-5


def test_added_groups_start_from_their_first_step(tier):
    network, other = model(), model()
    parts = [list(n[4].parameters()) for n in (network, other)]
    optimizer = terrace.AdamW(network[:4].parameters(), **tier)
    theirs = torch.optim.AdamW(other[:4].parameters())
    train(network, optimizer, batches(5))
    train(other, theirs, batches(5))
    network.zero_grad()
    other.zero_grad()
    for opt, params in ((optimizer, parts[0]), (theirs, parts[1])):
        opt.add_param_group({'params': params, 'lr': 5e-3})
    train(network, optimizer, batches(5))
    train(other, theirs, batches(5))
    assert largest_difference(network, other) <= 1e-5
    assert optimizer.state[parts[0][0]]['step'] == 5


def test_many_added_groups_grow_the_memory():
    first = torch.nn.Parameter(torch.zeros(1000))
    optimizer = terrace.AdamW([first])
    first.grad = torch.ones(1000)
    optimizer.step()
    kept = optimizer.state[first]
    large = torch.nn.Parameter(torch.ones(2_000_000))
    optimizer.add_param_group({'params': [large]})
    assert torch.equal(optimizer.state[first]['exp_avg'], kept['exp_avg'])
    assert optimizer.state[first]['step'] == 1
    large.grad = torch.ones(2_000_000)
    optimizer.step()
    assert (large < 1).all()
    assert optimizer.stats()['parameters'] == 2_001_000


def test_parameters_without_a_gradient_stay(tier):
    (network, optimizer), (other, theirs) = pair(tier)
    for step, batch in enumerate(batches(9)):
        for net in (network, other):
            net[2].weight.requires_grad_(step % 3 != 1)
            net[2].weight.grad = None
        before = network[2].weight.detach().clone()
        train(network, optimizer, [batch])
        train(other, theirs, [batch])
        assert (step % 3 == 1) == torch.equal(before, network[2].weight)
    assert largest_difference(network, other) <= 1e-5
    assert optimizer.state[network[2].weight]['step'] == 6


def test_accumulation_takes_the_sum(tier):
    (network, optimizer), (other, theirs) = pair(tier)
    for net, opt in ((network, optimizer), (other, theirs)):
        for i, (inputs, targets) in enumerate(batches(12)):
            torch.nn.functional.mse_loss(net(inputs), targets).backward()
            if i % 4 == 3:
                opt.step()
                opt.zero_grad()
    assert largest_difference(network, other) <= 1e-5


def test_tied_parameters_are_stepped_once():
    networks = []
    for make in (terrace.AdamW, torch.optim.AdamW):
        network = model()
        network[2].weight = network[0].weight
        optimizer = make(network.parameters())
        train(network, optimizer, batches(6))
        networks.append(network)
    assert largest_difference(*networks) <= 1e-5


@pytest.mark.parametrize('arrange', [
    lambda t: t.t(), lambda t: t[:, ::2], lambda t: t[1:-1, 1:-1],
    lambda t: t.view(4, 15, 2, 25).permute(0, 3, 1, 2)],
    ids=['transposed', 'columns', 'inside', 'channels last'])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_non_contiguous_parameters_are_updated_in_place(tier, arrange, dtype):
    """Row 15 of docs/deepspeed.md."""
    values = torch.randn(60, 50).to(dtype)
    base, other = values.clone(), values.clone()
    p = torch.nn.Parameter(arrange(base))
    q = torch.nn.Parameter(arrange(other).float().contiguous())
    optimizer = terrace.AdamW([p], lr=1e-2, **tier)
    reference = torch.optim.AdamW([q], lr=1e-2)
    address = p.data_ptr()
    for i in range(5):
        gradient = torch.randn(q.shape)
        p.grad = gradient.to(dtype).clone() if i % 2 else arrange(
            torch.empty_like(base)).copy_(gradient)
        q.grad = gradient.to(dtype).float()
        optimizer.step()
        reference.step()
    assert p.data_ptr() == address and not torch.equal(base, values)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(p.float(), q, rtol=tolerance, atol=tolerance)


def test_only_the_view_of_a_parameter_is_written():
    base = torch.ones(40, 40)
    p = torch.nn.Parameter(base[:, ::2])
    p.grad = torch.ones(p.shape)
    optimizer = terrace.AdamW([p])
    optimizer.step()
    assert (base[:, 1::2] == 1).all() and (base[:, ::2] < 1).all()


def test_empty_and_scalar_parameters():
    empty = torch.nn.Parameter(torch.empty(0, 3))
    scalar = torch.nn.Parameter(torch.tensor(1.0))
    optimizer = terrace.AdamW([empty, scalar])
    empty.grad = torch.empty(0, 3)
    scalar.grad = torch.tensor(1.0)
    optimizer.step()
    assert scalar < 1
    assert len(optimizer.state_dict()['state']) == 2


def test_nothing_but_empty_parameters():
    empty = torch.nn.Parameter(torch.empty(0))
    optimizer = terrace.AdamW([empty])
    empty.grad = torch.empty(0)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    stats = optimizer.stats()
    other = terrace.AdamW([torch.nn.Parameter(torch.ones(1))]).stats()
    assert stats.keys() == other.keys()
    assert stats['blocked_seconds'].keys() == other['blocked_seconds'].keys()
    assert {type(stats[key]) is type(other[key]) for key in stats} == {True}
    assert stats['state_bytes'] == 0 and stats['memory_bytes'] < 1 << 20
    assert stats['steps'] == optimizer.state[empty]['step'] == 1  # as torch's
    assert list(optimizer.state_dict()['state']) == [0]


def test_closure_is_evaluated_with_gradients():
    (network, optimizer), (other, theirs) = pair({})
    inputs, targets = batches(1)[0]

    def closure(net, opt):
        opt.zero_grad()
        loss = torch.nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        return loss

    for _ in range(4):
        with torch.no_grad():
            loss = optimizer.step(lambda: closure(network, optimizer))
        expected = theirs.step(lambda: closure(other, theirs))
        assert abs(loss.item() - expected.item()) <= 1e-5
    assert largest_difference(network, other) <= 1e-5


def test_hooks_are_called():
    network = model()
    optimizer = terrace.AdamW(network.parameters())
    calls = []
    optimizer.register_step_pre_hook(lambda *a: calls.append('before'))
    optimizer.register_step_post_hook(lambda *a: calls.append('after'))
    optimizer.register_state_dict_pre_hook(lambda o: calls.append('saving'))
    optimizer.register_state_dict_post_hook(
        lambda o, d: {**d, 'extra': calls.append('saved')})
    optimizer.register_load_state_dict_pre_hook(
        lambda o, d: calls.append('loading'))
    optimizer.register_load_state_dict_post_hook(
        lambda o: calls.append('loaded'))
    train(network, optimizer, batches(1))
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    assert 'extra' in state
    assert calls == ['before', 'after', 'saving', 'saved', 'loading', 'loaded']


def test_hook_may_change_what_is_loaded():
    network = model()
    optimizer = terrace.AdamW(network.parameters())
    train(network, optimizer, batches(2))
    state = optimizer.state_dict()

    def rename(_, given):
        return {'state': given['content'], 'param_groups':
                given['param_groups']}

    optimizer.register_load_state_dict_pre_hook(rename)
    optimizer.load_state_dict({'content': state['state'],
                               'param_groups': state['param_groups']})
    again = optimizer.state_dict()
    assert torch.equal(again['state'][0]['exp_avg'],
                       state['state'][0]['exp_avg'])


def test_zero_grad_frees():
    network = model()
    optimizer = terrace.AdamW(network.parameters())
    train(network, optimizer, batches(1))
    optimizer.zero_grad()
    assert all(p.grad is None for p in network.parameters())
    train(network, optimizer, batches(1))
    optimizer.zero_grad(set_to_none=False)
    assert all((p.grad == 0).all() for p in network.parameters())


def test_named_parameters_name_the_errors():
    network = model()
    optimizer = terrace.AdamW(network.named_parameters())
    assert optimizer.param_groups[0]['param_names'][0] == '0.weight'
    weight = network[0].weight
    weight.grad = torch.ones_like(weight).to_sparse()
    with pytest.raises(ValueError, match="'0.weight'.*dense"):
        optimizer.step()


def test_autograd_sees_the_write():
    w = torch.nn.Parameter(torch.ones(5))
    optimizer = terrace.AdamW([w])
    loss = (w * w).sum()
    w.grad = torch.ones(5)
    optimizer.step()
    with pytest.raises(RuntimeError, match='modified by an inplace'):
        loss.backward()


def test_grad_scaler_unscales_and_skips(tier):
    (network, optimizer), (other, theirs) = pair(tier)
    scalers = [torch.amp.GradScaler('cpu', init_scale=2.0 ** 10,
                                    growth_interval=3) for _ in range(2)]
    for step, (inputs, targets) in enumerate(batches(10)):
        for net, opt, scaler in ((network, optimizer, scalers[0]),
                                 (other, theirs, scalers[1])):
            opt.zero_grad()
            scaler.scale(torch.nn.functional.mse_loss(
                net(inputs), targets)).backward()
            if step == 4:
                net[0].weight.grad[0, 0] = float('inf')
            if step % 2:
                scaler.unscale_(opt)
                torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            scaler.step(opt)
            scaler.update()
    assert scalers[0].get_scale() == scalers[1].get_scale()
    assert largest_difference(network, other) <= 1e-5
    assert optimizer.stats()['steps'] == 9


def test_grad_scaler_with_float16_parameters():
    w = torch.nn.Parameter(torch.ones(100, dtype=torch.float16))
    optimizer = terrace.AdamW([w], lr=0.1)
    scaler = torch.amp.GradScaler('cpu', init_scale=1024.0)
    scaler.scale((w.float() * 1e-3).sum()).backward()
    before = w.detach().clone()
    w.grad[7] = float('nan')
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(w, before) and not optimizer.state
    w.grad = None
    scaler.scale((w.float() * 1e-3).sum()).backward()
    scaler.step(optimizer)
    assert torch.allclose(optimizer.state[w]['exp_avg'],
                          torch.full((100,), 1e-4), rtol=1e-2)


@pytest.mark.parametrize('parameter, text', [
    (torch.zeros(3, dtype=torch.complex64), 'complex'),
    (torch.zeros(3, 3).to_sparse(), 'sparse'),
    (torch.zeros(3, device='meta'), 'meta'),
    (torch.zeros(3, dtype=torch.float64), 'float64'),
    (torch.zeros(1).expand(5), 'share memory'),
])
def test_unsupported_parameters_are_refused(parameter, text):
    with pytest.raises(NotImplementedError, match=text):
        terrace.AdamW([torch.nn.Parameter(parameter)])


def test_a_refused_group_leaves_the_optimizer_as_it_was():
    network = model()
    optimizer = terrace.AdamW(network.parameters())
    with pytest.raises(NotImplementedError, match='complex'):
        optimizer.add_param_group({'params': [torch.nn.Parameter(
            torch.zeros(3, dtype=torch.complex64))]})
    assert len(optimizer.param_groups) == 1
    train(network, optimizer, batches(2))


@pytest.mark.parametrize('settings', [
    {'lr': -1.0}, {'eps': -1e-9}, {'betas': (1.0, 0.9)},
    {'betas': (0.9, -0.1)}, {'weight_decay': -1}, {'max_grad_norm': 0},
    {'max_grad_norm': float('inf')}, {'io_engine': 'fast'}])
def test_bad_arguments_are_value_errors(settings):
    with pytest.raises(ValueError):
        terrace.AdamW([torch.nn.Parameter(torch.zeros(3))], **settings)


def test_what_is_not_built_is_said():
    w = [torch.nn.Parameter(torch.zeros(3))]
    with pytest.raises(NotImplementedError, match='amsgrad'):
        terrace.AdamW([{'params': w, 'amsgrad': True}])


def test_pickling_and_copying_are_refused():
    optimizer = terrace.AdamW([torch.nn.Parameter(torch.zeros(3))])
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match='state_dict'):
            attempt(optimizer)


def test_two_optimizers_in_one_process(tmp_path):
    both = [pair({'memory_budget': '256KiB', 'nvme_path': str(tmp_path)})
            for _ in range(2)]
    for batch in batches(6):
        for (network, optimizer), (other, theirs) in both:
            train(network, optimizer, [batch])
            train(other, theirs, [batch])
    for (network, _), (other, _) in both:
        assert largest_difference(network, other) <= 1e-5
