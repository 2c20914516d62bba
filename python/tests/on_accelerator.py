"""Checks of the tests' accelerator: run as a program with their names it tells,
as JSON, what each found (test_accelerator.py)."""

import ctypes
import json
import os
import sys
import traceback

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import accelerator

DEVICE = 'testdev'


class Model(nn.Module):
    """Its first and last layer share a weight."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(23, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 24, dropout, batch_first=True)
            for _ in range(2))
        self.head = nn.Linear(16, 23, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens, recomputed=False):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = (checkpoint(layer, hidden, use_reentrant=False)
                      if recomputed else layer(hidden))
        return self.head(hidden)


def loss_of(model, tokens, **how):
    return nn.functional.cross_entropy(model(tokens, **how).flatten(0, 1),
                                       tokens.flatten())


def trained(device, make, dropout=0.0, **how):
    """Losses, then parameters, on the CPU."""
    torch.manual_seed(3)
    model = Model(dropout)
    tokens = torch.randint(23, (3, 7)).to(device)
    model.to(device)
    assert model.head.weight is model.embedding.weight
    torch.manual_seed(4)
    optimizer = make(model.parameters())
    losses = []
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        for _ in range(3):
            optimizer.zero_grad()
            loss = loss_of(model, tokens, **how)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.detach())
    return [tensor.detach().cpu()
            for tensor in losses + list(model.parameters())]


def check_equal(left, right):
    assert len(left) == len(right)
    assert all(map(torch.equal, left, right))


def check_training(calls):
    makes = [lambda p: torch.optim.AdamW(p, lr=1e-2),
             lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
             lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
             lambda p: torch.optim.SGD(p, lr=1e-1, momentum=0.9)]
    for make in makes:
        check_equal(trained(DEVICE, make), trained('cpu', make))


def check_dropout_and_recomputation(calls):
    def make(p):
        return torch.optim.SGD(p, lr=1e-1)
    first = trained(DEVICE, make, dropout=0.2)
    calls.set_delays(11, 3)
    check_equal(trained(DEVICE, make, dropout=0.2), first)
    check_equal(trained(DEVICE, make, dropout=0.2, recomputed=True), first)


def check_autocast_and_scaler(calls):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))
    model.to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=256.0, growth_interval=2)
    before = model[0].weight.detach().clone()
    for step in range(3):
        with torch.autocast(DEVICE, torch.bfloat16):
            hidden = model(torch.ones(4, 8, device=DEVICE))
            assert hidden.dtype == torch.bfloat16
            loss = hidden.float().square().sum()
        optimizer.zero_grad()
        scaler.scale(loss * (float('inf') if step == 2 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 256.0  # doubled, then halved
    assert not torch.equal(model[0].weight.cpu(), before.cpu())
    assert model[0].weight.isfinite().all()


def check_missing_wait(calls):
    calls.set_delays(1, 0)
    side = torch.Stream(DEVICE)
    tensor = torch.ones(100, device=DEVICE)
    side.wait_stream(torch.accelerator.current_stream())
    tensor.mul_(2)
    with side:
        tensor.sum()
    [report] = calls.take_reports()
    assert 'aten::sum on testdev:0 stream 1 reads 400 bytes' in report
    event = torch.Event(DEVICE)
    event.record()
    side.wait_event(event)
    with side:
        total = tensor.sum()
    side.synchronize()
    assert total.item() == 200


def check_pinned(calls):
    source = torch.arange(1000.0).pin_memory()
    assert source.is_pinned()
    tensor = source.to(DEVICE, non_blocking=True)
    target = torch.empty(1000, pin_memory=True)
    target.copy_(tensor + 1, non_blocking=True)
    target.sum()  # too early, whatever it gives
    [report] = calls.take_reports()
    assert 'the CPU uses' in report
    torch.accelerator.synchronize()
    assert torch.equal(target, source + 1)


def check_limit(calls):
    calls.set_limit(1, 1 << 20)
    kept = torch.zeros(1 << 17, device='testdev:1')
    try:
        torch.zeros(1 << 18, device='testdev:1')
        raise AssertionError('there was room')
    except torch.OutOfMemoryError as error:
        assert 'testdev:1 is out of memory' in str(error)
    assert torch.accelerator.memory_allocated(1) == kept.nbytes
    del kept
    assert torch.ones(1 << 17, device='testdev:1').sum().item() == 1 << 17


def check_files(calls):
    tensor = torch.arange(6.0, device=DEVICE).view(2, 3).t()
    assert torch.equal(tensor.clone().cpu(), tensor.cpu())
    assert 'testdev:0' in repr(tensor)
    storage = tensor.untyped_storage()
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(24)
    tensor.fill_(5)
    assert tensor.sum().item() == 30
    assert tensor.tolist() == [[5, 5]] * 3


def check_fork(calls):
    tensor = torch.ones(4, device=DEVICE)
    child = os.fork()
    if child == 0:
        try:
            tensor.add(1)
        except RuntimeError as error:
            os._exit(0 if 'forked' in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert tensor.sum().item() == 4


def check_address(calls):
    """Ends this process."""
    tensor = torch.ones(4, device=DEVICE)
    torch.accelerator.synchronize()
    print('reads', flush=True)
    ctypes.string_at(tensor.data_ptr(), 4)


CHECKS = {name.removeprefix('check_'): check
          for name, check in list(globals().items())
          if name.startswith('check_') and name != 'check_equal'}


def found_by(check, calls):
    """Nothing, or the error."""
    calls.set_delays(5, 12)
    try:
        check(calls)
        assert calls.take_reports() == []
    except Exception:
        return traceback.format_exc()
    finally:
        torch.accelerator.synchronize()
        calls.take_reports()


def leave_work(calls):
    """For the process's end."""
    calls.set_delays(1, 1 << 20)
    tensor = torch.ones(256, 256, device=DEVICE)
    for _ in range(50):
        tensor = tensor @ tensor


if __name__ == '__main__':
    torch.set_num_threads(1)
    own = accelerator.load()
    print(json.dumps({name: found_by(CHECKS[name], own)
                      for name in sys.argv[1:]}))
    leave_work(own)
