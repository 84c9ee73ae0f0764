"""Nothing of ours is traced: in a compiled function our hot calls are no-ops, without a graph break.

TorchDynamo skips what stands in its ``ignore_logging_functions``: plain functions only, which is why a handle's
``observe`` is a closure and no method. It never calls them, so they return None there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage import safety
from ullage.imports import ImportWatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_CONFIG = "torch._dynamo.config"
_NAMES = ("ignore_logging_functions", "ignore_logger_methods")
"""What torch 2.13 calls the set, and what it was called before."""

_ours: set[Callable[..., Any]] = set()
_set: set[Callable[..., Any]] | None = None
_watch: ImportWatch | None = None


def skip(*functions: Callable[..., Any]) -> None:
    """Have ``functions`` skipped when a caller of theirs is compiled, now or once TorchDynamo is imported."""
    global _watch  # noqa: PLW0603  one per process
    _ours.update(functions)
    if _set is not None:
        _set.update(functions)
    elif _watch is None:
        _watch = ImportWatch()
        _watch.when_imported(_CONFIG, _found)


def unskip(*functions: Callable[..., Any]) -> None:
    """Take ``functions`` out again: their handle is closed."""
    _ours.difference_update(functions)
    if _set is not None:
        _set.difference_update(functions)


def check() -> None:
    """Look whether TorchDynamo was imported past us."""
    if _watch is not None:
        _watch.check()


def _found(config: ModuleType) -> None:
    global _set  # noqa: PLW0603  one per process
    found = next((getattr(config, name) for name in _NAMES if hasattr(config, name)), None)
    if isinstance(found, set):
        _set = found
        _set.update(_ours)
    else:
        safety.log_once(
            "torch", "this torch cannot be told to skip us: an observe inside a compiled function breaks its graph"
        )
