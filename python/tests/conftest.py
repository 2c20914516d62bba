"""What the tests share: small models, their training, comparison."""

import os
import signal
import sys

# Nothing is fetched: the models are made here.
os.environ.setdefault('HF_HUB_OFFLINE', '1')
os.environ.setdefault('TRANSFORMERS_OFFLINE', '1')
# On a busy machine PyTorch's threads otherwise spin for each other.
os.environ.setdefault('OMP_WAIT_POLICY', 'passive')

# A shell has what it starts in the background ignore Ctrl-C, which tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest  # noqa: E402
import torch  # noqa: E402

import over_daemon  # noqa: E402
import terrace  # noqa: E402
import turns  # noqa: E402

SEED = 20240611
TURNS = turns.Turns(turns.__file__, __file__)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    if 'PYTEST_XDIST_WORKER' not in os.environ:
        return (yield)
    with TURNS.turn(item.get_closest_marker('alone') is not None):
        return (yield)


def pytest_addoption(parser):
    parser.addoption('--daemon', action='store_true',
                     help='over a host\'s daemon: see over_daemon.py')


def pytest_collection_modifyitems(config, items):
    if config.getoption('--daemon'):
        over_daemon.leave_out(items)


@pytest.fixture(scope='session', autouse=True)
def _over_a_daemon(request, tmp_path_factory):
    if not request.config.getoption('--daemon'):
        yield
        return
    end = over_daemon.begin(tmp_path_factory.mktemp('daemon'))
    yield
    end()


@pytest.fixture(autouse=True)
def _same_numbers_each_time():
    torch.manual_seed(SEED)


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    """What torch.compile made for another test changes what a step may do."""
    made = sys.modules.get('torch._dynamo.convert_frame')
    if getattr(made, 'FRAME_COUNTER', 0):
        torch._dynamo.reset()


# A directory's name with all that a message could be cut at.
ODD = 'a, b: it\'s "c" (EIO (x), offset 7'


@pytest.fixture
def odd_path(tmp_path):
    """An empty directory whose name is hard to find in a text."""
    path = tmp_path / ODD
    path.mkdir()
    return path


@pytest.fixture(params=['memory', 'disk'])
def tier(request, tmp_path):
    """Keywords of an optimizer: all in memory, or a small part of it."""
    if request.param == 'memory':
        return {}
    return {'memory_budget': '256KiB', 'nvme_path': str(tmp_path)}


@pytest.fixture
def device_tier(tier):
    """As `tier`, with the 4 MiB that parameters on a device pass through."""
    return {**tier, 'memory_budget': '4608KiB'} if tier else tier


@pytest.fixture(scope='session')
def crew(tmp_path_factory):
    """Two ranks; making them takes longer than what they are told to do."""
    from crew import Crew
    made = Crew(tmp_path_factory.mktemp('crew'))
    yield made
    made.close()


def compiled_of(optimizer):
    """The compiled optimizer behind one of terrace's."""
    return optimizer._store.compiled


def model(width=130, dtype=torch.float32, seed=SEED):
    """About 35,000 parameters: three chunks on disk within 256 KiB."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.Tanh(),
        torch.nn.Linear(width, width), torch.nn.LayerNorm(width),
        torch.nn.Linear(width, 7)).to(dtype)


def batches(count, width=130, dtype=torch.float32, seed=SEED):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(12, width, generator=generator).to(dtype),
             torch.randn(12, 7, generator=generator).to(dtype))
            for _ in range(count)]


def train(network, optimizer, data, after_step=lambda: None):
    """The losses of one step a batch."""
    losses = []
    for inputs, targets in data:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(network(inputs), targets)
        loss.backward()
        optimizer.step()
        after_step()
        losses.append(loss.item())
    return losses


def largest_difference(network, other):
    return max((a - b).abs().max().item() for a, b in zip(
        network.parameters(), other.parameters(), strict=True))


def pair(tier, make=terrace.AdamW, reference=torch.optim.AdamW, **settings):
    """(network, its optimizer of ours), (the same of torch)."""
    ours, theirs = model(), model()
    return ((ours, make(ours.parameters(), **settings, **tier)),
            (theirs, reference(theirs.parameters(), **settings)))
