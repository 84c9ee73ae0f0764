"""Settings: from ``ULLAGE_*`` variables and an optional YAML file; the command line before both."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ullage.segment.snapshot import Buffer

PREFIX = "ULLAGE_"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _seconds(value: object) -> object:
    """Read a duration as Prometheus writes it (10m, 1h30m, 500ms); a number is seconds."""
    if not isinstance(value, str) or re.fullmatch(r"[0-9.]+", value):
        return value
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", value)
    if not parts or "".join(number + unit for number, unit in parts) != value:
        raise ValueError(f"{value!r} is no duration; write it like 30s, 10m or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _from_json(value: object) -> object:
    """Read what the environment can only hold as text."""
    return json.loads(value) if isinstance(value, str) else value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(ge=0)]
Ratio = Annotated[float, Field(gt=0, le=1)]


class BufferSettings(BaseModel):
    """What is different for one buffer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    warning_ratio: Ratio | None = None
    severity: Literal["info", "warning", "critical"] | None = None


class Settings(BaseModel):
    """All settings of the sidecar. Durations in seconds, or like 30s, 10m, 1h30m.

    Attributes:
        dir: Where the hook writes its segments.
        host: Address to listen on.
        port: Port to listen on; 0 for any that is free.
        warning_ratio: Share of a capacity from which a buffer is near it.
        clear_ratio: Share below which it must fall, for ``clear_hold``, before the warning is cleared; 5 % below
            ``warning_ratio`` unless set.
        clear_hold: How long a condition must be absent before its warning is cleared.
        exhaustion_hold: How long exhaustions must go on before they are a warning.
        stall_after: How long an engine with running requests may make no step.
        sibling_window: How long after an engine's first death those of its other processes are consequences.
        retention: How long a dead process is served that none of its name has followed.
        series_cap: How many series a process may have in the metrics.
        buffers: What is different for a buffer, by name; in the environment, as JSON.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    dir: Path = Path("/run/ullage")
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 9877
    warning_ratio: Ratio = 0.9
    clear_ratio: Ratio | None = None
    clear_hold: Seconds = 60
    exhaustion_hold: Seconds = 600
    stall_after: Seconds = 30
    sibling_window: Seconds = 30
    retention: Seconds = 86400
    series_cap: Annotated[int, Field(ge=100)] = 5000
    buffers: Annotated[dict[str, BufferSettings], BeforeValidator(_from_json)] = {}

    @model_validator(mode="after")
    def _clear_below_warning(self) -> Settings:
        if self.clear_ratio is not None and self.clear_ratio > self.warning_ratio:
            raise ValueError(f"clear_ratio {self.clear_ratio} is above warning_ratio {self.warning_ratio}")
        return self

    @property
    def clear_below(self) -> float:
        """Share below which a buffer is no longer near its capacity."""
        return self.clear_ratio if self.clear_ratio is not None else self.warning_ratio - 0.05

    def ratio_of(self, buffer: Buffer) -> float:
        """Return the share of its capacity from which ``buffer`` is near it.

        A setting for the buffer holds; else it is the usual share, or the worst case that its owner stated if that
        is more.
        """
        special = self.buffers.get(buffer.name)
        if special and special.warning_ratio:
            return special.warning_ratio
        return max(self.warning_ratio, min(1.0, buffer.warn_at / buffer.capacity) if buffer.capacity else 0.0)


def load(
    file: Path | None = None, environment: Mapping[str, str] = os.environ, **given: object
) -> tuple[Settings, list[str]]:
    """Read settings: ``given`` before ``environment`` before ``file`` before the defaults.

    An unknown key is an error in the file only: the environment of a pod carries the hook's variables, too.

    Returns:
        The settings, without what cannot be used of them, and one line for each thing that is wrong.
    """
    values, problems = _from_file(file) if file is not None else ({}, [])
    for name in Settings.model_fields:
        if PREFIX + name.upper() in environment:
            values[name] = environment[PREFIX + name.upper()]
    values.update((name, value) for name, value in given.items() if value is not None)
    while True:
        try:
            return Settings(**values), problems
        except ValidationError as error:
            for item in error.errors():
                where = ".".join(map(str, item["loc"])) or "settings"
                problems.append(f"{where}: {item['msg']} (ignored, the default holds)")
            # What concerns no single setting is about the two ratios together.
            bad = {str(item["loc"][0]) for item in error.errors() if item["loc"]} or {
                "warning_ratio",
                "clear_ratio",
            }
            values = {name: value for name, value in values.items() if name not in bad}


def _from_file(file: Path) -> tuple[dict[str, Any], list[str]]:
    import yaml  # noqa: PLC0415  most pods have no file

    try:
        content = yaml.safe_load(file.read_text())
    except Exception as error:  # not only what YAML calls wrong: bytes that are no text, a thousand open brackets
        return {}, [f"{file}: {str(error) or type(error).__name__} (ignored)"]
    if content is None:
        return {}, []
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        return {}, [f"{file}: must be a mapping of settings to values (ignored)"]
    return content, []
