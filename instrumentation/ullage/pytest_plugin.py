"""For an engine's own test suite: a test in which a buffer overflowed or a contract disagreed has failed.

    pytest --ullage             # every test
    pytest --ullage-report      # and what each buffer needed at most

or the fixture ``ullage_guard``, for one test. Without either, this plugin does nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from ullage.segment.agreement import Claim, Disagreement
    from ullage.segment.snapshot import Snapshot

MAX_LISTED = 16
"""Disagreements of a contract that are listed."""
_HIGH_WATER = pytest.StashKey[dict[tuple[str, str], tuple[int, int]]]()
_DIRECTORY = pytest.StashKey[Path]()
_GUARD = pytest.StashKey["_Guard"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("ullage")
    group.addoption("--ullage", action="store_true", help="fail tests in which a buffer or a contract was violated")
    group.addoption("--ullage-report", action="store_true", help="list what each buffer needed at most (with --ullage)")


def pytest_configure(config: pytest.Config) -> None:
    """Have the tests record, unless they do already."""
    if not (config.getoption("--ullage") or config.getoption("--ullage-report")):
        return
    config.stash[_HIGH_WATER] = {}
    if "ULLAGE_DIR" not in os.environ:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  mkdtemp makes it safe
        config.stash[_DIRECTORY] = Path(tempfile.mkdtemp(prefix="ullage-pytest-", dir=memory))
        os.environ["ULLAGE_DIR"] = str(config.stash[_DIRECTORY])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what was recorded."""
    directory = config.stash.get(_DIRECTORY, None)
    if directory is not None:
        os.environ.pop("ULLAGE_DIR", None)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def ullage_guard() -> None:
    """Fail the test if a watched buffer goes out of bounds in it, or a contract is not satisfied."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember what had been recorded before the test."""
    asked = "ullage_guard" in getattr(item, "fixturenames", ()) or item.config.getoption("--ullage")
    if asked or item.config.getoption("--ullage-report"):
        item.stash[_GUARD] = _Guard(item.config, fails=bool(asked))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that passed although something was violated in it."""
    guard = item.stash.get(_GUARD, None)
    try:
        result = yield
    finally:
        wrong = guard.violated() if guard is not None else []
    if wrong:
        pytest.fail("ullage: " + "\n".join(wrong), pytrace=False)
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List high-water marks."""
    marks = config.stash.get(_HIGH_WATER, {})
    if config.getoption("--ullage-report"):
        terminalreporter.section("ullage: what each buffer needed at most")
        for (name, unit), (needed, capacity) in sorted(marks.items()):
            share = f"{needed / capacity:.1%}" if capacity else "-"
            terminalreporter.write_line(f"{name}: {needed} of {capacity} {unit} ({share})")


class _Guard:
    """Compares what this process had recorded before a test with what it has after."""

    def __init__(self, config: pytest.Config, *, fails: bool) -> None:
        if fails and "ULLAGE_DIR" not in os.environ:
            pytest.fail("nothing is recorded: run pytest with --ullage, or set ULLAGE_DIR", pytrace=False)
        self._config = config
        self._fails = fails
        snapshot = _snapshot()
        self._before = _violations(snapshot)
        self._disagreements = _disagreements(snapshot).keys()

    def violated(self) -> list[str]:
        """Return what was violated since, a line each; nothing in a test that did not ask."""
        snapshot = _snapshot()
        self._remember(snapshot)
        if not self._fails:
            return []
        wrong = [
            f"{what} {name}: {count - self._before.get((what, name), 0)} violations, {_last(snapshot, what, name)}"
            for (what, name), count in _violations(snapshot).items()
            if count > self._before.get((what, name), 0)
        ]
        found = _disagreements(snapshot)
        return wrong + [_explained(text, *found[text]) for text in found if text not in self._disagreements]

    def _remember(self, snapshot: Snapshot | None) -> None:
        marks = self._config.stash.get(_HIGH_WATER, {})
        for buffer in snapshot.buffers if snapshot is not None else ():
            if not buffer.inventory:
                key = (buffer.name, buffer.unit)
                needed, _ = marks.get(key, (0, 0))
                marks[key] = (max(needed, buffer.high_water), buffer.capacity)


def _snapshot() -> Snapshot | None:
    from ullage.host.process import process  # noqa: PLC0415
    from ullage.segment import reader  # noqa: PLC0415  nothing is loaded for a suite that did not ask

    segment = process.session.open()
    return reader.read(segment.path) if segment is not None else None


def _violations(snapshot: Snapshot | None) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    if snapshot is not None:
        for buffer in snapshot.buffers:
            found["buffer", buffer.name] = buffer.out_of_bounds
        for claim in snapshot.claims:
            if claim.tally:
                found["contract", claim.contract] = claim.violations
    return found


def _last(snapshot: Snapshot | None, what: str, name: str) -> str:
    """Say what the last recorded violation was."""
    assert snapshot is not None
    if what == "contract":
        details = [e.detail for e in snapshot.events if e.kind.name == "SHAPE_VIOLATION" and e.subject == name]
        return f"such as: {details[-1]}"
    buffer = next(buffer for buffer in snapshot.buffers if buffer.name == name)
    return f"worst index {buffer.worst_index}, capacity {buffer.capacity} {buffer.unit}"


def _disagreements(snapshot: Snapshot | None) -> dict[str, tuple[str, Disagreement, tuple[str, ...]]]:
    """Return a line for each disagreement, with its contract, its sides and the relations of the contract."""
    from ullage.segment.agreement import disagreements  # noqa: PLC0415

    claims: dict[str, list[Claim]] = {}
    relations: dict[str, tuple[str, ...]] = {}
    for recorded in snapshot.claims if snapshot is not None else ():
        relations[recorded.contract] = recorded.relation_signs
        if not recorded.tally and not recorded.witness:
            claims.setdefault(recorded.contract, []).append(recorded.stated())
    return {
        f"contract {name}: {found.provider.source} {list(found.provider.shape)}, "
        f"{found.requirement.source} {list(found.requirement.shape)}.": (name, found, relations[name])
        for name, stated in sorted(claims.items())
        for found in disagreements(stated, relations[name])[:MAX_LISTED]
    }


def _explained(text: str, contract: str, found: Disagreement, relations: tuple[str, ...]) -> str:
    from ullage.recording.explanation import explanation  # noqa: PLC0415

    return f"{text} {explanation(contract, found.provider, found.requirement, relations).text}".rstrip()
