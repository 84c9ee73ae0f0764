"""FlashAttention-3's scheduler metadata: planner and kernel derive their facts as the library's source does."""

from __future__ import annotations

import pytest

from ullage.engines.vllm.attention.flash_attention import metadata_size, planned, swizzles, wanted

CAUSAL_DECODE = {"causal": True, "seqlen_q": 1, "seqlen_k": 4096, "head_dim": 128, "paged": True}


def sizes(*, batch, num_splits, swizzled=True, varlen=True, **options):
    """The sizes of planner and kernel."""
    ours = planned(batch=batch, num_splits=num_splits, swizzled=swizzled, **options)
    theirs = wanted(batch=batch, num_splits=num_splits, swizzled=swizzled, varlen=varlen, **options)
    return metadata_size(ours), metadata_size(theirs)


@pytest.mark.parametrize("batch", [1, 4, 5, 256, 992, 993])
@pytest.mark.parametrize("num_splits", [1, 32])
@pytest.mark.parametrize("swizzled", [False, True])
def test_with_lengths_of_each_sequence_planner_and_kernel_agree(batch, num_splits, swizzled):
    have, need = sizes(batch=batch, num_splits=num_splits, swizzled=swizzled)

    assert have == need
    vectors = 1 + swizzled + (num_splits > 1 and batch <= 992)
    assert have == 1 + -(-batch // 4) * 4 * vectors


def test_without_them_the_kernel_wants_5_of_9():
    assert sizes(batch=4, num_splits=1, varlen=False) == (9, 5)


def test_before_hopper_the_semaphore_follows_from_the_arguments():
    assert sizes(batch=4, num_splits=1, swizzled=False, arch=89) == (4, 4)
    assert sizes(batch=4, num_splits=2, swizzled=False, arch=89) == (9, 9)
    assert sizes(batch=4, num_splits=1, swizzled=True, varlen=False, arch=89) == (8, 5)


def test_what_a_heuristic_chooses_is_not_judged():
    facts = planned(batch=4, num_splits=0, swizzled=True)

    assert "dynamic_split" not in facts
    assert metadata_size(facts) is None


def test_what_is_not_known_of_causal_is_not_judged():
    assert swizzles(**CAUSAL_DECODE | {"causal": None}) is None
    assert "head_swizzle" not in planned(batch=4, num_splits=1, swizzled=None)


@pytest.mark.parametrize(
    ("changed", "swizzled"),
    [
        ({}, True),
        ({"head_dim": 64}, False),
        ({"head_dim": 256}, False),
        ({"paged": False}, False),
        ({"seqlen_q": 2, "head_dim": 64}, True),
        ({"causal": False}, False),
        ({"causal": False, "window": (1023, 0)}, True),
        ({"causal": False, "window": (4095, -1)}, False),
        ({"window": (5000, 5000), "head_dim": 256}, False),
    ],
)
def test_heads_are_swizzled_for_causal_and_local_attention_as_it_is_normalised(changed, swizzled):
    assert swizzles(**CAUSAL_DECODE | changed) is swizzled
