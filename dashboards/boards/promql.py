"""Expressions that several panels share. Raw metrics only: a dashboard works where nobody loaded the rules.

``cluster``, ``namespace`` and ``pod`` may be absent from a target; matching on an absent label, and the ``.*`` of a
variable that is set to All, both still match.
"""

from __future__ import annotations

TARGET = "cluster, job, namespace, pod, instance"
PROCESS = f"{TARGET}, process"
BUFFER = f"{PROCESS}, buffer"
CONTRACT = f"{PROCESS}, contract"

_TARGET = ("cluster", "job", "namespace", "pod")


def _matchers(*names: str, also: str = "") -> str:
    return ", ".join([*(f'{name}=~"${name}"' for name in names), *([also] if also else [])])


def target(metric: str, also: str = "") -> str:
    """Select the series of a sidecar; ``also`` are further matchers."""
    return f"{metric}{{{_matchers(*_TARGET, also=also)}}}"


def process(metric: str, also: str = "") -> str:
    """Select the series of a process."""
    return f"{metric}{{{_matchers(*_TARGET, 'process', also=also)}}}"


def buffer(metric: str, also: str = "") -> str:
    """Select the series of a buffer."""
    return f"{metric}{{{_matchers(*_TARGET, 'process', 'buffer', also=also)}}}"


INFO = process("ullage_process_info", 'model_name=~"$model_name"')

_LIVING = process("ullage_process_state", 'ullage_process_state=~"running|stalled"')


def of_model(expr: str) -> str:
    """Keep the processes that serve a chosen model: only the info metric knows it."""
    return f"({expr} and on ({PROCESS}) {INFO})"


def living(expr: str) -> str:
    """Keep the processes that live: the last values of a dead one stay, but it is not in want of room."""
    return f"({expr} and on ({PROCESS}) ({_LIVING} == 1))"


def rate(series: str) -> str:
    """Per second, over the time that Grafana finds fit for its resolution."""
    return f"rate({series}[$__rate_interval])"


def sized(what: str) -> str:
    """Return a size of each buffer, in whichever of the two units it has."""
    return f"({buffer(f'ullage_buffer_{what}_slots')} or {buffer(f'ullage_buffer_{what}_bytes')})"


def threshold() -> str:
    """Return the share of its capacity at which the sidecar warns of each buffer."""
    return buffer("ullage_warning_threshold_ratio")


def usage() -> str:
    """Return the share of its capacity that each buffer needs now."""
    each = (
        f"{buffer(f'ullage_buffer_used_{unit}')} / ({buffer(f'ullage_buffer_capacity_{unit}')} > 0)"
        for unit in ("slots", "bytes")
    )
    return f"({' or '.join(each)})"


def with_info(expr: str, labels: str, kinds: str = 'kind!="fixed"') -> str:
    """Add ``labels`` of the buffer's info. By default without ``fixed`` buffers: a ratio means nothing there."""
    return f"{expr} * on ({BUFFER}) group_left ({labels}) {buffer('ullage_buffer_info', kinds)}"


def added(counter: str) -> str:
    """By how much a counter grew since the last step, exactly; all of it, where it was not there before.

    ``increase`` misses what a counter was born with. A gap of less than five minutes, as of a sidecar that restarts,
    does not count as that.
    """
    return f"({counter} - (last_over_time({counter}[5m] offset $__interval) or {counter} * 0) > 0)"


def warnings() -> str:
    """Return the active warnings; those that are about no process know no model."""
    return f"{of_model(buffer('ullage_warning_active'))} or " + target("ullage_warning_active", 'process=""')
