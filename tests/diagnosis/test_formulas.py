"""Formulas give what was seen in a real call or in a report."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import tomllib

from ullage.engines.vllm.attention.flash_attention import metadata_size
from ullage_sidecar.diagnosis.candidate_formulas import apart, holds
from ullage_sidecar.formulas import Term, evaluate, format_terms, quantity
from ullage_sidecar.formulas.catalogue import FAMILIES, catalogue

HERE = Path(__file__).parent
FORMULAS = {formula.id: formula for formula in catalogue().formulas}
VECTORS = [
    vector for path in sorted(HERE.glob("vectors/*.toml")) for vector in tomllib.loads(path.read_text())["vector"]
]
PADDED_VECTORS, NUMBERS_OF_SEQUENCES = FORMULAS["flash_attention.metadata.C"], FORMULAS["flash_attention.metadata.AB"]


def is_identity(formula):
    """Whether each size of a formula is one of its inputs: a vector of it would compare a number with itself."""
    return all(len(terms) == 1 and isinstance(terms[0].operand, str) for terms in formula.terms)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['formula']}, {vector['origin']}")
def test_a_formula_gives_what_was_seen(vector):
    assert FORMULAS[vector["formula"]].size(vector["inputs"]) == tuple(vector["size"])
    assert vector["origin"]


def test_each_formula_that_computes_something_has_a_vector_and_no_other():
    with_vector = {vector["formula"] for vector in VECTORS}

    assert with_vector == {name for name, formula in FORMULAS.items() if not is_identity(formula)}


def test_a_vector_gives_the_inputs_of_its_formula():
    for vector in VECTORS:
        assert vector["inputs"].keys() == {item.name for item in FORMULAS[vector["formula"]].inputs}, vector


def test_each_file_of_formulas_is_in_the_catalogue(installation):
    files = (installation / "ullage_sidecar/formulas").glob("*.toml")

    assert {file.stem for file in files} == set(FAMILIES)


def test_a_missing_input_is_not_judged():
    terms = (Term("start", "max_model_len"), Term("ceil_div", "block_size"))

    assert evaluate(terms, {"max_model_len": 100}) is None
    assert evaluate(terms, {"max_model_len": 100, "block_size": 0}) is None
    assert evaluate(terms, {"max_model_len": 100, "block_size": "64"}) is None
    assert evaluate(terms, {"max_model_len": 100, "block_size": 64}) == 2
    assert format_terms(terms) == "ceil(max_model_len / block_size)"
    assert PADDED_VECTORS.size({"varlen": 1}) is None


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
    assert apart(PADDED_VECTORS, NUMBERS_OF_SEQUENCES)
    assert not apart(PADDED_VECTORS, PADDED_VECTORS)


# -- what the hook computes for itself ------------------------------------------------------------------------------


@pytest.mark.parametrize("facts", list(product((0, 1), (0, 1), (0, 1), (0, 1), (4, 256))))
def test_the_hook_sizes_scheduler_metadata_as_its_formula_does(facts):
    known = dict(zip(("varlen", "dynamic_split", "head_swizzle", "semaphore", "padded_batch"), facts, strict=True))

    assert (metadata_size(known),) == PADDED_VECTORS.size(known)
