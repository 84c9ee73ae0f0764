"""One row that cannot be judged or rendered is left out and counted; everything else is served."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from ullage_sidecar import alarms, api, contract_models, deaths, metrics, state, watch
from ullage_sidecar.app import create_app
from ullage_sidecar.rows import MAX_KNOWN, WHERE, Rows
from ullage_sidecar.settings import load
from ullage_sidecar.watch import Watch

PROGRAM = """
import sys, ullage
name, size = sys.argv[1], int(sys.argv[2])
rows = ullage.buffer("rows of " + name, capacity=10, unit="rows")
rows.observe(12)
for contract in ("width of " + name, "length of " + name):
    one = ullage.Contract(contract)
    one.claim("runner", size)
    one.claim("builder", size + 1)
print("ready", flush=True)
sys.stdin.readline()
"""
GOOD, BAD = "good/main", "bad/main"


def test_rows_that_raise_are_left_out_and_counted_once(caplog):
    rows = Rows()

    for _ in range(3):
        made = rows.each("buffer", [4, 0, 2], lambda item: 8 // item, key=str)

    assert made == [2, 4]
    assert rows.counts["buffer"] == 1
    assert caplog.text.count("ZeroDivisionError") == 1


def test_the_keys_remembered_are_bounded():
    rows = Rows()
    many = range(MAX_KNOWN + 1)

    rows.each("event", many, lambda item: item / 0, key=str)
    rows.each("event", [MAX_KNOWN, 0], lambda item: item / 0, key=str)

    assert rows.counts["event"] == len(many) + 1  # the oldest was forgotten


@pytest.fixture
def pod(program, segments):
    """Two engines of one pod, and the sidecar's application: the watch and a client."""
    running = []
    for name, size in (("good", 10), ("bad", 20)):
        running.append(program(PROGRAM, name, size, ULLAGE_ENGINE=name, ULLAGE_STRICT=""))
        assert running[-1].line() == "ready"
    watching = Watch(lambda: load(environment={}, dir=segments))
    client = TestClient(create_app(watching), base_url="http://127.0.0.1", raise_server_exceptions=False)
    return watching, client, running


def fails_for(monkeypatch, module, function, is_bad):
    """Have ``module.function`` raise where ``is_bad`` is true of one of its arguments."""
    real = getattr(module, function)

    def failing(*arguments, **named):
        if any(is_bad(argument) for argument in arguments):
            raise ValueError("this row cannot be had")
        return real(*arguments, **named)

    monkeypatch.setattr(module, function, failing)


def of_bad(value):
    """Tell whether a value is about the bad engine."""
    names = (getattr(value, name, None) for name in ("process", "name", "provider", "snapshot"))
    return value == BAD or any("bad" in str(name) for name in names if name is not None)


def answers(client):
    """Ask for everything; return the pages of the API and the text of the metrics."""
    found = {}
    for name in ("processes", "buffers", "contracts", "events", "warnings"):
        answer = client.get(f"/v1/{name}")
        assert answer.status_code == 200
        found[name] = answer.json()
    answer = client.get("/metrics")
    assert answer.status_code == 200
    return found, answer.text


def dropped(page):
    """The rows that are left out, by kind, as the metrics have them."""
    lines = [line for line in page.splitlines() if line.startswith("ullage_rows_dropped_total{")]
    counts = {line.partition('where="')[2].partition('"')[0]: float(line.split()[-1]) for line in lines}
    assert counts.keys() == set(WHERE)
    return {where for where, count in counts.items() if count}


def test_nothing_is_left_out_where_nothing_fails(pod):
    watching, client, _ = pod
    watching.tick()

    found, page = answers(client)

    assert {row["process"] for row in found["processes"]} == {GOOD, BAD}
    assert len(found["contracts"]) == 4
    assert dropped(page) == set()


@pytest.mark.fault("a process, contract or other row that cannot be judged or rendered", sees="the others")
@pytest.mark.parametrize(
    ("where", "module", "function"),
    [
        ("process", state, "_judge"),
        ("process", state, "tally_of"),
        ("contract", state, "contract_of"),
        ("warning", alarms, "_judge"),
        ("warning", alarms, "_contract_conditions"),
        ("process", api, "process_model"),
        ("buffer", api, "buffer_model"),
        ("contract", api, "contract_model"),
        ("event", api, "event_model"),
        ("warning", api, "warning_model"),
        ("finding", contract_models, "_disagreement_model"),
        ("metrics", metrics, "_buckets"),
    ],
)
def test_one_bad_row_costs_one_row(pod, monkeypatch, where, module, function):
    watching, client, _ = pod
    claimed = ("width of bad", "length of bad")
    fails_for(monkeypatch, module, function, lambda value: of_bad(value) or value in claimed)

    watching.tick()
    answers(client)  # what is left out of the API is in the metrics that are asked for afterwards
    found, text = answers(client)

    assert dropped(text) == {where}
    assert f'ullage_buffer_used_slots{{buffer="rows of good",process="{GOOD}"}} 12.0' in text
    assert {"rows of good"} <= {row["buffer"] for row in found["buffers"]["buffers"]}
    assert GOOD in {row["process"] for row in found["processes"]}
    assert (GOOD, "bounds_violation") in {(row["process"], row["reason"]) for row in found["warnings"]}
    good = {row["contract"]: len(row["disagreements"]) for row in found["contracts"] if "good" in row["contract"]}
    assert good == {"width of good": 1, "length of good": 1}


def test_a_contract_that_cannot_be_explained_is_listed_without_the_finding(pod, monkeypatch):
    watching, client, _ = pod
    fails_for(monkeypatch, contract_models, "_disagreement_model", of_bad)

    watching.tick()
    found, _ = answers(client)

    assert {row["contract"]: len(row["disagreements"]) for row in found["contracts"]} == {
        "length of bad": 0,
        "width of bad": 0,
        "length of good": 1,
        "width of good": 1,
    }
    assert dropped(client.get("/metrics").text) == {"finding"}


@pytest.mark.parametrize(("module", "function"), [(deaths, "post_mortem"), (watch, "line")])
def test_a_post_mortem_that_cannot_be_made_costs_that_one(pod, monkeypatch, capsys, module, function):
    watching, client, running = pod
    watching.tick()
    for one in running:
        one.kill()
    fails_for(monkeypatch, module, function, of_bad)

    for _ in range(3):
        watching.tick()

    told = capsys.readouterr().out
    assert told.count('"process":"good/main"') >= 1
    assert '"process":"bad/main"' not in told
    assert len(told.splitlines()) == 1  # once, not at each tick
    found, _ = answers(client)
    shown = {row["process"]: row["post_mortem"] is not None for row in found["processes"]}
    assert shown == {GOOD: True, BAD: module is watch}
    assert dropped(client.get("/metrics").text) == {"post_mortem"}
