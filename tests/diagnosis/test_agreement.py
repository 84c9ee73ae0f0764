"""Which claims satisfy each other."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.segment.agreement import MAX_GROUPS, Claim, differing, disagreements


def claim(source, *shape, role="is", **inputs):
    return Claim(source, role, shape, inputs)


@pytest.mark.parametrize(
    ("provided", "required", "relations", "wrong"),
    [
        ((4,), (4,), ("==",), None),
        ((5,), (4,), ("==",), (0,)),
        ((5,), (4,), (">=",), None),
        ((4,), (5,), (">=",), (0,)),
        ((None,), (5,), (">=",), None),
        ((4, 8), (4, None), ("==", "=="), None),
        ((4, 8), (5, 9), ("==", ">="), (0, 1)),
        ((4, 9), (4, 8), ("==", ">="), None),
        ((4,), (4, 1), ("==",), ()),
        ((), (), (), None),
    ],
)
def test_each_dimension_has_its_relation(provided, required, relations, wrong):
    assert differing(provided, required, relations) == wrong


def test_groups_of_equal_claims_are_compared_and_each_pair_is_reported_once():
    claims = [claim("a", 4), claim("b", 5), claim("c", 5), claim("d", 6)]

    found = [
        ("".join(one.source for one in d.providers), "".join(one.source for one in d.requirements))
        for d in disagreements(claims, ("==",))
    ]

    assert found == [("a", "bc"), ("a", "d"), ("bc", "d")]


def test_a_disagreement_counts_for_each_process_with_a_need_that_is_not_met():
    said = [Claim("provider", "provides", (4,), process="core")]
    said += [Claim(f"layer {n}", "requires", (5,), process=f"worker-tp{n % 2}") for n in range(6)]

    (found,) = disagreements(said, ("==",))

    assert (found.provider, found.requirement) == (said[0], said[1])
    assert [found.counts_for(process) for process in ("core", "worker-tp0", "worker-tp1")] == [False, True, True]


def test_a_provider_is_told_from_a_requirement_whichever_comes_first():
    said = [claim("needs", 5, role="requires"), claim("has", 4, role="provides"), claim("has, too", 4, role="provides")]

    (found,) = disagreements(said, (">=",))

    assert [one.source for one in found.providers] == ["has", "has, too"]
    assert [one.source for one in found.requirements] == ["needs"]


def test_the_first_groups_of_too_many_are_compared():
    assert (
        len(disagreements([claim(str(n), n) for n in range(1, 1_025)], ("==",))) == MAX_GROUPS * (MAX_GROUPS - 1) // 2
    )


def test_a_provider_must_have_what_every_requirement_needs():
    claims = [
        claim("small", 4, role="provides"),
        claim("large", 9, role="provides"),
        claim("needs 5", 5, role="requires"),
        claim("needs 3", 3, role="requires"),
    ]

    found = [(d.provider.source, d.requirement.source) for d in disagreements(claims, (">=",))]

    assert found == [("small", "needs 5")]


def test_two_that_are_the_size_must_be_equal_even_where_more_would_do():
    assert len(disagreements([claim("a", 4), claim("b", 5)], (">=",))) == 1
    assert len(disagreements([claim("a", 5), claim("b", 4)], (">=",))) == 1


def test_a_dtype_is_compared_where_both_state_one():
    first = Claim("a", "is", (4,), {}, "int32")

    assert len(disagreements([first, Claim("b", "is", (4,), {}, "int64")], ("==",))) == 1
    assert disagreements([first, Claim("b", "is", (4,))], ("==",)) == []


def test_the_numbers_of_a_disagreement():
    (found,) = disagreements([claim("a", 7, 4), claim("b", 7, 5)], ("==", "=="))
    assert found.numbers == (4, 5, 1)
    (found,) = disagreements([claim("a", 256), claim("b", 256, 3)], ("==", "=="))
    assert found.numbers == (256, 768, -1)


roles = st.sampled_from(["provides", "requires", "is"])


@given(st.lists(st.tuples(roles, st.integers(0, 3)), max_size=5), st.sampled_from(["==", ">="]))
def test_against_the_definition(said, relation):
    claims = [Claim(str(n), role, (size,)) for n, (role, size) in enumerate(said)]

    found = {
        frozenset((one.source, other.source))
        for d in disagreements(claims, (relation,))
        for one, other in product(d.providers, d.requirements)
    }

    provides = [c for c in claims if c.role in ("provides", "is")]
    requires = [c for c in claims if c.role in ("requires", "is")]
    expected = {
        frozenset((p.source, r.source))
        for p in provides
        for r in requires
        if p is not r and not (p.shape == r.shape if relation == "==" else p.shape >= r.shape)
    }
    assert found == expected


def test_thousands_that_say_the_same_are_one_disagreement():
    said = [claim(f"layer {number}", 256) for number in range(3_000)]

    (found,) = disagreements([*said, claim("runner", 512)], ("==",))

    assert (found.provider.source, found.requirement.source) == ("layer 0", "runner")
    assert len(found.providers) == 3_000
