"""What is shown while a checkpoint is read."""

import importlib.machinery
import logging
import sys
import types

import pytest
import torch

import terrace
from offloaded import mlp
from terrace._offload import progress


class Bar:
    """Stands in for tqdm's."""

    made = []

    def __init__(self, **told):
        self.told, self.counts, self.is_closed = told, [], False
        Bar.made.append(self)

    def update(self, count):
        self.counts.append(count)

    def close(self):
        self.is_closed = True


@pytest.fixture
def bars(monkeypatch):
    monkeypatch.setattr(Bar, 'made', [])
    module = types.ModuleType('tqdm')
    module.__spec__ = importlib.machinery.ModuleSpec('tqdm', None)
    module.tqdm = Bar
    monkeypatch.setitem(sys.modules, 'tqdm', module)
    return Bar.made


def written(tmp_path):
    torch.save(mlp().state_dict(), tmp_path / 'weights.pt')
    with torch.device('meta'):
        return tmp_path / 'weights.pt', mlp()


def test_a_bar_of_all_bytes(tmp_path, bars):
    file, model = written(tmp_path)
    terrace.offload(model, checkpoint=file).close()
    (bar,) = bars
    sizes = [p.numel() * p.itemsize for p in model.parameters()]
    assert bar.counts == sizes and bar.told['total'] == sum(sizes)
    assert bar.told['desc'] == f'terrace: reading {file}'
    assert bar.told['delay'] > 0  # short ones are not worth one
    assert bar.is_closed


def test_a_bar_ends_with_an_error(bars):
    with pytest.raises(OSError), progress.Progress('reading', 10) as shown:
        shown.add(4)
        raise OSError('gone')
    assert bars[0].is_closed and bars[0].counts == [4]


def test_lines_without_tqdm(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, 'tqdm', None)
    monkeypatch.setattr(progress, '_LINE_SECONDS', 0.0)
    file, model = written(tmp_path)
    with caplog.at_level(logging.INFO, 'terrace'):
        terrace.offload(model, checkpoint=file).close()
    lines = [record.getMessage() for record in caplog.records
             if 'reading' in record.getMessage()]
    total = sum(p.numel() * p.itemsize for p in model.parameters())
    assert len(lines) == len(list(model.parameters()))
    assert lines[-1].startswith(f'reading {file}: ')
    done, all_of_it = lines[-1].rpartition(': ')[2].split(' of ')
    assert done == all_of_it and total > 1000


def test_few_lines(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, 'tqdm', None)
    with caplog.at_level(logging.INFO, 'terrace'):
        with progress.Progress('reading', 1000) as shown:
            for _ in range(1000):
                shown.add(1)
    assert not caplog.records
