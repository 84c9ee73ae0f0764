"""KV connectors: how many blocks a step transfers, and whether both ends speak of the same layers and blocks.

By duck type, whichever connector it is, several of them together too. NIXL and Mooncake keep entries with lists of
block numbers in their metadata. LMCache has an operation with such a list for a range of tokens or, where it is not a
process of its own, a tensor with a slot for each token, as vLLM's example has: of that, only the size is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.engines.patch import Patch, argument
from ullage.engines.probe import SharedProbe
from ullage.engines.vllm.contract_registry import ContractRegistry
from ullage.engines.vllm.identity import engine_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ullage.engines.instance import EngineInstance
    from ullage.recording.buffers import Buffer

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]

MAX_DEPTH = 5
"""Entries stand by engine and by request; several connectors have their metadata side by side."""
_PLAIN = (int, float, str, bytes, type(None))


class Transfers:
    """What the scheduler of one engine instance hands to its connector."""

    def __init__(self, engine: EngineInstance) -> None:
        self._engine = engine
        self._sizes = engine.part(ContractRegistry)
        self._buffer: Buffer | None = None

    def scheduled(self, metadata: Any, blocks: int, block_size: int) -> None:
        """Check what a step's metadata asks to be transferred, in a KV cache of ``blocks`` of ``block_size`` tokens."""
        if self._buffer is None:
            self._buffer = self._engine.buffer(
                "connector_blocks", capacity=blocks, unit="blocks", kind="managed", limit="num_gpu_blocks"
            )
        total = 0
        for entry in _entries(metadata, MAX_DEPTH):
            listed = hasattr(entry, "local_block_ids")
            if not listed and not _is_range(entry):
                total += self._by_slot(entry, block_size)
                continue
            groups = _groups(entry.local_block_ids if listed else entry.op.block_ids)
            total += sum(map(len, groups))
            largest = max((max(group) for group in groups if group), default=-1)
            if largest >= blocks:
                self._buffer.violated(largest, detail="block of a transfer")
            if listed:
                self._compare_blocks(groups, entry)
            elif len(groups) == 1:
                self._compare_tokens(len(groups[0]) * block_size, entry.op.end - entry.op.start, "blocks")
        self._buffer.observe(min(total, blocks))  # requests may share blocks

    def _by_slot(self, entry: Any, block_size: int) -> int:
        """Return how many blocks an entry transfers that has a slot for each token: LMCache says which of them."""
        slots: int = entry.slot_mapping.shape[0]
        self._compare_tokens(slots, len(entry.token_ids), "slots")
        if not hasattr(entry, "save_spec"):
            return -(-slots // block_size)
        save, load = entry.save_spec, entry.load_spec
        stored = slots - save.skip_leading_tokens if save is not None and save.can_save else 0
        loaded = load.lmcache_cached_tokens - load.vllm_cached_tokens if load is not None and load.can_load else 0
        return sum(-(-max(tokens, 0) // block_size) for tokens in (stored, loaded))

    def _compare_tokens(self, have: int, need: int, source: str) -> None:
        """Each token must have a place in the KV cache: both are slices of lists, and Python cuts silently."""
        self._sizes.contract("connector.tokens").compare(have, need, sources=(source, "tokens"))

    def _compare_blocks(self, local: list[list[int]], entry: Any) -> None:
        """A request reads the last of the remote's blocks: there must be one for each of its own."""
        remote_blocks = getattr(getattr(entry, "remote", None), "block_ids", getattr(entry, "remote_block_ids", None))
        if remote_blocks is None:
            return
        remote = _groups(remote_blocks)
        if len(remote) == len(local):
            contract = self._sizes.contract("connector.blocks")
            for ours, theirs in zip(local, remote, strict=True):
                contract.compare(len(theirs), len(ours), sources=("remote blocks", "local blocks"))


def _entries(holder: Any, depth: int) -> Iterator[Any]:
    """Yield what says which blocks, or slots, are to be transferred, among the values of ``holder``."""
    values: Iterable[Any]
    if _says_what(holder):
        yield holder
        return
    if isinstance(holder, dict):
        values = holder.values()
    elif isinstance(holder, (list, tuple)):
        # Hundreds of thousands of tokens, perhaps: one is enough to see that there are no entries among them.
        values = () if holder and isinstance(holder[0], _PLAIN) else holder
    else:
        values = getattr(holder, "__dict__", {}).values()
    for value in values:
        if depth and not isinstance(value, _PLAIN):
            yield from _entries(value, depth - 1)


def _says_what(holder: Any) -> bool:
    by_slot = hasattr(holder, "slot_mapping") and hasattr(holder, "token_ids")
    return by_slot or hasattr(holder, "local_block_ids") or _is_range(holder)


def _is_range(entry: Any) -> bool:
    """Return whether it has LMCache's operation: blocks for the tokens from ``start`` to ``end``."""
    operation = getattr(entry, "op", None)
    return all(hasattr(operation, name) for name in ("block_ids", "start", "end"))


def _groups(blocks: Any) -> list[list[int]]:
    """Return the block numbers by KV-cache group; earlier versions have one list for the only group."""
    listed = list(blocks or ())
    if not listed or isinstance(listed[0], int):
        return [listed]
    return [list(group) for group in listed]


def _handshake(args: Args, kwargs: Kwargs) -> None:
    """The other end says what it registered. Where regions have names, they are matched by them, not counted."""
    worker, remote = args[0], argument("nixl_agent_meta", 1, args, kwargs)
    if getattr(remote, "region_names", None) is None and not getattr(worker, "_transfer_layer_region_indices", None):
        ours, theirs = len(worker.block_len_per_layer), len(remote.block_lens)
        contract = engine_of(worker).part(ContractRegistry).contract("connector.layers")
        contract.compare(theirs, ours, sources=("remote engine", "local engine"))


_PROBE = SharedProbe("NixlConnectorWorker.add_remote_agent")
_NIXL = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"

PATCHES = (
    Patch(
        f"{_NIXL}.worker",
        "NixlConnectorWorker.add_remote_agent",
        ("nixl_agent_meta",),
        before=_handshake,
        reads=("NixlConnectorWorker.block_len_per_layer",),
        until=(0, 25),
        shared=_PROBE,
    ),
    Patch(
        f"{_NIXL}.base_worker",
        "NixlBaseConnectorWorker.add_remote_agent",
        ("nixl_agent_meta",),
        before=_handshake,
        reads=("NixlBaseConnectorWorker.block_len_per_layer",),
        since=(0, 25),
        shared=_PROBE,
    ),
)
