"""A process_group whose updates go on after step(), where a rank is gone, or a
process is interrupted, forks, drops its optimizer, or ends: every rank ends
with an error of its own or with the right values, and none waits for ever."""

import os
import signal
import subprocess
import sys
import warnings
from datetime import timedelta

import pytest
import torch.distributed as dist

import terrace
from crew import Crew, bits, error_of
from terrace._ranks.exchange import Exchange, Exchanged
from terrace._ranks.ranks import Ranks
from terrace._state import shared
from test_ranks_failures import TIMEOUT_SECONDS, give_gradients, weights


def late(parameters, **settings):
    settings.setdefault('process_group', dist.group.WORLD)
    return terrace.AdamW(parameters, overlap=True, **settings)


def expected(*seeds):
    parameters = weights()
    optimizer = terrace.AdamW(parameters)
    for seed in seeds:
        give_gradients(parameters, seed)
        optimizer.step()
    return bits(parameters)


def lose_the_other(how, path):
    """What each call answers on the rank that is left, and of how many
    parameters it still has the state."""
    warnings.simplefilter('ignore')
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_SECONDS))
    parameters = weights(size=20_000)
    optimizer = late(parameters, process_group=group, memory_budget='50%',
                     nvme_path=path)
    give_gradients(parameters, 1)
    optimizer.step()
    optimizer.flush()
    share = optimizer._store.share
    if dist.get_rank() == 1:  # before it sends anything
        share._exchange._native.begin = lambda *_: os.kill(os.getpid(), how)
    give_gradients(parameters, 2)
    optimizer.step()
    theirs = next(p for p in parameters if share.owner(p) == 1)
    errors = [error_of(call) for call in (
        lambda: theirs + 1, optimizer.flush, optimizer.step, optimizer.flush,
        optimizer.consolidate_state_dict)]
    state = len(optimizer.state_dict()['state'])
    optimizer.close()
    return errors, state, error_of(lambda: theirs + 1)[0]


@pytest.fixture
def doomed(tmp_path_factory):
    crew = Crew(tmp_path_factory.mktemp('doomed'))
    yield crew
    crew.close()


@pytest.mark.parametrize('how', [signal.SIGSTOP, signal.SIGKILL])
def test_a_rank_that_is_gone(how, doomed, tmp_path):
    doomed.start(lose_the_other, how, str(tmp_path))
    (operation, *others), state, after = doomed.result(0)
    assert operation[0] == 'RuntimeError'
    assert operation[1].startswith('terrace:')
    assert 'could not be updated' in operation[1]
    assert operation[3] < TIMEOUT_SECONDS + 20
    for name, text, attributes, seconds in others:
        assert name == 'RankError' and attributes['failed'] == ()
        assert 'rank 0 of 2 lost rank 1 while bringing the parameters' in text
        # When it is known once, no call waits a second time.
        assert seconds < TIMEOUT_SECONDS / 2
    assert state == 2  # this rank's share is still there to read
    assert after == 'nothing'  # the parameter is that of before
    if how == signal.SIGSTOP:
        os.kill(doomed.processes[1].pid, signal.SIGKILL)
    doomed.processes[1].join(20)


def interrupt_one(again):
    parameters = weights()
    optimizer = late(parameters)
    give_gradients(parameters, 1)
    if dist.get_rank() == 1:
        # In the step, before anything is exchanged.
        numbers_of = shared.numbers_of

        def interrupted(groups):
            shared.numbers_of = numbers_of
            os.kill(os.getpid(), signal.SIGINT)
            return numbers_of(groups)

        shared.numbers_of = interrupted
    error = error_of(optimizer.step)
    if again:
        give_gradients(parameters, 2)
        optimizer.step()
    values = bits(parameters)
    optimizer.close()
    return error[0], values


@pytest.mark.parametrize('again', [False, True])
def test_ctrl_c_lets_the_step_finish_on_all_ranks(crew, again):
    first, second = crew.run(interrupt_one, again)
    assert (first[0], second[0]) == ('nothing', 'KeyboardInterrupt')
    assert first[1] == second[1] == expected(*(1, 2)[:1 + again])


def fork_between(values):
    """Whether a child that is forked right after step() has the parameters as
    after it, and what it may not do; and those of its parent."""
    parameters = weights()
    optimizer = late(parameters)
    give_gradients(parameters, 1)
    optimizer.step()
    child = os.fork()
    if child == 0:
        refused = error_of(optimizer.step)[0] == 'RuntimeError'
        is_whole = bits(parameters) == values
        del optimizer
        os._exit(0 if refused and is_whole else 1)
    _, status = os.waitpid(child, 0)
    give_gradients(parameters, 2)
    optimizer.step()
    after = bits(parameters)
    optimizer.close()
    return status, after


def test_a_child_has_whole_parameters(crew):
    for status, values in crew.run(fork_between, expected(1)):
        assert status == 0
        assert values == expected(1, 2)


def drop():
    parameters = weights()
    optimizer = late(parameters)
    give_gradients(parameters, 1)
    optimizer.step()
    del optimizer
    return bits(parameters)


def test_an_optimizer_that_is_dropped_sends_its_last_step(crew):
    assert crew.run(drop) == [expected(1)] * 2


def many():
    """Optimizers one after another, and how many threads are left."""
    counts = []
    for _ in range(4):
        parameters = weights()
        optimizer = late(parameters)
        give_gradients(parameters, 1)
        optimizer.step()
        optimizer.close()
        dist.barrier()
        counts.append(len(os.listdir('/proc/self/task')))
    return counts


def test_a_group_of_its_own_ends_with_the_optimizer(crew):
    for counts in crew.run(many):
        assert counts[-1] <= counts[0]


_ENDS = """
import sys
sys.path.insert(0, sys.argv[3])
import torch.distributed as dist
dist.init_process_group('gloo', init_method='file://' + sys.argv[2],
                        rank=int(sys.argv[1]), world_size=2)
from test_ranks_overlap_faults import give_gradients, late, weights
parameters = weights()
optimizer = late(parameters)
give_gradients(parameters, 1)
optimizer.step()
"""


def test_a_process_may_end_right_after_a_step(tmp_path):
    here = os.path.dirname(__file__)
    ranks = [subprocess.Popen(
        [sys.executable, '-P', '-c', _ENDS, str(rank), str(tmp_path / 'store'),
         here], stderr=subprocess.PIPE, text=True) for rank in (0, 1)]
    for each in ranks:
        _, said = each.communicate(timeout=120)
        assert each.returncode == 0, said
        assert 'Error' not in said


class Played:
    """An exchange of the library, and its group, as a test has them."""

    name = 'played'

    def __init__(self):
        self.used, self.code = [], 0

    def begin(self, group, rank, parameters, names, owners):
        if not self.code:
            self.used = list(range(len(parameters)))
        return self.code, 'no such group'

    def end(self):
        """Nothing goes on."""

    def order(self):
        return self.used

    def close(self):
        """Nothing is left to close."""


def test_an_exchange_that_did_not_begin_leaves_the_order_of_before():
    played, parameters = Played(), weights()
    exchange = Exchange(Ranks(None))
    exchange._native = exchange._group = played
    stepped = [Exchanged(str(index), parameter, 0)
               for index, parameter in enumerate(parameters)]
    exchange.begin('stepping', stepped)
    played.code = 13
    for _ in range(2):
        with pytest.raises(RuntimeError, match='no such group'):
            exchange.begin('stepping', stepped[:1])
    played.code = 0
    exchange.begin('stepping', stepped[::-1])
    assert [id(each) for each in exchange._last] == list(map(id, parameters))
