"""Scheduler metadata: the one place where its size is computed."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ullage import safety
from ullage.exact import size
from ullage.recording.contracts import Contract

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import SupportsIndex


GENERATIONS = 64
"""Former limits that are remembered."""


class SchedulerMetadata:
    """The shape of a scheduler's metadata tensor, for everybody who allocates, fills or reads it.

    Rows are ``max_num_seqs`` rounded up to a multiple of ``align``. Without connector fields the shape is
    ``(rows * fields_per_seq,)``; with them it is ``(rows, fields_per_seq + all their fields)``.

    Example:
        metadata = ullage.SchedulerMetadata(max_num_seqs=256, connector_fields={"nixl": 2})
        tensor = metadata.allocate()       # (256, 3), int32
        metadata.require(tensor)           # where it is used

    Attributes:
        contract: What holds tensors against the shape, named ``scheduler_metadata``.
        generation: Counts from 1; each ``update`` starts a new one.
    """

    def __init__(
        self,
        max_num_seqs: SupportsIndex,
        fields_per_seq: SupportsIndex = 1,
        connector_fields: Mapping[str, SupportsIndex] | None = None,
        align: SupportsIndex = 1,
        dtype: Any = "int32",
    ) -> None:
        """State the sizes.

        Args:
            max_num_seqs: Sequences in a batch, at most.
            fields_per_seq: Numbers for each of them.
            connector_fields: Further numbers for each, by the name of the KV connector that adds them.
            align: Rows are a multiple of this.
            dtype: A torch dtype, or its name.

        Raises:
            ValueError: A size is no whole number, or too small.
        """
        self.fields_per_seq = size("fields_per_seq", fields_per_seq, 1)
        self.connector_fields = {
            name: size(f"connector_fields[{name!r}]", value, 0) for name, value in (connector_fields or {}).items()
        }
        self.align = size("align", align, 1)
        self.dtype = str(dtype).rpartition(".")[2]
        self.generation = 0
        self._limits: dict[int, int] = {}
        self._allocated: dict[int, tuple[weakref.ref[Any], int]] = {}
        extra = sum(self.connector_fields.values())
        dims = ("rows", "fields") if extra else ("numbers",)
        self.contract = Contract("scheduler_metadata", dims=dims, unit="numbers", dtype=self.dtype)
        self.update(max_num_seqs=max_num_seqs)

    @property
    def rows(self) -> int:
        """``max_num_seqs``, rounded up to a multiple of ``align``."""
        return self._rows(self.max_num_seqs)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that a tensor must have now."""
        return self._shape(self.max_num_seqs)

    @property
    def size(self) -> int:
        """The number of elements."""
        rows, *fields = self.shape
        return rows * (fields[0] if fields else 1)

    def allocate(self, device: Any = None) -> Any:
        """Return a tensor of zeros of the present shape, on ``device``. Needs torch."""
        import torch  # noqa: PLC0415  the caller has it

        tensor = torch.zeros(self.shape, dtype=getattr(torch, self.dtype), device=device)
        self._allocated[id(tensor)] = (weakref.ref(tensor), self.generation)
        return tensor

    def update(self, *, max_num_seqs: SupportsIndex) -> None:
        """Change the limit. Tensors of the generation before fail their next check.

        Raises:
            ValueError: The limit is no whole number of at least 1.
        """
        limit = size("max_num_seqs", max_num_seqs, 1)
        self._allocated = {key: entry for key, entry in self._allocated.items() if entry[0]() is not None}
        self.max_num_seqs = limit
        self.generation += 1
        self._limits[self.generation] = limit
        self._limits.pop(self.generation - GENERATIONS, None)
        self.contract.claim("scheduler_metadata", self.shape, inputs=self._inputs(), dtype=self.dtype)

    def check(self, tensor: Any, source: str = "tensor") -> bool:
        """Tell whether ``tensor`` is one of this generation; count and report it if not."""
        former = self._former_generation(tensor)
        if former:
            self.contract.refuse(tensor, source, former)
            return False
        return bool(self.contract.check(tensor, source))

    def require(self, tensor: Any, source: str = "tensor") -> None:
        """Check ``tensor`` and refuse it.

        Raises:
            ShapeViolation: It is of another shape, dtype or generation.
        """
        former = self._former_generation(tensor)
        if former:
            raise self.contract.refuse(tensor, source, former)
        self.contract.require(tensor, source)

    def _former_generation(self, tensor: Any) -> str:
        """Say of which earlier generation ``tensor`` is: it was allocated then, or has just its shape."""
        with safety.shield(f"contract {self.contract.name}: generation"):
            return self._generation(tensor) if self.generation > 1 else ""
        return ""

    def _generation(self, tensor: Any) -> str:
        # By identity: comparing tensors would compare their contents.
        reference, generation = self._allocated.get(id(tensor), (None, 0))
        if reference is None or reference() is not tensor:
            shape = tuple(tensor.shape)
            shapes = {number: self._shape(limit) for number, limit in self._limits.items()}
            generation = max((n for n, other in shapes.items() if other == shape), default=self.generation)
        if generation == self.generation or generation not in self._limits:
            return ""
        return (
            f"it is of generation {generation} (max_num_seqs {self._limits[generation]}), allocated before the limit "
            f"changed; generation {self.generation} has max_num_seqs {self.max_num_seqs}: allocate it again"
        )

    def _rows(self, max_num_seqs: int) -> int:
        return -(-max_num_seqs // self.align) * self.align

    def _shape(self, max_num_seqs: int) -> tuple[int, ...]:
        rows, extra = self._rows(max_num_seqs), sum(self.connector_fields.values())
        return (rows, self.fields_per_seq + extra) if extra else (rows * self.fields_per_seq,)

    def _inputs(self) -> dict[str, Any]:
        connectors = {f"connector_fields.{name}": count for name, count in self.connector_fields.items()}
        return {
            "max_num_seqs": self.max_num_seqs,
            "fields_per_seq": self.fields_per_seq,
            "align": self.align,
            "generation": self.generation,
            **connectors,
        }
