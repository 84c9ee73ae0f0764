"""FlashAttention-3's scheduler metadata, in each step: what was allocated, what the planner made, what a kernel wants.

The planner is called when a batch is prepared, the kernel in the layers, where nothing of ours runs; the size that it
will want follows from the same host numbers. If they don't decide it (a number of splits that a heuristic chooses,
``causal`` as a tensor), nothing is compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.engines.patch import Patch, argument
from ullage.engines.vllm.attention import flash_attention
from ullage.engines.vllm.attention.metadata_builders import PROBE
from ullage.engines.vllm.contract_registry import ContractRegistry
from ullage.engines.vllm.identity import engine_of
from ullage.engines.vllm.views.common import limits_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]

NO_WINDOW = (-1, -1)


def _stores(args: Args, kwargs: Kwargs) -> None:
    """Before it is copied into the tensor that captured graphs read."""
    builder, made = args[0], argument("scheduler_metadata", 1, args, kwargs)
    if made is not None and builder.use_full_cuda_graph:
        _compare_buffer(builder, made)


def _decode_planned(made: Any, args: Args, _kwargs: Kwargs) -> None:
    """The same of multi-head latent attention, whose builder asserts it next."""
    builder = args[0]
    if made is not None and builder.use_full_cuda_graph:
        _compare_buffer(builder, made)


def _compare_buffer(builder: Any, made: Any) -> None:
    config = builder.vllm_config

    def given() -> dict[str, Any]:
        return limits_of(config).inputs("max_num_seqs", max_cudagraph_capture_size=builder.max_cudagraph_size)

    have, need = int(builder.scheduler_metadata.shape[0]), int(made.shape[0])
    contract = engine_of(builder).part(ContractRegistry).contract("attention.metadata_buffer")
    contract.compare(have, need, inputs=given, sources=(type(builder).__name__, "planner"))


def _planned(made: Any, args: Args, kwargs: Kwargs) -> None:
    """Compare the planner's answer with the size that each kind of layer will want."""
    if made is None:
        return
    builder, batch, causal = args[0], kwargs["batch_size"], kwargs["causal"]
    known = {
        "causal": causal if isinstance(causal, bool) else None,
        "seqlen_q": kwargs["max_query_len"],
        "seqlen_k": kwargs["max_seq_len"],
        "head_dim": builder.headdim,
        "paged": True,
    }
    splits = kwargs["max_num_splits"] or None
    swizzled = flash_attention.swizzles(window=builder.aot_sliding_window or NO_WINDOW, **known)
    planned = flash_attention.planned(batch=batch, num_splits=splits, swizzled=swizzled)
    for window in _windows(builder):
        swizzled = flash_attention.swizzles(window=window, **known)
        wanted = flash_attention.wanted(batch=batch, num_splits=splits, swizzled=swizzled, varlen=True)
        _compare(engine_of(builder).part(ContractRegistry), int(made.shape[0]), planned, wanted)


def _compare(sizes: ContractRegistry, size: int, planned: flash_attention.Facts, wanted: flash_attention.Facts) -> None:
    """Compare the size that the planner made with the one that follows from the arguments of the kernel."""
    needed = flash_attention.metadata_size(wanted)
    if needed is not None:
        contract = sizes.contract("attention.scheduler_metadata")
        contract.compare(size, needed, inputs=lambda: (planned, wanted), sources=("planner", "kernel"))


def _windows(builder: Any) -> Iterator[tuple[int, int]]:
    """Yield the windows of the layers that a builder plans for, each once."""
    layers = builder.vllm_config.compilation_config.static_forward_context
    found = (getattr(layers[name].impl, "sliding_window", None) for name in builder.layer_names if name in layers)
    yield from dict.fromkeys(tuple(window) if window else NO_WINDOW for window in found)


_FLASH = "vllm.v1.attention.backends.flash_attn"
_PLANNED = ("batch_size", "max_query_len", "max_seq_len", "causal", "max_num_splits")

PATCHES = (
    Patch(
        _FLASH,
        "FlashAttentionMetadataBuilder._get_scheduler_metadata",
        _PLANNED,
        after=_planned,
        reads=(
            "FlashAttentionMetadataBuilder.aot_sliding_window",
            "FlashAttentionMetadataBuilder.headdim",
            "FlashAttentionMetadataBuilder.layer_names",
        ),
        since=(0, 32),
        shared=PROBE,
    ),
    Patch(
        _FLASH,
        "FlashAttentionMetadataBuilder._store_scheduler_metadata",
        ("scheduler_metadata",),
        before=_stores,
        reads=(
            "FlashAttentionMetadataBuilder.use_full_cuda_graph",
            "FlashAttentionMetadataBuilder.max_cudagraph_size",
            "FlashAttentionMetadataBuilder.scheduler_metadata",
        ),
        since=(0, 32),
        shared=PROBE,
    ),
    Patch(
        "vllm.v1.attention.backends.mla.flashattn_mla",
        "FlashAttnMLAMetadataBuilder._schedule_decode",
        after=_decode_planned,
        reads=(
            "FlashAttnMLAMetadataBuilder.use_full_cuda_graph",
            "FlashAttnMLAMetadataBuilder.max_cudagraph_size",
            "FlashAttnMLAMetadataBuilder.scheduler_metadata",
        ),
        shared=PROBE,
    ),
)
