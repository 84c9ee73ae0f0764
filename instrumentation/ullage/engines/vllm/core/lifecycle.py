"""How the processes of vLLM start and end: who serves, who declares a shutdown, and which end was a failure.

vLLM kills its workers at every normal shutdown. A stop is told from a death by its declaration, and by no failure that
started it. A program may end an engine and go on: then what the engine recorded is withdrawn.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

from ullage import safety
from ullage.engines.instance import EngineInstance, bind
from ullage.engines.patch import Patch, argument
from ullage.engines.probe import SharedProbe
from ullage.engines.vllm.identity import engine_of, identify, instances
from ullage.host.process import process

if TYPE_CHECKING:
    from ullage.host.session import Session

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


def _serves(args: Args, kwargs: Kwargs) -> None:
    """A client of engine cores in other processes: before it starts them, so that they inherit the engine id."""
    engine = _begins()
    identify(engine, argument("vllm_config", 2, args, kwargs), "frontend")


def _serves_in_process(_args: Args, _kwargs: Kwargs) -> None:
    _begins()


def _begins() -> EngineInstance:
    session = process.construct(instances.engine)
    session.roles.add("frontend")
    return session.part(EngineInstance)


def _launches(args: Args, kwargs: Kwargs) -> None:
    """Engine cores are started: by a client, which began the instance, or by a launcher that serves nothing itself."""
    engine = engine_of(args[0])
    if "frontend" not in engine.session.roles:
        identify(engine, argument("vllm_config", 4, args, kwargs), "launcher")


def _serves_now(_result: None, args: Args, _kwargs: Kwargs) -> None:
    """Bind what ends the engine."""
    client, session = args[0], process.constructed()
    if session is not None:
        for thing in (client, client.resources):
            bind(thing, session.part(EngineInstance))


def _serves_now_in_process(_result: None, args: Args, _kwargs: Kwargs) -> None:
    """The same; a client that is dropped without a shutdown ends its engine, too."""
    client, session = args[0], process.constructed()
    if session is not None:
        core = client.engine_core
        for thing in filter(None, (client, core, getattr(core, "model_executor", None))):
            bind(thing, session.part(EngineInstance))
        weakref.finalize(client, _dropped, session).atexit = False


def _dropped(session: Session) -> None:
    with safety.shield("end of an engine"):
        session.declare_stop("InprocClient dropped")
        if not session.stopped:
            session.note_failure("InprocClient dropped")
        process.end_from_finalizer(session, failed=not session.stopped)


def _start_failed(error: BaseException, _args: Args, _kwargs: Kwargs) -> None:
    session = process.constructed()
    if session is not None:
        session.note_exception("engine start", error)
        session.note_failure("engine start")
        process.end(session, failed=True)


def _engine_stops(args: Args, _kwargs: Kwargs) -> None:
    client = args[0].engine_core
    _ends(client, "AsyncLLM.shutdown", failed=client.resources.engine_dead)


def _client_stops(args: Args, _kwargs: Kwargs) -> None:
    _ends(args[0], "MPClient.shutdown", failed=args[0].resources.engine_dead)


def _frees_resources(args: Args, _kwargs: Kwargs) -> None:
    _ends(args[0], "BackgroundResources", failed=args[0].engine_dead)


def _resources_freed(_result: None, args: Args, _kwargs: Kwargs) -> None:
    """The engine's processes are gone; the program may go on, and start another engine.

    After a failure the session stays until the process ends: it lives, and what it serves may not be over.
    """
    session = engine_of(args[0]).session
    if session.stopped:
        _withdraw(session, "BackgroundResources")


def _core_stops(args: Args, _kwargs: Kwargs) -> None:
    _ends(args[0], "EngineCore.shutdown", failed=_orphaned())


def _core_stopped(_result: None, args: Args, _kwargs: Kwargs) -> None:
    session = engine_of(args[0]).session
    if "frontend" in session.roles:
        _withdraw(session, "EngineCore.shutdown")


def _withdraw(session: Session, where: str) -> None:
    """End the session of an engine that is over. If no stop could be declared, an exception ended it."""
    if process.constructs(session):
        return
    if not session.stopped:
        session.note_failure(where)
    process.end(session, failed=not session.stopped)


def _core_fails(args: Args, _kwargs: Kwargs) -> None:
    engine_of(args[0]).session.note_failure("engine core: fatal error")


def _executor_stops(args: Args, _kwargs: Kwargs) -> None:
    _ends(args[0], "MultiprocExecutor.shutdown", failed=args[0].is_failed or _orphaned())


def _ends(thing: object, where: str, *, failed: bool) -> None:
    session = engine_of(thing).session
    if failed:
        session.note_failure(where)
    elif not process.constructs(session):  # what is taken down again because a start failed does not stop
        session.declare_stop(where)


def _orphaned() -> bool:
    """Tell whether the process that started this one is gone: then its death is the cause, not a shutdown."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    parent = multiprocessing.parent_process() if multiprocessing is not None else None
    return parent is not None and not parent.is_alive()


_CLIENT = "vllm.v1.engine.core_client"
_CORE = "vllm.v1.engine.core"

_PROBE = SharedProbe("lifecycle")

PATCHES = (
    Patch(
        _CLIENT,
        "MPClient.__init__",
        ("vllm_config",),
        before=_serves,
        after=_serves_now,
        failed=_start_failed,
        shared=_PROBE,
    ),
    Patch(_CLIENT, "MPClient.shutdown", before=_client_stops, shared=_PROBE),
    Patch(
        _CLIENT,
        "InprocClient.__init__",
        before=_serves_in_process,
        after=_serves_now_in_process,
        failed=_start_failed,
        shared=_PROBE,
    ),
    Patch("vllm.v1.engine.utils", "CoreEngineProcManager.__init__", ("vllm_config",), before=_launches, shared=_PROBE),
    Patch(_CLIENT, "BackgroundResources.__call__", before=_frees_resources, after=_resources_freed, shared=_PROBE),
    Patch("vllm.v1.engine.async_llm", "AsyncLLM.shutdown", before=_engine_stops, shared=_PROBE),
    Patch(_CORE, "EngineCore.shutdown", before=_core_stops, after=_core_stopped, shared=_PROBE),
    Patch(_CORE, "EngineCoreProc._send_engine_dead", before=_core_fails, shared=_PROBE),
    Patch("vllm.v1.executor.multiproc_executor", "MultiprocExecutor.shutdown", before=_executor_stops, shared=_PROBE),
)
