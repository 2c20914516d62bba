"""Parameters on a GPU: the same bits as in CPU memory, whatever the GPU is
doing. `pytest -m cuda`; skipped where there is none."""

import copy

import pytest
import torch

import terrace
from conftest import batches, model, train

CUDA = torch.cuda.is_available()
pytestmark = [pytest.mark.cuda,
              pytest.mark.skipif(not CUDA, reason='no CUDA device here')]
SHAPES = [(97, 101), (), (0, 3), (1,), (300_007,), (3, 5, 7)]


def parameters(dtype=torch.float32, device='cpu', seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(
        torch.randn(shape, generator=generator).to(dtype).to(device))
            for shape in SHAPES]


def draw(step, *lists, scale=1.0):
    """The same gradients for each list."""
    generator = torch.Generator().manual_seed(1000 + step)
    for group in zip(*lists, strict=True):
        values = torch.randn(group[0].shape, generator=generator) * scale
        for parameter in group:
            parameter.grad = values.clone().to(parameter.dtype).to(
                parameter.device)


def same(first, second):
    return all(torch.equal(a.detach().cpu(), b.detach().cpu())
               for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16,
                                   torch.float16])
@pytest.mark.parametrize('settings', [{}, {'max_grad_norm': 1.0}])
def test_bits_are_those_of_cpu_memory(device_tier, dtype, settings):
    here, there = parameters(dtype), parameters(dtype, 'cuda')
    reference = terrace.AdamW(here, **settings)
    optimizer = terrace.AdamW(there, **settings, **device_tier)
    for step in range(4):
        draw(step, here, there)
        reference.step()
        optimizer.step()
        assert same(here, there), step
    for a, b in zip(here, there, strict=True):
        for key, value in reference.state[a].items():
            assert torch.equal(value, optimizer.state[b][key]), key


def test_parameters_in_both_memories(device_tier):
    here, mixed = parameters(), parameters()
    for i in range(0, len(mixed), 2):
        mixed[i] = torch.nn.Parameter(mixed[i].detach().cuda())
    reference = terrace.AdamW(here, max_grad_norm=1)
    optimizer = terrace.AdamW(mixed, max_grad_norm=1, **device_tier)
    for step in range(3):
        draw(step, here, mixed)
        reference.step()
        optimizer.step()
        assert same(here, mixed)


def test_a_model_that_moves_after_the_optimizer_was_made():
    ours, other = model(), model()
    optimizer = terrace.AdamW(ours.parameters())
    reference = terrace.AdamW(other.parameters())
    for step in range(3):
        if step == 1:
            ours.cuda()
        draw(step, list(ours.parameters()), list(other.parameters()))
        optimizer.step()
        reference.step()
        assert same(ours.parameters(), other.parameters())


def test_a_parameter_whose_elements_do_not_lie_in_order():
    values = torch.randn(300, 70)
    there = torch.nn.Parameter(values.t().contiguous().cuda().t())
    here = torch.nn.Parameter(values.clone())
    assert not there.is_contiguous()
    optimizer, reference = terrace.AdamW([there]), terrace.AdamW([here])
    for step in range(2):
        draw(step, [here], [there])
        optimizer.step()
        reference.step()
        assert same([here], [there])


@pytest.mark.parametrize('other_stream', [False, True])
def test_gradients_that_are_still_being_computed(other_stream):
    """step() comes after what is queued on the current stream, and what is
    queued afterwards comes after step()."""
    here, there = parameters(), parameters(device='cuda')
    draw(0, here, there)
    expected = [p.grad.clone() for p in there]
    reference, optimizer = terrace.AdamW(here), terrace.AdamW(there)
    reference.step()
    stream = torch.cuda.Stream() if other_stream else (
        torch.cuda.current_stream())
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for parameter in there:
            parameter.grad.fill_(float('nan'))
        torch.cuda._sleep(200_000_000)  # a tenth of a second
        for parameter, gradient in zip(there, expected, strict=True):
            parameter.grad.copy_(gradient)
        optimizer.step()
        copies = [p.detach() * 1 for p in there]
    torch.cuda.synchronize()
    assert same(here, there)
    assert same(here, copies)


def test_training_follows_torch():
    ours, theirs = model().cuda(), model().cuda()
    data = [(x.cuda(), y.cuda()) for x, y in batches(30)]
    mine = train(ours, terrace.AdamW(ours.parameters(), max_grad_norm=None),
                 data)
    reference = train(theirs, torch.optim.AdamW(theirs.parameters()), data)
    assert max(abs(a - b) for a, b in zip(mine, reference)) < 1e-4


def test_grad_scaler_skips_and_unscales():
    here, there = parameters(torch.float32), parameters(torch.float32, 'cuda')
    reference, optimizer = terrace.AdamW(here), terrace.AdamW(there)
    scaler = torch.amp.GradScaler('cuda', init_scale=1024.0)
    for step in range(4):
        draw(step, here, there)
        for parameter in there:
            parameter.grad.mul_(1024.0 * 2.0 ** -(step > 2))
        if step == 2:
            there[4].grad[5] = float('inf')
        before = [p.detach().clone() for p in there]
        scaler.scale(torch.zeros((), device='cuda'))  # makes the scale
        scaler.step(optimizer)
        scaler.update()
        if step == 2:
            assert same(before, there)
            assert scaler.get_scale() == 512.0
            continue
        reference.step()
        assert same(here, there)  # scales are powers of two


def test_state_comes_from_and_goes_to_torch():
    ours, theirs = parameters(device='cuda'), parameters(device='cuda')
    reference = torch.optim.AdamW(theirs)
    for step in range(3):
        draw(step, theirs, ours)
        reference.step()
    with torch.no_grad():
        for a, b in zip(ours, theirs, strict=True):
            a.copy_(b)
    optimizer = terrace.AdamW(ours)
    optimizer.load_state_dict(copy.deepcopy(reference.state_dict()))
    draw(3, ours, theirs)
    optimizer.step()
    reference.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    reference.load_state_dict(optimizer.state_dict())
    assert all(s['exp_avg'].is_cuda for s in reference.state.values())


def test_a_checkpoint_resumes_bit_for_bit(tmp_path):
    through, resumed = model().cuda(), model(seed=1).cuda()
    data = [(x.cuda(), y.cuda()) for x, y in batches(6)]
    optimizer = terrace.AdamW(through.parameters())
    train(through, optimizer, data[:3])
    terrace.save(tmp_path / 'checkpoint', through, optimizer)
    train(through, optimizer, data[3:])
    other = terrace.AdamW(resumed.parameters())
    terrace.load(tmp_path / 'checkpoint', resumed, other)
    train(resumed, other, data[3:])
    assert same(through.parameters(), resumed.parameters())


def test_a_model_is_exported_from_there(tmp_path):
    network = model().cuda()
    optimizer = terrace.AdamW(network.parameters())
    train(network, optimizer, [(x.cuda(), y.cuda()) for x, y in batches(2)])
    network.tied = network[0].weight
    terrace.export_torch(tmp_path / 'run.pt', network, optimizer)
    loaded = torch.load(tmp_path / 'run.pt', weights_only=True)
    for name, value in network.state_dict().items():
        assert torch.equal(loaded['model'][name], value.cpu()), name
    other = model(seed=1).cuda()
    other.tied = other[0].weight
    resumed = terrace.AdamW(other.parameters())
    terrace.import_torch(tmp_path / 'run.pt', other, resumed)
    assert same(network.parameters(), other.parameters())
    for a, b in zip(network.parameters(), other.parameters(), strict=True):
        for key, value in optimizer.state[a].items():
            assert torch.equal(value, resumed.state[b][key]), key


def test_what_it_costs_is_told(tmp_path):
    count = 3_000_000
    weight = torch.nn.Parameter(torch.zeros(count, device='cuda'))
    weight.grad = torch.ones_like(weight)
    optimizer = terrace.AdamW([weight], memory_budget='50%',
                              nvme_path=str(tmp_path))
    optimizer.step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    optimizer.step()
    assert torch.cuda.memory_allocated() == before  # nothing is kept there
    stats = optimizer.stats()
    assert 0 < stats['staging_bytes'] <= 4 * (8 << 20)
    assert stats['bytes_from_devices'] == 2 * 8 * count
    assert stats['bytes_to_devices'] == 2 * 4 * count
