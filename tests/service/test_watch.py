"""The loop of the sidecar: when it ticks, and what it says when there is nobody to watch."""

from __future__ import annotations

import json
import sys
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


@pytest.mark.fault("a bug in every tick", sees="one traceback a minute; ullage_tick_failures_total")
def test_ticks_that_fail_for_one_reason_are_counted_and_logged_once(segments, monkeypatch, caplog):
    monkeypatch.setattr(watching, "TICK_S", 0.1)
    watch = watching.Watch(lambda: load(environment={}, dir=segments))
    monkeypatch.setattr(watching.discovery, "find", None)

    run(watch, 1)

    assert watch.health.ticks.failures > 2
    assert caplog.text.count("Traceback") == 1


def read_errors(watch):
    state, *_ = watch.scrape()
    return state.read_errors["half_written"]


def test_reads_for_requests_change_no_counter(segments, program):
    engine = program(
        "import ullage; ullage.buffer('rows', capacity=9, unit='rows').observe(3); print('ready'); input()"
    )
    assert engine.line() == "ready"
    (path,) = segments.glob("*.ullage")
    with path.open("r+b") as segment:  # as a reader finds a record whose writer is in the middle of it
        segment.seek(segment.read().index(b"rows\0"))
        segment.write(b"torn")
    watch = watching.Watch(lambda: load(environment={}, dir=segments))

    watch.tick()
    once = read_errors(watch)
    for _ in range(5):
        watch.look()
        watch.look(events=True)

    assert once == read_errors(watch) == 1
    assert watch.look().exits == {}
    engine.kill()
    assert [life.condition for life in watch.look().lives] == ["killed"]
    assert watch.look().exits == {}, "a tick has yet to see it"
    watch.tick()
    watch.tick()
    assert watch.look().exits == {("app0/main", "killed", "primary"): 1}


DIES = "import os, ullage; ullage.buffer('rows', capacity=1, unit='rows').observe(2); os._exit(1)"


def test_a_post_mortem_is_told_once_though_its_file_is_unreadable_for_a_while(segments, program, capsys):
    watch = watching.Watch(lambda: load(environment={}, dir=segments))
    program(DIES, ULLAGE_ENGINE="engine0").failure()
    watch.tick()
    (first,) = segments.glob("*.ullage")
    hidden = first.rename(first.with_suffix(".hidden"))
    program(DIES, ULLAGE_ENGINE="engine1").failure()
    watch.tick()
    hidden.rename(first)
    watch.tick()
    program(DIES, ULLAGE_ENGINE="engine2").failure()
    watch.tick()

    told = [json.loads(line)["process"] for line in capsys.readouterr().out.splitlines()]

    assert sorted(told) == ["engine0/main", "engine1/main", "engine2/main"]


@pytest.mark.fault("a log that cannot be written", sees="one log line; ticks that go on")
def test_a_stdout_that_fails_makes_no_tick_fail(segments, program, monkeypatch):
    program(DIES).failure()
    watch = watching.Watch(lambda: load(environment={}, dir=segments))

    class Full:
        def write(self, _text):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())

    for _ in range(3):
        watch.tick()

    assert ("app0/main", "process_died") in {(key.process, key.reason) for key in watch.alarms.active}
