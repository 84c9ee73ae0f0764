"""One shield around the host: what goes wrong is counted per place, and after ten errors that place alone is off."""

from __future__ import annotations

import pytest

from ullage.segment import reader

HEAD = """
import sys, ullage
rows = ullage.buffer("rows", capacity=100, unit="rows")
other = ullage.buffer("other", capacity=100, unit="rows")
"""


@pytest.fixture
def ended(program, segments):
    """Run a program as in production; return what its segment says then, and the lines it logged."""

    def run(code, head=HEAD, **environment):
        running = program(head + code + "\nprint('unharmed')", ULLAGE_STRICT="0", **environment)
        out, err = running.process.communicate(timeout=120)
        assert (running.process.returncode, out) == (0, "unharmed\n"), err
        found = [reader.read(path) for path in segments.glob("*.ullage")]
        return (found[0] if found else None), err.strip().splitlines()

    return run


def test_a_storm_of_bad_calls_is_two_lines_and_switches_off_its_buffer_alone(ended):
    snapshot, log = ended("""
for n in range(1, 20_001): rows.observe(-n)
rows.observe(7); other.observe(9)
""")

    assert [line.split(":")[0] for line in log] == ["buffer rows", "buffer rows switched itself off"]
    assert snapshot.process.hook_errors == 20_000
    assert {buffer.name: buffer.used for buffer in snapshot.buffers} == {"rows": 0, "other": 9}
    assert [event.subject for event in snapshot.events if event.kind.name == "PROBE_DISABLED"] == ["rows"]


def test_nine_bad_calls_are_forgiven(ended):
    snapshot, _ = ended("for n in range(9): rows.observe(-1)\nrows.observe(7)")

    assert {buffer.name: buffer.used for buffer in snapshot.buffers} == {"rows": 7, "other": 0}


def test_names_without_end_are_neither_logged_nor_kept_without_end(ended):
    snapshot, log = ended("""
from ullage import safety
from ullage.recording.buffers import Buffers
from ullage.host.process import process
for n in range(5_000):
    ullage.buffer(f"bad {n}", capacity=-1, unit="rows")
    ullage.buffer(f"good {n}", capacity=1, unit="rows").observe(1)
assert len(safety._places) <= safety.MAX_PLACES and len(safety._logged) <= safety.MAX_PLACES
assert len(process.session.part(Buffers)._buffers) <= 1024
""")

    assert len(log) <= 1024
    assert snapshot.process.hook_errors == 5_000
    assert snapshot.process.dropped_buffers == 5_000 - 510


def test_what_dynamo_is_to_skip_does_not_grow_with_handles_that_record_nothing(ended):
    ended("""
from ullage.host import compiled
for n in range(500): ullage.buffer("", capacity=1, unit="rows")
for n in range(2_000): ullage.buffer(f"name {n}", capacity=1, unit="rows")
assert len(compiled._ours) <= 6 * 1024, len(compiled._ours)
for n in range(5_000): ullage.Contract("same")
from ullage.host.process import process
assert len(process.session._records) <= 2048
""")


def test_a_contract_that_fails_ten_times_is_off_and_lets_everything_pass(ended):
    snapshot, log = ended("""
width = ullage.Contract("width"); fine = ullage.Contract("fine")
for n in range(12): width.claim("runner", "wide")
class Tensor: shape, dtype = (5,), "int32"
fine.claim("runner", 4)
assert width.check(Tensor) and width.compare(1, 2) and not fine.check(Tensor)
""")

    assert sum("width" in line for line in log) == 2
    assert {claim.contract: claim.violations for claim in snapshot.claims if claim.tally} == {"width": 0, "fine": 1}


def test_a_check_of_the_step_tick_that_fails_ten_times_is_left_out_and_the_others_go_on(ended):
    _, log = ended("""
from ullage.host.process import process
calls = []
def broken(): calls.append("broken"); raise RuntimeError("no")
def sound(): calls.append("sound")
process.chores.at_checks(broken); process.chores.at_checks(sound)
for _ in range(30): process.chores.check()
assert (calls.count("broken"), calls.count("sound")) == (10, 30), calls
""")

    assert len(log) == 2


@pytest.mark.fault("no descriptor left at the first use", sees="one log line; the next use tries again")
@pytest.mark.parametrize(
    "use",
    [
        "ullage.buffer('b', capacity=1, unit='rows').observe(1)",
        "ullage.step()",
        "width = ullage.Contract('c', dims=('n',)); width.claim('a', 1); assert width.check(None); width.require(None)",
        "table = ullage.watch('t', [[1, 2]] and __import__('array').array('q', [1, 2]))",
    ],
)
def test_a_process_without_descriptors_does_not_feel_the_lazy_import(ended, use):
    _, log = ended(
        f"""
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
for _ in range(3): {use}
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
ullage.buffer("later", capacity=10, unit="rows").observe(3)
""",
        head="import array, ullage",
    )

    assert len(log) == 1
    assert "Too many open files" in log[0]


def test_after_ten_failed_imports_a_name_stays_what_stands_in_for_it(ended):
    _, log = ended(
        """
import importlib
def refuse(name, *_): raise OSError(24, "Too many open files")
sound, importlib.import_module = importlib.import_module, refuse
for _ in range(12): ullage.buffer("b", capacity=1, unit="rows").observe(1)
importlib.import_module = sound
assert type(ullage.buffer("b", capacity=1, unit="rows")).__name__ == "InertBuffer"
ullage.step()
""",
        head="import ullage",
    )

    assert len(log) == 1


def test_a_tensor_that_cannot_be_watched_is_sliced_all_the_same(ended):
    _, log = ended("""
class Tensor:
    __slots__ = ("shape",)   # no weak reference
    def __init__(self): self.shape = (4, 8)
    def __getitem__(self, where): return where
table = ullage.watch("table", Tensor(), dim=1)
table.observe(3)
assert table.slice(5) == (slice(None), slice(None, 5))
""")

    assert len(log) == 1
    assert "cannot create weak reference" in log[0]


ODD = """
class Odd:
    def __str__(self): raise RuntimeError("no text")
    __repr__ = __index__ = __str__
    shape = property(__str__)
class Bad(Exception):
    def __str__(self): raise RuntimeError("no text")
class Raises:
    def __index__(self): raise Bad
odd, raises = Odd(), Raises()
width = ullage.Contract("width")
class Old: shape, dtype = (8,), "int32"
metadata = ullage.SchedulerMetadata(max_num_seqs=8)
"""
HOSTILE = [
    "ullage.buffer(odd, capacity=1, unit='rows').observe(1)",
    "ullage.buffer('b', capacity=1, unit=odd)",
    "ullage.buffer('b', capacity=raises, unit='rows')",
    *(f"rows.{call}(raises)" for call in ("observe", "resize", "exhausted", "checked", "violated", "warn_at")),
    "rows.observe(odd); rows.checked(odd)",
    "ullage.Contract('c', dims=5).claim('a', 1)",
    "ullage.Contract('c', dims=None).check(Old)",
    "ullage.Contract(odd).claim('a', 1)",
    "width.claim('a', raises); width.claim(odd, 1); width.claim('a', 1, inputs={odd: odd})",
    "width.claim('a', 1); width.check(odd); width.check(Old, odd)",
    "width.compare((1,), (2,), inputs=lambda: raises.missing); width.compare(odd, 1)",
    "metadata.update(max_num_seqs=9); metadata.check(Old, None); metadata.check(odd)",
    "ullage.watch(odd, Old).observe(1); assert ullage.watch('w', [1, 2, 3]).slice(2) == [1, 2]",
]


@pytest.mark.fault("objects whose own methods raise", sees="ullage_hook_errors_total")
@pytest.mark.parametrize("handler", ["", "raises"])
@pytest.mark.parametrize("use", HOSTILE)
def test_objects_that_raise_do_not_raise_into_their_host(ended, use, handler):
    raising = """
import logging
class Handler(logging.Handler):
    def emit(self, record): raise OSError("the host's own handler")
logging.getLogger("ullage").addHandler(Handler())
"""
    snapshot, _ = ended((raising if handler else "") + ODD + f"for _ in range(3): {use}\n" + "other.observe(4)")

    assert {buffer.name: buffer.used for buffer in snapshot.buffers}["other"] == 4


def test_only_a_segment_that_cannot_be_made_switches_the_session_off(ended):
    snapshot, log = ended(
        """
import ullage.host.session, ullage.segment.sweep as sweep, ullage.segment.file_system as file_system
def broken(*_): raise RuntimeError("not expected")
sweep.survey = file_system.kind_of = broken
rows = ullage.buffer("rows", capacity=100, unit="rows"); rows.observe(5)
""",
        head="import ullage",
    )

    assert [buffer.used for buffer in snapshot.buffers] == [5]
    assert len(log) == 2


def test_without_a_directory_nothing_is_opened(program, tmp_path):
    program(
        """
        import os, ullage
        from ullage.host import environment
        environment.DEFAULT_DIRECTORY = environment.Path("/nonexistent/ullage")
        before = set(os.listdir("/proc/self/fd"))
        ullage.buffer("rows", capacity=1, unit="rows").observe(2); ullage.step()
        assert set(os.listdir("/proc/self/fd")) == before
        """,
        directory=None,
    ).finish()
