"""A forked child offloads, trains and saves a model of its own, whatever its
parent has offloaded and does just then; its parent's model is refused there,
and its parent goes on."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

import forks
import terrace
from offloaded import mlp, mlp_loss, values

SECONDS = 100  # of one child


class Job:
    """A model and its AdamW, below or in memory."""

    def __init__(self, path=None, seed=7, overlap=None):
        self.model = mlp(6, seed=seed)
        self.path, self.offload = path, None
        if path is not None:
            os.makedirs(path, exist_ok=True)
            self.offload = terrace.offload(self.model, memory_budget='40%',
                                           nvme_path=path)
        self.optimizer = terrace.AdamW(self.model.parameters(), lr=1e-2,
                                       overlap=overlap)
        self.generator = torch.Generator().manual_seed(seed)

    def train(self, steps=2):
        for _ in range(steps):
            mlp_loss(self.model, self.generator).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self

    def answer(self):
        with torch.no_grad():
            return self.model(torch.ones(3, 128))

    def close(self):
        """The values that it leaves."""
        if self.offload is not None:
            self.optimizer.close()
            self.offload.close()
            assert not os.listdir(self.path)
        return values(self.model)


def check(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


def whole(path, seed=21):
    """Of a child: everything, with a model of its own."""
    torch.set_num_threads(1)  # as a worker that loads data has
    own = Job(f'{path}/{seed}', seed).train()
    terrace.save(f'{path}/saved-{seed}', own.model, own.optimizer)
    own.train()
    plain = Job(seed=seed).train(4)
    assert torch.equal(own.answer(), plain.answer())
    check(own.close(), plain.close())
    again = Job(f'{path}/{seed}', seed + 1)
    terrace.load(f'{path}/saved-{seed}', again.model, again.optimizer)
    check(again.close(), Job(seed=seed).train().close())


def refused(job):
    """Of a child: what its parent has offloaded."""
    for use in (job.answer, job.train, job.offload.close, job.optimizer.step,
                lambda: job.model[0].weight.sum(),
                lambda: job.optimizer.state_dict()):
        with pytest.raises(RuntimeError, match='process|forked child'):
            use()


@contextlib.contextmanager
def child_that(*bodies, ends=os._exit):
    """One that does these, while its parent does what is within."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        try:
            for body in bodies:
                body()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        ends(0)
    yield
    assert os.waitpid(child, 0)[1] == 0


def beside_its_parents(path):
    job = Job(f'{path}/parent').train()
    with child_that(lambda: refused(job), lambda: whole(path)):
        pass
    with child_that(lambda: whole(path), lambda: refused(job)):
        job.train()
    check(job.close(), Job().train(4).close())


def after_its_parents_is_closed(path):
    job = Job(f'{path}/parent').train()
    left = job.close()
    with child_that(lambda: whole(path)):
        pass
    check(left, Job().train().close())


def that_ends_as_programs_do(path):
    """Its interpreter ends, with all that it has of its parent."""
    job = Job(f'{path}/parent').train()
    for body in (lambda: None, lambda: refused(job),
                 lambda: setattr(job, 'model', None)):
        with child_that(lambda: whole(path), body, ends=sys.exit):
            job.train(1)
    check(job.close(), Job().train(5).close())


def with_children_of_its_own(path):
    job = Job(f'{path}/parent').train()

    def family():
        own = Job(f'{path}/own', 31).train()
        with child_that(lambda: refused(own), lambda: refused(job),
                        lambda: whole(path)):
            own.train()
        check(own.close(), Job(seed=31).train(4).close())
        whole(path, 41)

    with child_that(lambda: torch.set_num_threads(1), family):
        job.train()
    check(job.close(), Job().train(4).close())


def beside_a_thread_that(path, works, overlap=None):
    """Forked at any moment of it, again and again."""
    job = Job(f'{path}/parent', overlap=overlap).train()
    stop, done = threading.Event(), []

    def work():
        while not stop.is_set():
            done.append(works(job))

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(8):
        with child_that(lambda: whole(path), lambda: refused(job)):
            pass
    stop.set()
    thread.join()
    return job, done


def beside_a_thread_that_infers(path):
    job, answers = beside_a_thread_that(path, Job.answer)
    plain = Job().train()
    assert all(torch.equal(each, plain.answer()) for each in answers)
    check(job.close(), plain.close())


def beside_a_thread_that_trains(path):
    for overlap in (None, True):
        job, steps = beside_a_thread_that(path, lambda job: job.train(1),
                                          overlap)
        check(job.close(), Job().train(2 + len(steps)).close())


def beside_updates_that_go_on(path):
    job = Job(f'{path}/parent', overlap=True)
    for _ in range(4):
        job.train(1)
        with child_that(lambda: refused(job), lambda: whole(path)):
            job.train(1)
    check(job.close(), Job().train(8).close())


def of_multiprocessing(path):
    job = Job(f'{path}/parent').train()
    context = multiprocessing.get_context('fork')
    children = [context.Process(target=whole, args=(path, seed))
                for seed in (51, 61)]
    for child in children:
        child.start()
    job.train()
    for child in children:
        child.join(SECONDS)
        assert child.exitcode == 0
    check(job.close(), Job().train(4).close())


class Samples(torch.utils.data.Dataset):
    """Of a small network that is offloaded where they are made."""

    def __init__(self, path):
        self.path, self.job = path, None

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if self.job is None:
            self.job = Job(f'{self.path}/{os.getpid()}', 71)
        return self.job.answer()


def of_a_data_loader(path):
    job = Job(f'{path}/parent').train()
    right = Job(seed=71).answer()
    for batch in torch.utils.data.DataLoader(Samples(path), batch_size=1,
                                             num_workers=2):
        assert torch.equal(batch[0], right)
        job.train(1)
    check(job.close(), Job().train(8).close())


def within_a_forward(path):
    """Of its parent: what autograd has saved is its parent's."""
    job = Job(f'{path}/parent').train()
    forked = []

    def fork(*_):
        if len(forked) < 2:
            seed = 81 + len(forked)
            forked.append(child_that(lambda: whole(path, seed)))
            forked[-1].__enter__()

    hook = job.model[4].register_forward_hook(fork)
    job.train()
    hook.remove()
    for each in forked:
        each.__exit__(None, None, None)
    assert len(forked) == 2
    check(job.close(), Job().train(4).close())


@pytest.mark.skipif(torch.cuda.is_available(),
                    reason='torch refuses backward in a forked child where '
                           'it sees a GPU')
@pytest.mark.parametrize('scenario', [
    beside_its_parents, after_its_parents_is_closed, that_ends_as_programs_do,
    with_children_of_its_own, beside_a_thread_that_infers,
    beside_a_thread_that_trains, beside_updates_that_go_on, of_multiprocessing,
    of_a_data_loader, within_a_forward])
def test_a_child_offloads(scenario, tmp_path):
    """In a process of its own: what it forks is of no other test."""
    code = ('import sys, test_child_offloads as tests\n'
            'getattr(tests, sys.argv[1])(sys.argv[2])')
    ended = subprocess.run(
        [sys.executable, '-P', '-c', code, scenario.__name__, str(tmp_path)],
        capture_output=True, text=True, timeout=600,
        env=forks.environment())
    assert ended.returncode == 0, ended.stderr[-4000:]
