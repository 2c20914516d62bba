"""What the package says after the first step."""

import subprocess
import sys
import types

import torch

from terrace._optimizer.placement import tell_placement
from terrace._state.budget import Budget
from terrace._state.settings import Settings


def test_the_first_step_says_where_the_state_went(tmp_path):
    code = '''
import sys
import torch, terrace
weight = torch.nn.Parameter(torch.zeros(1 << 20))
optimizer = terrace.AdamW([weight], memory_budget='25%',
                          nvme_path=sys.argv[1])
weight.grad = torch.ones_like(weight)
for _ in range(3):
    optimizer.step()
'''
    said = subprocess.run([sys.executable, '-c', code, str(tmp_path)],
                          capture_output=True, text=True, timeout=120)
    said = said.stderr.strip().splitlines()
    assert len(said) == 1
    assert '1,048,576 parameters, 8.4 MB' in said[0]
    assert str(tmp_path) in said[0] and '6.3 MB of memory saved' in said[0]


def test_the_message_says_what_a_device_is_spared(caplog):
    """Without a device: parameters that say they are on one."""
    stats = {'parameters': 3_000_000, 'state_bytes': 32_000_000,
             'memory_bytes': 8_000_000, 'disk_bytes': 33_000_000,
             'paths': [{'directory': each, 'jobs_elsewhere': []}
                       for each in ('/a', '/b')],
             'engine': 'io_uring', 'instruction_set': 'AVX2',
             'staging_bytes': 33_554_432, 'ranks': 1}
    parameters = [
        types.SimpleNamespace(device=torch.device(device), dtype=dtype,
                              numel=lambda: 1_000_000)
        for device, dtype in (('cuda:0', torch.float32),
                              ('cuda:1', torch.bfloat16),
                              ('cpu', torch.bfloat16))]
    elsewhere = types.SimpleNamespace(device=torch.device('cuda:2'))
    store = types.SimpleNamespace(
        stats=lambda: stats, settings=Settings(Budget(8_000_000)),
        ranks=types.SimpleNamespace(alone=True), state_bytes=32_000_000,
        keeps=lambda parameter: parameter is not elsewhere)
    groups = [{'params': [*parameters, elsewhere]}]
    with caplog.at_level('INFO', logger='terrace'):
        tell_placement(store, groups)
        assert caplog.messages == [
            'the state of 3,000,000 parameters, 32.0 MB, has 8.0 MB of memory, '
            'the rest in /a, /b (io_uring); 24.0 MB of memory saved; 8.0 MB '
            'saved on cuda:0; 12.0 MB saved on cuda:1, 33.6 MB pinned for '
            'copies [AVX2]']
        caplog.clear()
        stats.update(disk_bytes=0, memory_bytes=32_000_000, paths=[])
        tell_placement(store, groups)
        assert 'nothing on disk; 8.0 MB saved on cuda:0' in caplog.messages[0]
