"""What a segment says of its process: engine, role, ranks, versions, and the name that follows from them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from ullage import __version__
from ullage.exact import exact
from ullage.segment import layout
from ullage.segment.gate import IDENTITY_TEXT_MAX
from ullage.segment.text import clean

if TYPE_CHECKING:
    from collections.abc import Mapping


class Identity:
    """The identity of one engine instance in this process.

    Attributes:
        engine: The engine's base name: ``vllm``, or ``app`` for a program that is not an engine we know.
        roles: What this process does for its engine: any of launcher, frontend, core, worker.
    """

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.roles: set[str] = set()
        self._fields: dict[str, Any] = {}

    @property
    def engine_name(self) -> str:
        """The name of the engine instance, such as ``vllm0``; empty before it has one."""
        name: str = self._fields.get("engine_name", "")
        return name

    @property
    def engine_id(self) -> str:
        """The random id that all processes of the engine instance share; empty before it has one."""
        engine_id: str = self._fields.get("engine_id", "")
        return engine_id

    def update(self, fields: Mapping[str, str | int]) -> None:
        """Set fields; text is cleaned.

        Raises:
            ValueError: A number does not fit 63 bits.
        """
        self._fields.update(
            {key: clean(value) if isinstance(value, str) else exact(key, value) for key, value in fields.items()}
        )

    def forked(self) -> None:
        """Forget, in a forked child, which engine the parent belonged to and what it did for it."""
        self.roles.clear()
        for field in ("engine_name", "engine_id"):
            self._fields.pop(field, None)

    @property
    def role(self) -> str:
        """The role that names the process: main, launcher, api, core or worker."""
        if "core" in self.roles:
            return "main" if "frontend" in self.roles else "core"
        if "worker" in self.roles:
            return "worker"
        if "frontend" in self.roles:
            return "api"
        return "launcher" if "launcher" in self.roles else "main"

    @property
    def process_name(self) -> str:
        """The role with the ranks that the engine states: ``worker-tp1-pp0-dp1``."""
        role, fields = self.role, self._fields
        parts = [role]
        if role == "worker" or fields.get("tp_size", 1) > 1:
            parts.append(f"tp{fields.get('tp_rank', 0)}")
        several = (axis for axis in ("pp", "dp", "server") if fields.get(f"{axis}_size", 1) > 1)
        parts += [f"{axis}{fields[f'{axis}_rank']}" for axis in several if f"{axis}_rank" in fields]
        return "-".join(parts)

    def encode(self) -> bytes:
        """Return the identity as JSON of at most ``layout.IDENTITY.sealed_bytes``, its text cut to fit."""
        identity = {
            "process": f"{self.engine_name}/{self.process_name}",
            "role": self.role,
            "engine": self.engine,
            "hook_version": __version__,
            "python": sys.version.split()[0],
            **self._fields,
        }
        room = IDENTITY_TEXT_MAX
        while len(payload := _encoded(identity, room)) > layout.IDENTITY.sealed_bytes:
            room //= 2
        return payload


def _encoded(identity: dict[str, Any], room: int) -> bytes:
    """Return the identity as JSON, its text cut to ``room`` characters each."""
    cut = {key: value[:room] if isinstance(value, str) else value for key, value in identity.items()}
    return json.dumps(cut, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
