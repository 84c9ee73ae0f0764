"""How each engine loads the hook. For a further engine, add a line to ``ENGINES``."""

from __future__ import annotations

import re
from typing import NamedTuple


class Engine(NamedTuple):
    """An engine that loads the hook as a plugin.

    Attributes:
        name: The engine's package in ``ullage.engines``; its function ``register`` is the plugin.
        plugin_variable: The environment variable that restricts which plugins the engine loads, separated by commas.
        entry_point_group: Where the engine looks for plugins.
    """

    name: str
    plugin_variable: str
    entry_point_group: str

    @property
    def plugin(self) -> str:
        """The object that the entry point refers to."""
        return f"ullage.engines.{self.name}:register"

    def allowed_plugins(self, plugin_variables: str) -> str | None:
        """Return the value of this engine's variable in the identity's ``plugin_variables``; None if it was not set.

        The text is ``NAME=value``, several joined by a space; a value may have spaces itself.
        """
        found = re.search(rf"(?:^| ){self.plugin_variable}=(.*?)(?= [A-Z][A-Z0-9_]*=|$)", plugin_variables)
        return found[1] if found else None


ENGINES = (Engine("vllm", plugin_variable="VLLM_PLUGINS", entry_point_group="vllm.general_plugins"),)
