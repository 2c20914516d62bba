"""terrace.Adam."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from terrace._offload.offload import Offload
from terrace._optimizer.adamw import AdamW


class Adam(AdamW):
    """torch.optim.Adam whose state need not be in memory: weight_decay is L2,
    added to the gradient, and 0 by default; decoupled_weight_decay is torch's.
    All else as in AdamW, `tiers` and `offload` too."""

    _decoupled = False

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
        memory_budget: int | str | None = None,
        nvme_path: str | os.PathLike[str] | Sequence[str] | None = None,
        tiers: Sequence[str] | None = None,
        daemon: str | os.PathLike[str] | None = None,
        max_grad_norm: float | None = None,
        io_engine: str = 'auto',
        process_group: Any = None,
        step_in_backward: int = 0,
        overlap: bool | None = None,
        offload: Offload | None = None,
    ) -> None:
        self._decoupled = decoupled_weight_decay
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad,
                         maximize=maximize, foreach=foreach,
                         capturable=capturable, differentiable=differentiable,
                         fused=fused, memory_budget=memory_budget,
                         nvme_path=nvme_path, tiers=tiers, daemon=daemon,
                         max_grad_norm=max_grad_norm, io_engine=io_engine,
                         process_group=process_group,
                         step_in_backward=step_in_backward, overlap=overlap,
                         offload=offload)
