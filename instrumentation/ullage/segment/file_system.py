"""On which kind of file system a directory is: a store into a file on a disk can stall."""

from __future__ import annotations

import os
from pathlib import Path

IN_MEMORY = {"tmpfs", "ramfs", "hugetlbfs"}


def kind_of(where: Path) -> str | None:
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
