"""Terrace: AdamW whose state lives in memory and on NVMe.

    import terrace
    optimizer = terrace.AdamW(model.parameters(), lr=3e-4,
                              memory_budget='10%', nvme_path='/mnt/nvme0')

is a torch.optim.Optimizer: change that one line of a training script, and the
moments (and the fp32 masters of 16-bit parameters) that do not fit the budget
are streamed from and to the path during each step.
"""

from terrace._base.daemon import use_job
from terrace._base.errors import DataLossError, RankError
from terrace._base.library import (instruction_set, load as _load_library,
                                   version)
from terrace._base.machine import use_machine_profile, use_unsafe_media
from terrace._deepspeed.config import from_deepspeed_config
from terrace._files.checkpoint import load, save
from terrace._files.torch_file import export_torch, import_torch
from terrace._offload.gradient_norm import clip_grad_norm_
from terrace._offload.offload import Offload, offload
from terrace._optimizer.adam import Adam
from terrace._optimizer.adamw import AdamW

_load_library()
__version__ = version()

__all__ = ['Adam', 'AdamW', 'DataLossError', 'Offload', 'RankError',
           'clip_grad_norm_', 'export_torch', 'from_deepspeed_config',
           'import_torch', 'instruction_set', 'load', 'offload', 'save',
           'use_job', 'use_machine_profile', 'use_unsafe_media', '__version__']
