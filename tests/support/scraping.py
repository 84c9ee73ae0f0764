"""A real Prometheus that scrapes."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.parse
import urllib.request

import yaml


class Prometheus:
    """A real one, with one scrape config."""

    def __init__(self, program, job, directory):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [job]}
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        files = [f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"]
        with (directory / "log").open("w") as log:
            self.process = subprocess.Popen(
                [program, *files, f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=log
            )
        self.log = directory / "log"

    def query(self, expression):
        """Return the labels of what it finds; nothing before it is up."""
        assert self.process.poll() is None, self.log.read_text()
        url = f"http://127.0.0.1:{self.port}/api/v1/query?query={urllib.parse.quote(expression)}"
        try:
            with urllib.request.urlopen(url, timeout=20) as response:
                return [one["metric"] for one in json.load(response)["data"]["result"]]
        except OSError:
            return []

    def close(self):
        """End it."""
        self.process.kill()
        self.process.wait()
