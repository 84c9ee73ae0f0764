"""vLLM: the plugin that vLLM loads in each of its processes, and the versions it was made for."""

from __future__ import annotations

import re
import sys

from ullage import safety
from ullage.process import process

SUPPORTED = ((0, 22), (0, 34))
"""First version supported, and first one not: where the hooked functions were read. Tested is 0.32.0."""

_registered = False


def register() -> None:
    """Install the probes; the entry point ``vllm.general_plugins``.

    Called by vLLM without a guard, several times, in processes of all kinds: it raises nothing, opens nothing
    and imports nothing of vLLM. A probe is installed when vLLM imports the module that it is for.
    """
    with safety.shield("register"):
        _register()


def _register() -> None:
    global _registered  # noqa: PLW0603  once per process
    if _registered or safety.disabled() or "vllm.model_executor.models.registry" in sys.orig_argv:
        return
    _registered = True
    version = str(getattr(sys.modules.get("vllm"), "__version__", ""))
    number = parsed(version)
    if number is None or not supported(version):
        first, end = (".".join(map(str, bound)) for bound in SUPPORTED)
        safety.log_once(
            "vLLM", f"off: vLLM {version or 'of an unknown version'}; known are {first} up to, not with, {end}"
        )
        return
    from ullage.engines.vllm.hooks import ALWAYS, HOOKS  # noqa: PLC0415
    from ullage.imports import ImportWatch  # noqa: PLC0415  nothing is loaded for an unknown version

    process.announce("vllm", version)
    watch = ImportWatch()
    hooks = [hook for hook in HOOKS if hook.exists_in(number)]
    for hook in hooks:
        watch.when_imported(hook.module, hook.install)

    def check() -> None:
        watch.check()
        for hook in hooks:
            hook.refresh()
        roles = set().union(*(session.roles for session in process.sessions))
        for role in roles & ALWAYS.keys():
            for hook in ALWAYS[role]:
                hook.expected()

    process.chores.at_checks(check)


def supported(version: str) -> bool:
    """Tell whether the probes were made for this version of vLLM, such as ``0.32.0+cpu``."""
    number = parsed(version)
    return number is not None and SUPPORTED[0] <= number < SUPPORTED[1]


def parsed(version: str) -> tuple[int, int] | None:
    """Return the first two numbers of a version; None of something else."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return None if match is None else (int(match[1]), int(match[2]))
