"""``ullage install-hook DIR``: copies the hook into a directory that an engine has in its ``PYTHONPATH``.

An init container runs it, so nothing that goes wrong here may hold a pod back: it says so, and ends with 0. Copied
is the package ``ullage``, with metadata of its own: without them no engine finds the plugin. Byte-code stays behind;
the engine's Python may be another one.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import secrets
import shutil
from importlib.metadata import distribution
from pathlib import Path

import ullage
from ullage_sidecar.engines import ENGINES

PACKAGE = "ullage"
INFO = f"{PACKAGE}-{ullage.__version__}.dist-info"
# What an engine loads. The distribution's other entry points, and the sidecar's package that explains, stay behind.
ENTRY_POINTS = "".join(f"[{engine.entry_point_group}]\nullage = {engine.plugin}\n" for engine in ENGINES)
WHEEL = "Wheel-Version: 1.0\nGenerator: ullage install-hook\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_HEADERS = ("Metadata-Version", "Name", "Summary", "License-Expression", "License-File", "Requires-Python")
_LICENSE = "licenses/LICENSE"


def install_hook(target: Path) -> str:
    """Copy the hook into ``target``, and return a line that says what became of it. Raises nothing.

    Who imports from ``target`` meanwhile finds the copy from before, or this one. Files are readable by everybody.
    """
    try:
        return _install(target)
    except Exception as error:
        reason = (isinstance(error, OSError) and error.strerror) or f"{type(error).__name__}: {error}"
        return (
            f"nothing was copied to {target}: {reason}. The engine starts all the same, and is not watched; give this "
            f"container a volume there that user {os.geteuid()} can write to"
        )


def _install(target: Path) -> str:
    target.mkdir(parents=True, exist_ok=True)
    new = target / f".{PACKAGE}-{secrets.token_hex(4)}"
    try:
        _make(new)
        before = sorted(path for path in target.glob(f"{PACKAGE}-*.dist-info"))
        if before == [target / INFO] and _contents(target) == _contents(new):
            return f"{target} has ullage {ullage.__version__} already"
        for name in (PACKAGE, INFO):
            _point(target / name, f"{new.name}/{name}")
        for old in before:
            if old.name != INFO:
                _remove(old)
    finally:
        _tidy(target)
    instead = ", ".join(path.name.removesuffix(".dist-info") for path in before)
    return f"ullage {ullage.__version__} is in {target}" + (f", instead of {instead}" if instead else "")


def _make(folder: Path) -> None:
    """Make the package and its metadata in ``folder``."""
    source = Path(ullage.__file__).parent
    for file in sorted(source.rglob("*")):
        if file.is_file() and file.parent.name != "__pycache__":
            _write(folder / PACKAGE / file.relative_to(source), file.read_bytes())
    described = distribution(PACKAGE)
    headers = [f"{name}: {value}\n" for name in _HEADERS for value in described.metadata.get_all(name) or ()]
    info = folder / INFO
    _write(info / "METADATA", "".join([*headers, f"Version: {ullage.__version__}\n"]).encode())
    _write(info / _LICENSE, (described.read_text(_LICENSE) or "").encode())
    _write(info / "entry_points.txt", ENTRY_POINTS.encode())
    _write(info / "WHEEL", WHEEL.encode())
    _write(info / "INSTALLER", b"ullage install-hook\n")
    record = "".join(f"{name},{digest},{size}\n" for name, (digest, size) in _contents(folder).items())
    _write(info / "RECORD", f"{record}{INFO}/RECORD,,\n".encode())


def _contents(folder: Path) -> dict[str, tuple[str, int]]:
    """Return digest and size of each file of package and metadata, by its name relative to ``folder``."""
    found = {}
    for top in (folder / PACKAGE, folder / INFO):
        for directory, _, names in os.walk(top):
            for file in (Path(directory, name) for name in names):
                content = file.read_bytes()
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                found[str(file.relative_to(folder))] = (f"sha256={digest}", len(content))
    return dict(sorted(found.items()))


def _write(file: Path, content: bytes) -> None:
    for directory in reversed(file.parents):
        if not directory.exists():
            directory.mkdir()
            directory.chmod(0o755)  # whatever the umask is
    file.write_bytes(content)
    file.chmod(0o644)


def _point(link: Path, destination: str) -> None:
    """Have ``link`` point to ``destination``, by one rename. A directory in its place is set aside before."""
    beside = link.with_name(f".{PACKAGE}-{secrets.token_hex(4)}")
    if link.is_dir() and not link.is_symlink():
        link.rename(beside.with_suffix(".old"))
    beside.symlink_to(destination)
    beside.replace(link)


def _tidy(target: Path) -> None:
    """Remove what no link points to: a copy from before, or one that was not finished."""
    used = {(target / name).resolve().parent.name for name in (PACKAGE, INFO)}
    for path in target.glob(f".{PACKAGE}-*"):
        if path.name not in used:
            _remove(path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)
