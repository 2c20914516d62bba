"""The records of a zip file of torch.save, which lie in it as they are."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from typing import BinaryIO, NamedTuple

# What torch.load reads beside the storages.
_READ = frozenset(('data.pkl', 'byteorder', 'version', '.data/version'))
_MOST = 1 << 30  # bytes of one of these
# They say that torch may reckon where its own writer put storages, and how.
_RECKONED = frozenset(('.format_version', '.storage_alignment'))
_ENCRYPTED = 1  # a bit of a record's flags
# What is before a record's data: a mark, and how many bytes of a name and of
# other fields follow.
_HEADER = struct.Struct('<4s22xHH')
_MARK = b'PK\3\4'


class Record(NamedTuple):
    """The bytes of a file from start to end."""

    start: int
    end: int


class ArchiveRecords:
    """Where the storages are, whoever packed the archive.

    Attributes:
        names: of the records, below the archive's own folder.
        is_compressed: then nothing is known of where records are.
        byte_order: 'big', or anything else.
    """

    def __init__(self, path: str) -> None:
        """OSError. ValueError: it is no such archive, or is damaged."""
        try:
            if not zipfile.is_zipfile(path):
                raise ValueError("neither a safetensors file nor one of "
                                 "torch.save's zip files")
            with open(path, 'rb') as file, zipfile.ZipFile(file) as archive:
                records = archive.infolist()
                self.names = {_name_of(record) for record in records}
                if len(self.names) != len(records):
                    raise ValueError('two records have one name')
                self.is_compressed = any(
                    record.compress_type != zipfile.ZIP_STORED
                    for record in records)
                self.byte_order, self._sketch = b'', io.BytesIO()
                self._by_place: dict[int, Record] = {}
                if not self.is_compressed:
                    self._draw(archive, file)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError,
                EOFError, struct.error, ValueError) as error:
            raise ValueError(
                f'terrace: {path} is cut or altered; write or copy it anew: '
                f'{type(error).__name__}: {error}') from error

    def sketch(self) -> BinaryIO:
        """The archive with storages of no bytes: torch.load on the meta
        device says where in it a storage is."""
        self._sketch.seek(0)
        return self._sketch

    def at(self, place: int) -> Record:
        """The record that is there in the sketch."""
        return self._by_place[place]

    def _draw(self, archive: zipfile.ZipFile, file: BinaryIO) -> None:
        whole = os.fstat(file.fileno()).st_size
        with zipfile.ZipFile(self._sketch, 'w') as sketch:
            for record in archive.infolist():
                name = _name_of(record)
                if name in _RECKONED:
                    continue
                data = b''
                if name in _READ:
                    if record.file_size > min(_MOST, whole):
                        raise ValueError(f'{name} has {record.file_size} bytes')
                    data = archive.read(record)
                if name == 'byteorder':
                    self.byte_order = data
                sketch.writestr(record.filename, data)
        with zipfile.ZipFile(self._sketch) as sketch:
            for drawn in sketch.infolist():
                record = archive.getinfo(drawn.filename)
                place = _start_of(self._sketch, drawn)
                start = _start_of(file, record)
                end = start + record.file_size
                if end > whole or record.flag_bits & _ENCRYPTED:
                    raise ValueError(f'{drawn.filename} is encrypted, or at '
                                     f'{start} to {end} of {whole} bytes')
                self._by_place[place] = Record(start, end)


def _name_of(record: zipfile.ZipInfo) -> str:
    return record.filename.partition('/')[2]


def _start_of(file: BinaryIO, record: zipfile.ZipInfo) -> int:
    """Of its data."""
    file.seek(record.header_offset)
    mark, name, further = _HEADER.unpack(file.read(_HEADER.size))
    if mark != _MARK:
        raise ValueError(f'{record.filename} has no header')
    return record.header_offset + _HEADER.size + name + further
