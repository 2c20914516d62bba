"""Where tensors lie in a file that torch.save wrote."""

from __future__ import annotations

import os
import zipfile

import torch

from terrace._weights.stored import Stored


def tensors_of(path: str) -> dict[str, Stored]:
    """Of a state_dict, or of a dict that has one as its `model`.

    Raises ValueError: it is something else, or of torch's old format, or has
    tensors that are not contiguous."""
    if not zipfile.is_zipfile(path):
        raise ValueError(f'terrace: {path} is neither a safetensors file nor '
                         "one of torch.save's zip files")
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith('/byteorder') and archive.read(name) == b'big':
                raise ValueError(f'terrace: {path} is of a big-endian machine')
    content = torch.load(path, map_location='meta', weights_only=True)
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


def _stored(path: str, name: str, tensor: torch.Tensor) -> Stored:
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        raise ValueError(f"terrace: {path}: '{name}' is not contiguous there; "
                         'write the file with contiguous tensors')
    # torch.load says where, of what it does not read.
    start = tensor.untyped_storage()._checkpoint_offset
    offset = tensor.storage_offset() * tensor.element_size()
    return Stored(path, name, tensor.dtype, tensor.shape, start + offset)
