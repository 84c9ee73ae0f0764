"""How much memory a process has taken, as the kernel counts it."""

from __future__ import annotations

import re
from pathlib import Path


def peak_mib(pid="self"):
    """Return the most memory that a process has had resident, in MiB. Unlike ``ru_maxrss``, without its parent's."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) / 1024
