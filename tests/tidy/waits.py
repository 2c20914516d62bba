"""No sleep in the library, and no wait that looks now and then: what waits is
woken by what it waits for. For some things nothing wakes; these stand here,
each with its reason. Short times that are no such waits stand here too."""

import collections
import re

import circles
from tree import PACKAGE, code_of

LIBRARY = circles.LIBRARY + ('include/', 'daemon/')

Wait = collections.namedtuple('Wait', 'names reason')

# What looks now and then, as nothing would wake it. The names are those of its
# calls and times.
PERIODIC = {
    'base/system/file_lock.cc': Wait(
        {'nanosleep', 'kPause'},
        "another process's lock, and EBUSY of a device, end without a word; "
        'a lock that blocked could not be given up at a deadline'),
    'tiers/disk/stale_jobs.cc': Wait(
        {'nanosleep', 'kPause'},
        'another process removes files, and tells nobody how far it is'),
    'aio/uring_engine.cc': Wait(
        {'ppoll', 'kResubmitPause'},
        'the kernel refuses requests for want of memory (EAGAIN, EBUSY), and '
        'does not say when it has some'),
    'aio/queue/io_queue.cc': Wait(
        {'kEngineFullPause'},
        'the engine takes no more for a reason of the kernel, as above'),
    'aio/queue/piece_outcome.cc': Wait(
        {'kFirstPause', 'kLongestPause'},
        'a device has refused a piece (EAGAIN, EBUSY), and is asked again'),
    'base/watch.h': Wait(
        {'kLeastInterval'},
        'a process that was stopped is not told so: only looks that come too '
        'late say that its own time stood still; nothing looks while nothing '
        'is awaited'),
    'tiers/device/device_queue.cc': Wait(
        {'kLook', 'kLookWithoutCalls'},
        'a device that has failed, or has refused to call, does not call when '
        'a copy has ended'),
    'optimizer/step/staging.h': Wait(
        {'kCopyLook'},
        "LibTorch's devices do not call when a copy has ended; nothing looks "
        'while no copy is under way'),
    'daemon/server/holdings.h': Wait(
        {'kPeriod'},
        'a mover that has stopped tells nobody: it is asked, and does not '
        'answer'),
    'daemon/watch/loop_watch.h': Wait(
        {'kPeriod'},
        'a loop that has stopped tells nobody: it is asked, and does not '
        'answer'),
    'daemon/client/relay.cc': Wait(
        {'kFirstPause', 'kLongestPause'},
        'a daemon that comes in place of one that has gone tells nobody; '
        'nothing looks while there is one'),
    'libtorch/residency_limit.cc': Wait(
        {'kPeriod'},
        'a program that touches pages of a mapping tells nobody; nothing looks '
        'while nothing is mapped'),
}

# Times that something takes, or a thread waits for at most, once.
SINGLE = {
    'aio/uring/uring_end.cc': Wait({'ppoll'}, 'one look, or a deadline'),
    'aio/paced_engine.cc': Wait(
        {'yield', 'kSpin', 'kLate'},
        'a paced engine waits for a time; it spins the last of it, as a sleep '
        'ends late'),
    'aio/queue/limit_trial.h': Wait(
        {'kLeast', 'kFirst'}, 'how long a rate is measured'),
    'aio/io_transfer.h': Wait(
        {'in_flight_latency', 'foreseen_latency'}, 'what a request takes'),
    'include/terrace/machine.h': Wait(
        {'per_rate'}, 'how long a rate is measured'),
    'checkpoint/save/directory.cc': Wait(
        {'kPatience'}, 'the deadline of a lock'),
    'tiers/disk/given_file.cc': Wait(
        {'kLockPatience'}, 'the deadline of a lock'),
    'tiers/pmem/dax_device.cc': Wait(
        {'kLockPatience'}, 'the deadline of a lock'),
    'daemon/client/greeting.cc': Wait(
        {'kConnects'}, 'the deadline of a connect'),
    'daemon/wire/ring/spin.cc': Wait(
        {'kSpin'}, 'a wake-up takes as long; it spins so long once'),
    'daemon/cli/top.cc': Wait(
        {'kOnce'}, 'how long a rate is measured'),
    'daemon/links/shared_link.h': Wait(
        {'kGrantPatience'}, 'the deadline of a turn'),
    'daemon/server/control_server.cc': Wait(
        {'epoll_wait'}, 'one look at what is ready'),
    'daemon/server/control_server.h': Wait(
        {'kStatsPause'}, 'the least time between two questions'),
    'daemon/server/scrape.h': Wait(
        {'kPatience', 'kPause'},
        'the deadline of an answer; the least time between two questions'),
    'daemon/watch/loop_table.h': Wait(
        {'kMostSilence'}, 'the deadline of an answer'),
    'daemon/wire/packet_socket.cc': Wait(
        {'kLeastWait'}, 'the least deadline of a call'),
    'libtorch/hook/window/byte_window.cc': Wait(
        {'kTrialWait'}, 'the deadline of a request'),
}

_SLEEPS = re.compile(
    r'\b(SleepFor|sleep_for|sleep_until|nanosleep|clock_nanosleep|usleep|'
    r'sched_yield|yield|ppoll|pselect|epoll_wait)\s*\(')
# A short time: named where it is said, but for one that a text is rounded to.
_TIME = re.compile(r'\babsl::(?:Milliseconds|Microseconds)\(\d')
_NAME = re.compile(r'(\w+)\s*=\s*$')
_ROUNDED = re.compile(r'\bFloor\([^()]*,\s*$')
_PYTHON_SLEEP = re.compile(r'\b(?:time|asyncio)\.sleep\s*\(')


def _names(line):
    """What this line of code waits by."""
    # A method of ours may have such a name: a call of one has an object.
    for match in _SLEEPS.finditer(line):
        if line[:match.start()].endswith(('.', '->')):
            continue
        yield match.group(1)
    for match in _TIME.finditer(line):
        before = line[:match.start()]
        if _ROUNDED.search(before):
            continue
        named = _NAME.search(before)
        yield named.group(1) if named else 'a time without a name'


def _found(file):
    """(line, name) of all that a source waits by."""
    for number, line in enumerate(code_of(file.text).splitlines(), 1):
        for name in _names(line):
            yield number, name


def check(tree, waits=None):
    """`waits`: the lists above, for a tree that is not made up."""
    listed = waits or {}
    found = []
    seen = collections.defaultdict(set)
    for file in tree.files:
        if file.is_cpp and file.path.startswith(LIBRARY):
            for number, name in _found(file):
                seen[file.path].add(name)
                if name not in listed.get(file.path, Wait((), '')).names:
                    found.append(file.says(
                        number, f'{name}: what waits is woken by what it waits '
                        'for; where nothing wakes, tests/tidy/waits.py says '
                        'why'))
        elif file.path.startswith(PACKAGE):
            found += [file.says(number, 'a sleep: what waits is woken by what '
                                'it waits for')
                      for number, line in enumerate(file.lines, 1)
                      if _PYTHON_SLEEP.search(line)]
    for path, wait in listed.items():
        found += [f'tests/tidy/waits.py:1: {path} has no {name} any more'
                  for name in sorted(set(wait.names) - seen[path])]
    return found
