"""Where a refusal gets its explanation from: a package that offers one, or none at all."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ullage.segment import reader

REFUSED = """
import ullage

class Tensor:
    shape, dtype = (5470,), "int32"

width = ullage.Contract("block_table.width")
width.claim("indexer builder", (5469,), inputs={"max_model_len": 350000, "block_size": 64})
try:
    width.require(Tensor(), "block table")
except ullage.ShapeViolation as error:
    print(error, error.causes, sep="\\n", flush=True)
"""
REFUSED_OFTEN = f"""{REFUSED}
for number in range(14):
    try:
        width.require(Tensor(), "block table")
    except ullage.ShapeViolation:
        continue
"""
PLAIN = (
    "block_table.width: block table (5470,) int32, but indexer builder (5469,) "
    '(is, inputs {"max_model_len": 350000, "block_size": 64}).'
)
FOUND = """
from types import SimpleNamespace

def explain(contract, provider, requirement, *, relations):
    sides = f"{provider.source} and {requirement.source}"
    return SimpleNamespace(text=f"{contract} {relations}: {sides} differ.", causes=("another day",))
"""


@pytest.fixture
def offer(tmp_path, hook_alone):
    """Install a package that explains, and the hook alone; return the ``PYTHONPATH`` of both."""

    def installed(code):
        (tmp_path / "oracle.py").write_text(code)
        information = tmp_path / "oracle-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: oracle\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text("[ullage.explain]\noracle = oracle:explain\n")
        return f"{tmp_path}:{hook_alone}"

    return installed


def test_the_sidecars_package_explains(program, installation):
    message, causes = program(REFUSED, PYTHONPATH=str(installation)).finish().splitlines()

    assert message.startswith(f"{PLAIN} Likeliest: ")
    assert "blocks are rounded up to a multiple of 128 tokens" in message
    assert "multiple of 128 tokens" in causes


def test_the_hook_alone_says_the_same_without_an_explanation(hook_alone, segments):
    code = f"{REFUSED}\nimport importlib.util; assert importlib.util.find_spec('ullage_sidecar') is None"
    environment = {"PYTHONPATH": str(hook_alone), "ULLAGE_DIR": str(segments), "ULLAGE_STRICT": "1"}

    # Without site-packages: an engine's container has no sidecar.
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, env=environment
    )

    assert ran.stdout.splitlines() == [PLAIN, "()"]


def test_the_sidecars_package_without_a_reader_of_toml_says_the_same_without_an_explanation(
    program, segments, installation
):
    code = f"import sys; sys.modules['tomllib'] = None\n{REFUSED}"

    message, causes = program(code, PYTHONPATH=str(installation)).finish().splitlines()

    assert (message, causes) == (PLAIN, "()")
    (path,) = segments.glob("*.ullage")
    assert reader.read(path).process.hook_errors == 0


def test_any_package_may_explain(program, offer):
    message, causes = program(REFUSED, PYTHONPATH=offer(FOUND)).finish().splitlines()

    assert message == f"{PLAIN} block_table.width ('==',): block table and indexer builder differ."
    assert causes == "('another day',)"


def test_an_explanation_that_fails_is_counted_and_the_tensor_is_refused_all_the_same(program, segments, offer):
    failing = offer("def explain(*_, **__): raise ValueError('no idea')")

    message, causes = program(REFUSED, PYTHONPATH=failing, ULLAGE_STRICT="0").finish().splitlines()

    assert (message, causes) == (PLAIN, "()")
    (path,) = segments.glob("*.ullage")
    assert reader.read(path).process.hook_errors == 1


def test_an_explanation_that_fails_ten_times_is_not_asked_for_again(program, segments, offer):
    failing = offer("def explain(*_, **__): raise ValueError('no idea')")

    program(REFUSED_OFTEN, PYTHONPATH=failing, ULLAGE_STRICT="0").finish()

    (path,) = segments.glob("*.ullage")
    assert reader.read(path).process.hook_errors == 10


def test_a_package_that_lacks_what_it_needs_does_not_count_as_a_failure(program, segments, offer):
    lacking = offer("import a_module_that_is_not_installed")

    message, causes = program(REFUSED, PYTHONPATH=lacking).finish().splitlines()

    assert (message, causes) == (PLAIN, "()")
    (path,) = segments.glob("*.ullage")
    assert reader.read(path).process.hook_errors == 0
