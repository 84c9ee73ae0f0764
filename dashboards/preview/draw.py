"""Draw each dashboard from a live Prometheus into docs/img: a preview with Grafana's components, not Grafana.

    python dashboards/preview/draw.py SITE [URL]

SITE is what vite built; URL a Prometheus that scrapes sidecars. Without it, pods of this machine are started first.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import sys
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path

import pods
from playwright.sync_api import Error, sync_playwright

CHOSEN = {"fleet": {}, "process": {"pod": "llm-0"}, "buffer": {"buffer": "draft_rows"}}
BUILT = pods.ROOT / "dashboards/grafana"
IMAGES = pods.ROOT / "docs/img"
CHROMIUM = "/usr/bin/chromium"
OPTIONS = ["--no-sandbox", "--disable-background-networking", "--disable-gpu"]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that does not log."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def draw(site: Path, url: str, images: Path) -> None:
    """Take the pictures of the last minutes."""
    for name in CHOSEN:
        shutil.copy(BUILT / f"{name}.json", site)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    until = int(time.time())
    images.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        except Error as error:
            sys.exit(f"{error}\nThe preview needs Chromium: apt-get install chromium fonts-dejavu-core")
        for name, chosen in CHOSEN.items():
            asked = {"dashboard": name, "url": url, "scrape": pods.SCRAPE_S, "from": until - pods.STORY_S, "to": until}
            asked |= chosen
            page = browser.new_page(viewport={"width": 1616, "height": 900})
            page.on("pageerror", lambda error: print(error.stack, file=sys.stderr))
            page.goto(f"http://127.0.0.1:{server.server_port}/?{urllib.parse.urlencode(asked)}")
            page.wait_for_function("document.title == 'drawn' || document.title.startsWith('failed')", timeout=120_000)
            if page.title() != "drawn":
                sys.exit(f"{name}: {page.title()}")
            page.locator("#root > div").screenshot(path=images / f"{name}.png")
            page.close()
        browser.close()
    server.shutdown()


def main() -> None:
    """Draw from the Prometheus that was named, or from one of our own."""
    site = Path(sys.argv[1])
    if len(sys.argv) > 2:
        draw(site, sys.argv[2], IMAGES)
        return
    directory = Path(tempfile.mkdtemp(prefix="ullage-preview-"))
    running = pods.Pods(directory)
    try:
        draw(site, pods.story(running), IMAGES)
    finally:
        running.end()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
