"""The header of a safetensors file: a number of bytes, so much JSON, and from
there on the tensors, one after another without gaps."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from typing import Any

import torch

from terrace._weights.json_text import is_index, parsed
from terrace._weights.regular_file import descriptor_of, read
from terrace._weights.stored import Stored

_DTYPES = {'F64': torch.float64, 'F32': torch.float32, 'F16': torch.float16,
           'BF16': torch.bfloat16, 'I64': torch.int64, 'I32': torch.int32,
           'I16': torch.int16, 'I8': torch.int8, 'U64': torch.uint64,
           'U32': torch.uint32, 'U16': torch.uint16, 'U8': torch.uint8,
           'BOOL': torch.bool, 'C64': torch.complex64,
           'F8_E4M3': torch.float8_e4m3fn,
           'F8_E4M3FNUZ': torch.float8_e4m3fnuz,
           'F8_E5M2': torch.float8_e5m2,
           'F8_E5M2FNUZ': torch.float8_e5m2fnuz,
           'F8_E8M0': torch.float8_e8m0fnu}
_MOST = 100 << 20  # bytes of a header, as the format has it
_LENGTH = struct.Struct('<Q')


def tensors_of(path: str) -> dict[str, Stored]:
    """Raises ValueError: it is none, or is cut; two tensors share bytes, or
    some belong to none."""
    with descriptor_of(path) as descriptor:
        size = os.fstat(descriptor).st_size
        start = read(descriptor, _LENGTH.size)
        length = _LENGTH.unpack(start)[0] if len(start) == _LENGTH.size else 0
        if not 0 < length <= min(_MOST, size - _LENGTH.size):
            raise ValueError(
                f'terrace: {path} is no safetensors file: its header has '
                f'{length} bytes of {size}; it is cut, or no file of '
                'torch.save either')
        os.lseek(descriptor, _LENGTH.size, os.SEEK_SET)
        header = read(descriptor, length)
    begin = _LENGTH.size + length
    found = {}
    try:
        for name, entry in parsed(header).items():
            if name != '__metadata__':
                found[name] = _stored(path, name, entry, begin)
        end = _end_of(found.values(), begin)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f'terrace: {path} is no safetensors file: '
                         f'{type(error).__name__}: {error}') from None
    for stored in found.values():
        stored.check_within(size)
    if end != size:
        raise ValueError(f'terrace: {path} has {size} bytes, and its header '
                         f'is of {end}')
    return found


def _end_of(tensors: Iterable[Stored], begin: int) -> int:
    """Of the last one; ValueError: they do not follow each other from there."""
    end = begin
    for stored in sorted(tensors, key=lambda each: (each.offset,
                                                    each.size_bytes)):
        if stored.offset != end:
            raise ValueError(
                f"'{stored.name}' is at data offset {stored.offset - begin}, "
                f'the one before it ends at {end - begin}')
        end += stored.size_bytes
    return end


def _stored(path: str, name: str, entry: Any, begin: int) -> Stored:
    code = entry['dtype']
    dtype = _DTYPES.get(code) if isinstance(code, str) else None
    if dtype is None:
        raise ValueError(f"'{name}' is {str(code)[:64]}, and known are "
                         + ', '.join(_DTYPES))
    if not all(map(is_index, entry['shape'])):
        raise ValueError(f"'{name}' has a shape that is no list of sizes")
    if not all(map(is_index, entry['data_offsets'])):
        raise ValueError(f"'{name}' has data_offsets that are no offsets")
    first, end = entry['data_offsets']
    stored = Stored(path, name, dtype, torch.Size(entry['shape']),
                    begin + first)
    if end - first != stored.size_bytes:
        raise ValueError(f"'{name}' is from {first} to {end}, and has "
                         f'{stored.size_bytes} bytes')
    return stored
