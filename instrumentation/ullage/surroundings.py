"""What a process finds where it runs: a directory for segments, other engines, a file system."""

from __future__ import annotations

import os
from pathlib import Path

from ullage.segment import sweep

DEFAULT_DIRECTORY = Path("/run/ullage")
MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs", "hugetlbfs"}


def directory() -> Path | None:
    """Return where segments go: ``ULLAGE_DIR``, or the usual place if it is there; None for nowhere."""
    configured = os.environ.get("ULLAGE_DIR")
    if configured:
        return Path(configured)
    return DEFAULT_DIRECTORY if DEFAULT_DIRECTORY.is_dir() else None


def free_name(base: str, where: Path) -> str:
    """Return ``base`` with the first number that no living engine in ``where`` has."""
    taken = {snapshot.identity.get("engine_name") for snapshot in sweep.living(where)}
    number = 0
    while f"{base}{number}" in taken:
        number += 1
    return f"{base}{number}"


def file_system(where: Path) -> str | None:
    """Return the type of the file system of ``where``; None where the kernel does not say."""
    device = where.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if line.split()[2] == number:
                return line.partition(" - ")[2].split()[0]
    except OSError:
        pass
    return None
