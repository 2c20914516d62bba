"""Three ranks and four, and a run that goes from one number to the other.

Sums of three gradients depend on their order, and DistributedDataParallel's is
another than one process has: here each rank computes the gradients of the whole
batch, so that only the optimizer is shared."""

import pytest
import torch.distributed as dist

import terrace
from crew import Crew, bits
from test_ranks import CASES, STEPS, Job, _one_thread_as_the_ranks  # noqa: F401

HALF = STEPS // 2


@pytest.fixture(scope='module')
def four(tmp_path_factory):
    crew = Crew(tmp_path_factory.mktemp('four'), size=4)
    yield crew
    crew.close()


def train_among(ranks, case, path, first, last):
    """Steps of the first `ranks` ranks, with a checkpoint at either end."""
    group = dist.new_group(list(range(ranks)))
    if dist.get_rank() >= ranks:
        return None
    job = Job(case, path, [0, 1], group, averaged=False)
    things = {'scheduler': job.scheduler, 'scaler': job.scaler}
    if first:
        terrace.load(f'{path}/run', job.network, job.optimizer, **things)
    losses = job.run(first, last)
    stats = job.optimizer.stats()
    terrace.save(f'{path}/run', job.network, job.optimizer, **things)
    job.optimizer.close()
    return losses, bits(job.network.parameters()), stats


@pytest.mark.parametrize('order', [(3, 4), (4, 3)])
@pytest.mark.parametrize('name', ['clipped', 'bf16 clipped on disk', 'scaled'])
def test_any_number_of_ranks_is_one_process(four, name, order, tmp_path):
    case = CASES[name]
    alone = Job(case, str(tmp_path), [0, 1])
    for ranks, first, last in zip(order, (0, HALF), (HALF, STEPS)):
        results = four.run(train_among, ranks, case, str(tmp_path), first, last)
        losses = alone.run(first, last)
        present = results[:ranks]
        assert results[ranks:] == [None] * (4 - ranks)
        for theirs, parameters, stats in present:
            assert repr(theirs) == repr(losses)  # one may be NaN
            assert parameters == bits(alone.network.parameters())
            assert stats['ranks'] == ranks
        assert (sum(stats['state_bytes'] for _, _, stats in present)
                == alone.optimizer.stats()['state_bytes'])
    alone.optimizer.close()
