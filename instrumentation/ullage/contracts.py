"""Contracts: one size that several components must agree on, and who says what of it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ullage import compiled, safety
from ullage.claim_record import ClaimRecord, Words
from ullage.counting import size
from ullage.diagnosis.claims import (
    AT_LEAST,
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
from ullage.errors import ShapeViolation
from ullage.segment import layout
from ullage.segment.layout import C, ClaimPayload, EventKind, Relation, Role
from ullage.session import session
from ullage.words import SINK, Pending

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Inputs = Mapping[str, Any]
    Sizes = Sequence[int | None] | int

_ROLE_CODES = {"provides": Role.PROVIDES, "requires": Role.REQUIRES, "is": Role.IS}
_RELATION_CODES = {EQUAL: Relation.EQUAL, AT_LEAST: Relation.AT_LEAST}
_VERDICTS_KEPT = 64


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
    ) -> None:
        """Register a contract.

        Args:
            name: What is agreed on.
            dims: A name for each dimension, at most eight.
            relation: ``==`` or ``>=`` (every provider has at least what is required), for all dimensions or each.
            unit: What is counted.
            dtype: The element type that every tensor must have; empty if that is free.
        """
        self.name, self.dims, self.unit, self.dtype = str(name), tuple(dims), unit, dtype
        self.relations: tuple[str, ...] = (EQUAL,) * len(self.dims)
        self._claims: dict[str, Claim] = {}
        self._records: dict[str, ClaimRecord] = {}
        self._known: set[tuple[Claim, Claim]] = set()
        self._tally: ClaimRecord | None = None
        self._witnesses: list[ClaimRecord] = []
        functions = _checking(self)
        self.check: Callable[..., bool] = functions.check
        self._count: Callable[[int, int], int] = functions.tally
        self._forget: Callable[[], None] = functions.forget
        compiled.skip(self.check)
        with safety.shield(f"contract {name!r}"):
            given = (relation,) * len(self.dims) if isinstance(relation, str) else tuple(relation)
            self.relations = _relations(given, self.dims)
            if not name or len(name.encode()) > 96:
                raise ValueError(f"a contract's name must have 1 to 96 bytes in UTF-8, not {name!r}")
            tally = ClaimRecord(self._payload("", "", (), {}, dtype, layout.FLAG_TALLY), functions.bind)
            self._tally = tally
            session.register(tally)

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
        with safety.shield(f"contract {self.name}: claim of {source!r}"), session.lock:
            if role not in ROLES:
                raise ValueError(f"role is {role!r}; it must be one of {', '.join(ROLES)}")
            claim = Claim(source, role, _shape(shape), dict(inputs or {}), dtype)
            payload = self._payload(source, role, claim.shape, claim.inputs, dtype, 0)
            self._claims[source] = claim
            self._forget()
            record = self._records.get(source)
            if record is None:
                record = self._records[source] = ClaimRecord(payload)
                session.register(record)
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
        with safety.shield(f"contract {self.name}: compare"):
            have, need = _shape(provided), _shape(required)
            dims = differing(have, need, self.relations)
            self._count(1, 0)
            if dims is None:
                return True
            given = inputs() if inputs is not None else {}
            ours, theirs = given if isinstance(given, tuple) else (given, given)
            provided_claim = Claim(sources[0], "provides", have, dict(ours))
            self._violated(provided_claim, Claim(sources[1], "requires", need, dict(theirs)), dims)
            return False
        return True

    def require(self, tensor: Any, source: str = "tensor") -> None:
        """Check ``tensor`` and refuse it.

        Raises:
            ShapeViolation: It does not satisfy a claim, or has another dtype.
        """
        if not self.check(tensor, source):
            actual = _actual(tensor, source)
            raise self._explained(actual, self._unsatisfied(actual)[0][0])

    def refuse(self, tensor: Any, source: str, reason: str) -> ShapeViolation:
        """Count ``tensor`` as a violation for a reason of the caller's; return what to raise."""
        actual = _actual(tensor, source)
        claim = next(reversed(self._claims.values()))
        self._count(1, 0)
        self._violated(actual, claim, differing(actual.shape, claim.shape, self.relations) or (), reason)
        return ShapeViolation(f"{self.name}: {source}: {reason}", expected=claim, actual=actual, causes=(reason,))

    def close(self) -> None:
        """Forget the contract and free its records."""
        with safety.shield(f"contract {self.name}: close"), session.lock:
            self._claims.clear()
            self._forget()
            for record in (*self._records.values(), *self._witnesses, *([self._tally] if self._tally else [])):
                session.forget(record)
                record.release(session.open())
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
        text = f"{provider.source} {_say(provider)}, {requirement.source} {_say(requirement)}"
        text += f": {reason}" if reason else ""
        session.emit(EventKind.SHAPE_VIOLATION, self.name, count=total, numbers=(have, need, dim), detail=text)
        safety.log_once(f"shape violation in {self.name}: {text}")
        if not reason and total & (total - 1) == 0:  # as often as there is an event of it
            self._witness(provider, requirement)

    def _witness(self, *sides: Claim) -> None:
        """Record what both sides had: their inputs explain the violation."""
        with session.lock:
            for place, (side, flag) in enumerate(zip(sides, (layout.FLAG_PROVIDED, layout.FLAG_REQUIRED), strict=True)):
                source = side.source.encode()[:64].decode(errors="ignore")
                payload = self._payload(source, side.role, side.shape, side.inputs, side.dtype, flag)
                if place < len(self._witnesses):
                    self._witnesses[place].publish(payload)
                else:
                    self._witnesses.append(ClaimRecord(payload))
                    session.register(self._witnesses[place])

    def _report_disagreements(self, claim: Claim) -> None:
        for other in self._claims.values():
            found = disagreement(other, claim, self.relations) if other is not claim else None
            if found is None:
                continue
            pair = (found.provider, found.requirement)
            if pair not in self._known:
                self._known.add(pair)
                text = f"{pair[0].source} {_say(pair[0])}, {pair[1].source} {_say(pair[1])}"
                numbers = found.numbers
                session.emit(EventKind.DISAGREEMENT, self.name, numbers=numbers, detail=text)
                safety.log_once(f"claims on {self.name} disagree: {text}")

    def _explained(self, actual: Claim, claim: Claim) -> ShapeViolation:
        from ullage.diagnosis.explain import explain  # noqa: PLC0415  only for an error that is about to be raised

        finding = explain(self.name, actual, claim, relations=self.relations)
        message = (
            f"{self.name}: {actual.source} {_say(actual)}, but {claim.source} {_say(claim)} "
            f"({claim.role}, inputs {json.dumps(claim.inputs)}). {finding.text}"
        )
        return ShapeViolation(message, expected=claim, actual=actual, causes=finding.causes)

    def _payload(
        self, source: str, role: str, shape: Shape, inputs: Mapping[str, Any], dtype: str, flags: int
    ) -> ClaimPayload:
        if len(shape) > layout.MAX_DIMS or len(source.encode()) > 64:
            raise ValueError(f"{source!r} says {shape}: at most {layout.MAX_DIMS} dimensions, and a source of 64 bytes")
        encoded, truncated = _encode(inputs)
        return ClaimPayload(
            shape=tuple(layout.NO_SIZE if size is None else size for size in shape),
            role=_ROLE_CODES.get(role, Role.UNKNOWN),
            flags=flags | (layout.FLAG_INPUTS_TRUNCATED if truncated else 0),
            relations=bytes(_RELATION_CODES[relation] for relation in self.relations),
            dtype=layout.text(dtype, 16),
            unit=layout.text(self.unit, 16),
            dims=layout.text(",".join(self.dims), 48),
            contract=self.name.encode(),
            source=source.encode(),
            inputs=encoded,
        )


class _Checking(NamedTuple):
    check: Callable[..., bool]
    tally: Callable[[int, int], int]
    forget: Callable[[], None]
    bind: Callable[[Words], None]


def _checking(contract: Contract) -> _Checking:
    """Return a contract's functions on the hot path. They share the shape that was last found good."""
    words: Words = SINK
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
            safety.caught(f"contract {contract.name}: check", error)
            return True

    def changed(tensor: Any, source: str) -> bool:
        nonlocal good_shape, good_dtype, good_source
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
        if isinstance(new, Pending):
            checks = violations = 0

    return _Checking(check, count, forget, bind)


def _relations(given: tuple[str, ...], dims: tuple[str, ...]) -> tuple[str, ...]:
    if not 1 <= len(dims) <= layout.MAX_DIMS:
        raise ValueError(f"{len(dims)} dimensions; there must be 1 to {layout.MAX_DIMS}")
    if len(given) != len(dims) or not set(given) <= set(RELATIONS):
        raise ValueError(f"relation is {given}; each of {len(dims)} dimensions needs one of {', '.join(RELATIONS)}")
    return given


def _shape(sizes: Sizes) -> Shape:
    shape = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    for value in shape:
        if value is not None:
            size("a dimension", int(value))
    return tuple(None if value is None else int(value) for value in shape)


def _actual(tensor: Any, source: str) -> Claim:
    return Claim(source, IS, tuple(int(n) for n in tensor.shape), {}, str(tensor.dtype).rpartition(".")[2])


def _first_difference(provider: Claim, requirement: Claim, dims: tuple[int, ...]) -> tuple[int, int, int]:
    return Disagreement(provider, requirement, dims).numbers


def _say(claim: Claim) -> str:
    shape = ", ".join("any" if n is None else str(n) for n in claim.shape)
    return f"({shape}{',' if len(claim.shape) == 1 else ''})" + (f" {claim.dtype}" if claim.dtype else "")


def _encode(inputs: Mapping[str, Any]) -> tuple[bytes, bool]:
    """Return the inputs that are JSON scalars as JSON, as many as fit, and whether some are missing."""
    kept: dict[str, Any] = {}
    encoded, truncated = b"{}", False
    for name, value in inputs.items():
        if not isinstance(value, (int, float, str, bool, type(None))):
            truncated = True
            continue
        longer = json.dumps({**kept, name: value}, separators=(",", ":")).encode()
        if len(longer) > layout.INPUTS_BYTES:
            truncated = True
        else:
            kept[name], encoded = value, longer
    return encoded, truncated
