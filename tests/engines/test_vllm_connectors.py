"""Metadata of vLLM's own KV connectors: what a step transfers, and lists that do not fit each other.

LMCache's are those in vLLM's tree, with the package ``lmcache`` empty; its own connector has the same fields.
"""

from __future__ import annotations

import pytest

START = """
from ullage.engines.vllm.core.connectors import Transfers
from ullage.engines.vllm.identity import current
transfers = current().part(Transfers)

def nixl(local, remote=None):
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import metadata
    made = metadata.NixlConnectorMetadata()
    there = metadata.RemoteMeta(block_ids=remote, host="h", port=1, engine_id="e", request_id="r") if remote else None
    made.reqs_to_recv["a"] = metadata.ReqMeta(
        local_block_ids=local, local_physical_block_ids=local, tp_size=1, remote=there
    )
    return made

def example(tokens, local):
    from vllm.distributed.kv_transfer.kv_connector.v1 import example_connector
    made = example_connector.ExampleConnectorMetadata()
    made.add_request(list(range(tokens)), local, 16, is_store=True, mm_hashes=[])
    return made

def mooncake(local):
    from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector
    made = mooncake_connector.MooncakeConnectorMetadata()
    made.reqs_to_recv["engine"]["a"] = mooncake_connector.PullReqMeta(
        d_req_id="a", transfer_id="t", local_block_ids=local, remote_engine_id="engine", remote_bootstrap_addr="x"
    )
    return made
"""

LMCACHE = """
import without_lmcache
from vllm.distributed.kv_transfer.kv_connector.v1 import lmcache_mp_connector
from vllm.distributed.kv_transfer.kv_connector.v1.lmcache_integration import vllm_v1_adapter

class Unread(list):
    def __iter__(self):
        raise AssertionError("tokens were looked at")

def single(tokens, blocks, saved=0, load=None):
    tracker = vllm_v1_adapter.RequestTracker("a", tokens, list(range(tokens)), blocks, num_saved_tokens=saved)
    spec = load and vllm_v1_adapter.LoadSpec(*load, can_load=True)
    request = vllm_v1_adapter.ReqMeta.from_request_tracker(tracker, 16, 16, spec)
    request.token_ids = Unread(request.token_ids)
    made = vllm_v1_adapter.LMCacheConnectorMetadata()
    made.add_request(request)
    return made

def several(tokens, blocks):
    request = Some(request_id="a", cache_salt="", all_token_ids=range(tokens), block_hashes=[b""] * (tokens // 16))
    tracker = lmcache_mp_connector.LMCacheMPRequestTracker(request)
    tracker.append_block_ids(blocks)
    tracker.increase_num_scheduled_tokens(tokens)
    made = lmcache_mp_connector.LMCacheMPConnectorMetadata()
    made.add_request_metadata(lmcache_mp_connector.LMCacheMPRequestMetadata.GetStoreMetadata(tracker, 1, 16))
    made.requests[0].op.token_ids = Unread(made.requests[0].op.token_ids)
    return made
"""


def events(seen, kind):
    return [(event.subject, event.numbers[:2]) for event in seen.events if event.kind.name == kind]


def blocks(seen):
    (found,) = [buffer for buffer in seen.buffers if buffer.name == "connector_blocks"]
    return found


@pytest.mark.parametrize(
    "metadata",
    [
        "nixl(([1, 2, 3],), ([7, 8, 9, 10],))",
        "mooncake([[1, 2, 3]])",
        "example(49, [1, 2, 3, 4])",
        "Some(metadata=(nixl(([1, 2, 3],)),))",
    ],
)
def test_blocks_of_a_transfer_are_counted_whichever_connector_asks(run_classes, metadata):
    _, seen = run_classes(START + f"transfers.scheduled({metadata}, 64, 16)")

    assert (blocks(seen).used, blocks(seen).capacity, blocks(seen).kind.name) == (3, 64, "MANAGED")
    assert events(seen, "SHAPE_VIOLATION") == events(seen, "BOUNDS_VIOLATION") == []


def test_a_request_with_more_blocks_than_the_remote_has_for_it(run_classes):
    _, seen = run_classes(START + "transfers.scheduled(nixl(([1, 2, 3],), ([7, 8],)), 64, 16)")

    assert events(seen, "SHAPE_VIOLATION") == [("connector.blocks", (2, 3))]


def test_a_block_outside_of_the_cache(run_classes):
    _, seen = run_classes(START + "transfers.scheduled(mooncake([[1, 64]]), 64, 16)")

    assert events(seen, "BOUNDS_VIOLATION") == [("connector_blocks", (64, 64))]


@pytest.mark.parametrize(("remote", "found"), [(4, []), (5, [("connector.layers", (5, 4))]), ("named", [])])
def test_ends_that_registered_another_number_of_regions_are_seen_at_the_handshake(run_classes, remote, found):
    _, seen = run_classes(
        START
        + f"""
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import NixlBaseConnectorWorker
worker = object.__new__(NixlBaseConnectorWorker)
worker.block_len_per_layer, worker._remote_agents, worker.transfer_topo = [1] * 4, {{}}, None
regions = {remote!r}
remote = Some(engine_id="e", block_lens=[1] * (5 if regions == "named" else regions))
remote.region_names = ["a"] * 5 if regions == "named" else None
process.session.open()
try:
    worker.add_remote_agent(remote)
except AssertionError:  # vLLM's: there is no topology
    pass
"""
    )

    assert events(seen, "SHAPE_VIOLATION") == found


@pytest.mark.parametrize(
    ("metadata", "blocks_of_it"),
    [
        ("single(48, [1, 2, 3])", 3),
        ("single(48, [1, 2, 3], saved=16)", 2),
        ("single(48, [1, 2, 3], saved=48, load=(16, 48))", 2),
        ("several(48, [1, 2, 3, 4])", 3),
        ("Some(metadata=(single(48, [1, 2, 3]), several(32, [4, 5])))", 5),
    ],
)
def test_blocks_that_lmcache_stores_and_loads(run_classes, metadata, blocks_of_it):
    _, seen = run_classes(START + LMCACHE + f"transfers.scheduled({metadata}, 64, 16)")

    assert blocks(seen).used == blocks_of_it
    assert events(seen, "SHAPE_VIOLATION") == events(seen, "BOUNDS_VIOLATION") == []


def test_tokens_of_lmcache_without_a_slot(run_classes):
    _, seen = run_classes(START + LMCACHE + "transfers.scheduled(single(64, [1, 2, 3]), 64, 16)")

    assert events(seen, "SHAPE_VIOLATION") == [("connector.tokens", (48, 64))]


def test_a_range_of_lmcache_with_too_few_blocks(run_classes):
    cut = "made = several(64, [1, 2, 3, 4]); made.requests[0].op.block_ids.pop()\n"

    _, seen = run_classes(START + LMCACHE + cut + "transfers.scheduled(made, 64, 16)")

    assert events(seen, "SHAPE_VIOLATION") == [("connector.tokens", (48, 64))]


def test_a_block_of_lmcache_outside_of_the_cache(run_classes):
    _, seen = run_classes(START + LMCACHE + "transfers.scheduled(several(32, [1, 64]), 64, 16)")

    assert events(seen, "BOUNDS_VIOLATION") == [("connector_blocks", (64, 64))]


def test_of_an_unknown_connector_lists_of_numbers_are_left_alone(run_classes):
    unread = "Some(requests=[Some(token_ids=Unread([1, 2, 3]))])"

    _, seen = run_classes(START + LMCACHE + f"transfers.scheduled({unread}, 64, 16)")

    assert blocks(seen).used == 0
