"""What a model runner has allocated, and for which limits: claims, inventory and checks of batches are made of it.

An adapter for each runner of each engine makes a view when the runner's buffers have their final sizes. A view holds
names, shapes and limits: no tensor, and of the engine's own objects only the metadata builders.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ullage.recording.inventory import TensorInfo

    Shape = tuple[int, ...]
    Heads = tuple[int, int, int]


@dataclass(frozen=True)
class Limits:
    """The limits that are in force, under the names by which claims record them.

    Attributes:
        max_model_len: Tokens of the longest sequence.
        max_num_seqs: Requests in a step.
        max_num_batched_tokens: Tokens in a step.
        num_speculative_tokens: Tokens that a step drafts for each sequence; 0 without speculative decoding.
        decode_context_parallel_size: Ranks over which the blocks of a sequence are spread.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_speculative_tokens: int
    decode_context_parallel_size: int

    def inputs(self, *names: str, **more: Any) -> dict[str, Any]:
        """Return the limits of ``names`` and ``more`` as inputs of a claim, with the features that change all sizes."""
        found = {name: getattr(self, name) for name in names}
        if self.num_speculative_tokens:
            found["num_speculative_tokens"] = self.num_speculative_tokens
        if self.decode_context_parallel_size > 1:
            found["decode_context_parallel_size"] = self.decode_context_parallel_size
        return {**found, **more}


@dataclass(frozen=True)
class BlockTable:
    """The block table of one KV-cache group.

    Attributes:
        group: Its number.
        columns: Blocks that a row has room for, of ``block_size`` tokens each.
        block_size: Tokens in the block of one column, on this rank.
        manager_block_size: Tokens in a block of the KV-cache manager, which a kernel may divide.
        shards: Ranks over which the blocks of a sequence are spread.
        positional: A row has a column for each block of a sequence; windows and states have sizes of their own.
        max_model_len: The longest sequence that the table was allocated for.
    """

    group: int
    columns: int
    block_size: int
    manager_block_size: int
    shards: int
    positional: bool
    max_model_len: int

    @property
    def tokens(self) -> int:
        """The longest sequence that has room in a row."""
        return self.columns * self.block_size * self.shards


@dataclass(frozen=True)
class RowBuffer:
    """A tensor that must have a row for each token, each request or the like.

    Attributes:
        name: Its name in its holder.
        size: The name of the size that it is claimed for, such as ``step.tokens``.
        rows: Its rows, without those that every such tensor has in addition, as the end of a list of boundaries.
    """

    name: str
    size: str
    rows: int


@dataclass(frozen=True)
class RowHolder:
    """An object with row buffers.

    Attributes:
        owner: Its name.
        buffers: Its row buffers.
        allocated_for: Limits that the object keeps itself, by name: those in force may have changed since.
    """

    owner: str
    buffers: tuple[RowBuffer, ...]
    allocated_for: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Workspace:
    """Scratch memory of a planner, which several builders may share: ``identity`` tells it from others."""

    identity: int
    nbytes: int


@dataclass(frozen=True)
class Builder:
    """A builder of attention metadata.

    Attributes:
        name: Its class.
        group: The KV-cache group that it builds for.
        block_size: Tokens in a block of its kernel.
        rows: Its row buffers.
        table_copies: The columns of the tensors into which it copies the block table, by name.
        shapes: Shapes of tensors of its backend alone, by name.
        numbers: Numbers of its backend alone, by name.
        workspace: Its workspace, if it estimates the bytes that it needs of it.
        planned_heads: Query heads, KV heads and head size that it plans for ahead of a step, if it does.
        engine_object: The engine's own object: for its identity, and for its class, which is patched.
    """

    name: str
    group: int
    block_size: int
    rows: RowHolder
    table_copies: Mapping[str, int]
    shapes: Mapping[str, Shape]
    numbers: Mapping[str, int]
    workspace: Workspace | None
    planned_heads: Heads | None
    engine_object: Any = field(repr=False)


@dataclass(frozen=True)
class Layer:
    """An attention layer.

    Attributes:
        block_stride: Elements between two blocks of its KV cache; 0 if that is not known.
        heads: Its query heads, KV heads and head size, if it has them.
    """

    block_stride: int
    heads: Heads | None


@dataclass(frozen=True)
class AttentionGroup:
    """Layers that share an attention backend and its builders.

    Attributes:
        int32_offsets: The kernels of the backend compute offsets in 32 bits.
        layers: Its layers.
        builders: Its metadata builders.
    """

    int32_offsets: bool
    layers: tuple[Layer, ...]
    builders: tuple[Builder, ...]


@dataclass(frozen=True)
class RotaryCache:
    """A cache of rotary embeddings: ``rows`` positions, of a model trained for ``max_position_embeddings``."""

    name: str
    rows: int
    max_position_embeddings: int | None


@dataclass(frozen=True)
class DraftStep:
    """The limits of a step with drafts.

    Attributes:
        tokens: Tokens that are scheduled.
        requests: Requests that are scheduled.
        rows: Tokens that the runner has rows for.
        reserved: Rows of these that each request keeps free for its drafts.
    """

    tokens: int
    requests: int
    rows: int
    reserved: int


@dataclass(frozen=True)
class Drafter:
    """What drafts tokens for the runner's model.

    Attributes:
        rows: Its row buffers.
        step_rows: Those that hold the tokens of a whole step, drafts included.
        sample_rows: Those with a row for each draft token of each sequence.
        queries_per_request: Tokens of each sequence in its forward pass, if it drafts all of them at once; else 1.
        slots_per_request: Tokens that it adds to those of the target, for each sequence.
        reach: The limit of positions at which it drafts past the target's last one; None if it does not.
        step: The limits of a step; None if it is not known how the scheduler reserves room for drafts.
    """

    rows: RowHolder
    step_rows: tuple[RowBuffer, ...] = ()
    sample_rows: tuple[RowBuffer, ...] = ()
    queries_per_request: int = 1
    slots_per_request: int = 0
    reach: int | None = None
    step: DraftStep | None = None


@dataclass(frozen=True)
class Graphs:
    """The largest graphs that will be captured.

    Attributes:
        num_tokens: Tokens of the largest; 0 without graphs.
        num_reqs: Requests of the largest that has a limit of them; 0 if none has.
        max_capture_size: The limit in the configuration.
    """

    num_tokens: int = 0
    num_reqs: int = 0
    max_capture_size: int | None = None


@dataclass(frozen=True)
class AdapterSlots:
    """Slots for adapters, and the widest weights that a kernel indexes by slot.

    Attributes:
        slots: How many there are.
        layer: The class of the layer with the widest weights.
        stride: Elements between two slots in these.
    """

    slots: int
    layer: str
    stride: int


@dataclass(frozen=True)
class RunnerView:
    """A runner whose buffers have their final sizes. Parts that could not be read are empty.

    Attributes:
        limits: The limits in the configuration.
        max_model_len: The limit of the runner itself, which may be changed after the buffers were allocated.
        num_blocks: Blocks of the KV cache.
        tables: Its block tables; none for a model without a KV cache.
        rows: Objects with row buffers, the builders' aside.
        attention_groups: Those of the model.
        draft_groups: Those of the draft model.
        rotary_caches: Those that attention layers of the model read.
        draft_rotary_caches: The same of the draft model.
        draft_max_model_len: The longest sequence that the draft model is asked for.
        drafter: What drafts, if its buffers are known.
        graphs: The largest graphs.
        async_scheduling: A step is prepared before the one ahead of it has ended.
        tensors: All tensors that are held, by their owner: the inventory.
    """

    limits: Limits
    max_model_len: int | None = None
    num_blocks: int | None = None
    tables: tuple[BlockTable, ...] = ()
    rows: tuple[RowHolder, ...] = ()
    attention_groups: tuple[AttentionGroup, ...] = ()
    draft_groups: tuple[AttentionGroup, ...] = ()
    rotary_caches: tuple[RotaryCache, ...] = ()
    draft_rotary_caches: tuple[RotaryCache, ...] = ()
    draft_max_model_len: int | None = None
    drafter: Drafter | None = None
    graphs: Graphs = field(default_factory=Graphs)
    async_scheduling: bool = False
    tensors: Mapping[str, tuple[TensorInfo, ...]] = field(default_factory=dict)

    @property
    def builders(self) -> tuple[Builder, ...]:
        """All metadata builders, the model's first."""
        return tuple(builder for group in (*self.attention_groups, *self.draft_groups) for builder in group.builders)
