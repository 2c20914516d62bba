"""Processes that form a process group over gloo and run functions when told."""

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

import terrace

PATIENCE_SECONDS = 120


class Failure(Exception):
    """A function failed on a rank, as text."""


class Crew:
    def __init__(self, folder, size=2, timeout_seconds=60):
        context = multiprocessing.get_context('spawn')
        self.size = size
        self._pipes, self.processes = [], []
        self._silent = set()  # ranks whose answer may come after all
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, daemon=True,
                args=(theirs, rank, size, f'{folder}/store', timeout_seconds))
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def start(self, function, *arguments):
        assert not self._silent, f'ranks {self._silent} owe an answer'
        for pipe in self._pipes:
            pipe.send((function, arguments))

    def result(self, rank):
        """What the function returned there; Failure if it raised."""
        pipe = self._pipes[rank]
        if not pipe.poll(PATIENCE_SECONDS):
            self._silent.add(rank)
            raise Failure(f'rank {rank} does not answer')
        failed, value = pipe.recv()
        if failed:
            raise Failure(f'rank {rank}: {value}')
        return value

    def run(self, function, *arguments):
        """function(*arguments) on each rank; what they return, by rank."""
        self.start(function, *arguments)
        results, failures = [], []
        for rank in range(self.size):  # all, or the next run gets the rest
            try:
                results.append(self.result(rank))
            except Failure as failure:
                failures.append(str(failure))
        if failures:
            raise Failure('\n'.join(failures))
        return results

    def close(self):
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.join(20)
            if process.is_alive():
                os.kill(process.pid, signal.SIGCONT)
                process.kill()
                process.join()


def _serve(pipe, rank, size, store, timeout_seconds):
    torch.set_num_threads(1)
    dist.init_process_group(
        'gloo', init_method=f'file://{store}', rank=rank, world_size=size,
        timeout=timedelta(seconds=timeout_seconds))
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            # Without exit handlers: gloo's threads may hang in a dead group.
            os._exit(0)
        try:
            pipe.send((False, function(*arguments)))
        except BaseException:
            pipe.send((True, traceback.format_exc()))


@contextlib.contextmanager
def one_rank(folder):
    """This process is the only one of its group."""
    dist.init_process_group('gloo', init_method=f'file://{folder}/store',
                            rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def error_of(call):
    """(name of the type, text, attributes, seconds) of what a call raises."""
    started = time.monotonic()
    try:
        call()
    except BaseException as error:
        return (type(error).__name__, str(error), dict(vars(error)),
                time.monotonic() - started)
    return ('nothing', '', {}, time.monotonic() - started)


def bits(tensors):
    flat = [torch.empty(t.numel(), dtype=t.dtype).copy_(t.detach().flatten())
            for t in tensors]
    return [t.view(torch.uint8).numpy().tobytes() for t in flat]


def refused_on_a_rank(group, options):
    """What an optimizer with these options answers there, where it is not
    built for that."""
    try:
        terrace.AdamW(torch.nn.Linear(2, 2).parameters(),
                      process_group=dist.group.WORLD if group else None,
                      **options)
    except NotImplementedError as error:
        return str(error)
