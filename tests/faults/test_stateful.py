"""A writer against a reader against a model, through registrations, resizes, closes, forks and kills."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import LONG, until
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ullage.segment import reader

WRITER = """
import json, os, sys
import ullage
buffers = {}
for line in sys.stdin:
    what, name, value = json.loads(line)
    if what == "register":
        buffers[name] = ullage.buffer(name, capacity=value, unit="rows")
    elif what == "close":
        buffers.pop(name).close()
    elif what == "fork":
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        else:
            for one in buffers.values(): one.observe(value)
            os._exit(0)
    else:
        getattr(buffers[name], what)(value)
    print("done", flush=True)
"""
NAMES = st.sampled_from(["a", "b", "c", "d"])


class Model:
    """What one buffer should say."""

    def __init__(self, capacity):
        self.capacity, self.used, self.high_water, self.ratio = capacity, 0, 0, 0.0
        self.observations = self.beyond = self.resizes = self.exhaustions = 0

    def register(self, value):
        self.resize(value)

    def observe(self, value):
        self.used, self.high_water = value, max(self.high_water, value)
        self.observations += 1
        self.beyond += value > self.capacity
        self.ratio = max(self.ratio, value / self.capacity)

    def resize(self, value):
        self.resizes += value != self.capacity
        self.capacity = value
        self.ratio = max(self.ratio, self.used / value)

    def exhausted(self, _value):
        self.exhaustions += 1

    @property
    def leaves_counts(self):
        return bool(self.beyond or self.resizes or self.exhaustions)

    def reopened(self, capacity):
        self.capacity, self.used = capacity, 0


class Writing(RuleBasedStateMachine):
    """A process that writes, as hypothesis says."""

    @initialize()
    def start(self):
        self.directory = Path(tempfile.mkdtemp(prefix="ullage-", dir="/dev/shm"))
        self.models = {}
        self.process = None
        self.dead = []
        self.begin()

    def begin(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "ULLAGE_DIR": str(self.directory)},
        )
        self.models = {}
        self.closed = {}

    def tell(self, what, name="", value=0):
        self.process.stdin.write(json.dumps([what, name, value]) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    @rule(name=NAMES, capacity=st.integers(1, 100))
    def register(self, name, capacity):
        self.tell("register", name, capacity)
        if name in self.models:
            self.models[name].resize(capacity)
        elif name in self.closed:
            self.models[name] = self.closed.pop(name)
            self.models[name].reopened(capacity)
        else:
            self.models[name] = Model(capacity)

    @precondition(lambda self: self.models)
    @rule(
        data=st.data(), what=st.sampled_from(["observe", "observe", "resize", "exhausted"]), value=st.integers(1, 120)
    )
    def use(self, data, what, value):
        name = data.draw(st.sampled_from(sorted(self.models)))
        self.tell(what, name, value)
        getattr(self.models[name], what)(value)

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def close(self, data):
        name = data.draw(st.sampled_from(sorted(self.models)))
        self.tell("close", name)
        model = self.models.pop(name)
        if model.leaves_counts:
            self.closed[name] = model

    @rule(value=st.integers(0, 50))
    def fork(self, value):
        before = set(self.directory.glob("*.ullage"))
        self.tell("fork", "", value)
        new = set(self.directory.glob("*.ullage")) - before
        if self.models and before:
            (path,) = new
            child = reader.read(path)
            assert {b.name: (b.used, b.observations) for b in child.buffers} == dict.fromkeys(self.models, (value, 1))
            path.unlink()

    @rule()
    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        for path in self.directory.glob("*.ullage"):
            until(lambda path=path: not reader.read(path).alive)
        self.compare()
        for path in self.directory.glob("*.ullage"):
            path.unlink()
        self.begin()

    @invariant()
    def compare(self):
        paths = list(self.directory.glob("*.ullage"))
        if not paths:
            assert not self.models
            return
        (path,) = paths
        snapshot = reader.read(path)
        assert snapshot.half_written == 0
        seen = {buffer.name: buffer.closed for buffer in snapshot.buffers}
        assert seen == dict.fromkeys(self.models, False) | dict.fromkeys(self.closed, True)
        for buffer in snapshot.buffers:
            model = (self.models | self.closed)[buffer.name]
            assert (buffer.capacity, buffer.used, buffer.high_water) == (model.capacity, model.used, model.high_water)
            assert (buffer.observations, buffer.beyond) == (model.observations, model.beyond)
            assert (buffer.grows + buffer.shrinks, buffer.exhaustions) == (model.resizes, model.exhaustions)
            assert abs(buffer.high_water_ratio - model.ratio) < 2e-6

    def teardown(self):
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            shutil.rmtree(self.directory, ignore_errors=True)


TestWriting = Writing.TestCase
TestWriting.settings = settings(
    max_examples=200 if LONG else 12,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
