"""Writes the files that torch.load reads, without having them in memory.

The format is torch.save's: a zip file, not compressed, of a pickle in which
each tensor names its storage, and a record of bytes for each storage.
"""

from __future__ import annotations

import collections
import ctypes
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import torch

from terrace._base.library import is_offloaded, storage_if_offloaded
from terrace._files import plain
from terrace._files.new_file import NewFile

_BLOCK = 1 << 20  # elements of a streamed tensor that are in memory at a time
_PIECE = 1 << 17  # of elements that are found by number, 8 bytes each
_ALIGNMENT = 64  # of each record in the file, as torch.save's
_PADDING = 0x4246  # the zip field that torch.save pads with
_ZIP64_FIELD = 20  # its bytes in a record's header
_TYPES = {torch.float64: 'Double', torch.float32: 'Float',
          torch.float16: 'Half', torch.bfloat16: 'BFloat16',
          torch.int64: 'Long', torch.int32: 'Int', torch.int16: 'Short',
          torch.int8: 'Char', torch.uint8: 'Byte', torch.bool: 'Bool',
          torch.complex64: 'ComplexFloat', torch.complex128: 'ComplexDouble'}


class Streamed:
    """In what is written: stands for a contiguous float32 tensor.

    Args:
        read: fills a tensor with the elements from an offset on.
    """

    def __init__(self, shape: torch.Size,
                 read: Callable[[int, torch.Tensor], None]):
        self.shape = shape
        self._read = read

    def blocks(self) -> Iterator[memoryview]:
        count = self.shape.numel()
        buffer = torch.empty(min(count, _BLOCK), dtype=torch.float32,
                             device='cpu')
        for first in range(0, count, _BLOCK):
            part = buffer[:min(_BLOCK, count - first)]
            try:
                self._read(first, part)
            except Exception as error:
                raise _Unreadable(error) from error
            yield _bytes_of(part)


def write(path: str, content: Any) -> int:
    """Replaces the file by one that was read as torch.load does, but for
    what tensors hold; returns its bytes. After an error what was there is
    as it was, or the message says otherwise; an OSError of this file has errno
    and filename, what a Streamed raises is passed on as it is."""
    try:
        with NewFile(path) as new:
            _write_archive(new.file, content)
            size = new.flush()
            plain.check_file(new.path)
            new.replace()
    except _Unreadable as unreadable:
        raise unreadable.error from None
    except OSError as error:
        raise OSError(error.errno, f'terrace: {error.strerror}',
                      path) from error
    return size


class _Unreadable(Exception):
    """What reading raised, past the handlers of what writing raises."""

    def __init__(self, error: Exception):
        super().__init__()
        self.error = error


def _write_archive(file: BinaryIO, content: Any) -> None:
    text = _Text()
    pickler = _Pickler(text)
    pickler.dump(content)
    with zipfile.ZipFile(file, 'w', zipfile.ZIP_STORED) as archive:
        _write_record(archive, 'data.pkl', text.parts)
        _write_record(archive, 'byteorder', [b'little'])
        for storage in pickler.storages:
            _write_record(archive, f'data/{storage.key}', storage.blocks())
        _write_record(archive, 'version', [b'3\n'])


def _write_record(archive: zipfile.ZipFile, name: str,
                  blocks: Iterable[bytes | memoryview]) -> None:
    info = zipfile.ZipInfo(f'archive/{name}')
    start = (archive.fp.tell() + zipfile.sizeFileHeader + len(info.filename) +
             _ZIP64_FIELD + 4)
    padding = -start % _ALIGNMENT
    info.extra = struct.pack('<HH', _PADDING, padding) + bytes(padding)
    with archive.open(info, 'w', force_zip64=True) as record:
        for block in blocks:
            record.write(block)


class _Text:
    """What the pickler writes into."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, part: Any) -> int:
        self.parts.append(bytes(part))
        return len(part)


class _Storage:
    """A record of elements."""

    def __init__(self, key: str, dtype: torch.dtype, count: int,
                 blocks: Callable[[], Iterable[memoryview]]):
        self.key = key
        self.type = getattr(torch, f'{_TYPES[dtype]}Storage')
        self.count = count
        self.blocks = blocks


class _Pickler(pickle.Pickler):

    def __init__(self, file: Any):
        super().__init__(file, protocol=2)
        self.storages: list[_Storage] = []
        self._known: dict[tuple, _Storage] = {}

    def persistent_id(self, thing: Any) -> Any:
        if not isinstance(thing, _Storage):
            return None
        return ('storage', thing.type, thing.key, 'cpu', thing.count)

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, Streamed):
            storage = self._add(torch.float32, thing.shape.numel(),
                                thing.blocks)
            strides = torch.empty(thing.shape, device='meta').stride()
            return _rebuilt(storage, thing.shape, strides)
        if isinstance(thing, torch.Tensor):
            return self._reduce_tensor(thing.detach())
        if isinstance(thing, (torch.UntypedStorage, torch.TypedStorage)):
            raise NotImplementedError('terrace: a storage cannot be exported; '
                                      'give a tensor of it')
        return NotImplemented

    def _reduce_tensor(self, tensor: torch.Tensor) -> tuple:
        if (tensor.layout != torch.strided or tensor.dtype not in _TYPES
                or tensor.is_nested or tensor.is_meta):
            kind = 'nested' if tensor.is_nested else tensor.layout
            raise NotImplementedError(
                f'terrace: a tensor of {tensor.dtype}, {kind}, on '
                f'{tensor.device}, cannot be exported')
        tensor = tensor.resolve_conj().resolve_neg()
        # Tied tensors stay tied.
        place: tuple = (tensor.device, _address_of(tensor), tensor.dtype,
                        tensor.numel())
        strides = tensor.stride()
        if not _is_dense(tensor):
            place += (tensor.shape, strides)
            strides = torch.empty(tensor.shape, device='meta').stride()
        if tensor.numel() == 0 or place not in self._known:
            self._known[place] = self._add(
                tensor.dtype, tensor.numel(), lambda: _blocks_of(tensor))
        return _rebuilt(self._known[place], tensor.shape, strides)

    def _add(self, dtype: torch.dtype, count: int,
             blocks: Callable[[], Iterable[memoryview]]) -> _Storage:
        storage = _Storage(str(len(self.storages)), dtype, count, blocks)
        self.storages.append(storage)
        return storage


def _rebuilt(storage: _Storage, shape: torch.Size,
             strides: Sequence[int]) -> tuple:
    """What torch.save says of a tensor."""
    return (torch._utils._rebuild_tensor_v2,
            (storage, 0, tuple(shape), tuple(strides), False,
             collections.OrderedDict()))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill its memory, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape,
                                   strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _blocks_of(tensor: torch.Tensor) -> Iterator[memoryview]:
    """Of all its elements: as they lie in memory, or in order where they do
    not fill it. At most a block is copied at a time."""
    count = tensor.numel()
    if not _is_dense(tensor):
        for first in range(0, count, _PIECE):
            part = _to_host(torch.take(tensor, torch.arange(
                first, min(first + _PIECE, count), device=tensor.device)))
            yield _bytes_of(part)
        return
    flat = tensor.as_strided((count,), (1,))
    for first in range(0, count, _BLOCK):
        part = _to_host(flat[first:first + _BLOCK], is_offloaded(tensor))
        yield _bytes_of(part)


def _to_host(part: torch.Tensor, is_away: bool = False) -> torch.Tensor:
    return part.clone() if is_away else part.cpu()


def _address_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Where its elements are, as long as it is there."""
    storage = storage_if_offloaded(tensor)
    return ((storage, tensor.storage_offset()) if storage else
            (0, tensor.data_ptr()))


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Of a dense one; valid as long as it is there."""
    count = tensor.numel() * tensor.element_size()
    if count == 0:
        return memoryview(b'')
    return memoryview(
        (ctypes.c_ubyte * count).from_address(tensor.data_ptr())).cast('B')
