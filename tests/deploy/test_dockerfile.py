"""What linters and scanners say of the Dockerfile, and what is sent to a build."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import tomllib
from harness import ROOT, missing
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXCEPTIONS = {"DS-0026": "no HEALTHCHECK: kubelets ignore it, OCI images have none; the pod has a liveness probe"}


@pytest.fixture
def tool():
    """Return where a program of the development tools is."""

    def find(name):
        path = Path(sys.executable).parent / name
        if not path.exists():
            missing(f"{path} is not there: it is one of the development tools of pyproject.toml")
        return path

    return find


def test_hadolint_finds_nothing(tool):
    ran = subprocess.run([tool("hadolint"), ROOT / "Dockerfile"], capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stdout) == (0, "")


def test_trivy_finds_nothing_but_what_has_a_reason(tool, tmp_path):
    # It scans directories: a copy, so that it does not walk through .venv.
    (tmp_path / "Dockerfile").write_bytes((ROOT / "Dockerfile").read_bytes())
    command = [tool("trivy"), "config", "--skip-check-update", "--quiet", "--format", "json", tmp_path]
    (scanned,) = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["Results"]

    assert scanned["MisconfSummary"]["Successes"] > 20
    assert {one["ID"]: one["Severity"] for one in scanned["Misconfigurations"]} == dict.fromkeys(EXCEPTIONS, "LOW")


def test_the_base_is_one_argument_and_has_a_tag():
    text = (ROOT / "Dockerfile").read_text()

    (base,) = re.findall(r"^ARG BASE=(.*)$", text, re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+-slim", base)
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}


def pins(name):
    """Return what a file of requirements pins: {distribution: (version, its hashes)}."""
    lines = (ROOT / name).read_text().replace("\\\n", " ").splitlines()
    words = [line.split() for line in lines if line and not line.startswith("#")]
    pairs = [(*first.split("=="), hashes) for first, *hashes in words]
    return {canonicalize_name(distribution): (version, hashes) for distribution, version, hashes in pairs}


def needed(requirements):
    """Return the names of the distributions that ``requirements`` bring, from the metadata of the installed ones."""
    found, waiting = set(), list(requirements)
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and name not in found:
            found.add(name)
            waiting += metadata.requires(name) or []
    return found


@pytest.mark.parametrize("name", ["requirements-image.txt", "requirements-image-build.txt"])
def test_every_distribution_in_the_image_is_pinned_with_hashes(name):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    sidecar, backend = project["project"]["optional-dependencies"]["sidecar"], project["build-system"]["requires"]
    constraints = pins("constraints.txt")

    pinned = pins(name)

    assert pinned.keys() == needed(backend if "build" in name else sidecar)
    for distribution, (version, hashes) in pinned.items():
        assert version == constraints[distribution][0]
        assert hashes, distribution
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes)


def test_only_what_is_needed_is_sent_to_a_build():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)

    assert allowed == {name for names in copied for name in names.split()}
