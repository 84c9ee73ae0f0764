"""Kernels with offsets of 32 bits: what they reach of vLLM's own LoRA weights, which are made without memory (meta).

The manager that holds the layers is a stand-in; the kernels were read, in the releases that docs/engines.md names.
"""

from __future__ import annotations

import pytest

from ullage_sidecar.diagnosis.joined import joined

LAYERS = """
import sys, types
from vllm.lora.layers.logits_processor import LogitsProcessorWithLoRA
from vllm.lora.layers.vocab_parallel_embedding import VocabParallelEmbeddingWithLoRA
from ullage.engines.vllm.identity import current
from ullage.engines.vllm.contract_registry import ContractRegistry
from ullage.engines.vllm.claims import int32_limits
from ullage.engines.vllm.views.lora import ADAPTER_KERNELS, adapter_slots
from ullage.host.process import process

def lora(rank):
    return Some(max_lora_rank=rank, lora_dtype=torch.bfloat16, fully_sharded_loras=False)

def logits(slots, rank, vocabulary=152_064):
    made = object.__new__(LogitsProcessorWithLoRA)
    torch.nn.Module.__init__(made)
    made.hidden_size, made.device = 8192, torch.device("meta")
    made.base_layer, made.sharded_to_full_mapping = Some(vocab_size=vocabulary), None
    made.create_lora_weights(slots, lora(rank), Some(get_vocab_size=lambda: vocabulary))
    return made

def embedding(slots, rank, vocabulary=152_064):
    made = object.__new__(VocabParallelEmbeddingWithLoRA)
    torch.nn.Module.__init__(made)
    made.base_layer = Some(
        org_vocab_size=vocabulary, num_embeddings_per_partition=vocabulary, num_org_embeddings_per_partition=vocabulary,
        num_added_embeddings_per_partition=0, embedding_dim=8192,
        weight=torch.empty(vocabulary, 8192, device="meta"), shard_indices=Some(),
    )
    made.create_lora_weights(slots, lora(rank), Some(get_vocab_size=lambda: vocabulary))
    return made

def weights(rows):
    return torch.empty(64, 1, rows, 256, device="meta")

def manager(slots, *layers):
    return Some(lora_slots=slots, modules=dict(enumerate(layers)))

def claim(manager):
    adapters = adapter_slots(manager)
    if adapters is not None:
        int32_limits.claim_adapters(adapters, current().part(ContractRegistry))

sys.modules[ADAPTER_KERNELS] = types.ModuleType(ADAPTER_KERNELS)
process.session.open()
"""


def events(seen):
    return [(event.subject, *event.numbers[:2]) for event in seen.events if event.kind.name == "DISAGREEMENT"]


@pytest.mark.parametrize(
    ("slots", "rank", "found"), [(56, 256, []), (57, 256, [("lora.slots", 56, 57)]), (57, 128, []), (4, 16, [])]
)
def test_more_adapters_than_a_kernel_can_address_in_the_widest_weights(run_classes, slots, rank, found):
    _, seen = run_classes(LAYERS + f"claim(manager({slots}, logits({slots}, {rank})))")

    assert events(seen) == found
    (reach,) = [claim for claim in seen.claims if claim.role.name == "PROVIDES"]
    assert reach.inputs == {"index_limit": 2**31, "slot_stride": 152_064 * rank}


def test_it_is_explained_by_the_width_of_the_index(run_classes):
    _, seen = run_classes(LAYERS + "claim(manager(57, logits(57, 256)))")

    (contract,) = [one for one in joined([(seen.name, seen.claims)]) if one.disagreements]
    assert "offsets below 2^31 reach 56 of 38928384 each" in contract.findings()[0][1].causes[0]


@pytest.mark.parametrize(
    "held",
    [
        "manager(64, embedding(64, 256))",
        "manager(64)",
        "manager(64, Some(lora_b_stacked=(weights(152_064), weights(1024))))",
        "manager(64, Some(lora_b_stacked=weights(2**23)))",
        "manager(64, Some(w13_lora_b_stacked=(weights(152_064),)))",
    ],
    ids=["looked up elsewhere", "no layers", "strides as a tensor", "a stride of 64 bits", "experts"],
)
def test_what_no_kernel_indexes_in_32_bits_has_no_limit(run_classes, held):
    _, seen = run_classes(LAYERS + f"claim({held})")

    assert events(seen) == []


def test_without_the_kernels_there_is_no_limit(run_classes):
    _, seen = run_classes(LAYERS + "del sys.modules[ADAPTER_KERNELS]; claim(manager(64, logits(64, 256)))")

    assert seen.claims == ()
