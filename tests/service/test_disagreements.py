"""Many claims that do not fit: one finding for each pair of sizes, and pages and texts of bounded length."""

from __future__ import annotations

import json
import urllib.request

import pytest
from disagreeing import ENGINE, PROGRAM, WORKERS

from ullage_sidecar.diagnosis.joined import MAX_EXPLAINED


@pytest.fixture
def workers(program):
    """Start the workers of a case."""

    def start(case):
        for rank in range(WORKERS):
            assert program(PROGRAM, case, rank, **ENGINE).line() == "ready"

    return start


def contracts(sidecar, query=""):
    """The page, and its size in bytes."""
    body = urllib.request.urlopen(f"http://127.0.0.1:{sidecar.port}/v1/contracts{query}", timeout=100).read()
    return json.loads(body), len(body)


@pytest.mark.fault("two formulas for one size, in each layer of four workers", sees="one finding")
def test_two_formulas_in_61_layers_of_four_workers_are_one_finding(workers, sidecar):
    workers("two formulas")
    watching = sidecar()

    (contract,), size = contracts(watching)

    assert size <= 200_000
    (found,) = contract["disagreements"]
    assert (found["provider"]["count"], found["requirement"]["count"]) == (61 * WORKERS, 61 * WORKERS)
    assert len(found["requirement"]["processes"]) == WORKERS
    assert found["provider"]["sources"][:2] == ["layers.0.runner", "layers.1.runner"]
    assert [claim["shape"] for claim in contract["claims"]] == [[3126], [3125]]
    assert contract["more_claims"] == contract["more_disagreements"] == 0
    assert found["finding"].startswith(("Likeliest: ", "A tie: "))
    counts = [value for (name, _), value in watching.metrics().items() if name == "ullage_contract_disagreements"]
    assert counts == [1] * WORKERS


def test_claims_that_all_differ_make_no_endless_page_and_no_endless_text(workers, sidecar):
    workers("all differ")
    watching = sidecar()

    (contract,), size = contracts(watching)

    assert size <= 200_000
    assert len(contract["claims"]) + contract["more_claims"] == 254 * WORKERS
    assert len(contract["disagreements"]) == MAX_EXPLAINED
    assert contract["more_disagreements"] == 64 * 63 // 2 - MAX_EXPLAINED
    warnings = [one for one in watching.json("/v1/warnings") if one["reason"] == "shape_disagreement"]
    assert warnings
    assert all(len(one["message"]) <= 1_000 for one in warnings)
    assert "more" in warnings[0]["message"]


def test_contracts_that_are_all_broken_share_what_is_explained_of_a_page(workers, sidecar):
    workers("all differ, in contracts of their own")
    watching = sidecar()

    found, size = contracts(watching)
    ((last,), _) = contracts(watching, f"?contract={found[-1]['contract']}")

    assert size <= 1_000_000
    assert len(found) == 128  # each has a record for its counts, too
    assert sum(len(one["disagreements"]) for one in found) == MAX_EXPLAINED
    assert all(len(one["disagreements"]) + one["more_disagreements"] == 6 for one in found)
    assert found[-1]["disagreements"] == []
    assert len(last["disagreements"]) == 6
