"""Runs cases that may end their process in a process of their own, which goes
on with the next one after each that ended it."""

import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys

SECONDS = 60  # of each case


def environment():
    """Of a process that imports what stands beside this file, too."""
    path = [os.path.dirname(__file__)]
    if given := os.environ.get('PYTHONPATH'):
        path.append(given)
    return {**os.environ, 'PYTHONPATH': os.pathsep.join(path)}


def answers_of(file, table, name, directory):
    """The file has a dictionary of that name. What it has by the other name is
    called once a process, with an empty directory, and answers a dictionary of
    functions. What each of these answered, as text; what it raised, by kind and
    text; or by which signal it ended."""
    ended = subprocess.run(
        [sys.executable, '-P', __file__, file, table, name, str(directory)],
        capture_output=True, text=True, timeout=900,
        env=environment())
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def _answers_of(make, directory):
    """Forked where nothing is but imported modules."""
    answers, before = {}, -1
    while len(answers) > before:
        before = len(answers)
        directory.joinpath(str(before)).mkdir(parents=True)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _answer(make, directory / str(before), set(answers), writing)
            os._exit(0)
        os.close(writing)
        with open(reading, encoding='utf8', errors='replace') as told:
            lines = [json.loads(line) for line in told]
        status = os.waitpid(child, 0)[1]
        answers.update((name, text) for name, text in lines if text)
        if os.WIFSIGNALED(status) and lines:
            name, _ = lines[-1]
            how = signal.Signals(os.WTERMSIG(status)).name
            answers.setdefault(name, f'ended by {how}')
        elif status == 0:
            break
    return answers


def _answer(make, directory, done, pipe):
    def tell(name, text):
        os.write(pipe, (json.dumps([name, text[:2000]]) + '\n').encode())

    for name, function in make(directory).items():
        if name in done:
            continue
        tell(name, '')
        signal.alarm(SECONDS)
        try:
            answer = str(function())
        except BaseException as error:
            answer = f'{type(error).__name__}: {error}'
        signal.alarm(0)
        tell(name, answer)


def _main(file, table, name, directory):
    spec = importlib.util.spec_from_file_location('cases', file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    print(json.dumps(_answers_of(getattr(module, table)[name],
                                 pathlib.Path(directory))))


if __name__ == '__main__':
    _main(*sys.argv[1:])
