"""Scratch memory of kernels, in a worker: what callers ask for and what there is, before and after it is locked.

It grows with the largest request until the warm-up ends and vLLM locks it. A caller that asks for more then fails;
where it is never locked it grows, and graphs that were captured with the old one point to freed memory.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from ullage.engines.patch import Patch, argument
from ullage.engines.probe import SharedProbe
from ullage.engines.vllm.contract_registry import ContractRegistry, source
from ullage.engines.vllm.identity import engine_of
from ullage.recording.inventory import TensorInfo, inventory

if TYPE_CHECKING:
    from collections.abc import Callable

    from ullage.engines.instance import EngineInstance
    from ullage.recording.buffers import Buffer
    from ullage.recording.contracts import Contract

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]

SIZE = "workspace.bytes"


class _Known(NamedTuple):
    """A workspace that was seen before."""

    tensor: Callable[[], Any]
    slot: int
    buffer: Buffer


class Workspaces:
    """The workspaces of one engine instance. vLLM has one for each micro-batch and lane: a slot."""

    def __init__(self, engine: EngineInstance) -> None:
        self._engine = engine
        self._sizes = engine.part(ContractRegistry)
        self._known: dict[int, _Known] = {}  # by id of the tensor
        self._buffers: dict[int, Buffer] = {}  # by slot
        self._warm: dict[int, int] = {}  # by slot: its bytes when the warm-up ended

    def ensured(self, manager: Any, workspace: Any, required: int) -> None:
        """A caller asked for ``required`` bytes, and got ``workspace``."""
        known = self._known.get(id(workspace))
        if known is None or known.tensor() is not workspace:
            known = self._allocated(manager, workspace)
        self._engine.observe(known.buffer, required)
        if required > self._warm.get(known.slot, required):
            self._claim_need(known.slot, required)

    def _allocated(self, manager: Any, workspace: Any) -> _Known:
        """A workspace that was not seen before: the first of its slot, or a larger one in its place."""
        workspaces = manager._current_workspaces  # noqa: SLF001  as vLLM names it
        slot = next(number for number, one in enumerate(workspaces) if one is workspace)
        size, phase = workspace.nbytes, self._engine.phase
        held = self._buffers.get(slot)
        if held is None:
            held = self._buffers[slot] = self._engine.buffer(
                _named("workspace", slot),
                capacity=size,
                unit="bytes",
                kind="fixed",
                location="host" if workspace.device.type == "cpu" else "device",
                limit="largest request of the warm-up",
            )
        elif size != held.capacity:
            if slot not in self._warm and phase.current and not phase.dummy:
                self._warmed_up(slot, held.capacity, locked=False)
            held.resize(size)
        for old in [key for key, known in self._known.items() if known.slot == slot]:
            del self._known[old]
        self._known[id(workspace)] = _Known(weakref.ref(workspace), slot, held)
        return self._known[id(workspace)]

    def locked(self, manager: Any) -> None:
        """The end of the warm-up: what there is now must do."""
        for slot, workspace in enumerate(manager._current_workspaces):  # noqa: SLF001
            self._warmed_up(slot, 0 if workspace is None else workspace.nbytes, locked=True)
        inventory(self._engine, "workspace", _persistent(manager))

    def unlocked(self) -> None:
        """It may grow again. That it would have failed is still worth knowing: the graphs are those of the old one."""
        for slot, size in self._warm.items():
            if size:
                self._warmed_up(slot, size, locked=False)

    def refused(self, slot: int, required: int) -> None:
        """It is locked, and too small."""
        site = self._claim_need(slot, required)
        contract, sources = self._contract(slot), (_named("workspace", slot), site)
        contract.compare(self._warm.get(slot, 0), required, inputs=lambda: {"locked": True}, sources=sources)
        if slot in self._buffers:
            self._buffers[slot].exhausted(required)

    def _warmed_up(self, slot: int, size: int, *, locked: bool) -> None:
        self._warm[slot] = size
        if size:
            self._contract(slot).claim(_named("workspace", slot), (size,), role="provides", inputs={"locked": locked})

    def _claim_need(self, slot: int, required: int) -> str:
        """Claim what a caller asks for that has less since the warm-up; return its call site."""
        site, contract = _call_site(), self._contract(slot)
        if all(claim.source != site or (claim.shape[0] or 0) < required for claim in contract.claims):
            contract.claim(site, (required,), role="requires")
        return site

    def _contract(self, slot: int) -> Contract:
        return self._sizes.contract(_named(SIZE, slot, "/"), own=True)


def _ensured(workspace: Any, args: Args, kwargs: Kwargs) -> None:
    required = argument("required_bytes", 1, args, kwargs)
    engine_of(args[0]).part(Workspaces).ensured(args[0], workspace, required)


def _refused(error: BaseException, args: Args, kwargs: Kwargs) -> None:
    if isinstance(error, AssertionError):
        required = argument("required_bytes", 1, args, kwargs)
        engine_of(args[0]).part(Workspaces).refused(_slot(args[0]), required)


def _locked(_result: None, args: Args, _kwargs: Kwargs) -> None:
    engine_of(args[0]).part(Workspaces).locked(args[0])


def _unlocked(_result: None, args: Args, _kwargs: Kwargs) -> None:
    engine_of(args[0]).part(Workspaces).unlocked()


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


def _resource_refused(error: BaseException, args: Args, _kwargs: Kwargs) -> None:
    engine_of(args[0]).session.note_exception("WorkspaceManager.get_persistent_resource", error)


_MODULE = "vllm.v1.worker.workspace"
_PROBE = SharedProbe("WorkspaceManager")

PATCHES = (
    Patch(
        _MODULE,
        "WorkspaceManager._ensure_workspace_size",
        ("required_bytes",),
        after=_ensured,
        failed=_refused,
        reads=("WorkspaceManager._current_workspaces",),
        shared=_PROBE,
    ),
    Patch(_MODULE, "WorkspaceManager.lock", after=_locked, shared=_PROBE),
    Patch(_MODULE, "WorkspaceManager.unlock", after=_unlocked, shared=_PROBE),
    Patch(
        _MODULE,
        "WorkspaceManager.get_persistent_resource",
        failed=_resource_refused,
        since=(0, 32),
        shared=_PROBE,
    ),
)
