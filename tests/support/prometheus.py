"""A real Prometheus and a real Alertmanager, on loopback."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import yaml
from harness import until


def free_port():
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Server:
    """A program that serves on a loopback port and says when it is ready."""

    def __init__(self, command, ready):
        self.log_file = tempfile.TemporaryFile("w+")  # noqa: SIM115  it lives as long as the process
        self.process = subprocess.Popen(
            [str(part) for part in command], stdout=self.log_file, stderr=subprocess.STDOUT, text=True
        )
        until(lambda: self._answers(ready), 60, f"{self.url} is ready")

    def _answers(self, path):
        assert self.process.poll() is None, self.log()
        try:
            urllib.request.urlopen(self.url + path, timeout=5).close()
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    def log(self):
        """What it has logged so far."""
        self.log_file.seek(0)
        return self.log_file.read()[-5000:]

    def end(self):
        """Kill it."""
        self.process.kill()
        self.process.wait()
        self.log_file.close()


def backfill(promtool, directory, pages):
    """Write ``pages``, [(time, labels, text of a scrape)] by time, as the blocks of a server in ``directory``."""
    directory.mkdir(parents=True)
    history = directory / "history.om"
    with history.open("w") as out:
        for at, labels, page in pages:
            target = ",".join(f'{name}="{value}"' for name, value in labels.items())
            for line in page.splitlines():
                if line and not line.startswith("#"):
                    series, _, value = line.rpartition(" ")
                    name, _, own = series.rstrip("}").partition("{")
                    out.write(f"{name}{{{target}{',' * bool(own)}{own}}} {value} {at}\n")
        out.write("# EOF\n")
    command = [promtool, "tsdb", "create-blocks-from", "openmetrics", history, directory / "data"]
    subprocess.run(command, check=True, capture_output=True)
    history.unlink()


def static(job, *targets):
    """Return a scrape config for ports of the loopback interface: (port, labels)."""
    configs = [{"targets": [f"127.0.0.1:{port}"], "labels": labels} for port, labels in targets]
    return {"job_name": job, "static_configs": configs}


class PrometheusServer(Server):
    """Scrapes by ``scrape_configs``, and judges ``rules``, once an interval."""

    def __init__(self, binary, directory, scrape_configs=(), rules=(), alertmanager=None, interval="1s"):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        config = {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": list(scrape_configs),
        }
        if alertmanager is not None:
            target = {"targets": [alertmanager.url.removeprefix("http://")]}
            config["alerting"] = {"alertmanagers": [{"static_configs": [target]}]}
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        super().__init__(
            [
                binary,
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                "--storage.tsdb.retention.time=10y",
                f"--web.listen-address=127.0.0.1:{port}",
                "--rules.alert.resend-delay=2s",
            ],
            "/-/ready",
        )

    def get(self, path, **arguments):
        """Return the data of an answer.

        Raises:
            AssertionError: Prometheus refused; its reason.
        """
        try:
            with urllib.request.urlopen(
                f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(arguments, doseq=True)}", timeout=60
            ) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{arguments}: {json.load(error)['error']}") from error

    def query(self, expression, at=None):
        """Return [(labels, value)] at a moment, or now."""
        moment = {} if at is None else {"time": at}
        result = self.get("query", query=expression, **moment)["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in result]

    def alerts(self):
        """Return {(alert, state)} of now."""
        return {(alert["labels"]["alertname"], alert["state"]) for alert in self.get("alerts")["alerts"]}


# Debian's Alertmanager reads its templates at one fixed place. It gets a /usr/share of its own, not the system's.
IN_PLACE = """
mount -t tmpfs none /usr/share
mkdir -p /usr/share/prometheus
cp -r "$0" /usr/share/prometheus/alertmanager
exec "$@"
"""


class Alertmanager(Server):
    """Sends what it gets to a webhook of ours at once; ``received`` holds the alerts' labels and annotations."""

    def __init__(self, binary, directory):
        self.received = []
        self._hook = HTTPServer(("127.0.0.1", 0), _Webhook)
        self._hook.received = self.received
        threading.Thread(target=self._hook.serve_forever, daemon=True).start()
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        webhook = {"url": f"http://127.0.0.1:{self._hook.server_port}/", "send_resolved": False}
        config = {
            "route": {"receiver": "us", "group_by": ["..."], "group_wait": "1s"},
            "receivers": [{"name": "us", "webhook_configs": [webhook]}],
        }
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "alertmanager.yml").write_text(yaml.safe_dump(config))
        templates = binary.parents[1] / "share/prometheus/alertmanager"
        super().__init__(
            [
                *("unshare", "--mount", "--map-root-user", "sh", "-euc", IN_PLACE, templates.resolve()),
                binary.resolve(),
                f"--config.file={directory / 'alertmanager.yml'}",
                f"--storage.path={directory / 'alertmanager'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--cluster.listen-address=",
            ],
            "/-/ready",
        )

    def end(self):
        """Kill it, and close the webhook."""
        super().end()
        self._hook.shutdown()
        self._hook.server_close()


class _Webhook(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.received += body["alerts"]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_arguments):
        pass
