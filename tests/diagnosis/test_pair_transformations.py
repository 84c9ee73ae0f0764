"""Two things that went wrong at once, where neither explains the sizes alone."""

from __future__ import annotations

import pytest
from judging import judge, rules, table

from ullage_sidecar.diagnosis import pair_transformations
from ullage_sidecar.diagnosis.transformations import TRANSFORMATIONS
from ullage_sidecar.formulas import evaluate

DRAFTED = {"num_lookahead_tokens": 60}
SHARDED = {"decode_context_parallel_size": 4}

# Two faults; sizes and inputs of both sides with both; the same with each alone.
TWO_FAULTS = {
    # 100,042 / 64 = 1563.2 and 100,102 / 64 = 1564.1
    "look-ahead and rounding": (
        (1563, 1565, table(100_042), table(100_042) | DRAFTED),
        {
            "look-ahead": (1564, 1565, table(100_042), table(100_042) | DRAFTED),
            "rounding": (1563, 1564, table(100_042), table(100_042)),
        },
    ),
    # 262,144 / 64 = 4096 and 262,204 / 64 = 4096.9
    "look-ahead and stale input": (
        (3125, 4097, table(200_000), table(262_144) | DRAFTED),
        {
            "look-ahead": (3125, 3126, table(200_000), table(200_000) | DRAFTED),
            "stale input": (3125, 4096, table(200_000), table(262_144)),
        },
    ),
    # 350,300 / 64 = 5473.4; a quarter of 5474 is 1368.5; two blocks are 128 tokens
    "context-parallel divisor and token alignment": (
        (5474, 1370, table(350_300), table(350_300) | SHARDED),
        {
            "context-parallel divisor": (5474, 1369, table(350_300), table(350_300) | SHARDED),
            "token alignment": (1369, 1370, table(87_600), table(87_600)),
        },
    ),
}


def pairs(finding):
    """The rules of the rivals that take two transformations."""
    return [rule for rule in rules(finding) if " and " in rule]


@pytest.mark.parametrize("contract", ["size", "block_table.width"])
@pytest.mark.parametrize("faults", TWO_FAULTS)
def test_two_faults_are_explained_first_by_both(faults, contract):
    together, _ = TWO_FAULTS[faults]

    finding = judge(*together, contract=contract)

    assert [cause.rule for cause in finding.tied] == [faults]
    assert "unknown" in rules(finding)
    have, need = (evaluate(side.terms, side.inputs) for side in finding.rivals[0].sides)
    assert (have, need) == together[:2]


@pytest.mark.parametrize("faults", TWO_FAULTS)
def test_each_of_the_two_is_found_alone_where_the_other_is_missing(faults):
    _, alone = TWO_FAULTS[faults]

    for fault, case in alone.items():
        finding = judge(*case)

        assert fault in rules(finding)
        assert pairs(finding) == []


def test_it_does_not_matter_which_side_was_transformed():
    have, need, ours, theirs = TWO_FAULTS["look-ahead and rounding"][0]

    assert rules(judge(need, have, theirs, ours))[0] == "look-ahead and rounding"


def test_the_text_says_both_with_the_advice_of_both():
    finding = judge(*TWO_FAULTS["look-ahead and stale input"][0])

    assert finding.text == (
        "Likeliest: provider has ceil(max_model_len / block_size) = 3125, requirement has "
        "ceil((max_model_len + num_lookahead_tokens) / block_size) = 4097: "
        "look-ahead (num_lookahead_tokens) is counted, and "
        "max_model_len is 200000 for provider, 262144 for requirement. "
        "Count the look-ahead tokens in one place, and take the size from there on both sides. "
        "Compute the size again when the limit changes, or take it from the side that knows. "
        "Do not raise max_model_len to make room: the next draft length breaks it again. "
        "Do not clip the larger side."
    )
    assert finding.rivals[0].cause == "look-ahead and stale input"


def test_two_inputs_that_differ_are_one_cause_that_names_both():
    finding = judge(512, 2048, table(8192) | {"block_size": 16}, table(65_536) | {"block_size": 32})

    assert [cause.rule for cause in finding.tied] == ["stale input"]
    assert "max_model_len is 8192 for provider, 65536 for requirement" in finding.text
    assert "block_size is 16 for provider, 32 for requirement" in finding.text


@pytest.mark.parametrize("transformation", TRANSFORMATIONS, ids=lambda transformation: transformation.id)
def test_where_one_transformation_does_no_pair_is_tried(transformation):
    assert pairs(judge(*transformation.case.sizes, *transformation.case.inputs)) == []


def test_a_term_that_was_changed_is_not_changed_again():
    # ceil(350,000 / 64) in pairs of blocks is 5470; the same of the draft's 1,040 sequences is 18.
    inputs = table(350_000) | {"max_num_seqs": 256, "draft_max_num_seqs": 1040}

    finding = judge(5470, 18, inputs, inputs, contract="block_table.width")

    assert "foreign input and limit of something else" not in rules(finding)
    assert rules(finding)[0] == "unknown"


@pytest.mark.parametrize("need", range(3_301, 4_600, 101))
def test_two_transformations_are_no_explanation_of_just_any_two_sizes(need):
    inputs = table(200_000) | {"max_num_seqs": 256, "max_num_batched_tokens": 8192} | DRAFTED

    finding = judge(3125, need, inputs, inputs, contract="block_table.width")

    assert rules(finding)[0] == "unknown"


def test_two_values_that_neither_side_recorded_explain_nothing():
    # 3125 x 2 + 1 = 6251
    assert rules(judge(3125, 6251, table(200_000), table(200_000))) == ["unknown"]


def test_how_many_pairs_are_tried_is_bounded(monkeypatch):
    case = TWO_FAULTS["look-ahead and rounding"][0]
    monkeypatch.setattr(pair_transformations, "MAX_TRIED", 20)

    assert pairs(judge(*case)) == []


def test_no_advice_is_given_twice():
    advice = [text for transformation in TRANSFORMATIONS for text in (transformation.advice, transformation.avoid)]

    assert len(set(advice)) == len(advice)
