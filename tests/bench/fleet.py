"""A thousand pods in one Prometheus: what each query of the Fleet dashboard takes, and how many series a pod has.

The pods are synthetic; what they say is not: pages that a real sidecar served while a real vLLM was under load,
replayed one after the other under a thousand names.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "examples"))
sys.path.insert(0, str(ROOT / "tests/support"))
import tiny_llama
from harness import Sidecar
from prometheus import PrometheusServer, static

from dashboards import queries

PODS = int(os.environ.get("PODS", "1000"))
INTERVAL_S = 10
PAGES = 18
REPEATS = 5


def capture(room):
    """Return pages of a sidecar that watches a real vLLM, one for each second of a load that rises."""
    model = tiny_llama.make(room)
    segments = room / "segments"
    segments.mkdir()
    engine = subprocess.Popen(
        [sys.executable, str(ROOT / "tests/engines/offline.py"), str(model), "24", "processes", "{}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, **tiny_llama.ENVIRONMENT, "ULLAGE_DIR": str(segments)},
    )
    sidecar = Sidecar(segments)
    try:
        engine.stdout.readline()
        pages = []
        for page in range(PAGES):
            load = {"do": "generate", "prompts": 1 + page * 11 // PAGES, "tokens": 160}
            engine.stdin.write(json.dumps(load) + "\n")
            engine.stdin.flush()
            engine.stdout.readline()
            pages.append(sidecar.get("/metrics"))
        return pages
    finally:
        sidecar.end()
        os.killpg(engine.pid, signal.SIGKILL)
        engine.wait()


def serve(pages):
    """Serve the pages, a new one for each interval, and return the port and the clock's start."""
    start = time.monotonic()

    class Pod(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            page = pages[min(int((time.monotonic() - start) / INTERVAL_S), len(pages) - 1)]
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_arguments):
            pass

    class Pods(ThreadingHTTPServer):
        def handle_error(self, *_arguments):
            """A Prometheus that ends drops its connections."""

    server = Pods(("127.0.0.1", 0), Pod)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def main():
    room = Path(tempfile.mkdtemp(prefix="ullage-fleet-"))
    pages = capture(room)
    port = serve(pages)
    pods = [(port, {"namespace": "serving", "pod": f"vllm-{n}", "__param_pod": str(n)}) for n in range(PODS)]
    binary = ROOT / ".tools/prometheus/usr/bin/prometheus"
    prometheus = PrometheusServer(binary, room / "prometheus", [static("ullage", *pods)], interval=f"{INTERVAL_S}s")
    try:
        span = INTERVAL_S * PAGES
        time.sleep(span + INTERVAL_S)
        end = time.time()
        ((_, series),) = prometheus.query('count({__name__=~"ullage_.+"})')
        ((_, up),) = prometheus.query("sum(up)")
        print(f"{up:g} pods up, {series:g} series, {series / up:g} a pod, page of {len(pages[-1]) / 1024:.0f} KiB")
        taken = []
        times = {"$__rate_interval": f"{4 * INTERVAL_S}s", "$__interval": f"{INTERVAL_S}s", "$__range": f"{span}s"}
        for asked in queries("fleet", times):
            took = []
            for _ in range(REPEATS):
                began = time.perf_counter()
                if asked.instant:
                    prometheus.query(asked.expr, end)
                else:
                    prometheus.get("query_range", query=asked.expr, start=end - span, end=end, step=INTERVAL_S)
                took.append(time.perf_counter() - began)
            taken.append((statistics.median(took), f"{asked.panel} {asked.ref_id}"))
        for seconds, name in sorted(taken, reverse=True):
            print(f"{seconds * 1000:8.0f} ms  {name}")
    finally:
        prometheus.end()


if __name__ == "__main__":
    main()
