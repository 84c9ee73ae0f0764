"""Every rule explains its case, and not its counter-case."""

from __future__ import annotations

import pytest
from judging import judge, rules, table

from ullage_sidecar.diagnosis.contextual_rules import CONTEXTUAL_RULES
from ullage_sidecar.diagnosis.priors import COUNTS
from ullage_sidecar.diagnosis.transformations import TRANSFORMATIONS
from ullage_sidecar.formulas import evaluate

METADATA = {"contract": "attention.scheduler_metadata", "sources": ("planner", "kernel")}
WIDTH = {
    "contract": "block_table.width",
    "sources": ("DeepseekV32IndexerMetadataBuilder", "runner block table"),
}
FLAGS = {"varlen": 1, "dynamic_split": 0, "head_swizzle": 1, "semaphore": 1, "padded_batch": 4}
OLD = {"batch": 6, "dynamic_split": 1, "semaphore": 1}
NEW = {"padded_batch": 8, "varlen": 1, "head_swizzle": 1, "dynamic_split": 1, "semaphore": 1}
HERE, THERE = {"kv_role": "consumer", "heads": 8, "ranks": 4}, {"kv_role": "producer", "heads": 8, "ranks": 2}


@pytest.mark.parametrize("transformation", TRANSFORMATIONS, ids=lambda transformation: transformation.id)
def test_a_transformation_explains_its_case_and_not_its_counter_case(transformation):
    assert transformation.id in rules(judge(*transformation.case.sizes, *transformation.case.inputs))
    assert transformation.id not in rules(judge(*transformation.counter.sizes, *transformation.counter.inputs))


@pytest.mark.parametrize("rule", CONTEXTUAL_RULES, ids=lambda rule: rule.id)
def test_a_contextual_rule_explains_its_case_and_not_its_counter_case(rule):
    at_least = {"role": "requires", "relations": (">=",)}

    assert rule.id in rules(judge(*rule.case.sizes, *rule.case.inputs, **at_least))
    assert rule.id not in rules(judge(*rule.counter.sizes, *rule.counter.inputs, **at_least))


@pytest.mark.parametrize("rule", [*TRANSFORMATIONS, *CONTEXTUAL_RULES], ids=lambda rule: rule.id)
def test_a_rule_says_what_to_do_and_what_not(rule):
    assert rule.cause in COUNTS
    assert rule.advice.endswith(".")
    assert rule.avoid.startswith("Do not")


CASES = {
    "stale input": (
        judge(10_210, 16_384, table(653_440), table(1_048_576)),
        judge(10_210, 16_384, table(653_440), table(653_440)),
    ),
    "peers differ": (
        judge(2, 4, HERE, THERE),
        judge(2, 4, HERE, THERE | {"kv_role": "consumer"}),
    ),
    "derived twice: varlen": (
        judge(9, 5, FLAGS, FLAGS | {"varlen": 0}, **METADATA),
        judge(9, 5, FLAGS, FLAGS | {"head_swizzle": 0}, **METADATA),
    ),
    "two eras": (
        judge(7, 25, OLD, NEW, **METADATA),
        judge(7, 17, OLD, NEW, **METADATA),
    ),
    "known formulas": (
        judge(3125, 3126, table(200_000), table(200_000), **WIDTH),
        judge(3125, 3126, table(200_000), table(200_000), contract="block_table.width"),
    ),
    "other formula": (
        judge(256, 512, {"max_num_seqs": 256}, {"max_model_len": 8192}),
        judge(256, 500, {"max_num_seqs": 256}, {"max_model_len": 8192}),
    ),
    "connector fields": (judge(256, (256, 3)), judge(250, (256, 3))),
    "dimensions": (judge(1024, (256, 4)), judge(256, 512)),
}


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_explains_its_case_and_not_its_counter_case(rule):
    case, counter = CASES[rule]

    assert rule in rules(case)
    assert rule not in rules(counter)


def test_an_assumption_is_exceeded_by_a_need_and_not_by_another_formula():
    assert "static assumption" in rules(judge(512, 640, {"worst_case": 512}, role="requires"))
    assert "static assumption" not in rules(judge(640, 512, {"worst_case": 640}, role="requires"))
    assert "static assumption" not in rules(judge(512, 640, {"worst_case": 512}, {"batch": 640}, role="requires"))


def test_where_more_would_do_another_limit_is_an_assumption_and_another_computation_a_formula():
    at_least = {"role": "requires", "relations": (">=",)}

    limit = judge(512, 640, {"max_num_seqs": 512}, {"largest_batch": 640}, **at_least)
    computed = judge(256, 512, {"max_num_seqs": 256}, {"max_model_len": 8192}, **at_least)

    assert "static assumption" in rules(limit)
    assert "other formula" not in rules(limit)
    assert "other formula" in rules(computed)
    assert "static assumption" not in rules(computed)


def test_a_formula_counts_only_for_the_version_that_computes_it():
    indexer = judge(3125, 3126, table(200_000) | {"engine_version": "0.32.0"}, table(200_000), **WIDTH)

    assert "known formulas" not in rules(indexer)


@pytest.mark.parametrize("rule", [*TRANSFORMATIONS, *CONTEXTUAL_RULES], ids=lambda rule: rule.id)
def test_what_is_kept_reproduces_both_numbers(rule):
    for case in (rule.case, rule.counter):
        for cause in judge(*case.sizes, *case.inputs).rivals:
            if cause.sides is not None:
                assert tuple(evaluate(side.terms, side.inputs) for side in cause.sides) == case.sizes
