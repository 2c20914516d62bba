"""Several paths of one optimizer, and what it tells of each."""

import torch

import terrace


def test_several_paths_share_the_state(tmp_path):
    paths = [tmp_path / 'a', tmp_path / 'b']
    for path in paths:
        path.mkdir()
    network = torch.nn.Linear(1024, 1024)  # 8.4 MB of state
    optimizer = terrace.AdamW(network.parameters(), memory_budget='2MiB',
                              nvme_path=paths)
    network.weight.grad = torch.ones_like(network.weight)
    for step in range(60):  # the first makes its zeros and reads nothing
        optimizer.step()
        told = optimizer.stats()['paths']
        # One that seemed slow at first gets its share later.
        if step >= 2 and all(path['read_bytes_per_second'] > 0
                             and path['write_bytes_per_second'] > 0
                             for path in told):
            break
    assert len(told) == 2 and all(path['bytes_written'] for path in told)
    for path in told:
        # One of two on a shared disk may be slower for a while.
        assert path['state'] in ('healthy', 'slow')
        assert not path['write_error']
        assert path['read_bytes_per_second'] > 0
        assert path['write_bytes_per_second'] > 0
