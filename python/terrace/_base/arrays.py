"""What the state of a parameter is."""

from __future__ import annotations

import torch

from terrace._base.local_shard import local_of

# As torch.optim.AdamW names them, in the order in which the library takes
# them; the master is of 16-bit parameters only. All are float32.
KEYS = ('master_param', 'exp_avg', 'exp_avg_sq')


def keys_of(parameter: torch.Tensor) -> tuple[str, ...]:
    return KEYS[1:] if parameter.dtype == torch.float32 else KEYS


def step_tensor(steps: float) -> torch.Tensor:
    """A count of steps as torch's optimizers have it: never in 16 bits, which
    count to 256."""
    dtype = (torch.float64 if torch.get_default_dtype() == torch.float64
             else torch.float32)
    return torch.tensor(float(steps), dtype=dtype, device='cpu')


def state_bytes(parameter: torch.Tensor) -> int:
    """Of what of it is here."""
    return local_of(parameter).numel() * 4 * len(keys_of(parameter))
