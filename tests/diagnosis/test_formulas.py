"""Formulas give what was seen."""

from __future__ import annotations

from itertools import product

import pytest

from ullage.engines.vllm.flash_attention import metadata_size
from ullage_sidecar.diagnosis.candidate_formulas import apart, holds
from ullage_sidecar.formulas import Term, evaluate, format_terms, quantity
from ullage_sidecar.formulas.catalogue import BY_ID, FORMULAS, PAIRS
from ullage_sidecar.formulas.flash_attention import SPLITS, VECTORS


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


# -- what the hook computes for itself ------------------------------------------------------------------------------


@pytest.mark.parametrize("facts", list(product((0, 1), (0, 1), (0, 1), (0, 1), (4, 256))))
def test_the_hook_sizes_scheduler_metadata_as_its_formula_does(facts):
    known = dict(zip(("varlen", "dynamic_split", "head_swizzle", "semaphore", "padded_batch"), facts, strict=True))

    assert (metadata_size(known),) == VECTORS.size(known)
