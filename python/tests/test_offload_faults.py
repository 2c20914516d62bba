"""What goes wrong with disks under an offloaded model."""

import errno
import os

import pytest
import torch

import terrace
from offloaded import is_cold, mlp, mlp_loss, train
from test_faults import doomed_disk, fill, small_disk  # noqa: F401


def test_a_disk_without_room_is_told_at_the_start(small_disk):  # noqa: F811
    fill(small_disk)
    model = mlp(80)  # 5 MB
    with pytest.raises(OSError) as raised:
        terrace.offload(model, memory_budget='400KiB',
                        nvme_path=str(small_disk))
    assert raised.value.errno == errno.ENOSPC
    assert str(small_disk) in raised.value.filename
    train(model, mlp_loss, steps=1)  # as it was


def test_a_tier_without_room(tmp_path):
    model = mlp()
    with pytest.raises(OSError) as raised:
        terrace.offload(model, tiers=['dram=200KiB', f'nvme:{tmp_path}=64KiB'])
    assert raised.value.errno == errno.EDQUOT
    assert os.listdir(tmp_path) == []
    train(model, mlp_loss, steps=1)


def test_a_disk_that_is_gone(doomed_disk):  # noqa: F811
    directory, doom, number = doomed_disk
    if number == errno.EROFS:
        pytest.skip('what is there can be read')
    model = mlp()
    offload = terrace.offload(model, memory_budget='200KiB',
                              nvme_path=str(directory))
    train(model, mlp_loss)
    doom()
    with pytest.raises(RuntimeError) as raised:
        for _ in range(3):
            train(model, mlp_loss)
    text = str(raised.value)
    assert text.startswith("terrace: '") and 'EIO' in text
    assert str(directory) in text
    assert isinstance(offload.error, OSError)
    assert offload.error.errno == errno.EIO
    assert str(directory) in offload.error.filename
    failed = [name for name, p in model.named_parameters()
              if f"'{name}'" in text]
    assert failed
    # And a lease, and the end, say so too.
    cold = [p for p in model.parameters() if is_cold(p)]
    with pytest.raises((OSError, RuntimeError), match='terrace: '):
        for parameter in cold:
            with offload.lease(parameter):
                pass
    offload.retry()  # The next use fetches.
    with pytest.raises(RuntimeError, match=r"terrace: '.*: EIO"):
        for parameter in cold:
            parameter.sum()
    with pytest.raises((OSError, RuntimeError), match='terrace: '):
        offload.close()
    assert isinstance(offload.error, OSError)
    with pytest.raises(RuntimeError, match='terrace: '):
        model(torch.zeros(1, 128))
