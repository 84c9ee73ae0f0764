"""What the views of both runners have in common: limits, drafts of a step, rotary caches, graphs, tensors."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

from ullage import safety
from ullage.engines.registry import parsed
from ullage.engines.runner_view import DraftStep, Graphs, Limits, RotaryCache
from ullage.recording.inventory import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ullage.engines.runner_view import Builder

T = TypeVar("T")

RESERVES_IN_ADVANCE = (0, 28)
"""Before, the largest step is made smaller by the slots that all requests may add."""
RESERVES_PER_REQUEST = (0, 32)
"""Since, the scheduler counts the slots of each request that it schedules. Between the two nothing was read."""

_TENSORS = ("Tensor", "Parameter")
_POSITIONAL = "FullAttentionSpec"
"""The kind of cache, with those derived from it, whose tables have a column for each block of a sequence."""


def part(name: str, read: Callable[[], T], missing: T) -> T:
    """Return what ``read`` reads of a runner; ``missing`` if that fails, which leaves the other parts as they are."""
    with safety.shield(f"runner view: {name}"):
        return read()
    return missing


def parts(name: str, read: Callable[[], Iterable[T]]) -> tuple[T, ...]:
    """Return what ``read`` gives of a runner, in its order; nothing if that fails."""
    none: tuple[T, ...] = ()
    return part(name, lambda: tuple(read()), none)


def look_ahead_tokens(config: Any) -> int:
    """Return the tokens that a step drafts for each sequence."""
    speculative = config.speculative_config
    return (speculative.num_speculative_tokens or 0) if speculative is not None else 0


def limits_of(config: Any) -> Limits:
    """Return the limits of a configuration as they are in force now."""
    return Limits(
        max_model_len=config.model_config.max_model_len,
        max_num_seqs=config.scheduler_config.max_num_seqs,
        max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        num_speculative_tokens=look_ahead_tokens(config),
        decode_context_parallel_size=config.parallel_config.decode_context_parallel_size,
    )


def engine_version() -> tuple[int, int] | None:
    """Return the first two numbers of the version of vLLM that is loaded; None if it says none."""
    return parsed(str(getattr(sys.modules.get("vllm"), "__version__", "")))


def draft_step(config: Any) -> DraftStep | None:
    """Return the limits of a step; None if it is not known how the scheduler reserves slots for drafts."""
    version, scheduler, speculative = engine_version(), config.scheduler_config, config.speculative_config
    tokens = scheduler.max_num_scheduled_tokens
    if version is None or speculative is None or not tokens:
        return None
    requests = getattr(scheduler, "max_num_active_seqs", None) or scheduler.max_num_seqs
    if version < RESERVES_IN_ADVANCE:
        return DraftStep(tokens, requests, rows=tokens, reserved=0)
    reserved = getattr(speculative, "max_num_new_slots_for_drafting", None)
    if version < RESERVES_PER_REQUEST or reserved is None:
        return None
    return DraftStep(tokens, requests, rows=scheduler.max_num_batched_tokens, reserved=reserved)


def layer_spec(spec: Any) -> Any:
    """Return the specification of one layer's cache, of a group that may have one for each layer."""
    each = getattr(spec, "kv_cache_specs", None)
    return next(iter(each.values())) if each else spec


def is_positional(spec: Any) -> bool:
    """Tell whether tables of this kind of cache have a column for each block of a sequence."""
    return any(base.__name__ == _POSITIONAL for base in type(spec).__mro__)


def graphs(batches: Iterable[Any], config: Any) -> Graphs:
    """Return the largest graphs of those that will be captured, from the batches that they are for."""
    tokens = requests = 0
    for batch in batches:
        tokens = max(tokens, batch.num_tokens or 0)
        requests = max(requests, batch.num_reqs or 0)  # a graph of pieces has no limit of requests
    return Graphs(tokens, requests, getattr(config.compilation_config, "max_cudagraph_capture_size", None))


def rotary_caches(model: Any, config: Any) -> tuple[RotaryCache, ...]:
    """Return the caches of rotary embeddings next to an attention layer with a KV cache; not an encoder's own."""
    layers = {id(layer) for layer in config.compilation_config.static_forward_context.values()}
    found: dict[int, Any] = {}
    for module in model.modules() if hasattr(model, "modules") else ():
        rope = getattr(module, "rotary_emb", None)
        has_cache = getattr(rope, "cos_sin_cache", None) is not None
        if has_cache and any(id(child) in layers for child in module.children()):
            found[id(rope)] = rope
    return tuple(
        RotaryCache(
            name=type(rope).__name__ + (f" {number}" if number else ""),
            rows=int(rope.cos_sin_cache.shape[0]),
            max_position_embeddings=getattr(rope, "max_position_embeddings", None),
        )
        for number, rope in enumerate(found.values())
    )


def tensors_of_builders(builders: Iterable[Builder]) -> dict[str, tuple[TensorInfo, ...]]:
    """Return the tensors that metadata builders hold, by their class."""
    found: dict[str, tuple[TensorInfo, ...]] = {}
    for builder in builders:
        found[builder.name] = (*found.get(builder.name, ()), *tensors(vars(builder.engine_object)))
    return found


def tensors(attributes: Mapping[str, Any]) -> Iterator[TensorInfo]:
    """Yield the tensors among an object's attributes, and its pairs of one on the host and one on the device.

    Reads shapes, never contents.
    """
    for name, value in attributes.items():
        kind = type(value).__name__
        if kind == "CpuGpuBuffer":
            host, device = value.cpu, value.gpu
            alias = device is host or device.data_ptr() == host.data_ptr()
            yield _tensor_info(name, device, host.nbytes + (0 if alias else device.nbytes))
        elif kind in _TENSORS:
            yield _tensor_info(name, value, value.nbytes)


def _tensor_info(name: str, tensor: Any, nbytes: int) -> TensorInfo:
    place = "host" if tensor.device.type == "cpu" else "device"
    return TensorInfo(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), nbytes, place)
