"""Calls back when the engine has imported a module. Never imports one itself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ullage import safety

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class ImportWatch:
    """A meta-path finder that finds nothing itself: it has others find, and is told when the module is loaded.

    ``check()`` catches what came in past it (another finder in front, a module that was half-initialised).
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[Callable[[ModuleType], object]]] = {}

    def when_imported(self, name: str, callback: Callable[[ModuleType], object]) -> None:
        """Have ``callback(module)`` called once ``name`` is imported; at once if it is already."""
        self._waiting.setdefault(name, []).append(callback)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        self.check()

    def check(self) -> None:
        """Look for modules that were imported unseen."""
        for name in list(self._waiting):
            module = sys.modules.get(name)
            spec = getattr(module, "__spec__", None)
            if module is not None and not getattr(spec, "_initializing", False):
                self._imported(module, name)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find ``name`` through the other finders, and listen to its loader. Part of the import protocol."""
        if name not in self._waiting:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                with safety.shield(f"import of {name}"):
                    self._listen(spec.loader, name)
                return spec
        return None

    def _listen(self, loader: Any, name: str) -> None:
        """Have the loader tell us. It keeps its type and identity: only this instance's method is replaced."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            with safety.shield(f"import of {name}"):
                self._imported(module, name)

        loader.exec_module = exec_module

    def _imported(self, module: ModuleType, name: str) -> None:
        for callback in self._waiting.pop(name, ()):
            with safety.shield(f"import of {name}"):
                callback(module)
