"""The tests' accelerator in Python: a process that loads it has the device
`testdev`, whose streams are threads, late and checked. It stays for good, so
that other tests are without it: they are not of the process that does."""

import atexit
import os
import pathlib
import types

import pytest
import torch

_BUILT = pathlib.Path(__file__).parents[2] / 'build' / 'host' / 'lib'
LIBRARY = os.environ.get('TERRACE_TEST_ACCELERATOR') or str(
    _BUILT / 'libterrace_test_accelerator.so')
DEVICES = 2

needs_accelerator = pytest.mark.skipif(
    not os.path.exists(LIBRARY), reason='no accelerator has been built')


def load():
    """What torch asks of a device's module, beside the library; its calls."""
    torch.ops.load_library(LIBRARY)
    calls = torch.ops.testdev
    torch.utils.rename_privateuse1_backend('testdev')
    module = types.ModuleType('torch.testdev')
    module.is_available = module.is_initialized = lambda: True
    # Without these torch's own synchronize and checkpoint pass the device over.
    module._lazy_init = lambda: None
    module._initialized = True
    module._is_in_bad_fork = lambda: False
    module.device_count = lambda: DEVICES
    module.current_device = torch.accelerator.current_device_index
    module.device = torch.accelerator.device_index
    module.synchronize = torch.accelerator.synchronize
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.manual_seed_all = lambda seed: [
        calls.seed(device, seed) for device in range(DEVICES)]
    module.get_rng_state = lambda device=None: calls.rng_state(index(device))
    module.set_rng_state = lambda state, device=None: calls.set_rng_state(
        index(device), state)
    torch._register_device_module('testdev', module)
    # Before Python's own end, which frees what kernels still use.
    atexit.register(calls.stop)
    return calls


def index(device):
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        device = device.index
    return torch.accelerator.current_device_index() if device is None else device
