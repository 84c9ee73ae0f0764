"""The doorbell rings when a process that writes a segment comes or goes, and when nobody does it need not be asked."""

from __future__ import annotations

import shutil
import threading
import time

import pytest
from harness import PROMISE_FACTOR, until

from ullage_sidecar.doorbell import SETTLE_S, Doorbell

STORY = """
import sys, ullage
rows = ullage.buffer("rows", capacity=10, unit="rows")
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""
LONG_S = 60.0


@pytest.fixture
def bell(segments):
    made = Doorbell()
    made.listen(segments)
    yield made
    made.close()


def rings(bell):
    """Whether it rings long before it gives up waiting."""
    start = time.monotonic()
    assert bell.wait(LONG_S)
    return time.monotonic() - start < SETTLE_S + PROMISE_FACTOR


def quiet(bell):
    """Whether it lets somebody wait for as long as he wants."""
    start = time.monotonic()
    assert bell.wait(0.3)
    return time.monotonic() - start >= 0.3


def test_it_rings_for_a_process_that_comes_and_for_one_that_is_killed(bell, program):
    running = program(STORY)
    assert running.line() == "ready"
    assert rings(bell)
    assert quiet(bell)

    running.kill()

    assert rings(bell)


def test_what_a_process_stores_rings_no_bell(bell, program):
    running = program(STORY)
    assert running.line() == "ready"
    assert rings(bell)

    running.tell("rows.observe(9); rows.observe(11); ullage.step()")

    assert quiet(bell)


@pytest.mark.fault("the directory is deleted and made again, seen by the sidecar", sees="processes in the new one")
def test_a_directory_that_was_made_anew_is_listened_to(bell, program, segments):
    shutil.rmtree(segments)
    segments.mkdir()
    bell.wait(0.2)
    bell.listen(segments)

    program(STORY)

    assert rings(bell)


@pytest.mark.fault("no inotify left for this user", sees="deaths within the next second")
def test_without_the_kernels_word_it_is_only_a_clock(monkeypatch, segments, program):
    monkeypatch.setattr("ctypes.CDLL", lambda *_args, **_kwargs: NoInotify())
    bell = Doorbell()
    bell.listen(segments)
    program(STORY)

    assert quiet(bell)

    bell.stop()
    assert not bell.wait(LONG_S)
    bell.close()


class NoInotify:
    """A C library whose limit of inotify instances is reached: a limit of the machine, not to be touched here."""

    @staticmethod
    def inotify_init1(_flags):
        return -1


def test_a_directory_that_is_not_there_yet_is_no_error(segments, program):
    bell = Doorbell()
    bell.listen(segments / "later")
    assert quiet(bell)

    (segments / "later").mkdir()
    bell.listen(segments / "later")
    program(STORY, directory=segments / "later")

    assert rings(bell)
    bell.close()


def test_who_waits_is_told_to_stop(bell):
    told = []
    waiting = threading.Thread(target=lambda: told.append(bell.wait(LONG_S)))
    waiting.start()

    bell.stop()

    until(lambda: told == [False])
    waiting.join()
