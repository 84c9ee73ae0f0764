"""Scratch memory of kernels, in a worker: what callers ask for beside what there is, before and after it is locked.

It grows with the largest request until the warm-up ends and vLLM locks it. A caller that asks for more then fails;
where it is never locked it grows, and graphs that were captured with the old one point to freed memory.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from ullage.breadcrumb import breadcrumb
from ullage.buffers import Buffer, buffer
from ullage.engines._patch import Hook, argument
from ullage.engines._probe import SharedProbe
from ullage.engines.vllm._sizes import agreed, source
from ullage.engines.vllm.rehearsal import observe
from ullage.inventory import TensorInfo, inventory
from ullage.session import session

if TYPE_CHECKING:
    from collections.abc import Callable

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]

SIZE = "workspace.bytes"


class _Known(NamedTuple):
    """A workspace that was seen before."""

    tensor: Callable[[], Any]
    slot: int
    buffer: Buffer


_known: dict[int, _Known] = {}
"""By ``id`` of the tensor."""
_buffers: dict[int, Buffer] = {}
"""By slot: vLLM has a workspace for each micro-batch and lane."""
_warm: dict[int, int] = {}
"""By slot: how many bytes it had when the warm-up ended."""


def _ensured(workspace: Any, args: Args, kwargs: Kwargs) -> None:
    known = _known.get(id(workspace))
    if known is None or known.tensor() is not workspace:
        known = _allocated(args[0], workspace)
    required = argument("required_bytes", 1, args, kwargs)
    observe(known.buffer, required)
    if required > _warm.get(known.slot, required):
        _claim_need(known.slot, required)


def _allocated(manager: Any, workspace: Any) -> _Known:
    """A workspace that was not seen before: the first of its slot, or a larger one in its place."""
    workspaces = manager._current_workspaces  # noqa: SLF001  as vLLM names it
    slot = next(number for number, one in enumerate(workspaces) if one is workspace)
    size = workspace.nbytes
    held = _buffers.get(slot)
    if held is None:
        held = _buffers[slot] = buffer(
            _named("workspace", slot),
            capacity=size,
            unit="bytes",
            kind="fixed",
            location="host" if workspace.device.type == "cpu" else "device",
            limit="largest request of the warm-up",
        )
    elif size != held.capacity:
        if slot not in _warm and breadcrumb.phase and not breadcrumb.rehearsing:
            _warmed_up(slot, held.capacity, locked=False)
        held.resize(size)
    for old in [key for key, known in _known.items() if known.slot == slot]:
        del _known[old]
    _known[id(workspace)] = _Known(weakref.ref(workspace), slot, held)
    return _known[id(workspace)]


def _locked(_result: None, args: Args, _kwargs: Kwargs) -> None:
    """The end of the warm-up: what there is now must do."""
    manager = args[0]
    for slot, workspace in enumerate(manager._current_workspaces):  # noqa: SLF001
        _warmed_up(slot, 0 if workspace is None else workspace.nbytes, locked=True)
    inventory("workspace", _persistent(manager))


def _unlocked(_result: None, _args: Args, _kwargs: Kwargs) -> None:
    """It may grow again. That it would have failed is still worth knowing: the graphs are those of the old one."""
    for slot, size in _warm.items():
        if size:
            _warmed_up(slot, size, locked=False)


def _warmed_up(slot: int, size: int, *, locked: bool) -> None:
    _warm[slot] = size
    if size:
        contract = agreed(_named(SIZE, slot, "/"), own=True)
        contract.claim(_named("workspace", slot), (size,), role="provides", inputs={"locked": locked})


def _refused(error: BaseException, args: Args, kwargs: Kwargs) -> None:
    """It is locked, and too small."""
    if not isinstance(error, AssertionError):
        return
    required, slot = argument("required_bytes", 1, args, kwargs), _slot(args[0])
    site = _claim_need(slot, required)
    contract, sources = agreed(_named(SIZE, slot, "/"), own=True), (_named("workspace", slot), site)
    contract.compare(_warm.get(slot, 0), required, inputs=lambda: {"locked": True}, sources=sources)
    if slot in _buffers:
        _buffers[slot].exhausted(required)


def _claim_need(slot: int, required: int) -> str:
    """Claim what somebody asks for who has less since the warm-up; return who."""
    site, contract = _call_site(), agreed(_named(SIZE, slot, "/"), own=True)
    if all(claim.source != site or (claim.shape[0] or 0) < required for claim in contract.claims):
        contract.claim(site, (required,), role="requires")
    return site


def _call_site() -> str:
    """Return the file and the function that asked, outside of vLLM's manager and of us."""
    frame = sys._getframe(1)  # noqa: SLF001
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith("ullage.") and name != "vllm.v1.worker.workspace":
            return source(f"{name.rpartition('.')[2]}:{frame.f_code.co_name}")
        frame = frame.f_back
    return "unknown"


def _slot(manager: Any) -> int:
    """Return which slot the caller is in; earlier versions have one for each micro-batch."""
    current = getattr(manager, "_get_workspace_id", None)
    if current is None:
        current = sys.modules[type(manager).__module__].dbo_current_ubatch_id
    return int(current())


def _named(what: str, slot: int, mark: str = "-") -> str:
    return f"{what}{mark}{slot}" if slot else what


def _persistent(manager: Any) -> list[TensorInfo]:
    """Return the tensors that callers keep from step to step; there are none before 0.32."""
    found = []
    for resources in getattr(manager, "_persistent_resources", ()):
        for resource in resources.values():
            shape = getattr(resource, "shape", None)
            if shape is not None:
                dtype = str(resource.dtype).removeprefix("torch.")
                place = "host" if resource.device.type == "cpu" else "device"
                found.append(TensorInfo("persistent", tuple(shape), dtype, resource.nbytes, place))
    return found


def _resource_refused(error: BaseException, _args: Args, _kwargs: Kwargs) -> None:
    session.note_exception("WorkspaceManager.get_persistent_resource", error)


_MODULE = "vllm.v1.worker.workspace"
_PROBE = SharedProbe("WorkspaceManager")

HOOKS = (
    Hook(
        _MODULE,
        "WorkspaceManager._ensure_workspace_size",
        ("required_bytes",),
        after=_ensured,
        failed=_refused,
        reads=("WorkspaceManager._current_workspaces",),
        shared=_PROBE,
    ),
    Hook(_MODULE, "WorkspaceManager.lock", after=_locked, shared=_PROBE),
    Hook(_MODULE, "WorkspaceManager.unlock", after=_unlocked, shared=_PROBE),
    Hook(
        _MODULE,
        "WorkspaceManager.get_persistent_resource",
        failed=_resource_refused,
        since=(0, 32),
        shared=_PROBE,
    ),
)
