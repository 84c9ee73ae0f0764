"""The encoder cache, in the engine core: embeddings of images and sounds that requests still need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.buffers import Buffer, buffer
from ullage.engines._patch import Hook, argument
from ullage.engines._probe import SharedProbe

if TYPE_CHECKING:
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


class _Watched:
    """The cache of this process's scheduler."""

    cache: Buffer | None = None


_watched = _Watched()


def created(manager: Any) -> bool:
    """Register the cache of a scheduler, if it has one: a model without an encoder has a manager of nothing."""
    size = manager.cache_size if hasattr(manager, "num_free_slots") else 0
    _watched.cache = (
        buffer("encoder_cache", capacity=size, unit="embeddings", kind="managed", limit="encoder_cache_size")
        if size
        else None
    )
    return bool(size)


def observe(manager: Any) -> None:
    """Observe it. What no request needs is evicted only when its place is needed: it is not in use."""
    if _watched.cache is not None:
        free = getattr(manager, "num_freeable_slots", manager.num_free_slots)
        _watched.cache.observe(manager.cache_size - free)


def _asked(allowed: bool, args: Args, kwargs: Kwargs) -> None:  # noqa: FBT001  the function's result
    """No place for an input: its request waits. What the compute budget denied, the cache did not."""
    if not allowed and _watched.cache is not None:
        needed = argument("request", 1, args, kwargs).get_num_encoder_embeds(argument("input_id", 2, args, kwargs))
        if needed <= argument("encoder_compute_budget", 3, args, kwargs):
            _watched.cache.deferred()


_MODULE = "vllm.v1.core.encoder_cache_manager"
_PROBE = SharedProbe("EncoderCacheManager.can_allocate")
_PARAMETERS = ("request", "input_id", "encoder_compute_budget")

HOOKS = (
    Hook(_MODULE, "EncoderCacheManager.can_allocate", _PARAMETERS, after=_asked, shared=_PROBE),
    Hook(_MODULE, "EncoderDecoderCacheManager.can_allocate", _PARAMETERS, after=_asked, shared=_PROBE),
)
