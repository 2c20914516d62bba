"""With a model offloaded, its activations too, and its optimizer's updates
late, no thread of the library's wakes while nothing is to be done, nor while a
tensor is leased, before a backward pass and after a step."""

import subprocess
import sys

from forks import environment

SCRIPT = """
import sys, time
from pathlib import Path
import torch, terrace
from offloaded import mlp, mlp_loss


def switches():
    found = {}
    for task in Path('/proc/self/task').iterdir():
        try:
            name = (task / 'comm').read_text().strip()
            status = (task / 'status').read_text()
        except OSError:  # it has ended
            continue
        if not name.startswith('terrace-'):
            continue
        for line in status.splitlines():
            if line.startswith('voluntary_ctxt_switches'):
                found[name, task.name] = int(line.split()[1])
    return found


def settled():  # none has woken for a second
    now, equal = switches(), 0
    for _ in range(200):
        time.sleep(0.1)
        before, now = now, switches()
        equal = equal + 1 if now == before else 0
        if equal == 10:
            break
    return now


def check_quiet():
    before = settled()
    assert 'terrace-mover' in {name for name, _ in before}, before
    time.sleep(2)
    assert switches() == before, (before, switches())


torch.set_num_threads(1)
model = mlp()
offload = terrace.offload(model, memory_budget='40%', nvme_path=sys.argv[1],
                          activations=True, activations_above='1KiB')
optimizer = terrace.AdamW(model.parameters(), lr=1e-2, overlap=True,
                          offload=offload)
generator = torch.Generator().manual_seed(5)
for _ in range(2):
    optimizer.zero_grad()
    mlp_loss(model, generator).backward()
    optimizer.step()
check_quiet()
optimizer.zero_grad()
loss = mlp_loss(model, generator)
weight = next(model.parameters())
with offload.lease(weight):
    check_quiet()
    loss.backward()
    optimizer.step()
    check_quiet()
optimizer.close()
offload.close()
"""


def test_no_thread_wakes_where_nothing_is_to_be_done(tmp_path):
    """In a process of its own, whose threads are all that there are."""
    subprocess.run([sys.executable, '-c', SCRIPT, str(tmp_path)], check=True,
                   env=environment(), timeout=120)
