"""A mock of the Kubernetes API, for want of a cluster: it lists some pods, and never has news of them."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse


class FakeKubernetes:
    """Serves ``/api/v1/pods`` on a free port of the loopback interface, as much as discovery asks for."""

    def __init__(self, pods):
        self._over = threading.Event()
        items = [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in pods]
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(items))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        """End it, and the watches."""
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self, items):
        over = self._over

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                """Say nothing."""

            def do_GET(self):
                url = urlparse(self.path)
                if url.path != "/api/v1/pods":
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                if "watch" in parse_qs(url.query):
                    over.wait()
                else:
                    metadata = {"resourceVersion": "1"}
                    pods = {"apiVersion": "v1", "kind": "PodList", "metadata": metadata, "items": items}
                    self.wfile.write(json.dumps(pods).encode())

        return Handler
