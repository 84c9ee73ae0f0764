"""Metadata of vLLM's own KV connectors: what a step transfers, and lists that do not fit each other."""

from __future__ import annotations

import pytest

START = """
from ullage.engines.vllm import connectors

def nixl(local, remote=None):
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import metadata
    made = metadata.NixlConnectorMetadata()
    there = metadata.RemoteMeta(block_ids=remote, host="h", port=1, engine_id="e", request_id="r") if remote else None
    made.reqs_to_recv["a"] = metadata.ReqMeta(
        local_block_ids=local, local_physical_block_ids=local, tp_size=1, remote=there
    )
    return made

def mooncake(local):
    from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector
    made = mooncake_connector.MooncakeConnectorMetadata()
    made.reqs_to_recv["engine"]["a"] = mooncake_connector.PullReqMeta(
        d_req_id="a", transfer_id="t", local_block_ids=local, remote_engine_id="engine", remote_bootstrap_addr="x"
    )
    return made
"""


def events(seen, kind):
    return [(event.subject, event.numbers[:2]) for event in seen.events if event.kind.name == kind]


def blocks(seen):
    (found,) = [buffer for buffer in seen.buffers if buffer.name == "connector_blocks"]
    return found


@pytest.mark.parametrize(
    "metadata",
    ["nixl(([1, 2, 3],), ([7, 8, 9, 10],))", "mooncake([[1, 2, 3]])", "Some(metadata=(nixl(([1, 2, 3],)),))"],
)
def test_blocks_of_a_transfer_are_counted_whichever_connector_asks(run_classes, metadata):
    _, seen = run_classes(START + f"connectors.scheduled({metadata}, 64)")

    assert (blocks(seen).used, blocks(seen).capacity, blocks(seen).kind.name) == (3, 64, "MANAGED")
    assert events(seen, "SHAPE_VIOLATION") == events(seen, "BOUNDS_VIOLATION") == []


def test_a_request_with_more_blocks_than_the_remote_has_for_it(run_classes):
    _, seen = run_classes(START + "connectors.scheduled(nixl(([1, 2, 3],), ([7, 8],)), 64)")

    assert events(seen, "SHAPE_VIOLATION") == [("connector.blocks", (2, 3))]


def test_a_block_outside_of_the_cache(run_classes):
    _, seen = run_classes(START + "connectors.scheduled(mooncake([[1, 64]]), 64)")

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
session.open()
try:
    worker.add_remote_agent(remote)
except AssertionError:  # vLLM's: there is no topology
    pass
"""
    )

    assert events(seen, "SHAPE_VIOLATION") == found
