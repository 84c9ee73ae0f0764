"""How the processes of vLLM start and end: who serves, who declares a shutdown, and which end was a failure.

vLLM kills its workers at every normal shutdown. What tells a stop from a death is that somebody declared it,
and that no failure started it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ullage.engines._patch import Hook, argument
from ullage.engines._probe import SharedProbe
from ullage.engines.vllm._identity import identify
from ullage.session import session

if TYPE_CHECKING:
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


def _serves(args: Args, kwargs: Kwargs) -> None:
    """A client of engine cores in other processes: before it starts them, so that they inherit the engine id."""
    config = argument("vllm_config", 2, args, kwargs)
    session.roles.add("frontend")
    session.open()
    session.engine_starts()
    identify(config, "frontend")


def _serves_in_process(_args: Args, _kwargs: Kwargs) -> None:
    session.roles.add("frontend")
    session.engine_starts()


def _engine_stops(args: Args, _kwargs: Kwargs) -> None:
    _ends("AsyncLLM.shutdown", failed=args[0].engine_core.resources.engine_dead)


def _client_stops(args: Args, _kwargs: Kwargs) -> None:
    _ends("MPClient.shutdown", failed=args[0].resources.engine_dead)


def _resources_freed(args: Args, _kwargs: Kwargs) -> None:
    _ends("BackgroundResources", failed=args[0].engine_dead)


def _core_stops(_args: Args, _kwargs: Kwargs) -> None:
    _ends("EngineCore.shutdown", failed=_orphaned())


def _core_fails(_args: Args, _kwargs: Kwargs) -> None:
    session.note_failure("engine core: fatal error")


def _executor_stops(args: Args, _kwargs: Kwargs) -> None:
    _ends("MultiprocExecutor.shutdown", failed=args[0].is_failed or _orphaned())


def _ends(where: str, *, failed: bool) -> None:
    if failed:
        session.note_failure(where)
    else:
        session.declare_stop(where)


def _orphaned() -> bool:
    """Tell whether the process that started this one is gone: then its death is the cause, not a shutdown."""
    process = sys.modules.get("multiprocessing.process")
    parent = process.parent_process() if process is not None else None
    return parent is not None and not parent.is_alive()


_CLIENT = "vllm.v1.engine.core_client"
_CORE = "vllm.v1.engine.core"

_PROBE = SharedProbe("lifecycle")

HOOKS = (
    Hook(_CLIENT, "MPClient.__init__", ("vllm_config",), before=_serves, shared=_PROBE),
    Hook(_CLIENT, "MPClient.shutdown", before=_client_stops, shared=_PROBE),
    Hook(_CLIENT, "InprocClient.__init__", before=_serves_in_process, shared=_PROBE),
    Hook(_CLIENT, "BackgroundResources.__call__", before=_resources_freed, shared=_PROBE),
    Hook("vllm.v1.engine.async_llm", "AsyncLLM.shutdown", before=_engine_stops, shared=_PROBE),
    Hook(_CORE, "EngineCore.shutdown", before=_core_stops, shared=_PROBE),
    Hook(_CORE, "EngineCoreProc._send_engine_dead", before=_core_fails, shared=_PROBE),
    Hook("vllm.v1.executor.multiproc_executor", "MultiprocExecutor.shutdown", before=_executor_stops, shared=_PROBE),
)
