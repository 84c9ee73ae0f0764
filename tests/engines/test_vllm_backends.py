"""What attention backends allocate for themselves: vLLM's own metadata builders on CPU, at their sizes and at others.

Those that ask for a CUDA device when they are made are made without their constructor, and given what it would have
allocated. Stand-ins: FlashInfer, which is an empty package here, its kernel that copies page numbers, and the number
of a device's multiprocessors.
"""

from __future__ import annotations

import pytest


def events(seen, kind="DISAGREEMENT"):
    return {(event.subject, *event.numbers[:2]) for event in seen.events if event.kind.name == kind}


def shapes(seen, contract):
    return {claim.source: claim.shape for claim in seen.claims if claim.contract == contract and not claim.tally}


FLASHINFER = """
import importlib.abc, importlib.machinery, sys, types
import numpy as np

class Empty(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})

class FlashInfer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name.partition(".")[0] == "flashinfer" else None
    def create_module(self, spec):
        return Empty(spec.name)
    def exec_module(self, module):
        pass

sys.meta_path.insert(0, FlashInfer())
from vllm.v1.attention.backends import flashinfer

class Copies:
    def __getitem__(self, grid):
        return lambda *arguments, **constants: None

flashinfer._copy_page_indices_kernel = Copies()

def builder(pages=8 * 3125, heads=8, head_dim=128):
    made = object.__new__(flashinfer.FlashInferMetadataBuilder)
    made.vllm_config, made.kv_cache_spec, made.device = CONFIG, full(64), torch.device("cpu")
    made.max_num_batched_tokens, made.num_qo_heads, made.head_dim = 64, heads, head_dim
    made.disable_split_kv, made._workspace_buffer = False, None
    made.paged_kv_indptr = flashinfer.CpuGpuBuffer(9, dtype=torch.int32, device=made.device, pin_memory=False)
    made.paged_kv_last_page_len = flashinfer.CpuGpuBuffer(8, dtype=torch.int32, device=made.device, pin_memory=False)
    made.paged_kv_indices = torch.zeros(pages, dtype=torch.int32)
    return made

def pages(made, *blocks):
    blocks = np.array(blocks, dtype=np.int32)
    return made._compute_flashinfer_kv_metadata(blocks, blocks * 64, torch.zeros(2, 4000), len(blocks), 64)

flashinfer.envs.VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE = 4096
process.session.open()
"""


@pytest.mark.parametrize(
    ("pages", "found"), [(8 * 3125, set()), (8 * 3124, {("flashinfer.page_indices", 24992, 25000)})]
)
def test_the_pages_of_all_sequences_of_the_longest_step(run_classes, pages, found):
    _, seen = run_classes(FLASHINFER + f"audit_v1(runner(builder(pages={pages})))")

    assert events(seen) == found


@pytest.mark.parametrize(
    ("blocks", "found"), [((3, 5), set()), ((3, 6), {("flashinfer.page_indices", 8, 9)})], ids=["fits", "does not"]
)
def test_pages_of_a_batch_beyond_the_list_are_reported_before_a_kernel_writes_them(run_classes, blocks, found):
    (listed,), seen = run_classes(FLASHINFER + f"say(len(pages(builder(pages=8), *{blocks})))")

    assert listed == 8  # whatever was asked for
    assert events(seen, "SHAPE_VIOLATION") == found


@pytest.mark.parametrize(
    ("second", "found"),
    [
        ("heads=8, head_dim=128", set()),
        ("heads=4, head_dim=256", set()),
        ("heads=16, head_dim=256", {("flashinfer.workspace", 64 * 8 * 128 * 16, 64 * 16 * 256 * 16)}),
    ],
)
def test_a_shared_workspace_is_held_against_the_estimate_of_each_builder(run_classes, second, found):
    _, seen = run_classes(
        FLASHINFER
        + f"""
first, second, third = builder(), builder({second}), builder()
for other in (second, third):
    other.set_workspace_buffer(first._get_workspace_buffer())
audit_v1(runner(first, second, third))
"""
    )

    assert events(seen) == found
    assert len(shapes(seen, "flashinfer.workspace")) == 1 + 3  # the last says nothing for those before


@pytest.mark.parametrize(
    "apart",
    [
        "pass",
        "second.disable_split_kv = True; second.set_workspace_buffer(first._get_workspace_buffer())",
        "second._get_workspace_buffer(); first._get_workspace_buffer()",
    ],
    ids=["none yet", "nothing is split", "each its own"],
)
def test_workspaces_of_which_nothing_can_be_said_or_that_are_not_shared(run_classes, apart):
    _, seen = run_classes(
        FLASHINFER + f"first, second = builder(), builder(heads=64)\n{apart}\naudit_v1(runner(first, second))"
    )

    assert events(seen) == set()


FLASHMLA = """
from vllm.v1.attention.backends.mla import flashmla
torch.cuda.get_device_properties = lambda device: Some(multi_processor_count=132)

def builder(tiles=132, splits=9, heads=128):
    made = object.__new__(flashmla.FlashMLAMetadataBuilder)
    made.vllm_config, made.kv_cache_spec, made.device = CONFIG, full(64), torch.device("cpu")
    made.num_q_heads, made.dcp_world_size = heads, 1
    made.cg_buf_tile_scheduler_metadata = torch.zeros(tiles, 8, dtype=torch.int32)
    made.cg_buf_num_splits = torch.zeros(splits, dtype=torch.int32)
    return made
"""


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ("", set()),
        ("tiles=66", set()),
        ("tiles=66, heads=64", {("flashmla.tile_rows", 66, 132)}),
        ("splits=8", {("flashmla.num_splits", 8, 9)}),
    ],
)
def test_flashmla_has_a_row_for_each_part_of_the_device_and_a_boundary_for_each_sequence(run_classes, sizes, found):
    _, seen = run_classes(FLASHMLA + f"audit_v1(runner(builder({sizes})))")

    assert events(seen) == found


GDN = """
from vllm.v1.attention.backends import gdn_attn

def builder(index=None):
    made = object.__new__(gdn_attn.GDNAttentionMetadataBuilder)
    made.vllm_config, made.kv_cache_spec = CONFIG, full(64)
    rows = 8 * 3  # sequences x tokens of each
    made.spec_state_indices_tensor = torch.zeros(rows, 3)
    made.non_spec_state_indices_tensor = torch.zeros(rows)
    made.spec_token_indx = made.non_spec_token_indx = torch.zeros(index or rows * 3)
    made.spec_query_start_loc = torch.zeros(rows + 1)
    return made

pieces = [Some(num_tokens=64, num_reqs=None)]
graphs = Some(cudagraph_keys={"FULL": [Some(num_tokens=24, num_reqs=8)], "PIECEWISE": pieces})
"""


@pytest.mark.parametrize(("index", "found"), [(None, set()), (24, set()), (23, {("gdn.token_rows", 23, 24)})])
def test_gated_delta_networks_list_the_tokens_of_the_largest_graph(run_classes, index, found):
    _, seen = run_classes(GDN + f"audit_v1(runner(builder({index}), cudagraph_dispatcher=graphs))")

    assert events(seen) == found
    assert shapes(seen, "mamba.state_rows")["graph capture"] == (8,)


MAMBA = """
from vllm.v1.attention.backends import mamba2_attn

made = object.__new__(mamba2_attn.Mamba2AttentionMetadataBuilder)
made.vllm_config, made.kv_cache_spec = CONFIG, full(64)
made.state_indices_tensor_d = torch.zeros(8, 3)
made.decode_write_pos_d = made.decode_is_flush_d = torch.zeros(8)
made.decode_bc_pre_scratch = torch.zeros(8, 1, 16)
graphs = Some(cudagraph_keys={"FULL": [Some(num_tokens=8, num_reqs=8)]})
"""


@pytest.mark.parametrize(
    ("replaced", "found"),
    [
        ("", set()),
        ("made.decode_write_pos_d = torch.zeros(4)", {("mamba.state_rows", 4, 8)}),
        ("made.decode_bc_pre_scratch = torch.zeros(4, 1, 16)", {("step.requests", 4, 8)}),
    ],
)
def test_states_of_mamba_have_a_row_for_each_sequence_of_the_largest_graph(run_classes, replaced, found):
    _, seen = run_classes(MAMBA + f"{replaced}\naudit_v1(runner(made, cudagraph_dispatcher=graphs))")

    assert events(seen) == found
