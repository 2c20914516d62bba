"""One optimizer over the ranks of a process group, against one process."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import terrace
from conftest import batches, compiled_of, model
from crew import bits
from terrace._ranks.shares import Shares

STEPS = 20
WIDTH = 200

CASES = {
    'memory': {},
    'disk': {'budget': '192KiB'},
    'clipped': {'settings': {'max_grad_norm': 0.05}},
    'clipped on disk': {'settings': {'max_grad_norm': 0.05},
                        'budget': '192KiB'},
    'bf16': {'dtype': torch.bfloat16},
    'bf16 clipped on disk': {'dtype': torch.bfloat16, 'budget': '256KiB',
                             'settings': {'max_grad_norm': 0.05}},
    'groups': {'groups': True},
    'scaled': {'scaler': True, 'bad': 7,
               'settings': {'max_grad_norm': 0.5}},
    'fp16 scaled': {'dtype': torch.float16, 'scaler': True, 'bad': 3},
}


@pytest.fixture(autouse=True)
def _one_thread_as_the_ranks():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Job:
    """One training run, of one rank's micro-batches or of both ranks'. Without
    `averaged` every rank of the group has the same ones."""

    def __init__(self, case, path, micro_batches, group=None, averaged=True):
        self.case, self.micro_batches = case, micro_batches
        self.network = model(WIDTH, case.get('dtype', torch.float32))
        self.wrapped = (DistributedDataParallel(self.network)
                        if averaged and group is not None else self.network)
        settings = dict(case.get('settings', {}), **self.among(group))
        if 'budget' in case:
            settings.update(memory_budget=case['budget'], nvme_path=path)
        self.optimizer = terrace.AdamW(self.parameters(), lr=1e-2, **settings)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, STEPS)
        self.scaler = torch.amp.GradScaler(
            'cpu', init_scale=2.0**10, growth_interval=5,
            enabled=case.get('scaler', False))

    def among(self, group):
        """What the optimizer has of the other ranks."""
        return {'process_group': group}

    def parameters(self):
        if not self.case.get('groups'):
            return self.network.parameters()
        first, *others = self.network
        return [{'params': list(first.parameters()), 'lr': 3e-3},
                {'params': [p for part in others for p in part.parameters()],
                 'betas': (0.8, 0.95), 'weight_decay': 0.3}]

    def step(self, number):
        """The losses of its micro-batches."""
        data = batches(2 * STEPS, WIDTH, self.case.get('dtype', torch.float32))
        self.optimizer.zero_grad()
        losses = []
        for which in self.micro_batches:
            inputs, targets = data[2 * number + which]
            if number == self.case.get('bad') and which == 1:
                inputs = inputs / 0  # of one rank only
            loss = torch.nn.functional.mse_loss(self.wrapped(inputs), targets)
            # DistributedDataParallel halves what it sums.
            share = loss / len(self.micro_batches)
            self.scaler.scale(share).backward()
            losses.append(loss.item())
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        return losses

    def run(self, first=0, last=STEPS):
        return [self.step(number) for number in range(first, last)]


def train_a_share(case, path):
    job = Job(case, path, [dist.get_rank()], dist.group.WORLD)
    losses = job.run()
    stats = job.optimizer.stats()
    job.optimizer.close()
    return losses, bits(job.network.parameters()), stats


def same(a, b):
    return a == b or a != a and b != b  # NaN, of the bad batch


@pytest.mark.parametrize('name', CASES)
def test_two_ranks_are_one_process(name, crew, tmp_path):
    case = CASES[name]
    results = crew.run(train_a_share, case, str(tmp_path))
    alone = Job(case, str(tmp_path), [0, 1])
    losses = alone.run()
    for rank, (theirs, parameters, stats) in enumerate(results):
        for step in range(STEPS):
            assert same(theirs[step][0], losses[step][rank]), (rank, step)
        assert parameters == bits(alone.network.parameters()), rank
        assert stats['rank'] == rank and stats['ranks'] == 2
        assert stats['steps'] == STEPS - ('bad' in case)
        assert stats['bytes_sent'] > 0 and stats['bytes_received'] > 0
        assert stats['blocked_seconds']['ranks'] > 0
        assert (stats['bytes_read'] > 0) == ('budget' in case)
    whole = alone.optimizer.stats()
    assert (sum(stats['state_bytes'] for _, _, stats in results)
            == whole['state_bytes'])
    norms = {stats['gradient_norm'] for _, _, stats in results}
    assert norms == {whole['gradient_norm']}
    alone.optimizer.close()
    assert not list(tmp_path.iterdir())


def odd_parameters():
    generator = torch.Generator().manual_seed(3)
    def of(*shape):
        return torch.randn(*shape, generator=generator)
    shapes = [of(64, 48).t(), of(0, 5), of(()), of(7), of(300_000),
              of(50, 20)[:, ::2], of(2)[::2], of(33).bfloat16(), of(9, 9).half()]
    return [torch.nn.Parameter(p) for p in shapes]


def step_odd(optimizer, parameters, number):
    generator = torch.Generator().manual_seed(number)
    for i, parameter in enumerate(parameters):
        unused = (i + number) % 4 == 0
        parameter.grad = None if unused else torch.randn(
            parameter.shape, generator=generator).to(parameter.dtype)
    optimizer.step()


def train_odd(path, group):
    parameters = odd_parameters()
    optimizer = terrace.AdamW(parameters[:6], process_group=group,
                              max_grad_norm=1.0, memory_budget='50%',
                              nvme_path=path)
    for number in range(4):
        step_odd(optimizer, parameters[:6], number)
    optimizer.add_param_group({'params': parameters[6:], 'lr': 1e-2})
    for number in range(4, 8):
        step_odd(optimizer, parameters, number)
    versions = [p._version > 0 for p in parameters if p.numel()]
    state = optimizer.stats()['state_bytes']
    optimizer.close()
    return bits(parameters), versions, state


def train_odd_together(path):
    return train_odd(path, dist.group.WORLD)


def test_odd_parameters_and_groups_added(crew, tmp_path):
    expected, versions, whole = train_odd(str(tmp_path), None)
    results = crew.run(train_odd_together, str(tmp_path))
    for rank, (parameters, theirs, _) in enumerate(results):
        assert parameters == expected, rank
        # Autograd hears of a broadcast as of a step.
        assert theirs == versions
    assert sum(state for _, _, state in results) == whole
    assert not list(tmp_path.iterdir())


def one_parameter():
    weight = torch.nn.Parameter(torch.arange(5.0))
    optimizer = terrace.AdamW([weight], lr=0.1, process_group=dist.group.WORLD)
    for _ in range(3):
        weight.grad = torch.ones(5)
        optimizer.step()
    stats, state = optimizer.stats(), len(optimizer.state)
    optimizer.close()
    return bits([weight]), stats['parameters'], state


def test_a_rank_may_own_nothing(crew):
    weight = torch.nn.Parameter(torch.arange(5.0))
    optimizer = terrace.AdamW([weight], lr=0.1)
    for _ in range(3):
        weight.grad = torch.ones(5)
        optimizer.step()
    assert crew.run(one_parameter) == [(bits([weight]), 5, 1),
                                       (bits([weight]), 0, 0)]


def disagree_on_infinity():
    """Without DistributedDataParallel: only rank 1 finds an infinity."""
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = terrace.AdamW(weights, process_group=dist.group.WORLD)
    scaler = torch.amp.GradScaler('cpu', init_scale=2.0)
    for weight in weights:
        weight.grad = torch.ones(3) / (1 - dist.get_rank())
    scaler.scale(torch.ones(()))
    scaler.step(optimizer)
    values = bits(weights)
    optimizer.close()
    return values


def test_a_skip_of_one_is_a_skip_of_all(crew):
    ones = bits([torch.ones(3)] * 2)
    assert crew.run(disagree_on_infinity) == [ones, ones]


def plain(state):
    return {key: {name: bits([value])[0] for name, value in values.items()}
            for key, values in state['state'].items()}


def save_and_go_on(to, path):
    job = Job(CASES['bf16'], path, [dist.get_rank()], dist.group.WORLD)
    job.run(0, 5)
    part = plain(job.optimizer.state_dict())
    job.optimizer.consolidate_state_dict(to)
    whole = job.optimizer.state_dict()
    if dist.get_rank() == to:
        torch.save(whole, f'{path}/whole.pt')
    dist.barrier()
    optimizer = job.optimizer
    again = terrace.AdamW(job.network.parameters(), lr=1e-2,
                          process_group=dist.group.WORLD)
    again.load_state_dict(torch.load(f'{path}/whole.pt', weights_only=True))
    job.optimizer, job.scheduler.optimizer = again, again
    optimizer.close()
    job.run(5, 8)
    result = bits(job.network.parameters())
    again.close()
    return part, plain(whole), result


@pytest.mark.parametrize('to', [0, 1])
def test_the_state_is_collected_at_a_rank(to, crew, tmp_path):
    alone = Job(CASES['bf16'], None, [0, 1])
    alone.run(0, 5)
    expected = plain(alone.optimizer.state_dict())
    results = crew.run(save_and_go_on, to, str(tmp_path))
    assert results[to][1] == expected
    assert list(results[to][1]) == list(expected)  # in order
    parts = [part for part, _, _ in results]
    assert results[1 - to][1] == parts[1 - to]  # only its own
    assert {**parts[0], **parts[1]} == expected
    assert not parts[0].keys() & parts[1].keys()
    alone.run(5, 8)
    for rank, (_, _, parameters) in enumerate(results):
        assert parameters == bits(alone.network.parameters()), rank
    # And it is one that torch knows.
    network = model(WIDTH, torch.bfloat16)
    torch.optim.AdamW(network.parameters()).load_state_dict(
        torch.load(f'{tmp_path}/whole.pt', weights_only=True))


class _Recorded:
    """The compiled optimizer; how many gradients a step had for the norm."""

    def __init__(self, native):
        self._native, self.counts = native, []

    def step(self, *arguments):
        self.counts.append(len(arguments[-1]))
        return self._native.step(*arguments)

    def __getattr__(self, name):
        return getattr(self._native, name)


def gradients_for_the_norm(max_grad_norm):
    torch.manual_seed(3)
    parameters = [torch.nn.Parameter(torch.randn(5 + i)) for i in range(4)]
    optimizer = terrace.AdamW(parameters, max_grad_norm=max_grad_norm,
                              process_group=dist.group.WORLD)
    compiled = compiled_of(optimizer)
    compiled._native = recorded = _Recorded(compiled._native)
    for scale in (1.0, 4.0):
        optimizer.grad_scale = torch.tensor(scale)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    optimizer.close()
    return recorded.counts


@pytest.mark.parametrize('norm, counts', [(None, [0, 4]), (1.0, [4, 4])])
def test_gradients_are_taken_for_the_norm_only(norm, counts, crew):
    assert crew.run(gradients_for_the_norm, norm) == [counts, counts]


def collect_and_load(path):
    job = Job(CASES['bf16'], path, [dist.get_rank()], dist.group.WORLD)
    job.run(0, 2)
    terrace.save(f'{path}/saved', job.network, job.optimizer)
    before = plain(job.optimizer.state_dict())
    job.run(2, 3)
    job.optimizer.consolidate_state_dict(0)
    terrace.load(f'{path}/saved', job.network, job.optimizer)
    after = plain(job.optimizer.state_dict())
    job.optimizer.close()
    return before, after


def test_what_was_collected_does_not_outlast_a_load(crew, tmp_path):
    for before, after in crew.run(collect_and_load, str(tmp_path)):
        assert after == before


def owners_of(groups, ranks):
    shares = Shares(ranks)
    for group in groups:
        shares = shares.extended(group)
    assert len(shares.parameters) == sum(map(len, groups))
    return [shares.owner(p) for group in groups for p in group]


def test_shares_are_balanced_and_stay():
    sizes = [1000, 10, 900, 800, 300, 0, 5, 700]
    groups = [[torch.empty(n) for n in sizes]]
    for ranks in (1, 2, 3, 5, 9):
        owners = owners_of(groups, ranks)
        loads = [sum(n for n, o in zip(sizes, owners) if o == rank)
                 for rank in range(ranks)]
        assert sum(loads) == sum(sizes)
        assert max(loads) - min(loads) <= max(sizes)
        more = groups + [[torch.empty(400), torch.empty(1)]]
        assert owners_of(more, ranks)[:len(sizes)] == owners
    # A 16-bit parameter has a master besides: 12 bytes against 8.
    mixed = [[torch.empty(10), torch.empty(9, dtype=torch.half),
              torch.empty(1)]]
    assert owners_of(mixed, 2) == [1, 0, 1]
    # One that is known stays where it is, whatever comes beside it.
    known = Shares(2).extended(mixed[0])
    again = known.extended([torch.empty(100), *mixed[0]])
    assert [again.owner(p) for p in mixed[0]] == [1, 0, 1]
    assert known.owner(again.parameters[3]) is None
