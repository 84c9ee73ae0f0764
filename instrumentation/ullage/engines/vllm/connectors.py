"""KV connectors: how many blocks a step transfers, and whether both ends speak of the same layers and blocks.

By duck type, whichever connector it is: NIXL, Mooncake, LMCache and several of them together keep entries with lists of
block numbers in their metadata. None of them puts a tensor there, so there is no shape to hold against another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.buffers import Buffer, buffer
from ullage.engines._patch import Hook, argument
from ullage.engines._probe import SharedProbe
from ullage.engines.vllm._sizes import agreed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]

MAX_DEPTH = 5
"""Entries stand by engine and by request; several connectors have their metadata side by side."""


class _Watched:
    """What this process's scheduler hands to its connector."""

    blocks: Buffer | None = None


_watched = _Watched()


def scheduled(metadata: Any, blocks: int) -> None:
    """Look at what a step's metadata asks to be transferred, in a KV cache of so many blocks."""
    if _watched.blocks is None:
        _watched.blocks = buffer(
            "connector_blocks", capacity=blocks, unit="blocks", kind="managed", limit="num_gpu_blocks"
        )
    total = 0
    for entry in _entries(metadata, MAX_DEPTH):
        groups = _groups(entry.local_block_ids)
        total += sum(map(len, groups))
        largest = max((max(group) for group in groups if group), default=-1)
        if largest >= blocks:
            _watched.blocks.violated(largest, detail="block of a transfer")
        _compare(groups, entry)
    _watched.blocks.observe(min(total, blocks))  # requests may share blocks


def _entries(holder: Any, depth: int) -> Iterator[Any]:
    """Yield what has a list of local blocks among the values of ``holder``."""
    values: Iterable[Any]
    if hasattr(holder, "local_block_ids"):
        yield holder
        return
    if isinstance(holder, dict):
        values = holder.values()
    elif isinstance(holder, (list, tuple)):
        values = holder
    else:
        values = getattr(holder, "__dict__", {}).values()
    for value in values:
        if depth and not isinstance(value, (int, float, str, bytes, type(None))):
            yield from _entries(value, depth - 1)


def _groups(blocks: Any) -> list[list[int]]:
    """Return the block numbers by KV-cache group; earlier versions have one list for the only group."""
    listed = list(blocks or ())
    if not listed or isinstance(listed[0], int):
        return [listed]
    return [list(group) for group in listed]


def _compare(local: list[list[int]], entry: Any) -> None:
    """A request reads the last of the remote's blocks: there must be one for each of its own."""
    remote_blocks = getattr(getattr(entry, "remote", None), "block_ids", getattr(entry, "remote_block_ids", None))
    if remote_blocks is None:
        return
    remote = _groups(remote_blocks)
    if len(remote) == len(local):
        for ours, theirs in zip(local, remote, strict=True):
            agreed("connector.blocks").compare(len(theirs), len(ours), sources=("remote blocks", "local blocks"))


def _handshake(args: Args, kwargs: Kwargs) -> None:
    """The other end says what it registered. Where regions have names, they are matched by them, not counted."""
    worker, remote = args[0], argument("nixl_agent_meta", 1, args, kwargs)
    if getattr(remote, "region_names", None) is None and not getattr(worker, "_transfer_layer_region_indices", None):
        ours, theirs = len(worker.block_len_per_layer), len(remote.block_lens)
        agreed("connector.layers").compare(theirs, ours, sources=("remote engine", "local engine"))


_PROBE = SharedProbe("NixlConnectorWorker.add_remote_agent")
_NIXL = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"

HOOKS = (
    Hook(
        f"{_NIXL}.worker",
        "NixlConnectorWorker.add_remote_agent",
        ("nixl_agent_meta",),
        before=_handshake,
        reads=("NixlConnectorWorker.block_len_per_layer",),
        until=(0, 25),
        shared=_PROBE,
    ),
    Hook(
        f"{_NIXL}.base_worker",
        "NixlBaseConnectorWorker.add_remote_agent",
        ("nixl_agent_meta",),
        before=_handshake,
        reads=("NixlBaseConnectorWorker.block_len_per_layer",),
        since=(0, 25),
        shared=_PROBE,
    ),
)
