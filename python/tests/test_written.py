"""16-bit weights that a program writes between steps: each is what the next
step begins with, in memory and on disk, and no other changes a bit."""

import contextlib
import copy

import pytest
import torch

import terrace
from conftest import batches, largest_difference, model, train

NARROW = [torch.bfloat16, torch.float16]
SHAPES = [(64, 300), (300,), (1,), (), (0, 5), (17, 3, 5), (40_000,)]


@pytest.fixture(params=NARROW, ids=str)
def dtype(request):
    return request.param


class Run:
    """Parameters that are stepped here, and doubles that torch steps with the
    same gradients."""

    def __init__(self, dtype, tier, turned=False):
        self._random = torch.Generator().manual_seed(31)
        self.ours = []
        for shape in SHAPES:
            values = torch.randn(shape, generator=self._random).to(dtype)
            if turned and values.dim() == 2:
                values = values.t()  # its elements do not lie in order
            self.ours.append(torch.nn.Parameter(values))
        self.exact = [torch.nn.Parameter(p.detach().double())
                      for p in self.ours]
        self.optimizer = terrace.AdamW(self.ours, lr=1e-3, **tier)
        self._theirs = torch.optim.AdamW(self.exact, lr=1e-3)

    def step(self, count=1):
        for _ in range(count):
            for p, q in zip(self.ours, self.exact):
                gradient = torch.randn(p.shape, generator=self._random)
                p.grad = gradient.to(p.dtype)
                q.grad = p.grad.double()
            self.optimizer.step()
            self._theirs.step()

    @contextlib.contextmanager
    def writing(self):
        """What the block changes in our parameters is so in the doubles."""
        before = [p.detach().clone() for p in self.ours]
        with torch.no_grad():
            yield self.ours
            for p, old, q in zip(self.ours, before, self.exact):
                q.copy_(torch.where(p == old, q, p.double()))

    def check(self):
        for p, q in zip(self.ours, self.exact):
            if p.numel():
                master = self.optimizer.state[p]['master_param']
                assert (master.double() - q).abs().max() <= 1e-5
                assert torch.equal(p, master.to(p.dtype))


def fill(p):
    p.fill_(0.5)


def clamp_data(p):
    p.data.clamp_(-0.3, 0.3)


def one_element(p):
    if p.dim() == 2 and p.numel():
        p[3, 2] = 2.0


def merge(p):
    """As LoRA's weights into those they belong to."""
    if p.dim() == 2 and p.numel():
        down, up = torch.randn(4, p.shape[1]), torch.randn(p.shape[0], 4)
        p += (0.01 * up @ down).to(p.dtype)


def half_of_it(p):
    if p.dim() and p.numel() > 1:
        p[: p.shape[0] // 2].zero_()


@pytest.mark.parametrize('turned', [False, True])
@pytest.mark.parametrize('write', [fill, clamp_data, one_element, merge,
                                   half_of_it])
def test_the_next_step_begins_with_what_was_written(tier, dtype, write, turned):
    run = Run(dtype, tier, turned)
    for _ in range(3):
        run.step(2)
        with run.writing() as parameters:
            for p in parameters:
                write(p)
    run.step(2)
    run.check()


def test_averages_and_lookahead(tier, dtype):
    run = Run(dtype, tier)
    slow = [p.detach().clone() for p in run.ours]
    for _ in range(3):
        run.step(3)
        with run.writing() as parameters:
            for p, q in zip(parameters, slow):
                q.lerp_(p, 0.5)
                p.copy_(q)
    run.step()
    run.check()


def test_an_older_copy_is_gone_on_from(tier, dtype):
    run = Run(dtype, tier)
    run.step(2)
    best = [p.detach().clone() for p in run.ours]
    run.step(4)
    with run.writing() as parameters:
        for p, q in zip(parameters, best):
            p.copy_(q)
    run.step(3)
    run.check()


def test_load_state_dict_of_the_best_is_not_undone(tier, dtype):
    network = model(dtype=dtype)
    optimizer = terrace.AdamW(network.parameters(), lr=1e-2, **tier)
    train(network, optimizer, batches(2, dtype=dtype))
    best = copy.deepcopy(network.state_dict())
    train(network, optimizer, batches(4, dtype=dtype, seed=5))
    network.load_state_dict(best)
    optimizer.param_groups[0].update(lr=0.0)
    train(network, optimizer, batches(2, dtype=dtype, seed=6))
    for name, value in network.state_dict().items():
        assert torch.equal(value, best[name]), name


def test_what_is_written_with_the_same_bits_changes_none(tier, dtype):
    results = []
    for write in (False, True):
        network = model(dtype=dtype)
        optimizer = terrace.AdamW(network.parameters(), lr=1e-2, **tier)

        def again(network=network, write=write):
            if write:
                network.load_state_dict(copy.deepcopy(network.state_dict()))

        train(network, optimizer, batches(6, dtype=dtype), again)
        results.append((network, optimizer))
    (one, first), (other, second) = results
    for p, q in zip(one.parameters(), other.parameters()):
        assert torch.equal(p, q)
        for key, value in first.state[p].items():
            assert torch.equal(value, second.state[q][key]), key


def test_a_step_that_is_skipped_keeps_what_was_written(tier):
    p = torch.nn.Parameter(torch.randn(30_000).to(torch.bfloat16))
    optimizer = terrace.AdamW([p], lr=1e-2, **tier)
    scaler = torch.amp.GradScaler('cpu', init_scale=8.0)

    def step(gradient):
        scaler.scale((p.float() * gradient).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    gradient = torch.randn(p.shape)
    step(gradient)
    with torch.no_grad():
        p[7:9000] = 0.25
    written = p.detach().clone()
    step(gradient * float('inf'))
    assert scaler.get_scale() == 4.0
    assert torch.equal(p, written)
    optimizer.param_groups[0].update(lr=0.0)
    step(gradient)
    assert torch.equal(p, written)


def test_torchs_file_and_back(tier, dtype, tmp_path):
    """A run that torch went on with for a while does not revert."""
    network = model(dtype=dtype)
    # An eps that fp16 has, in which torch computes.
    optimizer = terrace.AdamW(network.parameters(), lr=1e-2, eps=1e-4, **tier)
    train(network, optimizer, batches(3, dtype=dtype))
    terrace.export_torch(tmp_path / 'ours.pt', network, optimizer)
    optimizer.close()

    theirs = model(dtype=dtype, seed=1)
    content = torch.load(tmp_path / 'ours.pt', weights_only=True)
    theirs.load_state_dict(content['model'])
    successor = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    successor.load_state_dict(content['optimizer'])
    train(theirs, successor, batches(5, dtype=dtype, seed=7))
    torch.save({'model': theirs.state_dict(),
                'optimizer': successor.state_dict()}, tmp_path / 'theirs.pt')

    back = model(dtype=dtype, seed=2)
    resumed = terrace.AdamW(back.parameters(), **tier)
    terrace.import_torch(tmp_path / 'theirs.pt', back, resumed)
    assert largest_difference(back, theirs) == 0
    resumed.param_groups[0].update(lr=0.0)
    train(back, resumed, batches(1, dtype=dtype, seed=8))
    assert largest_difference(back, theirs) == 0
    for p in back.parameters():
        master = resumed.state[p]['master_param']
        assert torch.equal(p, master.to(dtype))


def test_a_checkpoint_after_a_write_resumes_to_the_bit(tier, dtype, tmp_path):
    network = model(dtype=dtype)
    optimizer = terrace.AdamW(network.parameters(), lr=1e-2, **tier)
    train(network, optimizer, batches(3, dtype=dtype))
    with torch.no_grad():
        network[0].weight.clamp_(-0.05, 0.05)
        network[2].bias[3] = 1.0
    terrace.save(tmp_path / 'run', network, optimizer)
    state = copy.deepcopy(optimizer.state_dict())

    other = model(dtype=dtype, seed=1)
    loaded = terrace.AdamW(other.parameters(), lr=1e-2)
    terrace.load(tmp_path / 'run', other, loaded)
    third = model(dtype=dtype, seed=2)
    third.load_state_dict(network.state_dict())
    restored = terrace.AdamW(third.parameters(), lr=1e-2)
    restored.load_state_dict(state)
    for net, opt in ((network, optimizer), (other, loaded), (third, restored)):
        train(net, opt, batches(3, dtype=dtype, seed=9))
    assert largest_difference(network, other) == 0
    assert largest_difference(network, third) == 0


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device here')
def test_what_is_written_on_a_gpu_counts(device_tier, dtype):
    here = torch.nn.Parameter(torch.randn(300_007).to(dtype))
    there = torch.nn.Parameter(here.detach().cuda())
    reference = terrace.AdamW([here])
    optimizer = terrace.AdamW([there], **device_tier)
    for step in range(4):
        here.grad = torch.randn(here.shape).to(dtype)
        there.grad = here.grad.cuda()
        reference.step()
        optimizer.step()
        assert torch.equal(here, there.cpu())
        for p in (here, there):
            p.data[step::5].mul_(0.5)
