"""``ullage drill``: the warning is raised as a real one would be, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from harness import missing, until

from ullage.segment import reader

VIOLATED = {("drill", "bounds_violation"): "critical"}


@pytest.fixture
def drill(segments):
    """Start a drill; it is gone at the end of the test."""
    started = []

    def start(*arguments, module="ullage.drill", **environment):
        command = [sys.executable, "-m", module, *arguments]
        variables = {**os.environ, "ULLAGE_DIR": str(segments), **environment}
        started.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=variables)
        )
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


def test_it_raises_one_critical_warning_and_clears_it_and_an_engine_beside_it_is_not_touched(
    drill, program, sidecar, segments
):
    engine = program("import ullage; rows = ullage.buffer('rows', capacity=9, unit='rows'); rows.observe(3); input()")
    (own,) = until(lambda: list(segments.glob("*.ullage")))
    watching = sidecar()

    drilling = drill("--seconds", "3")
    until(lambda: watching.warnings() == VIOLATED)
    assert watching.value("ullage_bounds_violations_total", process="drill0/main", buffer="drill") == 1
    labels = {"process": "drill0/main", "buffer": "drill", "contract": "", "reason": "bounds_violation"}
    assert watching.value("ullage_warning_active", **labels, severity="critical") == 1
    assert watching.states() == {"app0/main": "running", "drill0/main": "running"}
    said = drilling.communicate(timeout=60)[0]

    assert drilling.returncode == 0
    assert "drill0/main is out of bounds for 3 s" in said
    until(lambda: watching.warnings() == {})
    assert watching.states() == {"app0/main": "running"}
    assert list(segments.glob("*.ullage")) == [own]
    assert reader.read(own).alive
    assert "cleared critical bounds_violation: drill0/main drill" in watching.log()
    engine.say("")
    engine.finish()


def test_in_the_environment_of_an_engine_it_is_none_of_its_processes(drill, segments):
    drilling = drill("--seconds", "60", ULLAGE_ENGINE="prod", ULLAGE_ENGINE_ID="prod:0123456789abcdef")

    drilling.stdout.readline()
    (path,) = segments.glob("*.ullage")
    seen = reader.read(path)
    assert (seen.name, seen.identity["engine"], seen.claims) == ("drill0/main", "drill", ())
    assert seen.engine_id != "0123456789abcdef"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_drill_that_is_broken_off_clears_its_warning(drill, segments, number):
    drilling = drill()
    drilling.stdout.readline()
    assert list(segments.glob("*.ullage"))

    drilling.send_signal(number)

    assert drilling.wait(timeout=60) == 128 + number
    assert list(segments.glob("*.ullage")) == []


def test_what_a_killed_drill_left_is_cleared_by_the_next_one(drill, sidecar, segments):
    killed = drill()
    killed.stdout.readline()
    watching = sidecar()
    until(lambda: watching.warnings() == VIOLATED)
    killed.kill()
    killed.wait()

    assert drill("--seconds", "0").wait(timeout=60) == 0

    assert list(segments.glob("*.ullage")) == []
    until(lambda: watching.warnings() == {})


def test_the_command_of_the_sidecar_is_the_same_where_it_can_write(drill, segments):
    drilling = drill("drill", "--seconds", "0", "--dir", str(segments), module="ullage_sidecar", ULLAGE_DIR="/nowhere")

    assert "drill0/main is out of bounds" in drilling.communicate(timeout=60)[0]
    assert drilling.returncode == 0


def test_where_the_sidecar_only_reads_it_says_where_to_run_it_instead():
    if os.geteuid():
        missing("a read-only mount needs root")
    with tempfile.TemporaryDirectory() as place:
        script = f'mount -t tmpfs -o ro tmpfs {place} && exec "$@"'
        command = [sys.executable, "-m", "ullage_sidecar", "drill", "--dir", place, "--seconds", "7"]
        environment = {**os.environ, "POD_NAME": "vllm-0", "POD_NAMESPACE": "serving"}
        ran = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script, "sh", *command],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )

    assert ran.returncode == 1
    wanted = "kubectl exec --namespace serving vllm-0 --container ENGINE -- python3 -m ullage.drill --seconds 7\n"
    assert ran.stderr.endswith(wanted)


@pytest.mark.parametrize(("arguments", "module"), [([], "ullage.drill"), (["drill"], "ullage_sidecar")])
def test_without_a_directory_it_says_so(drill, arguments, module):
    drilling = drill(*arguments, module=module, ULLAGE_DIR=str(Path("/nowhere")))

    assert "ULLAGE_DIR" in drilling.communicate(timeout=60)[0]
    assert drilling.returncode == 1
