"""The encoder cache, in the engine core: embeddings of images and sounds that requests still need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.engines.instance import Bindings
from ullage.engines.patch import Patch, argument
from ullage.engines.probe import SharedProbe

if TYPE_CHECKING:
    from ullage.engines.instance import EngineInstance
    from ullage.recording.buffers import Buffer

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]

_caches: Bindings[Buffer] = Bindings()
"""By the manager of a scheduler."""


def created(engine: EngineInstance, manager: Any) -> bool:
    """Register the cache of a scheduler, if it has one: a model without an encoder has a manager of nothing."""
    size = manager.cache_size if hasattr(manager, "num_free_slots") else 0
    if size:
        cache = engine.buffer(
            "encoder_cache", capacity=size, unit="embeddings", kind="managed", limit="encoder_cache_size"
        )
        _caches.bind(manager, cache)
    return bool(size)


def observe(manager: Any) -> None:
    """Observe it. What no request needs is evicted only when its place is needed: it is not in use."""
    cache = _caches.get(manager)
    if cache is not None:
        free = getattr(manager, "num_freeable_slots", manager.num_free_slots)
        cache.observe(manager.cache_size - free)


def _asked(allowed: bool, args: Args, kwargs: Kwargs) -> None:  # noqa: FBT001  the function's result
    """No place for an input: its request waits. What the compute budget denied, the cache did not."""
    cache = _caches.get(args[0])
    if not allowed and cache is not None:
        needed = argument("request", 1, args, kwargs).get_num_encoder_embeds(argument("input_id", 2, args, kwargs))
        if needed <= argument("encoder_compute_budget", 3, args, kwargs):
            cache.deferred()


_MODULE = "vllm.v1.core.encoder_cache_manager"
_PROBE = SharedProbe("EncoderCacheManager.can_allocate")
_PARAMETERS = ("request", "input_id", "encoder_compute_budget")

PATCHES = (
    Patch(_MODULE, "EncoderCacheManager.can_allocate", _PARAMETERS, after=_asked, shared=_PROBE),
    Patch(_MODULE, "EncoderDecoderCacheManager.can_allocate", _PARAMETERS, after=_asked, shared=_PROBE),
)
