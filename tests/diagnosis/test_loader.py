"""A file of formulas is taken whole or refused, with the file, the formula, the key and what is allowed."""

from __future__ import annotations

import re

import pytest

from ullage_sidecar.formulas import Input, Pair, Term
from ullage_sidecar.formulas.catalogue import joined
from ullage_sidecar.formulas.loader import FormulaError, parse

GOOD = """
[inputs]
max_model_len = { config = "model_config.max_model_len" }
block_size = { live = "block_table.block_size", domain = [16, 32] }

[[formula]]
id = "width"
quantity = "block_table.width"
unit = "columns"
component = "model runner"
role = "is"
engine = "vllm"
versions = "[0.22, )"
when = "sparse attention"
source = "vLLM 0.32.0, v1/worker/block_table.py"
source_prefixes = ["runner"]
terms.columns = [
    ["start", "max_model_len", "base"],
    ["align_tokens", 128, "alignment", "block_size"],
]

[[formula]]
id = "limits"
quantity = "block_table.width"
unit = "tokens"
component = "scheduler"
role = "requires"
engine = "vllm"
versions = "[, 0.22)"
source = "vLLM 0.21.0, v1/core/sched/scheduler.py"
terms.length = [["start", "max_model_len", "base"]]
terms.block = [["start", 16, "base"]]

[[pair]]
provider = "width"
requirement = "limits"
relation = ">="
severity = "critical"
silent = true
phase = "long context"
reports = ["vllm-project/vllm#1"]
"""

BROKEN = {
    "no TOML": ("[inputs]", "[inputs", r"f\.toml: .*line 2"),
    "an unknown table": ("[[pair]]", "[[pears]]", r"f\.toml, key pears: is unknown; allowed: inputs, formula, pair"),
    "an input that is no table": (
        '{ config = "model_config.max_model_len" }',
        "7",
        r"f\.toml, inputs\.max_model_len: is 7; allowed: a table",
    ),
    "an unknown key of an input": (
        "live = ",
        "alive = ",
        r"f\.toml, inputs\.block_size, key alive: is unknown; allowed: config, live, domain",
    ),
    "a domain of texts": (
        "[16, 32]",
        '["16"]',
        r"inputs\.block_size, key domain: is \['16'\]; allowed: a list of whole numbers",
    ),
    "an input that no formula uses": (
        "[inputs]",
        "[inputs]\nunused = {}",
        r"f\.toml, inputs\.unused: no formula uses it; allowed: the inputs in terms",
    ),
    "no id": ('id = "limits"', "", r"f\.toml, formula 2, key id: is missing; allowed: a text"),
    "an id that is taken": ('id = "limits"', 'id = "width"', r"f\.toml, formula width, key id: is taken"),
    "an unknown key": (
        "when = ",
        "whenever = ",
        r"f\.toml, formula width, key whenever: is unknown; allowed: id, .*when, source, source_prefixes, terms",
    ),
    "a missing key": (
        'source = "vLLM 0.21.0, v1/core/sched/scheduler.py"',
        "",
        r"f\.toml, formula limits, key source: is missing; allowed: a text",
    ),
    "a number for a text": (
        'component = "scheduler"',
        "component = 7",
        r"formula limits, key component: is 7; .*a text",
    ),
    "an empty text": ('component = "scheduler"', 'component = ""', r"formula limits, key component: is ''; .*a text"),
    "an unknown role": (
        'role = "is"',
        'role = "gives"',
        r"f\.toml, formula width, key role: is 'gives'; allowed: provides, requires, is",
    ),
    "a version that is no range": (
        '"[0.22, )"',
        '"0.22"',
        r"formula width, key versions: is '0\.22'; allowed: a range such as \[0\.22, 0\.34\)",
    ),
    "prefixes that are no list": (
        '["runner"]',
        '"runner"',
        r"formula width, key source_prefixes: is 'runner'; allowed: a list of texts",
    ),
    "no terms": (
        'terms.length = [["start", "max_model_len", "base"]]\nterms.block = [["start", 16, "base"]]',
        "",
        r"formula limits, key terms: is missing; allowed: terms\.DIMENSION",
    ),
    "terms that are no list": (
        '[["start", 16, "base"]]',
        "16",
        r"formula limits, key terms\.block: is 16; allowed: a list",
    ),
    "an unknown operation": (
        '["start", 16, "base"]',
        '["begin", 16, "base"]',
        r"formula limits, key terms\.block\[0\]: operation is 'begin'; allowed: start, add, .*at_most",
    ),
    "a start in the second place": (
        '["align_tokens", 128, "alignment", "block_size"]',
        '["start", "block_size", "base"]',
        r"formula width, key terms\.columns\[1\]: is 'start'; allowed: start in the first place",
    ),
    "no start": (
        '["start", 16, "base"]',
        '["add", 16, "base"]',
        r"formula limits, key terms\.block\[0\]: is 'add'; allowed: start in the first place",
    ),
    "a term without a label": (
        '["start", 16, "base"]',
        '["start", 16]',
        r"formula limits, key terms\.block\[0\]: is \['start', 16\]; allowed: \[start, operand, label\]",
    ),
    "an empty label": (
        '["start", 16, "base"]',
        '["start", 16, ""]',
        r"formula limits, key terms\.block\[0\]: label is ''; allowed: a text",
    ),
    "an operand that is no input": (
        '["start", 16, "base"]',
        '["start", "blocksize", "base"]',
        r"terms\.block\[0\]: operand is 'blocksize'; allowed: a whole number, max_model_len, block_size",
    ),
    "an operand that is a fraction": (
        '["start", 16, "base"]',
        '["start", 1.5, "base"]',
        r"operand is 1\.5; allowed: a whole",
    ),
    "an operand that is a flag": (
        '["start", 16, "base"]',
        '["start", true, "base"]',
        r"operand is True; allowed: a whole",
    ),
    "an operand that is a list": (
        '["start", 16, "base"]',
        '["start", [1], "base"]',
        r"operand is \[1\]; allowed: a whole",
    ),
    "an alignment without a block size": (
        '["align_tokens", 128, "alignment", "block_size"]',
        '["align_tokens", 128, "alignment"]',
        r"terms\.columns\[1\]: .*allowed: \[align_tokens, operand, label, input with the block size\]",
    ),
    "a block size that is no input": (
        '["align_tokens", 128, "alignment", "block_size"]',
        '["align_tokens", 128, "alignment", 128]',
        r"terms\.columns\[1\]: block size is 128; allowed: max_model_len, block_size",
    ),
    "an unknown relation": (
        'relation = ">="',
        'relation = ">"',
        r"f\.toml, pair 1, key relation: is '>'; allowed: ==, >=",
    ),
    "a flag that is a number": ("silent = true", "silent = 1", r"pair 1, key silent: is 1; allowed: True, False"),
    "formulas that are one table": ("[[pair]]", "[pair]", r"f\.toml, key pair: is \{.*allowed: tables \[\[pair\]\]"),
}


def test_a_file_is_taken_whole():
    (width, limits), pairs = parse("f.toml", GOOD)

    length, block = (
        Input("max_model_len", "model_config.max_model_len"),
        Input("block_size", "", "block_table.block_size", (16, 32)),
    )
    assert (width.dims, width.inputs) == (("columns",), (length, block))
    assert width.terms == (
        (Term("start", "max_model_len", "base"), Term("align_tokens", 128, "alignment", "block_size")),
    )
    assert (width.role, width.when, width.source_prefixes) == ("is", "sparse attention", ("runner",))
    assert width.size({"max_model_len": 7, "block_size": 16}) == (8,)
    assert (limits.dims, limits.inputs, limits.when) == (("length", "block"), (length,), "")
    assert limits.size({"max_model_len": 7}) == (7, 16)
    assert pairs == (Pair("width", "limits", ">=", "critical", True, "long context", ("vllm-project/vllm#1",)),)


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_file_is_refused_with_the_place_and_what_is_allowed(fault):
    before, after, message = BROKEN[fault]
    assert GOOD.count(before) == 1

    with pytest.raises(FormulaError, match=message):
        parse("f.toml", GOOD.replace(before, after))


def test_an_id_in_two_files_is_refused():
    with pytest.raises(FormulaError, match=re.escape("formula width, key id: is in two files")):
        joined([parse("a.toml", GOOD), parse("b.toml", GOOD)])


def test_a_pair_of_a_formula_that_does_not_exist_is_refused():
    broken = GOOD.replace('provider = "width"', 'provider = "wide"')

    with pytest.raises(FormulaError, match="pair wide, limits, key provider: is 'wide'; allowed: an id"):
        joined([parse("f.toml", broken)])


def test_a_pair_of_two_quantities_is_refused():
    broken = GOOD.replace('id = "limits"\nquantity = "block_table.width"', 'id = "limits"\nquantity = "limits"')

    with pytest.raises(FormulaError, match="pair width, limits: sizes of two quantities"):
        joined([parse("f.toml", broken)])
