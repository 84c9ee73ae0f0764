"""docs/metrics.md: what the code exposes, no more and no less."""

from __future__ import annotations

import pytest
from metrics_page import EXAMPLES, PAGE, exposed, page
from promql import selectors


def test_it_is_what_the_code_says():
    assert PAGE.read_text() == page(), "write it anew with make docs"


def test_each_metric_has_an_example_that_asks_for_it():
    assert EXAMPLES.keys() == exposed().keys()
    for name, example in EXAMPLES.items():
        assert name in {selector.name for selector in selectors(example)}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_has_an_answer(ask, name):
    assert ask(EXAMPLES[name])
