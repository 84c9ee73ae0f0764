"""Explanations, against examples that were worked out by hand."""

from __future__ import annotations

import pytest
from judging import judge, rules, table

from ullage.segment.agreement import Claim
from ullage_sidecar.diagnosis.explain import explain
from ullage_sidecar.diagnosis.priors import COUNTS, log_prior

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


def test_who_is_known_to_compute_which_formula_breaks_the_tie():
    sources = ("DeepseekV32IndexerMetadataBuilder.expanded_block_table_buffer", "runner block table")

    finding = judge(3125, 3126, table(200_000), table(200_000), contract="block_table.width", sources=sources)

    assert rules(finding)[0] == "token alignment"
    assert len(finding.tied) == 1
    assert "Do not trim the wider table" in finding.text
    assert "Reported before: vllm-project/vllm#50302" in finding.text


def test_5_against_9_without_flags_are_four_rivals_of_which_none_is_first():
    facts = {"engine_version": "0.32.0"}

    finding = judge(5, 9, facts, facts, contract="attention.scheduler_metadata", sources=("planner", "kernel"))

    causes = ["padded_batch", "varlen", "dynamic_split", "head_swizzle"]
    assert sorted(cause.rule for cause in finding.tied) == sorted(f"derived twice: {name}" for name in causes)
    assert finding.text.startswith("A tie: ")


def test_5_against_9_with_the_flags_of_both_sides_is_the_one_that_differs():
    ours = {"padded_batch": 4, "varlen": 1, "head_swizzle": 1, "dynamic_split": 0, "semaphore": 1}

    finding = judge(9, 5, ours, ours | {"varlen": 0}, contract="attention.scheduler_metadata")

    assert [cause.rule for cause in finding.tied] == ["derived twice: varlen"]
    assert "varlen is 1 for provider, 0 for requirement" in finding.text
    assert finding.reports == ("vllm-project/flash-attention#161", "vllm-project/vllm#48221")


def test_8192_against_16384_is_the_divisor_that_was_recorded():
    inputs = {"max_model_len": 1_048_576, "block_size": 64}

    recorded = judge(8192, 16_384, inputs | {"decode_context_parallel_size": 2}, inputs)

    assert rules(recorded)[0] == "context-parallel divisor"


@pytest.mark.parametrize("rows", [(9, 8), (None, 8)])
def test_the_dimension_that_does_not_fit_is_explained(rows):
    (have, need), inputs = rows, {"vocab": 151_936, "words_of": 32}

    finding = judge((have, 4748), (need, 4749), inputs, inputs, relations=(">=", "=="))

    assert rules(finding)[0] == "off by one"
    assert "ceil(vocab / words_of) = 4748" in finding.text


def test_reports_are_named_and_not_scored():
    inputs = {"max_model_len": 350_000, "block_size": 64}

    here, elsewhere = (judge(5469, 5470, inputs, inputs, contract=name) for name in ("block_table.width/1", "size"))

    assert here.reports
    assert elsewhere.reports == ()
    assert "Reported before" not in elsewhere.text
    assert rules(here)[0] == rules(elsewhere)[0] == "token alignment"


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
