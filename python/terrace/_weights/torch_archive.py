"""Files that torch.save wrote, and where tensors lie in them."""

from __future__ import annotations

import os
import re
import zipfile
from typing import Any

import torch

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
    """Which those of the old format are not."""
    return start_of(path, len(_ZIP)) == _ZIP


def loaded(path: str, **how: Any) -> Any:
    """torch.load(path, weights_only=True, ...).

    Raises ValueError: it is no file, holds more than that reads, or is
    damaged; says which file, and what to do. OSError, MemoryError.
    """
    start_of(path, 0)  # nothing that would be waited for
    try:
        return torch.load(path, weights_only=True, **how)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        text = str(error)
        if 'TorchScript' in text:
            fault = _SCRIPT
        elif (found := re.search(r'GLOBAL ([\w.]+)', text)) is not None:
            fault = (f'holds a {found[1]}, which weights_only=True does not '
                     'read; where the file is trusted, save the state_dict() '
                     'in torch.load(path, weights_only=False) alone')
        else:
            reason = re.search(r'WeightsUnpickler error: (.*)', text)
            fault = ('is cut, altered or none of torch.save; write or copy it '
                     f'anew: {type(error).__name__}: '
                     + (reason[1] if reason else text.split('. ')[0])[:300])
        raise ValueError(f'terrace: {path} {fault}') from error


def tensors_of(path: str) -> dict[str, Stored]:
    """Of a state_dict, or of a dict that has one as its `model`.

    Raises ValueError: it is something else, or of torch's old format, or has
    tensors whose bytes there are not its elements in order."""
    _check_archive(path)
    content = loaded(path, map_location='meta')
    for key in ('model', 'model_state_dict', 'state_dict'):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict):
        raise ValueError(f'terrace: {path} holds a {type(content).__name__}, '
                         'not a dict')
    size = os.path.getsize(path)
    found = {}
    for name, tensor in content.items():
        if not isinstance(tensor, torch.Tensor):
            continue  # _extra_state, say
        found[name] = _stored(path, name, tensor)
        found[name].check_within(size)
    return found


def _check_archive(path: str) -> None:
    """That records are what they hold."""
    if _BEFORE_ZIP in start_of(path, START_BYTES):
        raise ValueError(
            f'terrace: {path} is of the format before torch 1.6, of which no '
            'tensor can be read alone; write it anew: '
            'torch.save(torch.load(path), path)')
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("neither a safetensors file nor one of "
                             "torch.save's zip files")
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
            big = any(record.filename.endswith('/byteorder')
                      and record.compress_type == zipfile.ZIP_STORED
                      and record.file_size == len(b'big')
                      and archive.read(record) == b'big' for record in records)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError,
            ValueError) as error:
        raise ValueError(f'terrace: {path} is cut or altered; write or copy it '
                         f'anew: {type(error).__name__}: {error}') from error
    if any(record.filename.endswith('/constants.pkl') for record in records):
        raise ValueError(f'terrace: {path} {_SCRIPT}')
    if any(record.compress_type != zipfile.ZIP_STORED for record in records):
        raise ValueError(f'terrace: {path} is compressed, as torch.save does '
                         'not write; write it anew by torch.save')
    if big:
        raise ValueError(f'terrace: {path} is of a big-endian machine')


def _stored(path: str, name: str, tensor: torch.Tensor) -> Stored:
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        raise ValueError(f"terrace: {path}: '{name}' is not contiguous there; "
                         'write the file with contiguous tensors')
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        raise ValueError(f"terrace: {path}: '{name}' is quantized, or lazily "
                         'conjugated or negated, there; write the file with '
                         'resolved tensors')
    # torch.load says where, of what it does not read.
    start = tensor.untyped_storage()._checkpoint_offset
    offset = tensor.storage_offset() * tensor.element_size()
    return Stored(path, name, tensor.dtype, tensor.shape, start + offset)
