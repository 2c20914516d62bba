"""What the tests share: small models, gradients, comparison."""

import os

# Nothing is fetched: the models are made here.
os.environ.setdefault('HF_HUB_OFFLINE', '1')
os.environ.setdefault('TRANSFORMERS_OFFLINE', '1')

import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture(autouse=True)
def _same_numbers_each_time():
    torch.manual_seed(20240611)
