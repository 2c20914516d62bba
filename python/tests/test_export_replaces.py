"""export_torch puts a whole file in another's place: whose name, mode, links
and leftovers those are."""

import errno
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading

import pytest
import torch

import terrace
from conftest import batches, model, train
from terrace._state.store import StateStore


def export(path, number, network=None):
    terrace.export_torch(path, network or model(seed=number),
                         values={'number': number})


def number_in(path):
    return torch.load(path, weights_only=True)['values']['number']


def is_whole(path, number):
    content = torch.load(path, weights_only=True)
    return content['values']['number'] == number and all(
        torch.equal(content['model'][name], value)
        for name, value in model(seed=number).state_dict().items())


def stepped():
    network = model()
    optimizer = terrace.AdamW(network.parameters())
    train(network, optimizer, batches(1))
    return network, optimizer


def while_written(monkeypatch, then):
    """Calls then() each time state is read for a file."""
    read = StateStore.read

    def reading(*arguments):
        then()
        return read(*arguments)

    monkeypatch.setattr(StateStore, 'read', reading)


def names_in(folder):
    return sorted(os.listdir(folder))


def at_once(calls):
    errors, start = [], threading.Barrier(len(calls))

    def run(call):
        try:
            start.wait()
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_threads_that_write_one_file(tmp_path):
    path = tmp_path / 'run.pt'
    networks = [model(width=600, seed=number) for number in range(6)]
    for _ in range(5):
        errors = at_once([lambda n=n: export(path, n, networks[n])
                          for n in range(6)])
        assert errors == []
        content = torch.load(path, weights_only=True)
        network = networks[content['values']['number']]
        assert all(torch.equal(content['model'][name], value)
                   for name, value in network.state_dict().items())
        assert names_in(tmp_path) == ['run.pt']


def in_a_child(work):
    """The process's number; it ends with 0 if work() did not raise."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def test_processes_of_one_number_that_write_one_file(tmp_path, monkeypatch):
    """As those of two containers, which share a folder, may have."""
    path = tmp_path / 'run.pt'
    networks = [model(width=600, seed=number) for number in range(2)]
    monkeypatch.setattr(os, 'getpid', lambda: 7)
    for _ in range(5):
        children = [in_a_child(lambda n=n: export(path, n, networks[n]))
                    for n in range(2)]
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
        content = torch.load(path, weights_only=True)
        network = networks[content['values']['number']]
        assert all(torch.equal(content['model'][name], value)
                   for name, value in network.state_dict().items())
        assert names_in(tmp_path) == ['run.pt']


@pytest.mark.parametrize('mode', [0o600, 0o640, 0o444, 0o666])
def test_the_mode_stays(tmp_path, mode):
    path = tmp_path / 'run.pt'
    path.write_bytes(b'old')
    path.chmod(mode)
    export(path, 1)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert is_whole(path, 1)


@pytest.mark.parametrize('mask', [0o022, 0o077, 0o027, 0])
def test_a_new_file_has_what_the_mask_leaves(tmp_path, mask):
    before = os.umask(mask)
    try:
        export(tmp_path / 'run.pt', 1)
    finally:
        os.umask(before)
    found = stat.S_IMODE((tmp_path / 'run.pt').stat().st_mode)
    assert found == 0o666 & ~mask


def test_what_is_private_is_so_while_it_is_written(tmp_path, monkeypatch):
    path, modes = tmp_path / 'run.pt', set()
    path.write_bytes(b'old')
    path.chmod(0o600)
    while_written(monkeypatch, lambda: modes.update(
        stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()))
    terrace.export_torch(path, *stepped())
    assert modes == {0o600}


@pytest.mark.skipif(os.geteuid() != 0, reason='only root gives files away')
def test_the_owner_stays(tmp_path):
    path = tmp_path / 'run.pt'
    path.write_bytes(b'old')
    os.chown(path, 1234, 2345)
    export(path, 1)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)


@pytest.mark.parametrize('is_there', [True, False])
@pytest.mark.parametrize('steps', [1, 3])
def test_a_link_stays_and_its_target_is_replaced(tmp_path, steps, is_there):
    (tmp_path / 'runs').mkdir()
    (tmp_path / 'links').mkdir()
    target = tmp_path / 'runs' / 'real.pt'
    if is_there:
        target.write_bytes(b'old')
        target.chmod(0o640)
    links = [tmp_path / 'links' / f'{i}.pt' for i in range(steps)]
    for link, next_link in zip(links, links[1:]):
        link.symlink_to(next_link.name)
    links[-1].symlink_to('../runs/real.pt')
    export(links[0], 3)
    assert all(link.is_symlink() for link in links)
    assert not target.is_symlink() and is_whole(target, 3)
    assert names_in(tmp_path / 'runs') == ['real.pt']
    assert names_in(tmp_path / 'links') == [link.name for link in links]
    if is_there:
        assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_links_in_a_circle(tmp_path):
    (tmp_path / 'a').symlink_to('b')
    (tmp_path / 'b').symlink_to('a')
    with pytest.raises(OSError) as caught:
        export(tmp_path / 'a', 1)
    assert caught.value.errno == errno.ELOOP
    assert caught.value.filename == str(tmp_path / 'a')
    assert names_in(tmp_path) == ['a', 'b']


def test_no_link_is_followed_that_others_put_there(tmp_path):
    """Under names that can be guessed."""
    path, victim = tmp_path / 'run.pt', tmp_path / 'victim'
    victim.write_bytes(b'precious')
    for name in (f'run.pt.{os.getpid()}.new', 'run.pt.new', 'run.pt.tmp'):
        (tmp_path / name).symlink_to(victim)
    export(path, 1)
    assert victim.read_bytes() == b'precious'
    assert is_whole(path, 1) and not path.is_symlink()


KILLED = '''
import os, signal, sys
sys.path.insert(0, sys.argv[2])
import terrace
from test_export_replaces import stepped
from terrace._state.store import StateStore
def stop(*_):
    print('written', flush=True)
    sys.stdin.readline()
StateStore.read = stop
terrace.export_torch(sys.argv[1], *stepped())
'''


def writer(path):
    """A process that is in the midst of writing."""
    process = subprocess.Popen(
        [sys.executable, '-c', textwrap.dedent(KILLED), str(path),
         os.path.dirname(__file__)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == 'written\n'
    return process


def end(process):
    process.kill()
    process.communicate(timeout=60)


def test_what_a_killed_one_left_is_removed_by_the_next(tmp_path):
    path = tmp_path / 'run.pt'
    export(path, 1)
    killed = [writer(path), writer(tmp_path / 'other.pt')]
    for process in killed:
        end(process)
    assert len(names_in(tmp_path)) == 3  # or this would be no test
    assert is_whole(path, 1)
    export(path, 2)
    assert names_in(tmp_path) == ['run.pt'] and is_whole(path, 2)


def test_what_a_living_one_writes_is_left_to_it(tmp_path):
    path = tmp_path / 'run.pt'
    export(path, 1)
    living = writer(path)
    new = [name for name in names_in(tmp_path) if name != 'run.pt']
    try:
        export(path, 2)
        assert names_in(tmp_path) == sorted(['run.pt', *new])
        living.communicate('\n' * 100, timeout=60)  # it goes on
        assert living.returncode == 0
    finally:
        living.kill()
        living.wait()
    assert names_in(tmp_path) == ['run.pt']
    assert 'optimizer' in torch.load(path, weights_only=True)


def test_what_is_not_surely_ours_and_dead_stays(tmp_path):
    """Of another machine, which may share the folder; what is no file."""
    path = tmp_path / 'run.pt'
    end(writer(path))
    left, = names_in(tmp_path)
    head, tail = left[:-20], left[-20:]
    digits = '0123456789abcdef'
    others = [head.replace(head[-2], digits[(digits.index(head[-2]) + 1) % 16])
              + tail, f'{left}.pt', f'my-{left}']
    for name in others:
        (tmp_path / name).write_bytes(b'precious')
    places = [head + f'{i:016x}.new' for i in range(3)]
    os.mkfifo(tmp_path / places[0])
    (tmp_path / places[1]).mkdir()
    (tmp_path / places[2]).symlink_to(others[1])
    export(path, 1)
    assert names_in(tmp_path) == sorted(['run.pt', *others, *places])
    for name in others:
        assert (tmp_path / name).read_bytes() == b'precious'


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    (tmp_path / 'folder').mkdir()
    (tmp_path / 'null').symlink_to('/dev/null')
    before = names_in(tmp_path)
    for name in ('pipe', 'null'):
        with pytest.raises(ValueError, match=f'{name} is no regular file'):
            export(tmp_path / name, 1)
    with pytest.raises(IsADirectoryError) as caught:
        export(tmp_path / 'folder', 1)
    assert caught.value.filename == str(tmp_path / 'folder')
    assert names_in(tmp_path) == before
    assert stat.S_ISCHR(os.stat('/dev/null').st_mode)


def test_an_interrupt_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / 'run.pt'
    export(path, 1)

    def interrupt():
        raise KeyboardInterrupt

    while_written(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        terrace.export_torch(path, *stepped())
    assert names_in(tmp_path) == ['run.pt'] and is_whole(path, 1)


def test_file_and_folder_are_flushed_around_the_rename(tmp_path, monkeypatch):
    events, fsync, replace = [], os.fsync, os.replace

    def flushed(descriptor):
        events.append('folder' if stat.S_ISDIR(os.fstat(descriptor).st_mode)
                      else 'file')
        fsync(descriptor)

    def replaced(*arguments, **named):
        events.append('rename')
        replace(*arguments, **named)

    monkeypatch.setattr(os, 'fsync', flushed)
    monkeypatch.setattr(os, 'replace', replaced)
    export(tmp_path / 'run.pt', 1)
    assert events == ['file', 'rename', 'folder']


def test_what_its_reader_refuses_is_not_put_in_place(tmp_path, monkeypatch):
    path = tmp_path / 'run.pt'
    export(path, 1)
    load = torch.load

    def refuse(file, *arguments, **named):
        if os.fspath(tmp_path) in str(file):
            raise RuntimeError('PytorchStreamReader failed')
        return load(file, *arguments, **named)

    monkeypatch.setattr(torch, 'load', refuse)
    with pytest.raises(ValueError, match='was not put in place: Pytorch'):
        export(path, 2)
    monkeypatch.undo()
    assert names_in(tmp_path) == ['run.pt'] and is_whole(path, 1)


@pytest.mark.parametrize('name', ['n' * 255, 'ä\udcff', ' ', '-x'])
@pytest.mark.parametrize('form', [os.fspath, os.fsencode])
def test_any_name_that_a_file_can_have(tmp_path, monkeypatch, name, form):
    monkeypatch.chdir(tmp_path)
    export(form(name), 4)
    assert is_whole(name, 4)
    assert names_in('.') == [name]


def test_a_folder_that_cannot_be_written_to(tmp_path):
    for path in (tmp_path / 'no' / 'run.pt', tmp_path / 'run.pt' / 'x'):
        (tmp_path / 'run.pt').touch()
        with pytest.raises((FileNotFoundError, NotADirectoryError)) as caught:
            export(path, 1)
        assert caught.value.filename == str(path)


def test_signals_do_not_tear_it(tmp_path):
    """A timer that fires all the time, as a profiler's."""
    fired = []
    before = signal.signal(signal.SIGALRM, lambda *_: fired.append(1))
    signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
    try:
        export(tmp_path / 'run.pt', 1, model(width=900))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert fired and number_in(tmp_path / 'run.pt') == 1
