"""Installs the probes of an engine in this process: those of a module when the engine imports that module.

A package of probes, named in ``ullage.known_engines``, has:

* ``SUPPORTED``: the first version of the engine that the probes were made for, and the first that they were not;
* ``PROBES``: for each module of the engine, the modules of the package that watch it, which have ``PATCHES``;
* ``ALWAYS``: for a role of a process, the modules whose functions such a process has for certain.

A module of probes is imported when the engine imports what it watches: a process pays for what it uses.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from ullage import known_engines, safety
from ullage.host.process import process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

    from ullage.engines.patch import Patch
    from ullage.known_engines import KnownEngine

    Version = tuple[int, int]

_registered: set[str] = set()


class Probes(Protocol):
    """The package of an engine's probes."""

    SUPPORTED: tuple[Version, Version]
    PROBES: Mapping[str, tuple[str, ...]]
    ALWAYS: Mapping[str, tuple[str, ...]]


def register(name: str) -> None:
    """Install the probes of the engine of that name, which is imported already. Raises nothing; again is a no-op."""
    with safety.shield("register"):
        if name not in _registered and not safety.disabled():
            _registered.add(name)
            _register(next(engine for engine in known_engines.ENGINES if engine.name == name))


def _register(engine: KnownEngine) -> None:
    probes: Probes = import_module(engine.probes)
    version = str(getattr(sys.modules.get(engine.name), "__version__", ""))
    number = parsed(version)
    if number is None or not supported(version, probes.SUPPORTED):
        first, end = (".".join(map(str, bound)) for bound in probes.SUPPORTED)
        safety.log_once(
            engine.name,
            f"off: {engine.name} {version or 'of an unknown version'}; known are {first} up to, not with, {end}",
        )
        return
    from ullage.imports import ImportWatch  # noqa: PLC0415  nothing is loaded for an unknown version

    process.announce(engine.name, version)
    installation = _Installation(engine, probes, number)
    watch = ImportWatch()
    for module in probes.PROBES:
        watch.when_imported(module, partial(installation.install, module))
    process.chores.at_checks(watch.check)
    process.chores.at_checks(installation.check)


class _Installation:
    """What became of the probes of one engine in this process."""

    def __init__(self, engine: KnownEngine, probes: Probes, version: Version) -> None:
        self._engine = engine
        self._probes = probes
        self._version = version
        self._installed: list[Patch] = []

    def install(self, name: str, module: ModuleType) -> None:
        """Install what watches the engine's module ``name``."""
        for patch in self._patches(self._probes.PROBES[name]):
            if patch.module == name:
                self._installed.append(patch)
                patch.install(module)

    def check(self) -> None:
        """Wrap again what the engine replaced, and say what a process of a role should have imported by now."""
        for patch in self._installed:
            patch.refresh()
        sessions = (each for each in process.sessions if each.identity.engine == self._engine.name)
        for role in {role for session in sessions for role in session.roles} & self._probes.ALWAYS.keys():
            for patch in self._patches(self._probes.ALWAYS[role]):
                patch.expected()

    def _patches(self, modules: tuple[str, ...]) -> Iterator[Patch]:
        for module in modules:
            for patch in import_module(module, self._engine.probes).PATCHES:
                if patch.exists_in(self._version):
                    yield patch


def supported(version: str, bounds: tuple[Version, Version]) -> bool:
    """Tell whether a version such as ``0.32.0+cpu`` is within ``bounds``, the second one not included."""
    number = parsed(version)
    return number is not None and bounds[0] <= number < bounds[1]


def parsed(version: str) -> Version | None:
    """Return the first two numbers of a version; None of something else."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return None if match is None else (int(match[1]), int(match[2]))
