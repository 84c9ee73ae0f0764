"""The composition root: wires reading, judging and serving together. The only module that knows all others."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from ullage import __version__
from ullage_sidecar.api import router
from ullage_sidecar.metrics import Collector
from ullage_sidecar.middleware import dated, head_as_get, own_hosts_only
from ullage_sidecar.problems import answer_errors
from ullage_sidecar.server import serve
from ullage_sidecar.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from ullage_sidecar.settings import Settings

log = logging.getLogger("ullage")


def run(load: Callable[[], tuple[Settings, list[str]]]) -> None:
    """Watch and serve until SIGINT or SIGTERM.

    Args:
        load: Reads the settings, now and on SIGHUP; returns them with one line for each thing that is wrong.
    """
    watch = Watch(load)
    host, port = watch.settings.host, watch.settings.port
    log.info("watching %s", watch.settings.dir)
    app = dated(head_as_get(own_hosts_only(create_app(watch), host)))
    # Ticks do not wait for the server: warnings are logged while its port is taken.
    with watch.ticking():
        serve(app, host, port, on_hangup=watch.reload)
    try:
        watch.tell_deaths()  # again: the log may have been rotated since
    except Exception:
        log.exception("the post-mortems could not be written again")


def create_app(watch: Watch) -> FastAPI:
    """Return the application that serves what ``watch`` sees."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(watch.scrape, watch.rows))
    # The interactive pages would load scripts from elsewhere; a cluster may have no way out.
    app = FastAPI(title="ullage", version=__version__, docs_url=None, redoc_url=None)
    app.include_router(router(watch, registry))
    answer_errors(app)
    return app
