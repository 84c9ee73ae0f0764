"""Everything else that a V1 runner has allocated, and what hangs on it: the inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.engines.vllm.tables import each_builder
from ullage.inventory import Held, inventory

if TYPE_CHECKING:
    from collections.abc import Iterator

TENSORS = ("Tensor", "Parameter")


def record(runner: Any) -> None:
    """Record the tensors of a runner, of its tables, metadata builders and attention groups, and of its proposer."""
    inventory("runner", _held(runner))
    inventory("block_table", _of_all(runner.input_batch.block_table.block_tables))
    builders: dict[str, list[Any]] = {}
    for builder, _ in each_builder(runner):
        builders.setdefault(type(builder).__name__, []).append(builder)
    for name, alike in builders.items():
        inventory(name, _of_all(alike))
    inventory("attention_group", _of_all([group for groups in runner.attn_groups for group in groups]))
    proposer = getattr(runner, "drafter", None)
    if proposer is not None:
        inventory("drafter", _held(proposer))


def _of_all(owners: list[Any]) -> Iterator[Held]:
    for owner in owners:
        yield from _held(owner)


def _held(owner: Any) -> Iterator[Held]:
    """Yield the tensors that ``owner`` holds, and its pairs of one on the host and one on the device.

    Reads shapes, never contents.
    """
    for attribute, value in vars(owner).items():
        kind = type(value).__name__
        if kind == "CpuGpuBuffer":
            host, device = value.cpu, value.gpu
            alias = device is host or device.data_ptr() == host.data_ptr()
            yield _entry(attribute, device, host.nbytes + (0 if alias else device.nbytes))
        elif kind in TENSORS:
            yield _entry(attribute, value, value.nbytes)


def _entry(attribute: str, tensor: Any, nbytes: int) -> Held:
    place = "host" if tensor.device.type == "cpu" else "device"
    return Held(attribute, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), nbytes, place)
