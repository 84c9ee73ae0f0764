"""The line that a death leaves in the log: it ends, and is short, whatever there is to tell."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshots import buffer, snapshot

from ullage.inspect.postmortem import LINE_BYTES, Death, line, post_mortem
from ullage.segment.layout import EventKind
from ullage.segment.snapshot import Event


def told(name="vllm0/core", count=0, text="x"):
    """The line of a process with ``count`` of everything that a line lists."""
    many = [buffer(f"{text} {n}", capacity=100, high_water=200 - n, beyond=1 + n) for n in range(count)]
    before = snapshot("before", name, alive=False, buffers=[one._replace(capacity=50) for one in many])
    events = [Event(n, 1, EventKind.BOUNDS_VIOLATION, text, 1, (n, 0, 0, 0), text) for n in range(count)]
    now = snapshot("now", name, alive=False, buffers=many, events=events)
    siblings = [Death(f"{text} {n}", now, "killed", "consequential", n) for n in range(count)]
    return line(post_mortem(Death(name, now, "killed", "primary", 5), siblings, before))


@pytest.mark.fault("a process name longer than a post-mortem may be", sees="the post-mortem, its texts cut")
@pytest.mark.parametrize("letter", ["é", "\U0001f40d", "\udce9", "n"])
@pytest.mark.parametrize("count", [0, 300])
def test_a_line_ends_and_is_short_with_a_name_that_is_longer_than_a_line(letter, count):
    text = told(letter * 8_500, count, letter * 500)

    assert len(text.encode()) <= LINE_BYTES
    document = json.loads(text)
    assert document["process"] == letter * 128
    assert ("left_out" in document) == (count > 0)


def test_as_much_as_fits_is_told_and_the_rest_is_counted():
    document = json.loads(told(count=300))

    for name, all_of_them in (("violations", 300), ("changed", 300), ("order", 300)):
        assert len(document[name]) + document["left_out"].get(name, 0) == all_of_them
        assert document[name]
    assert len(document["nearest"]) == 5
    assert document["violations"][0] == {"what": "x 299", "count": 300, "worst_index": 0}


def test_the_last_events_are_the_ones_told():
    document = json.loads(told(count=300, text="y" * 100))

    assert document["events"][-1][1] == "bounds_violation"


def test_what_fits_is_told_in_full():
    document = json.loads(told(text="z" * 300, count=1))

    assert document["events"][0][3] == "z" * 300
    assert "left_out" not in document


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=3_000), st.integers(0, 500), st.text(max_size=300))
def test_any_name_and_any_number_of_things(name, count, text):
    start = time.monotonic()

    found = told(name, count, text)

    assert len(found.encode()) <= LINE_BYTES
    assert json.loads(found)["process"] == name[: len(json.loads(found)["process"])]
    assert time.monotonic() - start < 20  # one entry after the other took minutes


def test_a_buffer_that_was_freed_was_violated_but_not_nearly_full():
    freed = buffer("freed", high_water=120, beyond=1, closed=True)

    found = post_mortem(Death("p", snapshot(alive=False, buffers=[freed, buffer("held", used=5)]), "killed"), ())

    assert [full.buffer for full in found.nearest] == ["held"]
    assert [damage.what for damage in found.violations] == ["freed"]
