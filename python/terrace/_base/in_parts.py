"""Tensors of dtypes that safetensors has not: as a tensor of their parts or
bytes, 'NAME.DTYPE', whose bytes are theirs."""

from __future__ import annotations

import torch

# Of each the dtype of the parts; a complex one has two, the last dimension.
DTYPES = {torch.complex128: torch.float64, torch.complex32: torch.float16,
          torch.float8_e8m0fnu: torch.uint8,
          torch.float4_e2m1fn_x2: torch.uint8, torch.bits1x8: torch.uint8,
          torch.bits2x4: torch.uint8, torch.bits4x2: torch.uint8,
          torch.bits8: torch.uint8, torch.bits16: torch.uint16}
# These have no values, only bytes, which copy_() does not make to others.
_OPAQUE = frozenset((torch.float4_e2m1fn_x2, torch.bits1x8, torch.bits2x4,
                     torch.bits4x2, torch.bits8, torch.bits16))


def can_become(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether copy_() makes one of the other."""
    return source == target or _OPAQUE.isdisjoint((source, target))


def name_of(name: str, dtype: torch.dtype) -> str:
    return f'{name}.{str(dtype).removeprefix("torch.")}'


def shape_of(shape: torch.Size, dtype: torch.dtype) -> torch.Size:
    return torch.Size((*shape, 2)) if dtype.is_complex else shape


def parts_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory."""
    return (torch.view_as_real(tensor) if tensor.is_complex()
            else tensor.view(DTYPES[tensor.dtype]))
