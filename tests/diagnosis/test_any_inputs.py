"""Whatever two sides recorded as inputs, the diagnosis of their sizes ends, and says something of bounded length."""

from __future__ import annotations

import math

import pytest
from harness import LONG
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.segment.agreement import Claim
from ullage_sidecar.diagnosis import vocabulary
from ullage_sidecar.diagnosis.explain import explain
from ullage_sidecar.diagnosis.finding import MAX_TEXT
from ullage_sidecar.formulas.catalogue import catalogue

FORMULAS = catalogue().formulas
CONTRACTS = sorted({formula.quantity for formula in FORMULAS} | {"something else"})
NAMES = sorted(
    {item.name for formula in FORMULAS for item in formula.inputs}
    | {*vocabulary.LOOK_AHEAD, *vocabulary.PARALLEL, *vocabulary.GRAPHS, *vocabulary.COUNTED_IN, *vocabulary.LOCKED}
    | {"engine_version", "columns", "rows", "block_size", "manager_block_size", "block_stride", "index_limit"}
    | {"fields_per_seq", "connector_fields.one", "connector_fields.two", "reserved_slots", "kv_role", "anything"}
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=40),
    st.sampled_from(["auto", "0.32.0", "nightly"]),
)
INPUTS = st.dictionaries(st.sampled_from(NAMES), SCALARS, max_size=8)
SIZES = st.integers(0, 300) | st.integers(0, 20_000) | st.integers(0, 2**63 - 1)
ROLES = st.sampled_from(["is", "requires"])


@st.composite
def sides(draw):
    """Two claims of different sizes, with inputs of the same names half the time."""
    have = draw(SIZES)
    need = draw(SIZES.filter(lambda size: size != have))
    others = tuple(draw(st.lists(SIZES | st.none(), max_size=2)))
    ours, theirs = draw(INPUTS), draw(INPUTS)
    if draw(st.booleans()):
        theirs = {name: draw(SCALARS) for name in ours}
    requirement = Claim("builder", draw(ROLES), (need, *others), theirs)
    return Claim("runner", "is", (have, *others), ours), requirement


@settings(max_examples=2_000 if LONG else 300, deadline=None, derandomize=True)
@given(st.sampled_from(CONTRACTS), st.sampled_from(["==", ">="]), sides())
def test_an_explanation_never_raises(contract, relation, said):
    provider, requirement = said
    relations = (relation,) * 3

    finding = explain(contract, provider, requirement, relations=relations)

    assert 0 < len(finding.text) <= MAX_TEXT
    assert math.isclose(sum(finding.shares), 1)
    assert all(cause.text and len(cause.text) <= MAX_TEXT for cause in finding.rivals)


@pytest.mark.parametrize("other", ["auto", None, True, 4096.0, 0], ids=str)
@pytest.mark.parametrize("name", ["max_model_len", "columns", "block_size", "rows", "block_stride", "index_limit"])
def test_an_input_of_another_type_is_compared_with_nothing(name, other):
    """One side says "auto" where the other says 4096."""
    known = {"columns": 32, "block_size": 4, "rows": 3, "block_stride": 276_480, "max_model_len": 4096}
    for have, need, relation in ((9, 4, "=="), (128, 53_000, ">="), (7768, 9000, ">=")):
        for ours, theirs in ((known, known | {name: other}), (known | {name: other}, known)):
            provider, requirement = Claim("a", "provides", (have,), ours), Claim("b", "requires", (need,), theirs)

            assert explain("block_table.tokens", provider, requirement, relations=(relation,)).rivals


def test_connector_fields_that_are_no_numbers_are_not_added_up():
    flat = Claim("planner", "is", (64,), {})
    wide = Claim("connector", "is", (64, 3), {"connector_fields.one": "two", "connector_fields.two": None})

    assert explain("scheduler_metadata", flat, wide).rivals
