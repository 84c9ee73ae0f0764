"""An environment with everything that this one has, but ullage: what an engine's image is to the hook."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

SITE = Path(sysconfig.get_path("purelib"))
OURS = ("ullage", "_editable_impl_ullage", "__editable__.ullage", "__editable___ullage")


def make(directory):
    """Make it in ``directory``, of links to the packages of this one; return its interpreter.

    Files ``.pth`` are left out: one of them is what an editable ullage is found by.
    """
    venv.create(directory, with_pip=False, symlinks=True)
    python = directory / "bin/python"
    site = directory / SITE.relative_to(sys.prefix)
    for package in SITE.iterdir():
        if not package.name.startswith(OURS) and package.suffix != ".pth" and not (site / package.name).exists():
            (site / package.name).symlink_to(package)
    return python


def environment(**variables):
    """Return this process' environment without what is ullage's, and with ``variables``."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("ULLAGE_", "PYTHON"))}
    return {**ours, **variables}


def run(python, code, **variables):
    """Run ``code``; return its exit status, and what it wrote to stdout and to stderr."""
    ran = subprocess.run(
        [python, "-c", code], env=environment(**variables), capture_output=True, text=True, timeout=300, check=False
    )
    return ran.returncode, ran.stdout.strip(), ran.stderr.strip()
