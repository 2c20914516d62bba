"""A budget that is a share of the state, also where none was given."""

import re

import pytest
import torch

import terrace
from conftest import largest_difference
from test_budget import large


def test_a_path_without_a_budget_keeps_a_tenth_in_memory(tmp_path, recwarn):
    """As DeepSpeed's JSON means it."""
    optimizer = terrace.AdamW(large().parameters(), nvme_path=str(tmp_path))
    stats = optimizer.stats()
    assert stats['disk_bytes'] >= stats['state_bytes']
    optimizer.close()
    tenth = terrace.AdamW(large().parameters(), memory_budget='10%',
                          nvme_path=str(tmp_path)).stats()
    assert stats['memory_bytes'] == tenth['memory_bytes']
    assert not recwarn.list


def test_a_share_below_the_minimum_is_raised_to_it_and_told(tmp_path, caplog):
    with pytest.raises(ValueError, match=r'below the minimum') as caught:
        terrace.AdamW(large().parameters(), memory_budget=4096,
                      nvme_path=str(tmp_path))
    minimum = int(re.search(r'minimum of (\d+) bytes', str(caught.value))[1])
    network, other = large(), large()
    optimizer = terrace.AdamW(network.parameters(), memory_budget='0.1%',
                              nvme_path=str(tmp_path))
    reference = terrace.AdamW(other.parameters())
    with caplog.at_level('INFO', logger='terrace'):
        for net, opt in ((network, optimizer), (other, reference)):
            for p in net.parameters():
                p.grad = torch.ones_like(p)
            opt.step()
            opt.step()
    stats = optimizer.stats()
    assert stats['memory_bytes'] == minimum and stats['bytes_read'] > 0
    assert largest_difference(network, other) == 0
    assert ("(the least that works; memory_budget='0.1%' is 8.4 kB)"
            in caplog.messages[0])
    assert 'least' not in caplog.messages[1]


@pytest.mark.parametrize('settings', [
    {'memory_budget': '50%'}, {'memory_budget': '1%', 'nvme_path': '.'},
    {'nvme_path': '.'}])
def test_a_share_of_a_small_state_is_all_of_it(settings, tmp_path, monkeypatch):
    """The least that works holds it, with or without a path."""
    monkeypatch.chdir(tmp_path)
    weight = torch.nn.Parameter(torch.ones(100))
    optimizer = terrace.AdamW([weight], **settings)
    weight.grad = torch.ones(100)
    optimizer.step()
    assert optimizer.stats()['disk_bytes'] == 0
    assert not list(tmp_path.iterdir())
