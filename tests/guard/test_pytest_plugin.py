"""The CI guard, in a test suite of an engine's developer."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import pytest
import ullage

class Tensor:
    def __init__(self, *shape):
        self.shape, self.dtype = shape, "int32"

def test_fits():
    ullage.buffer("rows", capacity=10, unit="rows").observe(7)

def test_overflows():
    ullage.buffer("rows", capacity=10, unit="rows").observe(12)

def test_full_is_normal():
    ullage.buffer("blocks", capacity=10, unit="blocks", kind="managed").observe(10)

def test_claims_disagree():
    table = {"max_model_len": 350000, "block_size": 64}
    width = ullage.Contract("block_table.width", unit="columns")
    width.claim("runner", 5470, inputs=table)
    width.claim("builder", 5469, inputs=table)

def test_a_tensor_does_not_fit():
    size = ullage.Contract("size")
    size.claim("planner", 4)
    size.check(Tensor(5), "kernel's")

def test_fails_by_itself():
    ullage.buffer("rows", capacity=10, unit="rows").observe(15)
    assert 1 == 2

def test_fits_again():
    ullage.buffer("rows", capacity=10, unit="rows").observe(3)
"""


@pytest.fixture
def suite(pytester, monkeypatch):
    """A test file, in a process without our own settings."""
    for name in ("ULLAGE_DIR", "ULLAGE_STRICT", "ULLAGE_ENGINE_ID"):
        monkeypatch.delenv(name, raising=False)

    def run(*options, code=SUITE):
        pytester.makepyfile(code)
        return pytester.runpytest_subprocess(*options)

    return run


def test_it_does_nothing_unless_asked(suite):
    result = suite()

    result.assert_outcomes(passed=6, failed=1)
    assert "ullage:" not in result.stdout.str()


def test_a_violation_fails_the_test_it_happens_in_and_prints_the_finding(suite, installation, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(installation))

    result = suite("--ullage")

    result.assert_outcomes(passed=3, failed=4)
    text = result.stdout.str()
    assert "buffer rows: 1 violations, worst index 11, capacity 10 rows" in text
    assert "contract size: 1 violations, such as: kernel's (5,) int32, planner (4,)" in text
    assert "contract block_table.width: " in text
    assert "blocks are rounded up to a multiple of 128 tokens" in text
    assert "worst index 14" not in text  # a test that failed by itself has said what is wrong


def test_with_the_hook_alone_a_violation_fails_the_test_without_an_explanation(suite, hook_alone, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(hook_alone))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the copy has no entry point for pytest

    result = suite("-p", "ullage.pytest_plugin", "--ullage")

    result.assert_outcomes(passed=3, failed=4)
    assert "ullage: contract block_table.width: runner [5470], builder [5469]." in result.outlines


def test_the_report_lists_what_each_buffer_needed(suite):
    result = suite("--ullage-report")

    result.assert_outcomes(passed=6, failed=1)
    result.stdout.fnmatch_lines(["*what each buffer needed at most*", "blocks: 10 of 10 blocks (100.0%)"])
    result.stdout.fnmatch_lines(["rows: 15 of 10 rows (150.0%)"])


def test_one_test_can_ask_for_the_guard(suite, tmp_path, monkeypatch):
    monkeypatch.setenv("ULLAGE_DIR", str(tmp_path))
    code = SUITE.replace("def test_overflows()", "def test_overflows(ullage_guard)")

    result = suite(code=code)

    result.assert_outcomes(passed=5, failed=2)


def test_a_guard_that_cannot_see_says_so(suite):
    result = suite(code="def test_one(ullage_guard): pass")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*nothing is recorded: run pytest with --ullage, or set ULLAGE_DIR*"])
