"""What goes wrong with disks under activations, and what is refused."""

import errno

import pytest
import torch

import terrace
from offloaded import WIDTH, mlp
from test_faults import doomed_disk, fill, small_disk  # noqa: F401
from test_offload_activations import offload, wide_loss


def check_same_gradients(model, plain):
    for mine, theirs in zip(model.parameters(), plain.parameters()):
        assert torch.equal(mine.grad, theirs.grad)


def loss_of(model, seed):
    return wide_loss(model, torch.Generator().manual_seed(seed))


def test_a_disk_without_room(small_disk):  # noqa: F811
    model = mlp(20)
    below = offload(model, small_disk)
    loss_of(model, 0).backward()
    fill(small_disk)
    with pytest.raises(RuntimeError) as raised:
        for step in range(20):
            # All of them live at a time.
            kept = [loss_of(model, step) for step in range(40)]
            del kept
    assert str(raised.value).startswith("terrace: 'activation ")
    assert isinstance(below.error, OSError)
    assert below.error.errno == errno.ENOSPC
    assert str(small_disk) in below.error.filename
    # What was in the way is gone; the model goes on in memory.
    below.close()
    loss_of(model, 0).backward()


def test_a_tier_without_room(tmp_path):
    model = mlp(20)
    below = terrace.offload(model, parameters=False, activations=True,
                            activations_above='16KiB',
                            tiers=['dram=1MiB', f'nvme:{tmp_path}=2MiB'])
    with pytest.raises(RuntimeError, match=r"terrace: 'activation \d+ of step"
                                           r" 1' 128 KiB: ") as raised:
        loss_of(model, 0)
    assert isinstance(raised.value.__cause__, OSError)
    assert below.error.errno == errno.EDQUOT
    del raised  # it has what was saved until then
    inputs, plain = torch.randn(100, WIDTH), mlp(20)
    model(inputs).sum().backward()  # a batch that fits
    plain(inputs).sum().backward()
    below.close()
    check_same_gradients(model, plain)


def test_a_disk_that_is_gone(doomed_disk):  # noqa: F811
    directory, doom, number = doomed_disk
    if number == errno.EROFS:
        pytest.skip('what is there can be read')
    model = mlp(20)
    below = offload(model, directory)
    loss_of(model, 0).backward()
    result = loss_of(model, 1)
    assert below.stats()['activation_written_bytes'] > 0
    doom()
    with pytest.raises(RuntimeError) as raised:
        result.backward()
        for step in range(3):
            loss_of(model, step).backward()
    text = str(raised.value)
    assert text.startswith("terrace: 'activation ") and 'EIO' in text
    assert str(directory) in text
    assert isinstance(below.error, OSError)
    assert below.error.errno == errno.EIO
    assert str(directory) in below.error.filename
    del result
    with pytest.raises(OSError, match='cannot remove'):
        below.close(restore=False)
    model.zero_grad()
    plain = mlp(20)
    loss_of(model, 4).backward()
    loss_of(plain, 4).backward()
    check_same_gradients(model, plain)


@pytest.mark.parametrize(('asked', 'text'), [
    ({'activations': 'dram'}, 'in memory already'),
    ({'activations': 'nvme'}, 'True or False'),
    ({'activations': True}, 'needs a tier below'),
    ({'activations': True, 'activations_above': 0}, 'activations_above is 0'),
    ({'activations': True, 'activations_above': '5%'}, 'activations_above'),
    ({'activations': True, 'memory_budget': '2MiB'}, 'below the minimum'),
    ({'parameters': False}, 'leaves nothing'),
    ({'parameters': False, 'activations': True, 'checkpoint': 'x'},
     'parameters=False'),
])
def test_what_is_refused(tmp_path, asked, text):
    if 'needs a tier' not in text and asked.get('activations') is True:
        asked = {'nvme_path': str(tmp_path), **asked}
    with pytest.raises(ValueError, match=text):
        terrace.offload(mlp(), **asked)
    assert list(tmp_path.iterdir()) == []
