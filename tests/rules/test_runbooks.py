"""The runbooks: whoever follows one at night finds what it names."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from everything import samples
from harness import ROOT

from rules import RUNBOOKS, alerts
from ullage.segment.layout import EventKind
from ullage_sidecar.app import create_app
from ullage_sidecar.settings import Settings
from ullage_sidecar.watch import Watch


def blocks(page, language):
    """Return the code blocks of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


SECTIONS = ["Meaning", "Impact", "How to look", "Likely causes", "What to do"]
PAGES = {page.stem: page.read_text() for page in sorted(RUNBOOKS.glob("*.md"))}
QUERIES = [(name, query.strip()) for name in PAGES for query in blocks(PAGES[name], "promql")]
SHELL = [line for page in PAGES.values() for block in blocks(page, "sh") for line in block.splitlines()]
SPANS = [span for page in PAGES.values() for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", page)]
SOURCE = "\n".join(path.read_text() for root in ("instrumentation", "service") for path in (ROOT / root).rglob("*.py"))
ELSEWHERE = {"kubectl", "logs", "curl", "10min", "INSTANCE", "evidence"}  # not ours, a mistake to make, placeholders


def test_each_alert_has_its_runbook_and_each_runbook_its_alert():
    assert PAGES.keys() == alerts().keys()


@pytest.mark.parametrize("name", PAGES)
def test_it_has_the_same_sections_and_fits_on_a_page_or_two(name):
    page = PAGES[name]

    assert page.startswith(f"# {name}\n")
    assert re.findall(r"^## (.*)$", page, re.MULTILINE)[: len(SECTIONS)] == SECTIONS
    assert len(page.splitlines()) <= 80
    assert any(name == one for one, _ in QUERIES)


@pytest.mark.parametrize(("name", "query"), QUERIES)
def test_a_query_has_an_answer(ask, name, query):
    assert ask(query)


def test_the_pages_of_the_api_that_are_named_are_there():
    paths = set(create_app(Watch(lambda: (Settings(), []))).openapi()["paths"])
    named = set(re.findall(r"/(?:v1/[\w/]+|metrics|livez|readyz)", "\n".join(PAGES.values())))

    assert named
    assert named <= paths


def test_the_commands_that_are_named_are_there():
    commands = {found[0] for text in [*SHELL, *SPANS] for found in re.finditer(r"^ullage [a-z][^>]*", text)}

    assert commands
    for command in commands:
        _, subcommand, *rest = command.split()
        about = subprocess.run(
            [sys.executable, "-m", "ullage_sidecar", subcommand, "--help"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        assert all(option in about for option in rest if option.startswith("-")), command


def test_whatever_else_is_named_is_a_word_of_the_code():
    exposed = {name for name, _, _ in samples()}
    known = set(re.findall(r"\w+", SOURCE)) | {kind.name.lower() for kind in EventKind} | ELSEWHERE
    words = {word for text in [*SHELL, *SPANS] for word in re.findall(r"\w+", text)}

    assert {word for word in words if word.startswith("ullage_") and word not in exposed} == set()
    assert words - known - exposed == set()


def test_the_links_lead_somewhere():
    for page in PAGES.values():
        for target in re.findall(r"\]\((\w+\.md(?:#[\w-]+)?)\)", page):
            file, _, anchor = target.partition("#")
            headings = re.findall(r"^#+ (.*)$", PAGES[file.removesuffix(".md")], re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
            assert not anchor or anchor in anchors
