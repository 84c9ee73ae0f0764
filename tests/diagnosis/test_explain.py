"""Explanations, against examples that were worked out by hand; every rule with a case and a counter-case."""

from __future__ import annotations

import pytest

from ullage.diagnosis.claims import Claim
from ullage.diagnosis.edits import EDITS
from ullage.diagnosis.explain import explain
from ullage.diagnosis.priors import COUNTS, log_prior
from ullage.formulas import Term, evaluate, say
from ullage.formulas.catalogue import FORMULAS, PAIRS


def judge(provided, required, ours=None, theirs=None, *, role="is", contract="size", **options):
    shapes = [(size,) if isinstance(size, int) else size for size in (provided, required)]
    provider = Claim("provider", "is", shapes[0], ours or {})
    requirement = Claim("requirement", role, shapes[1], theirs or {})
    return explain(contract, provider, requirement, **options)


def rules(finding):
    return [cause.rule for cause in finding.rivals]


def table(max_model_len):
    return {"max_model_len": max_model_len, "block_size": 64}


# -- by hand --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contract", ["size", "block_table.width"])
@pytest.mark.parametrize("swapped", [False, True])
def test_3125_against_3126_is_a_tie_that_200064_tells_apart(contract, swapped):
    sizes = (3126, 3125) if swapped else (3125, 3126)

    finding = judge(*sizes, table(200_000), table(200_000), contract=contract)

    assert [cause.rule for cause in finding.tied] == ["token alignment", "look-ahead"]
    assert "max_model_len = 200064 would tell them apart" in finding.discriminator
    assert finding.text.startswith("A tie: ")


def test_200064_does_tell_them_apart():
    aligned = judge(3126, 3126 + 1, table(200_064), table(200_064))

    assert "token alignment" not in rules(aligned)
    assert aligned.rivals[0].rule == "look-ahead"


def test_5469_against_5470_is_alignment_since_a_look_ahead_does_not_reach():
    finding = judge(5469, 5470, table(350_000), table(350_000))

    assert finding.rivals[0].rule == "token alignment"
    assert len(finding.tied) == 1
    assert "look-ahead" not in rules(finding)
    assert "Do not trim the wider table" in finding.text


def test_a_second_dimension_of_three_is_a_connector_of_two_fields():
    finding = judge(256, (256, 3))

    assert finding.rivals[0].rule == "connector fields"
    assert "a connector of 2 fields" in finding.text
    assert len(finding.tied) == 1
    recorded = judge(256, (256, 3), {"fields_per_seq": 1}, {"connector_fields.nixl": 2})
    assert "(nixl)" in recorded.text
    assert recorded.shares[0] > finding.shares[0]
    assert "connector fields" not in rules(judge(256, (256, 3), {}, {"connector_fields.nixl": 5}))


@pytest.mark.parametrize("theirs", [{"max_model_len": 8192}, {"max_model_len": 8192, "block_size": 16}])
def test_256_against_512_is_max_model_len_by_16(theirs):
    finding = judge(256, 512, {"max_num_seqs": 256}, theirs)

    assert finding.rivals[0].rule == "other formula"
    assert len(finding.tied) == 1
    assert "max_model_len" in finding.text
    assert "= 512" in finding.text


def test_with_too_little_recorded_it_says_so():
    finding = judge(3125, 3126)

    assert not finding.sufficient
    assert finding.text.startswith("Too little is recorded")


def test_two_numbers_that_nothing_connects_are_unknown():
    finding = judge(100, 777, {"rows": 100}, {"rows": 100})

    assert finding.rivals[0].rule == "unknown"
    assert finding.text == "No known cause reproduces both numbers from what is recorded."


def test_a_limit_that_changed_is_named_with_both_values():
    finding = judge(10_210, 16_384, table(653_440), table(1_048_576))

    assert finding.rivals[0].rule == "stale input"
    assert finding.shares[0] > 0.9
    assert "max_model_len is 653440 for provider, 1048576 for requirement" in finding.text


def test_an_input_of_another_component_is_named():
    inputs = {"target_vocab": 129_280, "draft_vocab": 129_312}

    finding = judge(129_280, 129_312, inputs, inputs)

    assert finding.rivals[0].rule == "foreign input"
    assert "it is computed from draft_vocab" in finding.text or "it is computed from target_vocab" in finding.text


def test_another_version_on_each_side_is_evidence():
    finding = judge(5, 9, {"engine_version": "0.11.1"}, {"engine_version": "0.32.0"})

    assert finding.rivals[0].rule == "version skew"


def test_more_than_the_worst_case_that_was_assumed():
    finding = judge(512, 640, {"worst_case": 512}, role="requires")

    assert finding.rivals[0].rule == "static assumption"


def test_another_dtype_and_another_form_of_the_same_elements():
    provider = Claim("provider", "is", (4,), {}, "int32")
    requirement = Claim("requirement", "is", (4,), {}, "int64")
    assert explain("size", provider, requirement).rivals[0].rule == "dtype"

    assert judge((256, 4), (1024,)).rivals[0].rule == "dimensions"


# -- every rule -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.id)
def test_an_edit_explains_its_case_and_not_its_counter_case(edit):
    assert edit.id in rules(judge(*edit.case.sizes, *edit.case.inputs))
    assert edit.id not in rules(judge(*edit.counter.sizes, *edit.counter.inputs))
    assert edit.advice.endswith(".")
    assert edit.avoid.startswith("Do not")


CASES = {
    "stale input": (
        (10_210, 16_384, table(653_440), table(1_048_576)),
        (10_210, 16_384, table(653_440), table(653_440)),
    ),
    "foreign input": (
        (4, 8, {"heads": 4, "draft_heads": 8}, {"heads": 4, "draft_heads": 8}),
        (4, 9, {"heads": 4, "draft_heads": 8}, {"heads": 4, "draft_heads": 8}),
    ),
    "other formula": (
        (256, 512, {"max_num_seqs": 256}, {"max_model_len": 8192}),
        (256, 500, {"max_num_seqs": 256}, {"max_model_len": 8192}),
    ),
    "connector fields": ((256, (256, 3)), (250, (256, 3))),
    "dimensions": ((1024, (256, 4)), (256, 512)),
    "version skew": (
        (5, 9, {"engine_version": "0.11"}, {"engine_version": "0.32"}),
        (5, 9, {"engine_version": "0.32"}, {"engine_version": "0.32"}),
    ),
}


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_explains_its_case_and_not_its_counter_case(rule):
    case, counter = CASES[rule]

    assert rule in rules(judge(*case))
    assert rule not in rules(judge(*counter))


def test_an_assumption_is_exceeded_by_a_need_and_not_by_another_formula():
    assert "static assumption" in rules(judge(512, 640, {"worst_case": 512}, role="requires"))
    assert "static assumption" not in rules(judge(640, 512, {"worst_case": 640}, role="requires"))
    assert "static assumption" not in rules(judge(512, 640, {"worst_case": 512}, {"batch": 640}, role="requires"))


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.id)
def test_what_is_kept_reproduces_both_numbers(edit):
    for case in (edit.case, edit.counter):
        for cause in judge(*case.sizes, *case.inputs).rivals:
            if cause.sides is not None:
                assert tuple(evaluate(side.terms, side.inputs) for side in cause.sides) == case.sizes


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: formula.id)
def test_a_formula_gives_what_was_seen(formula):
    assert formula.tests
    for vector in formula.tests:
        assert tuple(evaluate(terms, vector.inputs) for terms in formula.terms) == vector.size, vector.origin
    assert {item.name for item in formula.inputs} >= {
        term.operand for terms in formula.terms for term in terms if isinstance(term.operand, str)
    }


def test_pairs_name_formulas_that_exist():
    known = {formula.id: formula for formula in FORMULAS}
    for pair in PAIRS:
        assert known[pair.provider].quantity == known[pair.requirement].quantity


def test_a_missing_input_is_not_judged():
    terms = (Term("start", "max_model_len"), Term("ceil_div", "block_size"))

    assert evaluate(terms, {"max_model_len": 100}) is None
    assert evaluate(terms, {"max_model_len": 100, "block_size": 0}) is None
    assert evaluate(terms, {"max_model_len": 100, "block_size": "64"}) is None
    assert evaluate(terms, {"max_model_len": 100, "block_size": 64}) == 2
    assert say(terms) == "ceil(max_model_len / block_size)"


# -- weights --------------------------------------------------------------------------------------------------------


def test_priors_are_shares_and_a_report_can_be_left_out():
    import math

    assert sum(COUNTS.values()) == 116
    assert sum(math.exp(log_prior(cause)) for cause in COUNTS) == pytest.approx(1)
    assert log_prior("alignment", without="alignment") < log_prior("alignment")
    assert sum(math.exp(log_prior(cause, without="alignment")) for cause in COUNTS) == pytest.approx(1)


def test_shares_add_up_and_unknown_is_always_among_them():
    finding = judge(3125, 3126, table(200_000), table(200_000))

    assert sum(finding.shares) == pytest.approx(1)
    assert "unknown" in rules(finding)
    assert list(finding.shares) == sorted(finding.shares, reverse=True)


def test_without_a_tie_there_is_nothing_to_tell_apart():
    assert judge(5469, 5470, table(350_000), table(350_000)).discriminator == ""
