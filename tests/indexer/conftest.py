"""Without torch there is nothing to test here; in CI, where everything is installed, that is a failure."""

from __future__ import annotations

import os

import pytest

if os.environ.get("CI") != "true":
    pytest.importorskip("torch")
import torch

torch.set_num_threads(1)
