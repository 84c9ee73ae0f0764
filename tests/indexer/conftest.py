"""Without torch there is nothing to test here; in CI, where everything is installed, that is a failure."""

from __future__ import annotations

import os

try:
    import torch
except ImportError:
    if os.environ.get("CI") == "true":
        raise
    collect_ignore_glob = ["test_*.py"]
else:
    torch.set_num_threads(1)
