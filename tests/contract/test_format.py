"""The format holds still: a file of each minor version is read as it was, and the page that describes it is true."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from harness import ROOT

from ullage.inspect.dump import plain
from ullage.segment import layout, reader
from ullage.segment.layout import C, Kind, Location, P, Phase, Q, Relation, Role

HERE = Path(__file__).parent
PAGE = (ROOT / "docs/segment.md").read_text()


def section(title):
    return re.split(r"^#+ ", PAGE.split(title, 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def rows(text):
    """The rows of the tables in ``text``, each a list of cells."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("version", [f"{layout.MAJOR}.{minor}" for minor in range(layout.MINOR + 1)])
def test_a_golden_file_of_this_format_is_read_as_ever(tmp_path, version):
    expected = json.loads((HERE / f"golden-{version}.json").read_text())
    path = tmp_path / f"{expected['incarnation']}.ullage"
    path.write_bytes(gzip.decompress((HERE / f"golden-{version}.ullage.gz").read_bytes()))

    seen = plain(reader.read(path))

    # An older golden file does not have the fields that came later; a reader finds them empty there.
    assert seen | expected | {"buffers": seen["buffers"]} == seen
    for buffer, then in zip(seen["buffers"], expected["buffers"], strict=True):
        assert {"closed": False, "histogram": False} | then == buffer


def test_the_page_has_the_regions():
    listed = {row[0]: [int(cell) for cell in row[1:]] for row in rows(section("Use these numbers")) if row[1].isdigit()}

    assert listed == {
        layout.RegionId(region.id).name.lower(): [
            region.records,
            region.offset,
            region.stride,
            region.sealed_at,
            region.sealed_bytes,
        ]
        for region in layout.REGIONS
    }
    assert f"{layout.FILE_BYTES:,} bytes" in PAGE


def test_the_page_has_every_plain_word():
    for title, words in (("### Process", P), ("### Probe", Q), ("### Buffer", layout.B), ("### Claim", C)):
        listed = {row[1]: int(row[0]) for row in rows(section(title)) if row[0].isdigit() and not row[1].isdigit()}

        assert listed == {word.name.lower(): int(word) for word in words}, title


def test_the_page_has_every_payload_field_where_it_is():
    formats = {
        "### Probe": layout._PROBE,
        "### Buffer": layout._BUFFER,
        "### Claim": layout._CLAIM,
        "### Event": layout._EVENT,
    }
    for title, packed in formats.items():
        fields = [(int(row[0]), int(row[1])) for row in rows(section(title)) if row[0].isdigit() and row[1].isdigit()]
        ends = [offset + size for offset, size in fields]

        assert [offset for offset, _ in fields] == [0, *ends[:-1]], title
        assert ends[-1] == packed.size, title


def test_the_page_has_every_enumeration():
    for enum in (Kind, Location, Role, Phase, layout.ProbeStatus, layout.EventKind):
        for member in enum:
            if member:
                name = member.name.lower()
                assert f"{int(member)} {name}" in PAGE or f"| {int(member)} | {name} |" in PAGE, member
    assert f"{int(Relation.EQUAL)} equal" in PAGE
    assert f"{int(Relation.AT_LEAST)} at least" in PAGE
