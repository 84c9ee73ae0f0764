"""``ullage doctor``: what is wrong is found, said with what to do, and known by the exit status."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from snapshots import START, snapshot

from ullage import __version__
from ullage.segment.layout import FILE_BYTES, MAJOR, MINOR, ProbeStatus
from ullage.segment.snapshot import Probe
from ullage_sidecar.checkup import Volume, checks
from ullage_sidecar.discovery import Found, Unreadable
from ullage_sidecar.settings import Settings
from ullage_sidecar.state import History, observe

USE = """
import sys, ullage
rows = ullage.buffer("rows", capacity=9, unit="rows")
rows.observe(3)
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""
VOLUME = Volume(
    path=Path("/run/ullage"),
    kind="tmpfs",
    free=100 * FILE_BYTES,
    mode=0o40777,
    owner=(0, 0),
    us=(65532, 65532),
    writers=(),
    writable=False,
    disabled=False,
)


def examine(directory, *options, before=()):
    """Run it; return its exit status, and its findings by what and where they are about."""
    command = [*before, sys.executable, "-m", "ullage_sidecar", "doctor", "--dir", str(directory), "--json", *options]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    document = json.loads(ran.stdout)
    assert document["status"] == ran.returncode
    return ran.returncode, {(one["what"], one["where"]): one for one in document["findings"]}


def told(*snapshots, volume=VOLUME, unreadable=(), problems=()):
    """What the checks say of processes: everything that is not ok, as (verdict, what, says)."""
    state, _ = observe(Found(snapshots, tuple(unreadable)), History(), Settings(), START + 1)
    return [(one.verdict, one.what, one.says) for one in checks(volume, state, list(problems)) if one.verdict != "ok"]


def living(**identity):
    """A process in which everything is as it should be."""
    seen = snapshot()
    return dataclasses.replace(seen, identity={**seen.identity, "hook_version": __version__, **identity})


# -- as a command ---------------------------------------------------------------------------------------------------


def test_a_healthy_pair_is_fine(program, segments):
    segments.chmod(0o777)
    running = program(USE, VLLM_PLUGINS="lora,ullage", PYTHONPATH=os.environ.get("PYTHONPATH", "") + ":/opt/ullage")
    assert running.line() == "ready"

    status, found = examine(segments)

    assert status == 0
    assert {one["verdict"] for one in found.values()} == {"ok"}
    where = str(segments)
    assert found["file system", where]["says"] == "tmpfs"
    assert found["permissions", where]["says"].startswith(f"mode 0777, owner {os.geteuid()}:{os.getegid()}; ")
    assert f"hook {__version__}, format {MAJOR}.{MINOR}" in found["hook", "app0/main"]["says"]
    assert found["way in", "app0/main"]["says"].endswith(":/opt/ullage")
    assert found["plugins", "app0/main"]["says"] == "VLLM_PLUGINS is 'lora,ullage'"


def test_people_get_a_line_for_each_and_what_to_do(segments):
    (segments / "disable").touch()

    ran = subprocess.run(
        [sys.executable, "-m", "ullage_sidecar", "doctor", "--dir", str(segments)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 1
    lines = ran.stdout.splitlines()
    assert lines[0] == f"ullage {__version__}, format {MAJOR}.{MINOR}"
    switch = next(number for number, line in enumerate(lines) if line.startswith("wrong  switch"))
    assert lines[switch + 1].startswith(f"       -> remove {segments}/disable")
    assert any("VLLM_PLUGINS" in line and "ULLAGE_DIR" in line for line in lines)


def test_a_directory_that_is_not_there_cannot_be_looked_at(tmp_path):
    status, found = examine(tmp_path / "nowhere")

    assert status == 2
    assert found["volume", str(tmp_path / "nowhere")]["says"] == "No such file or directory"


def test_a_directory_that_may_not_be_read_cannot_be_looked_at(tmp_path):
    tmp_path.chmod(0)
    # Root without its capabilities is as little as anybody.
    before = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"] if os.geteuid() == 0 else []

    status, _ = examine(tmp_path, before=before)

    assert status == 2


def test_a_process_that_goes_on_without_its_lock_is_found(program, segments):
    running = program(USE)
    assert running.line() == "ready"
    running.say(
        "import threading, time; from ullage.host.process import process; process.session._segment.close(); "
        "threading.Thread("
        "target=lambda: [(rows.observe(2), time.sleep(0.02)) for _ in range(3000)], daemon=True).start()"
    )
    assert running.line() == "done"

    status, found = examine(segments)

    assert status == 1
    assert "nobody holds it, but the process goes on" in found["lock", "app0/main"]["says"]


def test_bad_settings_are_found(segments, tmp_path):
    config = tmp_path / "ullage.yaml"
    config.write_text("warning_ratio: 7\n")

    status, found = examine(segments, "--config", str(config))

    assert status == 1
    assert "warning_ratio" in found["settings", "sidecar"]["says"]


# -- check by check -------------------------------------------------------------------------------------------------


def test_of_a_healthy_process_nothing_is_told():
    assert told(living()) == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"kind": "ext4"}, ("note", "file system", "ext4, not tmpfs")),
        ({"kind": None}, ("note", "file system", "of an unknown kind, not tmpfs")),
        ({"free": 9}, ("wrong", "room", f"9 bytes are free, a segment takes {FILE_BYTES}")),
        (
            {"mode": 0o40750, "owner": (1000, 7)},
            ("note", "permissions", "mode 0750, owner 1000:7; this process (65532:65532) only reads"),
        ),
        ({"disabled": True}, ("wrong", "switch", "a file named disable switches every hook off")),
    ],
)
def test_the_volume(changed, expected):
    assert told(living(), volume=dataclasses.replace(VOLUME, **changed)) == [expected]


def test_who_writes_already_may_write():
    mine = dataclasses.replace(VOLUME, mode=0o40755, owner=(1000, 0), writers=(1000,))

    assert told(living(), volume=mine) == []


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        ({"hook_version": "0.0.9"}, ("note", "hook", f"hook 0.0.9, format {MAJOR}.{MINOR}, Python ?, pid 0")),
        ({"plugin_variables": "VLLM_PLUGINS="}, ("wrong", "plugins", "VLLM_PLUGINS is ''")),
        ({"plugin_variables": "VLLM_PLUGINS=lora"}, ("wrong", "plugins", "VLLM_PLUGINS is 'lora'")),
    ],
)
def test_the_engines_side(identity, expected):
    assert told(living(**identity)) == [expected]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"hook_errors": 3}, ("wrong", "errors", "3 errors of the hook")),
        ({"disabled_ns": 1}, ("wrong", "switch", "the hook was switched off")),
        ({"dropped_claims": 2}, ("note", "records", "2 did not fit into the segment")),
    ],
)
def test_what_a_process_counted(words, expected):
    seen = living()
    assert told(dataclasses.replace(seen, process=seen.process._replace(**words))) == [expected]


def test_probes_that_are_not_installed_are_named_with_their_reason():
    reasons = {"absent": ProbeStatus.ABSENT, "changed": ProbeStatus.CHANGED, "disabled": ProbeStatus.DISABLED}
    probes = [Probe("Scheduler.schedule", "", ProbeStatus.INSTALLED, 1, 0, 0)]
    probes += [Probe(f"Runner.{name}", f"it is {name}", status, 0, 0, 0) for name, status in reasons.items()]

    assert told(dataclasses.replace(living(), probes=tuple(probes))) == [
        ("note", "probes", "Runner.absent is absent: it is absent"),
        ("wrong", "probes", "Runner.changed is changed: it is changed"),
        ("wrong", "probes", "Runner.disabled is disabled: it is disabled"),
    ]


def test_nobody_alive_is_told_from_nobody_ever():
    dead = dataclasses.replace(living(), alive=False)

    assert told() == [("wrong", "hook", "none was ever here")]
    assert told(dead) == [("wrong", "hook", "none is alive; dead: vllm0/core (killed)")]


def test_a_file_that_cannot_be_read_is_named():
    bad = Unreadable("x.ullage", "version", "x.ullage: format 2.0")

    assert told(living(), unreadable=[bad]) == [("wrong", "segment", "x.ullage: format 2.0")]
