"""Formulas give what was seen; FlashAttention's facts are derived as each side derives them."""

from __future__ import annotations

import pytest

from ullage.diagnosis.candidate_formulas import apart, holds
from ullage.formulas import Term, evaluate, format_terms, quantity
from ullage.formulas.catalogue import BY_ID, FORMULAS, PAIRS
from ullage.formulas.flash_attention import SPLITS, VECTORS, planned, swizzles, wanted

CAUSAL_DECODE = {"causal": True, "seqlen_q": 1, "seqlen_k": 4096, "head_dim": 128, "paged": True}


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: formula.id)
def test_a_formula_gives_what_was_seen(formula):
    assert formula.tests
    for vector in formula.tests:
        assert formula.size(vector.inputs) == vector.size, vector.origin
    assert {item.name for item in formula.inputs} == {
        name
        for terms in formula.terms
        for term in terms
        for name in (term.operand, term.unit)
        if isinstance(name, str) and name
    }


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: formula.id)
def test_a_formula_says_where_it_was_read_and_for_what(formula):
    assert BY_ID[formula.id] is formula
    assert len(formula.dims) == len(formula.terms)
    assert formula.source
    assert format_terms(formula.terms[0])
    assert formula.versions.startswith("[")
    assert formula.versions.endswith(")")


def test_pairs_name_formulas_that_exist():
    for pair in PAIRS:
        assert BY_ID[pair.provider].quantity == BY_ID[pair.requirement].quantity


def test_a_missing_input_is_not_judged():
    terms = (Term("start", "max_model_len"), Term("ceil_div", "block_size"))

    assert evaluate(terms, {"max_model_len": 100}) is None
    assert evaluate(terms, {"max_model_len": 100, "block_size": 0}) is None
    assert evaluate(terms, {"max_model_len": 100, "block_size": "64"}) is None
    assert evaluate(terms, {"max_model_len": 100, "block_size": 64}) == 2
    assert format_terms(terms) == "ceil(max_model_len / block_size)"
    assert VECTORS.size({"varlen": 1}) is None


def test_the_larger_and_the_smaller_of_two():
    terms = (Term("start", "seqs"), Term("at_least", "graph"), Term("at_most", 100))

    assert [evaluate(terms, {"seqs": seqs, "graph": 64}) for seqs in (16, 80, 200)] == [64, 80, 100]
    assert format_terms(terms) == "min(max(seqs, graph), 100)"


def test_a_contract_of_several_of_a_kind_is_about_the_same_quantity():
    assert quantity("block_table.width/2") == quantity("block_table.width") == "block_table.width"


@pytest.mark.parametrize(
    ("version", "held"), [("0.21.9", False), ("0.22", True), ("0.26.3", True), ("0.27.0", False), (None, True)]
)
def test_a_range_of_versions(version, held):
    assert holds("[0.22, 0.27)", version) is held


def test_ranges_without_a_bound_hold_everything():
    assert holds("[, )", "0.1")
    assert holds("[0.17, )", "9.9")


def test_eras_are_apart_if_no_version_is_in_both():
    assert apart(VECTORS, SPLITS)
    assert not apart(VECTORS, VECTORS)


# -- FlashAttention-3 -----------------------------------------------------------------------------------------------


def sizes(era, *, batch, num_splits, swizzled=True, varlen=True, formula=VECTORS, **options):
    ours = planned(era=era, batch=batch, num_splits=num_splits, swizzled=swizzled, **options)
    theirs = wanted(era=era, batch=batch, num_splits=num_splits, swizzled=swizzled, varlen=varlen, **options)
    return formula.size(ours), formula.size(theirs)


@pytest.mark.parametrize("batch", [1, 4, 5, 256, 992, 993])
@pytest.mark.parametrize("num_splits", [1, 32])
@pytest.mark.parametrize("swizzled", [False, True])
def test_with_lengths_of_each_sequence_planner_and_kernel_agree(batch, num_splits, swizzled):
    have, need = sizes("C", batch=batch, num_splits=num_splits, swizzled=swizzled)

    assert have == need
    vectors = 1 + swizzled + (num_splits > 1 and batch <= 992)
    assert have == (1 + -(-batch // 4) * 4 * vectors,)


def test_without_them_the_kernel_wants_5_of_9():
    assert sizes("C", batch=4, num_splits=1, varlen=False) == ((9,), (5,))


@pytest.mark.parametrize(("batch", "size"), [(8, 9), (1, 2), (993, 1)])
def test_the_first_era_has_a_number_for_each_sequence(batch, size):
    assert sizes("A", batch=batch, num_splits=0, formula=SPLITS) == ((size,), (size,))


def test_in_the_second_era_one_split_needs_no_numbers():
    assert sizes("B", batch=8, num_splits=1, formula=SPLITS) == ((1,), (1,))
    assert sizes("B", batch=8, num_splits=0, formula=SPLITS) == ((9,), (9,))
    assert sizes("B", batch=8, num_splits=0, varlen=False, formula=SPLITS) == ((9,), (1,))


def test_before_hopper_the_semaphore_follows_from_the_arguments():
    assert sizes("C", batch=4, num_splits=1, swizzled=False, arch=89) == ((4,), (4,))
    assert sizes("C", batch=4, num_splits=2, swizzled=False, arch=89) == ((9,), (9,))
    assert sizes("C", batch=4, num_splits=1, swizzled=True, varlen=False, arch=89) == ((8,), (5,))


def test_what_a_heuristic_chooses_is_not_judged():
    facts = planned(era="C", batch=4, num_splits=0, swizzled=True)

    assert "dynamic_split" not in facts
    assert VECTORS.size(facts) is None


def test_what_is_not_known_of_causal_is_not_judged():
    assert swizzles(**CAUSAL_DECODE | {"causal": None}) is None
    assert "head_swizzle" not in planned(era="C", batch=4, num_splits=1, swizzled=None)


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
