"""What an optimizer of sharded parameters cannot be asked for."""

from __future__ import annotations

from collections.abc import Sequence

from terrace._base.groups import Named
from terrace._base.local_shard import sharding_of
from terrace._ranks.ranks import Ranks
from terrace._state.settings import Settings


def check_sharded(groups: Sequence[Sequence[Named]], settings: Settings,
                  ranks: Ranks) -> None:
    """NotImplementedError names what is in the way of the first of them."""
    why = _why_not(settings, ranks)
    for name, parameter in (pair for named in groups for pair in named):
        if why and sharding_of(parameter):
            raise NotImplementedError(f"terrace: parameter '{name}' is "
                                      f'{sharding_of(parameter)}: {why}')


def _why_not(settings: Settings, ranks: Ranks) -> str:
    if not ranks.alone:
        return ('each rank keeps the state of its part already; leave '
                'process_group out')
    if settings.max_gradient_norm > 0:
        return ('max_grad_norm would clip by the norm of what this rank has; '
                'leave it out (gradient_clipping is 0 in a DeepSpeed '
                'configuration) and call torch.nn.utils.clip_grad_norm_(), or '
                'clip_grad_norm_() of FullyShardedDataParallel, before step()')
    if settings.skip_nonfinite:
        return ('fp16 with a loss scale would skip a step on this rank alone; '
                'train in bf16, or with torch.amp.GradScaler')
    return ''
