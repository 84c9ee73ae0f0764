"""Messages of the host's exceptions: known ones by their signature and numbers, and never any of their text."""

from __future__ import annotations

import pytest

from ullage.host import signatures
from ullage.segment import reader

KNOWN = [
    (
        "The expanded size of the tensor (3125) must match the existing size (3126) at non-singleton dimension 1.",
        "expanded_size",
        (3125, 3126),
    ),
    (
        "The size of tensor a (4040) must match the size of tensor b (4041) at non-singleton dimension 1",
        "tensor_sizes",
        (4040, 4041),
    ),
    ("scheduler_metadata must have shape (metadata_size)", "metadata_shape", ()),
    ("scheduler_metadata dimension 0 must have size 5, got 9", "dimension_size", (0, 5, 9)),
    ("seqused_k must have size 7, got 8", "size", (7, 8)),
    (
        "Workspace is locked but allocation from 'deepgemm.py:12:run' requires 384.25 MB, current size is 256.00 MB.",
        "workspace_locked",
        (402915328, 268435456),
    ),
    ("block count for req chatcmpl-1 exceeds row capacity (5 > 4)", "row_capacity", (5, 4)),
    ("No free indices", "no_free_indices", ()),
    ("No free lora slots", "no_free_lora_slots", ()),
    ("index 8192, capacity 8192", "index_capacity", (8192, 8192)),
    ("index -1, capacity 64", "index_capacity", (-1, 64)),
    ("index 16 is out of bounds for dimension 0 with size 16", "out_of_bounds", (16, 0, 16)),
    ("Cannot get 12 free blocks from the pool", "free_blocks", (12,)),
]


@pytest.mark.parametrize(("message", "name", "numbers"), KNOWN)
def test_a_known_message_is_its_signature_and_its_numbers(message, name, numbers):
    assert signatures.match(RuntimeError(message)) == (name, numbers)


class UnspeakableError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("user said: my password is 1234"),
        KeyError("chatcmpl-5228a43943644c7d"),
        AssertionError(),
        UnspeakableError(),
        RuntimeError("must have size 12345678901234567890123, got 1"),
        RuntimeError("x" * 5_000 + "No free indices"),
    ],
)
def test_of_any_other_message_nothing_is_known(error):
    assert signatures.match(error) == ("", ())


def test_the_segment_holds_no_text_of_a_message(program, segments):
    program("""
        from ullage.host.process import process
        process.session.open()
        process.session.note_exception("execute_model", AssertionError("row of SECRET exceeds row capacity (5 > 4)"))
        process.session.note_exception("schedule", ValueError("SECRET prompt"))
        """).finish()
    (path,) = segments.glob("*.ullage")

    noted = [event for event in reader.read(path).events if event.kind.name == "HOST_EXCEPTION"]

    assert [(event.subject, event.detail, event.numbers) for event in noted] == [
        ("execute_model", "AssertionError row_capacity", (5, 4, 0, 0)),
        ("schedule", "ValueError", (0, 0, 0, 0)),
    ]
    assert b"SECRET" not in path.read_bytes()
