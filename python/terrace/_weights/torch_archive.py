"""Files that torch.save wrote, and where tensors lie in them."""

from __future__ import annotations

import re
import zipfile
from typing import Any, BinaryIO

import torch

from terrace._base.errors import is_no_room
from terrace._weights.archive_records import ArchiveRecords
from terrace._weights.regular_file import start_of
from terrace._weights.stored import Stored

START_BYTES = 64
_ZIP = b'PK\3\4'
_BEFORE_ZIP = b'l\xfc\x9cF\xf9 j\xa8P\x19'  # of versions before 1.6

_SCRIPT = ('is an archive of TorchScript; save '
           'torch.jit.load(path).state_dict()')


def is_start(start: bytes) -> bool:
    """Of one of these files, START_BYTES long."""
    return start.startswith(_ZIP) or _BEFORE_ZIP in start


def is_mappable(path: str) -> bool:
    """Whether the bytes of tensors lie in it as they are; not so in the old
    format, and in an archive that was compressed."""
    if start_of(path, len(_ZIP)) != _ZIP:
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return all(record.compress_type == zipfile.ZIP_STORED
                       for record in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        return False  # torch.load says what it is


def loaded(path: str, file: BinaryIO | None = None, **how: Any) -> Any:
    """torch.load(path, weights_only=True, ...), or of a file that stands for
    that one.

    Raises ValueError: it is no file, holds more than that reads, or is
    damaged; says which file, and what to do. OSError, MemoryError.
    """
    start_of(path, 0)  # nothing that would be waited for
    try:
        return torch.load(path if file is None else file, weights_only=True,
                          **how)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        if is_no_room(error):
            raise MemoryError(f'terrace: {path}: {error}') from error
        raise ValueError(f'terrace: {path} {_fault_of(error)}') from error


def _fault_of(error: Exception) -> str:
    text = str(error)
    if 'TorchScript' in text:
        return _SCRIPT
    if (found := re.search(r'GLOBAL ([\w.]+)', text)) is not None:
        return (f'holds a {found[1]}, which weights_only=True does not read; '
                'where the file is trusted, save the state_dict() in '
                'torch.load(path, weights_only=False) alone')
    if 'Unsupported operand' in text:
        return ('is altered, or of another pickle_protocol than 2, which '
                'weights_only=True does not read; where the file is trusted, '
                'torch.save(torch.load(path, weights_only=False), path)')
    if isinstance(error, NotImplementedError):  # only on the meta device
        kind = 'quantized' if 'uantized' in text else 'nested or other'
        return (f'holds a {kind} tensor, which has no elements to be read '
                'alone; write the file without it, or with its dequantize()')
    reason = re.search(r'WeightsUnpickler error: (.*)', text)
    return ('is cut, altered or none of torch.save; write or copy it anew: '
            f'{type(error).__name__}: '
            + (reason[1] if reason else text.split('. ')[0])[:300])


def tensors_of(path: str) -> dict[str, Stored]:
    """Of a state_dict, or of a dict that has one as its `model`.

    Raises ValueError: it is something else, or of torch's old format, or has
    tensors whose bytes there are not its elements in order."""
    records = _records_of(path)
    content = loaded(path, records.sketch(), map_location='meta')
    for key in ('model', 'model_state_dict', 'state_dict'):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict):
        raise ValueError(f'terrace: {path} holds a {type(content).__name__}, '
                         'not a dict')
    found = {}
    for name, tensor in content.items():
        if not isinstance(tensor, torch.Tensor):
            continue  # _extra_state, say
        if not isinstance(name, str):
            raise ValueError(f'terrace: {path} has a tensor under the key '
                             f'{name!r}, which is no name of one')
        found[name] = _stored(path, name, tensor, records)
    return found


def _records_of(path: str) -> ArchiveRecords:
    """Of an archive whose records are what they hold."""
    if _BEFORE_ZIP in start_of(path, START_BYTES):
        raise ValueError(
            f'terrace: {path} is of the format before torch 1.6, of which no '
            'tensor can be read alone; write it anew: '
            'torch.save(torch.load(path), path)')
    records = ArchiveRecords(path)
    if 'constants.pkl' in records.names:
        raise ValueError(f'terrace: {path} {_SCRIPT}')
    if records.is_compressed:
        raise ValueError(f'terrace: {path} is compressed, as torch.save does '
                         'not write; write it anew by torch.save')
    if records.byte_order == b'big':
        raise ValueError(f'terrace: {path} is of a big-endian machine')
    return records


def _stored(path: str, name: str, tensor: torch.Tensor,
            records: ArchiveRecords) -> Stored:
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        raise ValueError(f"terrace: {path}: '{name}' is not contiguous there; "
                         'write the file with contiguous tensors')
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        raise ValueError(f"terrace: {path}: '{name}' is quantized, or lazily "
                         'conjugated or negated, there; write the file with '
                         'resolved tensors')
    # torch.load says where, of what it does not read.
    place = tensor.untyped_storage()._checkpoint_offset
    if place is None:
        raise ValueError(f"terrace: {path}: '{name}' was on the meta device "
                         'and has no elements; write the file with those of '
                         'a model that has them')
    start, end = records.at(place)
    offset = tensor.storage_offset() * tensor.element_size()
    stored = Stored(path, name, tensor.dtype, tensor.shape, start + offset)
    if stored.offset + stored.size_bytes > end:
        raise ValueError(
            f"terrace: {path}: '{name}' has {stored.size_bytes} bytes at "
            f'{offset} of a storage of {end - start}')
    return stored
