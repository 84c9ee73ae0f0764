"""One sidecar over many looks: files are mutated, come and go, and what is known of a healthy process stays exact."""

from __future__ import annotations

import os
import random

import pytest
from harness import LONG
from mutate import mutate
from sealing import corpus, place
from test_fuzz import HEALTHY

from ullage_sidecar.settings import Settings
from ullage_sidecar.watch import Watch

FILES = 12
LOOKS = 1_000 if LONG else 80


def known(watch, state):
    """What is known of the healthy process, but for the dates."""
    (life,) = [life for life in state.shown if life.process == "healthy/main"]
    warnings = {key: warning.severity for key, warning in watch.alarms.active.items() if key.process == life.process}
    raised = {entry: count for entry, count in watch.alarms.raised.items() if entry[0].process == life.process}
    exits = {key: count for key, count in state.exits.items() if key[0] == life.process}
    return life.condition, state.totals[life.process], warnings, raised, exits


@pytest.mark.fault("mutated segments that come and go for hours", sees="the healthy process as it is")
def test_what_is_known_of_a_healthy_process_stays_exact(program, segments, tried, capsys):
    assert program(HEALTHY, ULLAGE_ENGINE="healthy").line() == "ready"
    watch = Watch(lambda: (Settings(dir=segments, retention=2, clear_hold=0.1), []))
    watch.tick()
    before = watch.look()
    expected = known(watch, before)
    chance = random.Random(7)
    contents = list(corpus().items())
    files = {}
    for number in range(LOOKS):
        slot = number % FILES
        if slot in files:
            files.pop(slot)[1].close()
        for path in chance.sample([file.path for _, file in files.values()], k=min(len(files), 1)):
            path.unlink(missing_ok=True)
        name, content = chance.choice(contents)
        file = place(segments, content, os.urandom(16), process=f"fuzz{chance.randrange(8)}/main")
        files[slot] = name, file
        if chance.random() < 0.3:
            file.lock()
        mutate(file, number, "history", name)

        watch.tick()

        now = watch.look()
        assert known(watch, now) == expected
        assert now.read_errors >= before.read_errors
        before = now
    tried(LOOKS, repaired=LOOKS)
    capsys.readouterr()
    assert before.read_errors
