"""FlashAttention-3's scheduler metadata: the facts that its planner and its kernel derive, and the size they give.

Both sides derive the same few facts from their own arguments, and each can get one wrong. Only plain values go in: a
caller that holds a tensor for ``causal`` passes None, and a size that depends on it is not judged.

Source: vllm-project/flash-attention 617264c1, hopper/flash_api.cpp, mha_fwd_get_scheduler_metadata and mha_fwd; as
built by vLLM 0.17 and later.
"""

from __future__ import annotations

Facts = dict[str, int]
"""``varlen``, ``dynamic_split``, ``head_swizzle`` and ``semaphore`` (0 or 1), and ``padded_batch`` (sequences)."""

MAX_BATCH_OF_ONE_CTA = 992
HOPPER = 90
NAMES = frozenset({"varlen", "dynamic_split", "head_swizzle", "semaphore", "padded_batch"})


def metadata_size(facts: Facts) -> int | None:
    """Return the numbers in the metadata tensor: vectors of the padded batch, and a semaphore.

    None if a fact is not known. Source: see the module.
    """
    if not facts.keys() >= NAMES:
        return None
    vectors = (facts["dynamic_split"] + 1) * facts["varlen"] + facts["head_swizzle"]
    return vectors * facts["padded_batch"] + facts["semaphore"]


def swizzles(
    *,
    causal: bool | None,
    window: tuple[int, int] = (-1, -1),
    seqlen_q: int,
    seqlen_k: int,
    head_dim: int,
    paged: bool,
) -> bool | None:
    """Return whether heads are swizzled: causal or local attention, after both sides normalised their arguments.

    None if ``causal`` is not known (a tensor must not be evaluated).
    """
    if causal is None:
        return None
    left, right = window
    left = -1 if left >= seqlen_k - 1 else left
    right = -1 if right >= seqlen_q - 1 else right
    if seqlen_q == 1 and left == right == -1 and (head_dim <= 64 or head_dim > 128 or not paged):
        causal = False
    if causal:
        right = 0
    return (left < 0 and right == 0) or left >= 0 or right >= 0


def planned(*, batch: int, num_splits: int | None, swizzled: bool | None, arch: int = HOPPER) -> Facts:
    """Return the facts that the planner's size follows from.

    Args:
        batch: Sequences.
        num_splits: As passed; 0 and None leave the choice to a heuristic, and what depends on it is left out.
        swizzled: As ``swizzles`` returns.
        arch: Compute capability, 90 for 9.0.
    """
    split = None if not num_splits else batch <= MAX_BATCH_OF_ONE_CTA and num_splits > 1
    semaphore = arch >= HOPPER or bool(split)
    return _facts(batch, varlen=True, semaphore=semaphore, dynamic_split=split, head_swizzle=swizzled)


def wanted(*, batch: int, num_splits: int | None, swizzled: bool | None, varlen: bool, arch: int = HOPPER) -> Facts:
    """Return the facts that the kernel's size follows from; ``varlen``: it is given lengths of each sequence."""
    split = None if not num_splits else varlen and batch <= MAX_BATCH_OF_ONE_CTA and num_splits > 1
    if arch >= HOPPER:
        semaphore = varlen or (bool(swizzled) and num_splits == 1)
    else:
        semaphore = (bool(swizzled) and not varlen) or bool(split)
    return _facts(batch, varlen=varlen, semaphore=semaphore, dynamic_split=split, head_swizzle=swizzled)


def _facts(batch: int, **flags: bool | None) -> Facts:
    """Return the facts as numbers; without those that are not known."""
    known = {name: int(flag) for name, flag in flags.items() if flag is not None}
    return {"padded_batch": -(-batch // 4) * 4, **known}
