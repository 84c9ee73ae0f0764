"""One story on a real vLLM, scraped by real Prometheuses: every expression that we ship, executed at its moment."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from typing import NamedTuple

import pytest
from harness import ROOT, Program, Sidecar, until
from prometheus import Alertmanager, PrometheusServer, backfill, static

from dashboards import NAMES, annotations, queries, variables
from rules import FILES, alerts, rules

APP = """
import logging, sys, ullage
logging.disable()
rows = ullage.buffer("rows", capacity=1000, unit="rows", limit="worst case")
arena = ullage.buffer("arena", capacity=1 << 20, unit="bytes")
width = ullage.Contract("indexer.width", dims=("columns",), unit="columns")
class Tensor:
    shape, dtype = (3126,), "int32"
def claims():
    width.claim("runner", 3126, role="is", inputs={"max_model_len": 200000, "block_size": 64})
    width.claim("indexer", 3125, role="is", inputs={"max_model_len": 200000, "block_size": 64})
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    ullage.step()
    print("done", flush=True)
"""
ALERTMANAGER = ROOT / ".tools/prometheus/usr/bin/prometheus-alertmanager"
SETTINGS = "exhaustion_hold: 1s\nclear_hold: 30s\nstall_after: 5s\n"
LABELS = {"cluster": "one", "namespace": "serving", "pod": "vllm-0", "node": "n1"}


class App(Program):
    """A program of an engine developer's, told what to do a line at a time."""

    def __init__(self, directory):
        super().__init__(APP, directory, ULLAGE_STRICT="0")
        assert self.line() == "ready"


class Told(NamedTuple):
    """What is left of a story.

    Attributes:
        scraping: Who scraped it, by version.
        chapters: When each chapter ended.
        pages: What the sidecar served in each chapter.
        received: The alerts that a webhook received.
    """

    scraping: dict[str, PrometheusServer]
    chapters: dict[str, float]
    pages: dict[str, list[str]]
    received: list[dict]


@pytest.fixture(scope="module")
def story(start_offline, prometheuses, tmp_path_factory):
    """Tell it once; every test asks about it."""
    room = tmp_path_factory.mktemp("story")
    config = room / "ullage.yaml"
    config.write_text(SETTINGS)
    with contextlib.ExitStack() as ends:
        engine = start_offline(24, in_process=True, ULLAGE_STRICT="0")
        directory = engine.directory
        app = App(directory)
        ends.callback(app.end)
        app.tell("claims()")
        sidecar = Sidecar(directory, "--config", str(config))
        ends.callback(sidecar.end)
        (room / "empty").mkdir()
        lonely = Sidecar(room / "empty")
        ends.callback(lonely.end)
        receiver = Alertmanager(ALERTMANAGER, room)
        ends.callback(receiver.end)
        scraping = {}
        for release in prometheuses:
            scraping[release.version] = PrometheusServer(
                release.prometheus,
                room / release.version,
                [static("ullage", (sidecar.port, LABELS), (lonely.port, {**LABELS, "pod": "bare-0"}))],
                rules=FILES,
                alertmanager=receiver,
            )
            ends.callback(scraping[release.version].end)
        chapters, pages = {}, {"bare": [lonely.get("/metrics").decode()]}

        def page(chapter):
            pages.setdefault(chapter, []).append(sidecar.get("/metrics").decode())

        def settled(chapter):
            conditions = [rule.expr for name, rule in alerts().items() if MOMENTS[name] == chapter]
            true = all(server.query(expr) for server in scraping.values() for expr in conditions)
            return true and not any(server.query("up == 0") for server in scraping.values())

        def ended(chapter, seconds=4):
            """Let the scrapes catch up with a chapter, however slow the machine is, and note when it ended."""
            time.sleep(seconds)
            until(lambda: settled(chapter), 60, f"all conditions of the chapter {chapter!r}")
            page(chapter)
            chapters[chapter] = time.time()

        ended("disagreement", 6)
        engine.ask("generate", prompts=4, tokens=24)
        ended("idle")
        app.tell("rows.observe(400); arena.observe(1000)")
        engine.ask("generate", prompts=4, tokens=64, times=10)
        ended("load")
        app.tell("for used in range(930, 980): rows.observe(used)")
        ended("near capacity")
        engine.ask("generate", prompts=12, tokens=160, times=8)
        ended("preemption", 1)
        for size in range(1001, 1025):
            app.tell(f"rows.resize({size})")
            page("violation")
        app.tell("rows.violated(5000)")
        app.tell("width.check(Tensor)")
        ended("violation")
        app.tell("rows.observe(-1)")
        app.tell("for n in range(300): width.claim(f'drafter {n}', (None,))")  # more than a segment has records for
        engine.ask("break", probe="ullage.engines.instance:EngineInstance.observe")
        engine.ask("generate", prompts=2, tokens=8, times=12)
        (directory / "damaged.ullage").write_bytes(b"no segment")
        config.write_text("no_such_setting: 1\n")
        sidecar.process.send_signal(signal.SIGHUP)
        ended("trouble")
        engine.tell("generate", prompts=8, tokens=160, times=30)
        requests = {"process": "vllm0/main", "buffer": "running_requests"}
        until(lambda: sidecar.value("ullage_buffer_used_slots", **requests), 60, "requests run")
        engine.process.send_signal(signal.SIGSTOP)
        until(lambda: sidecar.states()["vllm0/main"] == "stalled", 60, "the engine is stalled")
        ended("stalled")
        engine.process.send_signal(signal.SIGKILL)
        engine.process.wait()
        ended("killed")
        again = start_offline(24, in_process=True, directory=directory)
        again.ask("generate", prompts=4, tokens=24)
        ended("recovered")
        sidecar.process.kill()
        until(lambda: all(server.query("up == 0") for server in scraping.values()), 60, "a scrape has failed")
        chapters["no sidecar"] = time.time()
        yield Told(scraping, chapters, pages, receiver.received)


MOMENTS = {
    "UllageShapeDisagreement": "disagreement",
    "UllageNoHook": "disagreement",
    "UllageBufferNearCapacity": "near capacity",
    "UllageBufferExhausted": "preemption",
    "UllageBoundsViolation": "violation",
    "UllageShapeViolation": "violation",
    "UllageResizeStorm": "violation",
    "UllageProbeDisabled": "trouble",
    "UllageHookErrors": "trouble",
    "UllageSegmentUnreadable": "trouble",
    "UllageConfigReloadFailed": "trouble",
    "UllageEngineStalled": "stalled",
    "UllageProcessDied": "killed",
    "UllageSidecarDown": "no sidecar",
}
"""At the end of which chapter the condition of each alert is true for the first time."""
TIMES = {"$__rate_interval": "10s", "$__interval": "5s", "$__range": "5m"}  # what Grafana takes for 1 s scrapes


@pytest.fixture
def scraped(story, release):
    """The story as one Prometheus knows it: the server, and when each chapter ended."""
    return story.scraping[release.version], story.chapters


def silent(server, chapters, asked):
    """Return the names of those of ``asked``, {name: expression}, that have no data at the end of any chapter."""
    return [name for name, expr in asked.items() if not any(server.query(expr, at) for at in chapters.values())]


def test_each_alert_comes_true_at_its_moment_and_not_before(scraped):
    server, chapters = scraped
    order = list(chapters)

    seen = {
        name: next((chapter for chapter in order if server.query(rule.expr, chapters[chapter])), None)
        for name, rule in alerts().items()
    }

    assert seen == MOMENTS


def test_each_recording_rule_has_recorded(scraped):
    server, chapters = scraped
    assert silent(server, chapters, {rule.record: rule.record for rule in rules() if rule.record}) == []


@pytest.mark.parametrize("dashboard", NAMES)
def test_each_expression_of_each_panel_has_data(scraped, dashboard):
    server, chapters = scraped
    asked = {f"{one.panel} {one.ref_id}": one.expr for one in queries(dashboard, TIMES)}
    assert silent(server, chapters, asked) == []


@pytest.mark.parametrize("dashboard", NAMES)
def test_each_annotation_marks_something(scraped, dashboard):
    server, chapters = scraped
    span = {"start": min(chapters.values()) - 60, "end": max(chapters.values()), "step": 5}
    for name, expr in annotations(dashboard, TIMES):
        assert server.get("query_range", query=expr, **span)["result"], name


@pytest.mark.parametrize("dashboard", NAMES)
def test_each_variable_offers_values(scraped, dashboard):
    server, _ = scraped
    for one in variables(dashboard):
        assert server.get(f"label/{one.label}/values", **{"match[]": one.selector}), one.variable


def test_a_misspelt_metric_would_be_noticed(scraped):
    server, chapters = scraped
    panel = next(queries("fleet", TIMES))

    assert silent(server, chapters, {"typo": panel.expr.replace("ullage_", "ulage_")}) == ["typo"]


@pytest.fixture(scope="module")
def history(story, prometheuses, tmp_path_factory):
    """The story again, but every chapter has lasted for 20 minutes: {version: server}, and when each chapter ended."""
    minutes, step = 20, 30
    begin = int(time.time()) - (len(story.chapters) + 1) * minutes * 60
    pages, ends = [], {}
    for number, chapter in enumerate(story.chapters):
        written = story.pages.get(chapter, [""])
        for second in range(0, minutes * 60, step):
            at = begin + number * minutes * 60 + second
            page = written[second * len(written) // (minutes * 60)]
            pages.append((at, {"job": "ullage", "instance": "one", **LABELS}, f"{page}\nup {int(bool(page))}"))
            pages.append((at, {"job": "ullage", "instance": "bare"}, story.pages["bare"][0]))
        ends[chapter] = at
    servers = {}
    for release in prometheuses:
        room = tmp_path_factory.mktemp("history") / release.version
        backfill(release.promtool, room, pages)
        servers[release.version] = PrometheusServer(release.prometheus, room)
        command = [release.promtool, "tsdb", "create-blocks-from", "rules", f"--start={begin}", f"--end={at}"]
        options = ["--url", servers[release.version].url, "--eval-interval=30s", f"--output-dir={room / 'data'}"]
        subprocess.run([*command, *options, *FILES], check=True, capture_output=True)
        servers[release.version].end()
        servers[release.version] = PrometheusServer(release.prometheus, room)
    yield servers, ends
    for server in servers.values():
        server.end()


@pytest.mark.parametrize("alert", [name for name, rule in alerts().items() if rule.hold != "0s"])
def test_an_alert_that_waits_would_have_fired_by_the_end_of_its_chapter(history, release, alert):
    servers, ends = history
    rule, end = alerts()[alert], ends[MOMENTS[alert]]

    held = servers[release.version].query(f"count_over_time(({rule.expr})[{rule.hold}:30s])", end)

    minutes = int(rule.hold.removesuffix("m"))
    assert max((count for _, count in held), default=0) >= 2 * minutes


def test_a_violation_reaches_a_webhook_through_alertmanager(story):
    received = {alert["labels"]["alertname"]: alert for alert in story.received}

    alert = received["UllageBoundsViolation"]
    assert alert["labels"]["severity"] == "critical"
    assert (alert["labels"]["pod"], alert["labels"]["buffer"]) == ("vllm-0", "rows")
    assert "buffer rows of process app0/main in vllm-0" in alert["annotations"]["description"]
    assert alert["annotations"]["runbook_url"].endswith("/UllageBoundsViolation.md")
