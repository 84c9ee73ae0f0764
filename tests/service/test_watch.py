"""The loop of the sidecar: when it ticks, and what it says when there is nobody to watch."""

from __future__ import annotations

import threading

import pytest

from ullage_sidecar import watch as watching
from ullage_sidecar.doorbell import Doorbell
from ullage_sidecar.settings import load


def run(watch, seconds):
    """Let the loop run for a while."""

    bell = Doorbell()
    threading.Timer(seconds, bell.stop).start()
    watch.run(bell)
    bell.close()


@pytest.mark.fault("no hook anywhere", sees="one log line that says what to check")
def test_without_a_hook_it_says_once_what_to_check(segments, monkeypatch, caplog):
    monkeypatch.setattr(watching, "TICK_S", 0.1)
    monkeypatch.setattr(watching, "HOOK_EXPECTED_S", 0.2)

    run(watching.Watch(lambda: load(environment={}, dir=segments)), 1)

    (record,) = [record for record in caplog.records if "no hook found" in record.getMessage()]
    for hint in (str(segments), "ULLAGE_DIR", "VLLM_PLUGINS", "pip show ullage"):
        assert hint in record.getMessage()


@pytest.mark.fault("a tick that fails", sees="the next one")
def test_a_tick_that_fails_is_logged_and_the_next_one_is_tried(segments, monkeypatch, caplog):
    watch, calls = watching.Watch(lambda: load(environment={}, dir=segments)), []
    monkeypatch.setattr(watching, "TICK_S", 0.1)

    def fail():
        calls.append(1)
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(watch, "tick", fail)
    run(watch, 1)

    assert len(calls) > 2
    assert "a tick failed" in caplog.text
