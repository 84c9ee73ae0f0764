"""Settings: where they come from, and that a bad one costs only itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from snapshots import buffer

from ullage_sidecar.settings import Settings, load


@pytest.fixture
def config(tmp_path):
    """Write a settings file."""

    def write(text):
        path = tmp_path / "ullage.yaml"
        path.write_text(text)
        return path

    return write


def test_the_command_line_comes_before_the_environment_before_the_file(config):
    file = config("dir: /file\nport: 1\nhost: 10.0.0.1\nclear_hold: 5m\n")
    environment = {"ULLAGE_DIR": "/env", "ULLAGE_PORT": "2"}

    settings, problems = load(file, environment, port=3)

    assert problems == []
    assert (settings.port, settings.dir, settings.host, settings.clear_hold) == (3, Path("/env"), "10.0.0.1", 300)


@pytest.mark.parametrize(
    ("text", "seconds"), [("10m", 600), ("1h30m", 5400), ("500ms", 0.5), ("45", 45), (7, 7), ("1.5s", 1.5)]
)
def test_durations(text, seconds):
    assert Settings(clear_hold=text).clear_hold == seconds


@pytest.mark.parametrize("text", ["10 m", "m", "1x", "-3", "ten"])
def test_what_is_no_duration_is_refused(text):
    settings, problems = load(environment={"ULLAGE_CLEAR_HOLD": text})

    assert settings.clear_hold == 60
    assert len(problems) == 1
    assert problems[0].startswith("clear_hold: ")


def test_settings_of_one_buffer_from_the_file_and_from_the_environment(config):
    from_file, _ = load(config("buffers: {rows: {warning_ratio: 0.8}}"), {})
    from_environment, _ = load(environment={"ULLAGE_BUFFERS": '{"rows": {"severity": "info"}}'})

    assert (from_file.ratio_of(buffer("rows")), from_file.ratio_of(buffer("other"))) == (0.8, 0.9)
    assert from_file.ratio_of(buffer("other", capacity=100, warn_at=97)) == 0.97
    assert from_file.ratio_of(buffer("other", capacity=100, warn_at=50)) == 0.9
    assert from_file.ratio_of(buffer("rows", capacity=100, warn_at=97)) == 0.8
    assert from_environment.buffers["rows"].severity == "info"
    assert from_environment.ratio_of(buffer("rows")) == 0.9


def test_an_unknown_key_is_an_error_in_the_file_only(config):
    _, problems = load(config("warning_ration: 0.8"), {"ULLAGE_STRICT": "1", "ULLAGE_ENGINE_ID": "x"})

    assert problems == ["warning_ration: Extra inputs are not permitted (ignored, the default holds)"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("warning_ratio: 1.5", "warning_ratio: "),
        ("port: many", "port: "),
        ("buffers: {rows: {ratio: 1}}", "buffers.rows"),
        ("clear_ratio: 0.95", "settings: Value error, clear_ratio 0.95 is above warning_ratio 0.9"),
        ("[1, 2]", "must be a mapping"),
        ("a: [", "while parsing"),
    ],
)
def test_a_bad_setting_is_reported_and_the_others_hold(config, text, problem):
    file = config(text)

    settings, problems = load(file, {"ULLAGE_STALL_AFTER": "7s"})

    assert any(problem in line for line in problems)
    assert settings == Settings(stall_after=7)


def test_a_missing_file_is_reported():
    settings, problems = load(Path("/nowhere/ullage.yaml"), {})

    assert settings == Settings()
    assert "/nowhere/ullage.yaml" in problems[0]
