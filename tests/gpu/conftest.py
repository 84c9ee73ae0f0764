"""Without a CUDA device there is nothing to test here."""

from __future__ import annotations

import pytest

try:
    import torch
except ImportError:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def cuda():
    """Skip the test where there is no device."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
