"""A process that is killed while its model is offloaded: what it left on the
path goes with the next start there, which trains as if nothing had been."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

import terrace
from offloaded import check_equal_values, check_same, mlp, mlp_loss, values

LAYERS = 24


def kills():
    """Of each moment; TERRACE_KILLS=50 makes it a soak."""
    return int(os.environ.get('TERRACE_KILLS', '1'))


def below(model, directory):
    """And its optimizer, which joins: a third of all bytes."""
    offload = terrace.offload(model, memory_budget='33%',
                              nvme_path=str(directory))
    return offload, terrace.AdamW(model.parameters(), lr=1e-2, overlap=True,
                                  offload=offload)


def train(model, optimizer, steps=3, stepped=lambda: None):
    generator = torch.Generator().manual_seed(5)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = mlp_loss(model, generator)
        loss.backward()
        optimizer.step()
        stepped()
        losses.append(loss.detach().clone())
    return losses


def timed(act):
    began = time.monotonic()
    act()
    return time.monotonic() - began


def announced(seconds, act):
    """Whoever listens kills within that time, while this is under way."""
    print('begun', seconds, flush=True)
    act()
    print('over', flush=True)


def kill_in_hook(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def live(moment, share, directory):
    """Ends in no other way than by a kill: in the pass of the layer that is
    that share of the model's depth, or when it is announced."""
    model = mlp(LAYERS)
    layer = model[2 * int(share * LAYERS)]
    offload, optimizer = below(model, directory)
    spans = []
    train(model, optimizer,
          stepped=lambda: spans.append(timed(optimizer.flush)))
    if moment == 'forward':
        layer.register_forward_hook(kill_in_hook)
    elif moment == 'backward':
        layer.weight.register_hook(kill_in_hook)
    elif moment == 'late update':
        train(model, optimizer, stepped=lambda: announced(
            spans[-1], optimizer.flush))
    else:
        span = timed(offload.close)
        model = mlp(LAYERS)
        offload, optimizer = below(model, directory)
        train(model, optimizer)
        announced(span, offload.close)
    train(model, optimizer)


def kill_one(moment, share, directory):
    """Whether it was killed at that moment, and not behind it."""
    process = subprocess.Popen(
        [sys.executable, '-c', 'import sys\n'
         'from test_offload_killed import live\n'
         'live(sys.argv[1], float(sys.argv[2]), sys.argv[3])',
         moment, str(share), str(directory)],
        stdout=subprocess.PIPE, text=True, cwd=os.path.dirname(__file__))
    try:
        if moment in ('late update', 'closing'):
            line = process.stdout.readline()
            assert line.startswith('begun '), line
            time.sleep(share * float(line.split()[1]))
            process.send_signal(signal.SIGKILL)
        told = process.communicate(timeout=120)[0]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL
    return 'over' not in told


@pytest.mark.parametrize('moment', ['forward', 'backward', 'late update',
                                    'closing'])
def test_killed_it_leaves_the_next_start_nothing(tmp_path, moment):
    seed = random.randrange(1 << 30)
    print('seed', seed)
    draw = random.Random(seed)
    plain = mlp(LAYERS)
    expected = train(plain, terrace.AdamW(plain.parameters(), lr=1e-2))
    for _ in range(kills()):
        share = draw.random()
        for _ in range(9):
            if kill_one(moment, share, tmp_path):
                break
            share /= 2  # a machine that is busy is late
        else:
            pytest.fail('it was always over')
        left = os.listdir(tmp_path)
        print(moment, share, left)
        model = mlp(LAYERS)
        offload, optimizer = below(model, tmp_path)
        started, = os.listdir(tmp_path)
        assert started not in left
        check_same(train(model, optimizer), expected)
        assert offload.stats()['evictions'] > 0
        offload.close()
        check_equal_values(values(model), values(plain))
        assert os.listdir(tmp_path) == []
