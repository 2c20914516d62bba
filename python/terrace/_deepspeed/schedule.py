"""DeepSpeed's schedulers."""

from __future__ import annotations

from typing import Any

import torch

from terrace._deepspeed.in_memory import InMemoryOptimizer
from terrace._optimizer.adamw import AdamW, store_of


class ConfiguredSchedule(torch.optim.lr_scheduler.LRScheduler):
    """The learning rate (and the betas, where they are cycled) that DeepSpeed's
    scheduler of the same configuration sets. As there, step() after a skipped
    step of the optimizer does nothing."""

    def __init__(self, optimizer: AdamW | InMemoryOptimizer, native: Any,
                 cycles_momentum: bool) -> None:
        self._config = native
        self._cycles_momentum = cycles_momentum
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        rate, beta1, beta2 = self._config.adam_at(self.last_epoch + 1)
        if self._cycles_momentum:
            for group in self.optimizer.param_groups:
                if 'betas' in group:
                    group['betas'] = (beta1, beta2)
        return [rate for _ in self.optimizer.param_groups]

    def step(self, epoch: int | None = None) -> None:
        if self.last_epoch >= 0 and _was_skipped(self.optimizer):
            return
        super().step() if epoch is None else super().step(epoch)

    def state_dict(self) -> dict[str, Any]:
        return {key: value for key, value in super().state_dict().items()
                if key != '_config'}


def _was_skipped(optimizer: AdamW | InMemoryOptimizer) -> bool:
    if isinstance(optimizer, InMemoryOptimizer):
        return optimizer.skipped()
    return store_of(optimizer).skipped()
