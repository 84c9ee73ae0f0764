"""The V2 runner's tensors in host memory that the device reads (UVA), and the pools of them, which grow.

A pool grows without a word when more is written than it was made for: to the next power of two. To look at each
write would cost too much, some twenty a step. But a pool that grows allocates a buffer, which is rare: so it is
allocations that are watched, and after a step with one the pools are looked through.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ullage.engines.patch import Patch
from ullage.engines.probe import SharedProbe
from ullage.recording.inventory import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ullage.engines.instance import EngineInstance
    from ullage.recording.buffers import Buffer

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]

GROWS_SINCE = (0, 32)
"""As far as was read: in 0.27 a write that is too long for a pool is refused."""

_OURS = "vllm.v1.worker."
"""What is defined in here holds tensors; models and configurations are not looked into."""


class _Allocations:
    """Buffers that were allocated in this process, whichever pool they are for."""

    count = 0


class Pools:
    """The pools of one engine instance's runner."""

    def __init__(self, engine: EngineInstance) -> None:
        self._engine = engine
        self._pools: tuple[tuple[str, weakref.ref[Any]], ...] = ()
        self._allocations = 0
        self._grown: dict[str, Buffer] = {}

    def watch(self, runner: Any) -> None:
        """Watch the pools of ``runner``, by the attributes that lead there."""
        self._pools = tuple((name, weakref.ref(pool)) for name, pool in _find(runner, "UvaBufferPool"))

    def check(self) -> None:
        """Record which pools have grown, if any may have since the last check."""
        if self._allocations != _Allocations.count:
            self._allocations = _Allocations.count
            for name, reference in self._pools:
                pool = reference()
                if pool is not None:
                    self._compare(name, pool)

    def _compare(self, name: str, pool: Any) -> None:
        """Compare the largest of a pool's buffers, which take turns, with the size that they were made for."""
        planned = pool.size if isinstance(pool.size, int) else pool.size[0]
        largest = max(int(one.cpu.shape[0]) for one in pool._uva_bufs)  # noqa: SLF001  as vLLM names it
        if largest > planned:
            if name not in self._grown:
                self._grown[name] = self._engine.buffer(
                    f"uva_pool.{name}", capacity=planned, unit="elements", kind="fixed", location="pinned"
                )
            self._grown[name].resize(largest)


def held(owner: Any) -> Iterator[TensorInfo]:
    """Yield what ``owner`` holds, one entry for each attribute: its first tensor, and the bytes of all. No contents."""
    for attribute, value in vars(owner).items() if owner is not None else ():
        tensors = [tensor for _, tensor in _find(value, "Tensor")]
        if tensors:
            yield TensorInfo(
                attribute,
                tuple(tensors[0].shape),
                str(tensors[0].dtype).removeprefix("torch."),
                sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values()),
                _location(value, tensors[0]),
            )


def _location(holder: Any, tensor: Any) -> str:
    if tensor.device.type == "cpu":
        return "host"
    seen_by_device = type(holder).__name__ == "UvaBackedTensor" or hasattr(holder, "_uva_buf")
    return "pinned" if seen_by_device else "device"


def _find(root: Any, kind: str) -> Iterator[tuple[str, Any]]:
    """Yield the objects of a type that hang on ``root``, each once, with the attributes that lead there."""
    ahead, seen = [("", root)], set()
    while ahead:
        path, thing = ahead.pop(0)
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if type(thing).__name__ == kind:
            yield path, thing
        elif isinstance(thing, (list, tuple)) and thing and _inside(thing[0], kind):
            ahead += [(f"{path}-{number}", each) for number, each in enumerate(thing)]
        elif _inside(thing, kind):
            ahead += [(f"{path}.{name}".lstrip("."), value) for name, value in vars(thing).items()]


def _inside(thing: Any, kind: str) -> bool:
    return type(thing).__name__ == kind or (type(thing).__module__.startswith(_OURS) and hasattr(thing, "__dict__"))


def _allocated(_result: None, _args: Args, _kwargs: Kwargs) -> None:
    _Allocations.count += 1


_PROBE = SharedProbe("v2.UvaBufferPool", waits=True)
_MODULE, _CPU = "vllm.v1.worker.gpu.buffer_utils", "vllm.v1.worker.cpu.buffer_utils"

PATCHES = (
    Patch(
        _MODULE,
        "UvaBuffer.__init__",
        after=_allocated,
        reads=("UvaBufferPool.size", "UvaBufferPool._uva_bufs", "UvaBuffer.cpu"),
        since=GROWS_SINCE,
        shared=_PROBE,
    ),
    Patch(_MODULE, "NonUvaBuffer.__init__", after=_allocated, since=GROWS_SINCE, shared=_PROBE),
    Patch(_CPU, "UvaBuffer.__init__", after=_allocated, since=GROWS_SINCE, shared=_PROBE),
)
