"""A model cast to what a configuration enables, as DeepSpeed casts it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from terrace._base.library import is_offloaded

DTYPES = {torch.float32: 'fp32', torch.bfloat16: 'bf16',
          torch.float16: 'fp16'}
_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}


def can_cast(model: torch.nn.Module) -> bool:
    """Not parts of sharded parameters, which others hold too, nor what is
    offloaded, nor types that DeepSpeed leaves alone."""
    return all(type(p.data) is torch.Tensor and p.dtype in DTYPES
               and not is_offloaded(p) for p in model.parameters())


def cast(model: torch.nn.Module, settings: Mapping[str, Any]) -> None:
    """Parameters to bf16 or fp16, where one is enabled; buffers keep their
    type, but for a buffer_dtype. Gradients go along with their parameters."""
    dtype = _BY_NAME[settings['parameter_dtype']]
    if dtype != torch.float32:
        for parameter in model.parameters():
            if parameter.dtype != dtype:
                _cast_parameter(parameter, dtype)
    if settings['buffer_dtype'] is not None:
        _cast_buffers(model, _BY_NAME[settings['buffer_dtype']], dtype)


def _cast_parameter(parameter: torch.Tensor, dtype: torch.dtype) -> None:
    gradient, parameter.grad = parameter.grad, None
    parameter.data = parameter.data.to(dtype)
    if gradient is not None:
        parameter.grad = gradient.to(dtype)


def _cast_buffers(model: torch.nn.Module, dtype: torch.dtype,
                  trained: torch.dtype) -> None:
    kept = _kept_in_fp32(model, trained)
    for name, buffer in model.named_buffers():
        if buffer.dtype in DTYPES and buffer.dtype != dtype and not (
                kept is not None and kept.search(name)):
            buffer.data = buffer.data.to(dtype)


def _kept_in_fp32(model: torch.nn.Module,
                  trained: torch.dtype) -> re.Pattern[str] | None:
    """Names of buffers that transformers' models keep in fp32."""
    lists = ['_keep_in_fp32_modules_strict']
    if trained == torch.float16:
        lists.append('_keep_in_fp32_modules')
    patterns = set()
    for module_name, module in model.named_modules():
        prefix = f'^{re.escape(module_name)}\\..*' if module_name else ''
        for names in lists:
            patterns |= {prefix + name.replace('*', '.*')
                         for name in getattr(module, names, None) or ()}
    return re.compile('|'.join(sorted(patterns))) if patterns else None
