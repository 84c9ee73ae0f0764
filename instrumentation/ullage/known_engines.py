"""The engines that ullage knows, one line each. This is read before any of their modules is imported."""

from __future__ import annotations

from typing import NamedTuple


class KnownEngine(NamedTuple):
    """One kind of engine.

    Attributes:
        name: The beginning of its instances' names, and the name of its package.
        probes: The package of its probes; ``engines.registry`` says what it has.
        plugin_variable: The environment variable that says which plugins the engine loads.
    """

    name: str
    probes: str
    plugin_variable: str


ENGINES = [
    KnownEngine("vllm", "ullage.engines.vllm", "VLLM_PLUGINS"),
]
