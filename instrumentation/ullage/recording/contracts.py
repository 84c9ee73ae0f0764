"""Contracts: one size that several components must agree on, and who says what of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from ullage import safety
from ullage.errors import ShapeViolation
from ullage.exact import size
from ullage.host import compiled
from ullage.host.process import process
from ullage.host.record_views import NULL_RECORD, LazyRecord
from ullage.recording.claim_payload import SOURCE_BYTES, Terms, claim_payload
from ullage.recording.claim_record import ClaimRecord, Words
from ullage.recording.explanation import explanation
from ullage.segment import layout, text
from ullage.segment.agreement import (
    EQUAL,
    IS,
    RELATIONS,
    ROLES,
    Claim,
    Disagreement,
    Shape,
    differing,
    disagreement,
)
from ullage.segment.layout import C, EventKind, P

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import SupportsIndex

    from ullage.host.records import Owner
    from ullage.segment.layout import ClaimPayload

    Inputs = Mapping[str, Any]
    Sizes = Sequence[SupportsIndex | None] | SupportsIndex

_VERDICTS_KEPT = 64
NAME_BYTES = 96
MAX_SOURCES = layout.CLAIMS.records
"""Sources of one contract in a process; later ones are counted, not recorded."""
MAX_REPORTED = 128
"""Disagreements of one contract that a process reports as they come, each counted from both sides."""
Group = tuple[str, Shape, str]


class Contract:
    """One size or shape that several components must agree on.

    The claims of one source replace each other; they are for sizes that stand. Sizes that change every step are
    for ``compare``. Nothing raises but ``require`` (and what is wrong in a call, under ``ULLAGE_STRICT``).

    Attributes:
        name: Unique in this process; at most 96 bytes.
        dims: Names of the dimensions.
        check: ``check(tensor, source="tensor")``: hold a tensor's shape (and dtype, if the contract has one)
            against the claims; count and report what does not satisfy them. Reads no contents. Returns whether
            it does; on an unchanged shape that costs less than two ``observe``. Called from a compiled function it
            does nothing and returns None.
    """

    def __init__(
        self,
        name: str,
        *,
        dims: Sequence[str] = ("size",),
        relation: str | Sequence[str] = EQUAL,
        unit: str = "",
        dtype: str = "",
        owner: Owner = process,
    ) -> None:
        """Register a contract.

        Args:
            name: What is agreed on.
            dims: A name for each dimension, at most eight.
            relation: ``==`` or ``>=`` (every provider has at least what is required), for all dimensions or each.
            unit: What is counted.
            dtype: The element type that every tensor must have; empty if that is free.
            owner: The engine instance whose components agree; the program by default.
        """
        self._owner = owner
        self.name, self.unit, self.dtype = text.clean(safety.told(name)), unit, dtype
        self.dims = tuple(dims) if isinstance(dims, Iterable) else ()
        self.relations: tuple[str, ...] = (EQUAL,) * len(self.dims)
        self._claims: dict[str, Claim] = {}
        self._records: dict[str, ClaimRecord] = {}
        self._known: set[tuple[Group, Group]] = set()
        self._place = safety.Place(f"contract {self.name}", self._switched_off)
        self._tally: ClaimRecord | None = None
        self._witnesses: list[ClaimRecord] = []
        functions = _checking(self)
        self.check: Callable[..., bool] = functions.check
        self._count: Callable[[int, int], int] = functions.tally
        self._forget: Callable[[], None] = functions.forget
        compiled.skip(self.check)
        with self._place:
            given = (relation,) * len(self.dims) if isinstance(relation, str) else tuple(relation)
            self.relations = _relations(given, self.dims)
            if not 1 <= len(self.name.encode()) <= NAME_BYTES:
                raise ValueError(f"a contract's name must have 1 to {NAME_BYTES} bytes in UTF-8, not {self.name!r}")
            payload = self._payload("", "", (), {}, dtype, layout.FLAG_TALLY)
            tally = ClaimRecord(owner, payload, functions.bind, keeps=self.name)
            self._tally = tally
            owner.session.register(tally)

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims made in this process."""
        return tuple(self._claims.values())

    def claim(
        self, source: str, shape: Sizes, *, role: str = IS, inputs: Inputs | None = None, dtype: str = ""
    ) -> None:
        """Say what ``source`` holds the size to be, instead of what it said before.

        Args:
            source: Who says it; at most 64 bytes.
            shape: A size for each dimension; None is not compared.
            role: ``provides``, ``requires`` or ``is`` (both).
            inputs: What it was computed from: numbers, strings, booleans by name. They tell causes apart.
            dtype: The element type, if that is part of the claim.
        """
        if self._place.off:
            return
        with self._place, self._owner.session.lock:
            source = text.clean(source)
            if not source:
                raise ValueError(f"a claim on {self.name} without a source")
            if role not in ROLES:
                raise ValueError(f"role is {role!r}; it must be one of {', '.join(ROLES)}")
            claim = Claim(source, role, _shape(shape), dict(inputs or {}), dtype)
            payload = self._payload(source, role, claim.shape, claim.inputs, dtype, 0)
            record = self._records.get(source)
            if record is None and len(self._records) >= MAX_SOURCES:
                self._owner.session.drop(P.DROPPED_CLAIMS)
                return
            self._claims[source] = claim
            self._forget()
            if record is None:
                record = self._records[source] = ClaimRecord(self._owner, payload)
                self._owner.session.register(record)
            else:
                record.publish(payload)
            self._report_disagreements(claim)

    def compare(
        self,
        provided: Sizes,
        required: Sizes,
        *,
        inputs: Callable[[], Inputs | tuple[Inputs, Inputs]] | None = None,
        sources: tuple[str, str] = ("provided", "required"),
    ) -> bool:
        """Hold two sizes of this moment against each other; keep neither. Returns whether they fit.

        ``inputs`` is called on a mismatch only; what it returns, for both sides or for each, is recorded with the
        violation.
        """
        if self._place.off:
            return True
        with self._place:
            have, need = _shape(provided), _shape(required)
            dims = differing(have, need, self.relations)
            self._count(1, 0)
            if dims is None:
                return True
            given = inputs() if inputs is not None else {}
            ours, theirs = given if isinstance(given, tuple) else (given, given)
            provider, requirement = (text.clean(source) for source in sources)
            provided_claim = Claim(provider, "provides", have, dict(ours))
            self._violated(provided_claim, Claim(requirement, "requires", need, dict(theirs)), dims)
            return False
        return True

    def require(self, tensor: Any, source: str = "tensor") -> None:
        """Check ``tensor`` and refuse it.

        Raises:
            ShapeViolation: It does not satisfy a claim, or has another dtype.
        """
        if self.check(tensor, source):
            return
        actual = _actual(tensor, source)
        for claim, _ in self._unsatisfied(actual)[:1]:
            raise self._explained(actual, claim)

    def refuse(self, tensor: Any, source: str, reason: str) -> ShapeViolation:
        """Count ``tensor`` as a violation for a reason of the caller's; return what to raise."""
        actual = claim = Claim(source, IS, (), {}, "")
        with self._place:
            actual = _actual(tensor, source)
            claim = next(reversed(self._claims.values()), actual)
            self._count(1, 0)
            self._violated(actual, claim, differing(actual.shape, claim.shape, self.relations) or (), reason)
        return ShapeViolation(f"{self.name}: {source}: {reason}", expected=claim, actual=actual, causes=(reason,))

    def close(self) -> None:
        """Forget the contract and free its records."""
        with safety.shield(f"contract {self.name}: close"), self._owner.session.lock:
            self._claims.clear()
            self._forget()
            for record in (*self._records.values(), *self._witnesses, *([self._tally] if self._tally else [])):
                self._owner.session.forget(record)
                record.release(self._owner.session.open())
            self._records.clear()
            self._witnesses.clear()
            self._tally = None
            compiled.unskip(self.check)

    # -- what the checks find --------------------------------------------------------------------------------------

    def _judge(self, tensor: Any, source: str) -> bool:
        """Hold a tensor of a shape not seen before against the claims; report what is wrong."""
        actual = _actual(tensor, source)
        wrong = self._unsatisfied(actual)
        for claim, dims in wrong[:1]:
            self._violated(actual, claim, dims)
        return not wrong

    def _unsatisfied(self, actual: Claim) -> list[tuple[Claim, tuple[int, ...]]]:
        found: list[tuple[Claim, tuple[int, ...]]] = []
        for claim in self._claims.values():
            if claim.source == actual.source:
                continue
            wrong = disagreement(actual, claim, self.relations)
            found += [(claim, wrong.dims)] if wrong is not None else []
        if self.dtype and actual.dtype != self.dtype:
            found.append((Claim("the contract", "requires", actual.shape, {}, self.dtype), ()))
        own = self._claims.get(actual.source)
        if own is not None and differing(actual.shape, own.shape, (EQUAL,) * len(own.shape)) is not None:
            found.append((own, differing(actual.shape, own.shape, (EQUAL,) * len(own.shape)) or ()))
        return found

    def _violated(self, provider: Claim, requirement: Claim, dims: tuple[int, ...], reason: str = "") -> None:
        total = self._count(0, 1)
        have, need, dim = _first_difference(provider, requirement, dims)
        said = f"{provider.source} {_say(provider)}, {requirement.source} {_say(requirement)}"
        said += f": {reason}" if reason else ""
        self._owner.session.emit(
            EventKind.SHAPE_VIOLATION, self.name, count=total, numbers=(have, need, dim), detail=said
        )
        safety.log_once(f"shape violation in {self.name}", f"shape violation in {self.name}: {said}")
        # As often as there is an event of it, and at the first: an earlier contract of this name may have counted.
        if not reason and (total & (total - 1) == 0 or not self._witnesses):
            self._witness(provider, requirement)

    def _witness(self, *sides: Claim) -> None:
        """Record what both sides had: their inputs explain the violation."""
        with self._owner.session.lock:
            for place, (side, flag) in enumerate(zip(sides, (layout.FLAG_PROVIDED, layout.FLAG_REQUIRED), strict=True)):
                source = text.encode(side.source, SOURCE_BYTES).decode()
                payload = self._payload(source, side.role, side.shape, side.inputs, side.dtype, flag)
                if place < len(self._witnesses):
                    self._witnesses[place].publish(payload)
                else:
                    self._witnesses.append(ClaimRecord(self._owner, payload))
                    self._owner.session.register(self._witnesses[place])

    def _report_disagreements(self, claim: Claim) -> None:
        """Report claims that do not fit ``claim``: one of each group that says the same."""
        own = _group(claim)
        groups = {_group(other): other for other in self._claims.values()}
        for group, other in groups.items():
            found = disagreement(other, claim, self.relations) if group != own else None
            if found is None or (group, own) in self._known or len(self._known) >= MAX_REPORTED:
                continue
            self._known |= {(group, own), (own, group)}
            sides = (found.provider, found.requirement)
            said = ", ".join(f"{side.source} {_say(side)}" for side in sides)
            self._owner.session.emit(EventKind.DISAGREEMENT, self.name, numbers=found.numbers, detail=said)
            safety.log_once(f"claims on {self.name}", f"claims on {self.name} disagree: {said}")

    def _switched_off(self, why: str) -> None:
        self._owner.session.emit(EventKind.PROBE_DISABLED, self.name, detail=why)

    def _explained(self, actual: Claim, claim: Claim) -> ShapeViolation:
        explained = explanation(self.name, actual, claim, self.relations)
        message = (
            f"{self.name}: {actual.source} {_say(actual)}, but {claim.source} {_say(claim)} "
            f"({claim.role}, inputs {json.dumps(claim.inputs, default=str)}). {explained.text}"
        )
        return ShapeViolation(message.rstrip(), expected=claim, actual=actual, causes=explained.causes)

    def _payload(
        self, source: str, role: str, shape: Shape, inputs: Mapping[str, Any], dtype: str, flags: int
    ) -> ClaimPayload:
        terms = Terms(self.name, self.dims, self.relations, self.unit)
        return claim_payload(terms, Claim(source, role, shape, dict(inputs), dtype), flags)


class _Checking(NamedTuple):
    check: Callable[..., bool]
    tally: Callable[[int, int], int]
    forget: Callable[[], None]
    bind: Callable[[Words], None]


def _checking(contract: Contract) -> _Checking:  # noqa: C901  one set of shared cells
    """Return a contract's functions on the hot path. They share the shape that was last found good."""
    words: Words = NULL_RECORD
    checks = violations = 0
    good_shape: Any = None
    good_dtype: Any = None
    good_source = ""
    verdicts: set[tuple[Any, ...]] = set()

    def check(tensor: Any, source: str = "tensor") -> bool:
        nonlocal checks
        try:
            if tensor.shape == good_shape and tensor.dtype is good_dtype and source is good_source:
                checks += 1
                words[0] = checks
                return True
            return changed(tensor, source)
        except Exception as error:
            contract._place.caught(error)  # noqa: SLF001  the contract's own function
            return True

    def changed(tensor: Any, source: str) -> bool:
        nonlocal good_shape, good_dtype, good_source
        if contract._place.off:  # noqa: SLF001
            return True
        shape, dtype = tensor.shape, tensor.dtype
        key = (tuple(shape), dtype, source)
        count(1, 0)
        if key not in verdicts:
            if not contract._judge(tensor, source):  # noqa: SLF001  the contract's own function
                return False
            if len(verdicts) < _VERDICTS_KEPT:
                verdicts.add(key)
        good_shape, good_dtype, good_source = shape, dtype, source
        return True

    def count(more_checks: int, more_violations: int) -> int:
        nonlocal checks, violations
        checks += more_checks
        words[0] = checks
        if more_violations:
            violations += more_violations
            words[C.VIOLATIONS] = violations
            now = time.time_ns()
            if violations == more_violations:
                words[C.VIOLATION_FIRST_NS] = now
            words[C.VIOLATION_LAST_NS] = now
        return violations

    def forget() -> None:
        nonlocal good_shape
        good_shape = None
        verdicts.clear()

    def bind(new: Words) -> None:
        nonlocal words, checks, violations
        words = new
        if isinstance(new, LazyRecord):
            checks = violations = 0
        elif new[C.VIOLATIONS]:  # what a closed contract of this name has counted
            checks, violations = new[C.CHECKS], new[C.VIOLATIONS]

    return _Checking(check, count, forget, bind)


def _relations(given: tuple[str, ...], dims: tuple[str, ...]) -> tuple[str, ...]:
    if not 1 <= len(dims) <= layout.MAX_DIMS:
        raise ValueError(f"{len(dims)} dimensions; there must be 1 to {layout.MAX_DIMS}")
    if len(given) != len(dims) or not set(given) <= set(RELATIONS):
        raise ValueError(f"relation is {given}; each of {len(dims)} dimensions needs one of {', '.join(RELATIONS)}")
    return given


def _shape(sizes: Sizes) -> Shape:
    given = tuple(sizes) if isinstance(sizes, Iterable) else (sizes,)
    return tuple(None if value is None else size("a dimension", value) for value in given)


def _group(claim: Claim) -> Group:
    """What claims that say the same have in common."""
    return claim.role, claim.shape, claim.dtype


def _actual(tensor: Any, source: str) -> Claim:
    shape = tuple(size("a dimension", n) for n in tensor.shape)
    return Claim(text.clean(source), IS, shape, {}, str(tensor.dtype).rpartition(".")[2])


def _first_difference(provider: Claim, requirement: Claim, dims: tuple[int, ...]) -> tuple[int, int, int]:
    return Disagreement(provider, requirement, dims).numbers


def _say(claim: Claim) -> str:
    shape = ", ".join("any" if n is None else str(n) for n in claim.shape)
    return f"({shape}{',' if len(claim.shape) == 1 else ''})" + (f" {claim.dtype}" if claim.dtype else "")
