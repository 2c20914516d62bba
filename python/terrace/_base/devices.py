"""Where the tensors may be that Terrace steps and saves."""

from __future__ import annotations

import torch


def device_types() -> tuple[str, ...]:
    """'cpu', and the accelerator that this torch is for, in use or not."""
    accelerator = torch.accelerator.current_accelerator()
    return ('cpu',) if accelerator is None else ('cpu', accelerator.type)
