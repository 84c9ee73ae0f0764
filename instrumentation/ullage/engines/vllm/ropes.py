"""Caches of rotary embeddings: a row for each position that a sequence can reach, in the model and in the draft."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.engines.vllm._sizes import agreed, inputs, source

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS, DRAFT = "rope.rows", "rope.rows/draft"


def claim(runner: Any) -> None:
    """Claim the rows of the caches that the attention layers with a KV cache read."""
    config = runner.vllm_config
    layers = {id(layer) for layer in config.compilation_config.static_forward_context.values()}
    if _claim(ROWS, getattr(runner, "model", None), layers, config):
        needed = inputs(config, max_model_len=runner.max_model_len)
        agreed(ROWS).claim("model runner", (runner.max_model_len,), role="requires", inputs=needed)
    if _claim(DRAFT, getattr(getattr(runner, "drafter", None), "model", None), layers, config):
        # Beyond its own limit, the runner asks the draft for nothing.
        longest = runner.effective_drafter_max_model_len
        agreed(DRAFT).claim("drafter", (longest,), role="requires", inputs={"draft_max_model_len": longest})


def _claim(size: str, model: Any, layers: set[int], config: Any) -> bool:
    found = list(_ropes(model, layers))
    for number, (rope, rows) in enumerate(found):
        name = source("rotary embedding", type(rope).__name__ + (f" {number}" if number else ""))
        trained = getattr(rope, "max_position_embeddings", None)
        given = inputs(config, "max_model_len", max_position_embeddings=trained)
        agreed(size).claim(name, (rows,), role="provides", inputs=given)
    return bool(found)


def _ropes(model: Any, layers: set[int]) -> Iterator[tuple[Any, int]]:
    """Yield each rotary embedding once that stands beside an attention layer of ``layers``; not an encoder's own."""
    seen: set[int] = set()
    for module in model.modules() if hasattr(model, "modules") else ():
        children = list(module.children())
        rope = getattr(module, "rotary_emb", None)
        cache = getattr(rope, "cos_sin_cache", None)
        if cache is None or id(rope) in seen or not any(id(child) in layers for child in children):
            continue
        seen.add(id(rope))
        yield rope, int(cache.shape[0])
