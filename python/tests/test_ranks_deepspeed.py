"""terrace.from_deepspeed_config on ranks that share the state."""

import pytest
import torch
import torch.distributed as dist

import terrace
from terrace._deepspeed import plan
from crew import bits, error_of

STEPS = 8
BAD = 5


def config(stage, path):
    return {
        'train_micro_batch_size_per_gpu': 1,
        'gradient_clipping': 0.5,
        'bf16': {'enabled': True, 'check_grad_overflow': True},
        'optimizer': {'type': 'AdamW', 'params': {
            'lr': 1e-2, 'weight_decay': 0.1}},
        'scheduler': {'type': 'WarmupLR', 'params': {
            'warmup_num_steps': 6, 'warmup_max_lr': 1e-2}},
        'zero_optimization': {'stage': stage, 'offload_optimizer': {
            'device': 'nvme', 'nvme_path': path}}}


def network(sizes):
    torch.manual_seed(5)
    result = torch.nn.Module()
    for i, size in enumerate(sizes):
        result.register_parameter(
            f'w{i}', torch.nn.Parameter(torch.randn(size).bfloat16()))
    return result


def run(sizes, path, stage=2, group=None):
    """(bits of the parameters, rates, stats, paths that the notes name)."""
    module = network(sizes)
    optimizer, scheduler, settings = terrace.from_deepspeed_config(
        module, config(stage, path), memory_budget='50%', process_group=group)
    generator = torch.Generator().manual_seed(3)
    rates = []
    for step in range(STEPS):
        for parameter in module.parameters():
            parameter.grad = torch.randn(
                parameter.shape, generator=generator).bfloat16()
        if step == BAD:  # in one rank's share
            module.w0.grad[0] = float('inf')
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]['lr'])
    stats = optimizer.stats()
    optimizer.close()
    return (bits(module.parameters()), rates, stats,
            [note['path'] for note in settings['notes']])


def run_together(*arguments):
    return run(*arguments, group=dist.group.WORLD)


@pytest.mark.parametrize('stage', [1, 2])
@pytest.mark.parametrize('sizes', [[90_000, 70_001, 30], [90_000]])
def test_ranks_share_the_state_with_the_bits_of_one(stage, sizes, crew,
                                                    tmp_path):
    path = str(tmp_path)
    expected, rates, whole, _ = run(sizes, path)
    assert rates[BAD] == rates[BAD - 1] < rates[BAD + 1]
    results = crew.run(run_together, sizes, path, stage)
    for actual, same_rates, stats, notes in results:
        assert actual == expected
        assert same_rates == rates
        assert stats['ranks'] == 2
        assert ('zero_optimization.stage' in notes) == (stage == 2)
    shares = [stats['state_bytes'] for _, _, stats, _ in results]
    assert sum(shares) == whole['state_bytes']
    assert max(shares) < whole['state_bytes'] or len(sizes) == 1
    assert not list(tmp_path.iterdir())


def test_stage_0_shares_nothing_and_says_so(crew, tmp_path):
    sizes = [90_000, 70_001]
    expected, _, whole, _ = run(sizes, str(tmp_path))
    for actual, _, stats, notes in crew.run(run_together, sizes,
                                            str(tmp_path), 0):
        assert actual == expected
        assert stats['ranks'] == 1
        assert stats['state_bytes'] == whole['state_bytes']
        assert 'zero_optimization.stage' in notes


def owners_of(path):
    """As the plan has them, and as the optimizer."""
    planned = []

    class Noted(plan.Shares):
        def owner(self, parameter):
            planned.append(super().owner(parameter))
            return planned[-1]

        def extended(self, parameters):
            result = super().extended(parameters)
            result.__class__ = Noted
            return result

    original, plan.Shares = plan.Shares, Noted
    try:
        module = network([3_000, 10_000, 9_000])
        asked = config(1, path)
        del asked['optimizer'], asked['scheduler']
        own = torch.optim.AdamW([
            {'params': [module.w0]}, {'params': [module.w1, module.w2]}])
        optimizer, _, _ = terrace.from_deepspeed_config(
            module, asked, optimizer=own, process_group=dist.group.WORLD)
    finally:
        plan.Shares = original
    made = [optimizer._store.share.owner(p)
            for p in (module.w0, module.w1, module.w2)]
    optimizer.close()
    return planned, made


def test_the_plan_is_of_what_the_rank_will_keep(crew, tmp_path):
    """Also where groups of the caller's are shared out one after another."""
    for planned, made in crew.run(owners_of, str(tmp_path)):
        assert made == [0, 1, 0]
        assert planned == made


def read_differently(path):
    asked = config(1, path)
    if dist.get_rank() == 1:
        asked['optimizer']['type'] = 'Lion'
    return error_of(lambda: terrace.from_deepspeed_config(
        network([1_000]), asked, process_group=dist.group.WORLD))


def test_what_one_rank_cannot_read_all_hear(crew, tmp_path):
    first, second = crew.run(read_differently, str(tmp_path))
    assert second[0] == 'NotImplementedError' and 'Lion' in second[1]
    assert first[0] == 'RankError'
    assert 'failed while reading the configuration' in first[1]
    assert first[2]['failed'] == (1,)
