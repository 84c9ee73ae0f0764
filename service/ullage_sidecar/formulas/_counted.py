"""What formulas of one dimension have in common: vLLM's limits, and a short way to write such a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ullage_sidecar.formulas import Formula, Input, Term, Terms, Vector

if TYPE_CHECKING:
    from collections.abc import Mapping

SEQS = Input("max_num_seqs", "scheduler_config.max_num_seqs")
TOKENS = Input("max_num_batched_tokens", "scheduler_config.max_num_batched_tokens")
LENGTH = Input("max_model_len", "model_config.max_model_len")
GRAPH = Input("max_cudagraph_capture_size", "compilation_config.max_cudagraph_capture_size")
DRAFTS = Input("num_speculative_tokens", "speculative_config.num_speculative_tokens")

_INPUTS = {item.name: item for item in (SEQS, TOKENS, LENGTH, GRAPH, DRAFTS)}

START_SEQS = Term("start", "max_num_seqs", "base")
START_TOKENS = Term("start", "max_num_batched_tokens", "base")
PER_SEQUENCE = (Term("start", "num_speculative_tokens", "look-ahead"), Term("add", 1, "base"))
DECODE_ROWS = (*PER_SEQUENCE, Term("multiply", "max_num_seqs", "fields"))


def counted(
    name: str,
    role: Literal["provides", "requires"],
    terms: Terms,
    example: tuple[Mapping[str, int], int, str],
    *,
    component: str,
    source: str,
    versions: str = "[0.22, 0.34)",
    source_prefixes: tuple[str, ...] = (),
    unit: str = "rows",
    suffix: str = "",
) -> Formula:
    """Return a formula of one dimension; its inputs are those in its terms."""
    names = dict.fromkeys(term.operand for term in terms if isinstance(term.operand, str))
    return Formula(
        id=f"vllm.{name}.{role}{suffix}",
        quantity=name,
        dims=(unit,),
        unit=unit,
        component=component,
        role=role,
        engine="vllm",
        versions=versions,
        inputs=tuple(_INPUTS.get(name, Input(name)) for name in names),
        terms=(terms,),
        source=source,
        tests=(Vector(example[0], (example[1],), example[2]),),
        source_prefixes=source_prefixes,
    )
