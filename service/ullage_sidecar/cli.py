"""The command ``ullage``. Each command imports only what it needs; ``inspect`` runs on the standard library."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ullage import __version__

if TYPE_CHECKING:
    from ullage.inspect.dump import Explain


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parser = argparse.ArgumentParser(prog="ullage", description="Watches pre-allocated buffers.")
    parser.add_argument("--version", action="version", version=f"ullage {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    serve = commands.add_parser("serve", help="serve metrics and raise warnings")
    serve.add_argument("--dir", type=Path, help="where the hook writes its segments")
    serve.add_argument("--host", help="address to listen on (127.0.0.1)")
    serve.add_argument("--port", type=int, help="port to listen on (9877)")
    serve.add_argument("--config", type=Path, help="YAML file of settings")
    serve.set_defaults(run=_serve)

    inspect = commands.add_parser("inspect", help="show segments, of living and of dead processes")
    inspect.add_argument("path", type=Path, help="a segment, or a directory of them")
    inspect.add_argument("--json", action="store_true", help="everything, as JSON")
    inspect.set_defaults(run=_inspect)

    doctor = commands.add_parser("doctor", help="tell whether hook and sidecar are as they should be (status 0, 1, 2)")
    doctor.add_argument("--dir", type=Path, help="where the hook writes its segments")
    doctor.add_argument("--config", type=Path, help="YAML file of settings")
    doctor.add_argument("--json", action="store_true", help="everything, as JSON")
    doctor.set_defaults(run=_doctor)

    drill = commands.add_parser("drill", help="raise a synthetic violation for a while, to test where alerts go")
    drill.add_argument("--dir", type=Path, default=Path(os.environ.get("ULLAGE_DIR", "/run/ullage")))
    drill.add_argument("--seconds", type=float, default=120, help="how long it lasts (120)")
    drill.set_defaults(run=_drill)

    install_hook = commands.add_parser("install-hook", help="copy the hook to where an engine finds it; ends with 0")
    install_hook.add_argument("dir", type=Path, help="a directory that the engine has in its PYTHONPATH")
    install_hook.set_defaults(run=_install_hook)

    given = sys.argv[1:] if arguments is None else arguments
    try:
        options = parser.parse_args(given)
    except SystemExit:
        if given[:1] != ["install-hook"]:
            raise
        return 0  # an init container that fails holds its pod back
    return int(options.run(options))


def _inspect(options: argparse.Namespace) -> int:
    from ullage.inspect.dump import dump  # noqa: PLC0415  see the module's first line

    return dump(options.path, sys.stdout, as_json=options.json, explain=_explain())


def _explain() -> Explain | None:
    """Return what explains claims that do not fit; None if its formulas cannot be read: Python 3.10 without tomli."""
    try:
        from ullage_sidecar.diagnosis.joined import summaries  # noqa: PLC0415
    except ModuleNotFoundError:
        return None
    return summaries


def _doctor(options: argparse.Namespace) -> int:
    try:
        from ullage_sidecar.doctor import doctor  # noqa: PLC0415
        from ullage_sidecar.settings import load  # noqa: PLC0415
    except ImportError as error:
        return _needs(error)
    return doctor(*load(options.config, dir=options.dir), sys.stdout, as_json=options.json)


def _drill(options: argparse.Namespace) -> int:
    from ullage_sidecar.drill import drill  # noqa: PLC0415

    return drill(options.dir, options.seconds, sys.stderr)


def _install_hook(options: argparse.Namespace) -> int:
    from ullage_sidecar.install_hook import install_hook  # noqa: PLC0415

    said = install_hook(options.dir)
    with contextlib.suppress(OSError):  # not through sys.stdout: what it cannot write fails once more at the exit
        os.write(1, f"ullage install-hook: {said}\n".encode())
    return 0


def _serve(options: argparse.Namespace) -> int:
    # Its default action ends the process. Blocked, it waits until the server can handle it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        from ullage_sidecar.app import run  # noqa: PLC0415
        from ullage_sidecar.settings import load  # noqa: PLC0415
    except ImportError as error:
        return _needs(error)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    run(partial(load, options.config, dir=options.dir, host=options.host, port=options.port))
    return 0


def _needs(error: ImportError) -> int:
    print(f"this command needs {error.name}: pip install 'ullage[sidecar]'", file=sys.stderr)  # noqa: T201
    return 1
