"""``ullage drill``: becomes ``python -m ullage.drill`` where segments can be written, or says where that is.

In a pod the sidecar only reads the volume of the segments: there, the drill runs in the engine's container.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from pathlib import Path

ELSEWHERE = """\
ullage drill: user {user} cannot write to {directory} here, as it should be in a sidecar. Run it where the engine is \
(ENGINE is the name of its container):
  kubectl exec --namespace {namespace} {pod} --container ENGINE -- python3 -m ullage.drill --seconds {seconds:g}
"""


def drill(directory: Path, seconds: float, out: TextIO) -> int:
    """Hold a drill for ``seconds`` in ``directory``, in place of this process.

    Returns:
        1, if it cannot be held here.
    """
    if not directory.is_dir():
        out.write(f"ullage drill: {directory} is no directory; name that of the segments: --dir, or ULLAGE_DIR\n")
        return 1
    if os.access(directory, os.W_OK):
        command = [sys.executable, "-m", "ullage.drill", "--seconds", str(seconds)]
        os.execve(sys.executable, command, {**os.environ, "ULLAGE_DIR": str(directory)})  # noqa: S606  no shell
    out.write(
        ELSEWHERE.format(
            user=os.geteuid(),
            directory=directory,
            namespace=os.environ.get("POD_NAMESPACE", "NAMESPACE"),
            pod=os.environ.get("POD_NAME") or socket.gethostname(),
            seconds=seconds,
        )
    )
    return 1
