"""Deaths: what is known of each process that ended otherwise than in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage.inspect.postmortem import Death, post_mortem
from ullage_sidecar.rows import Rows

if TYPE_CHECKING:
    from ullage.inspect.postmortem import PostMortem
    from ullage_sidecar.state import Life, State


def died(state: State) -> frozenset[str]:
    """Return the incarnations that have died otherwise than in order."""
    return frozenset(
        life.snapshot.incarnation
        for life in state.lives
        if life.ending is not None and life.ending.outcome != "stopped"
    )


def deaths(state: State, rows: Rows | None = None) -> dict[str, PostMortem]:
    """Return the post-mortem of every death in ``state`` by its incarnation; an orderly stop is none.

    ``rows`` counts the deaths of which none can be made.
    """
    dead = [death for death in map(_death, state.lives) if death is not None]
    found = (rows or Rows()).each(
        "post_mortem",
        [death for death in dead if death.outcome != "stopped"],
        lambda death: _post_mortem(death, dead, state),
        key=lambda death: death.snapshot.incarnation,
    )
    return {one.incarnation: one for one in found}


def _post_mortem(death: Death, dead: list[Death], state: State) -> PostMortem:
    own = death.snapshot
    engine = [one for one in dead if one.snapshot.engine_id == own.engine_id]
    older = [
        life.snapshot
        for life in state.lives  # oldest first
        if life.process == death.process and life.snapshot.process.started_ns < own.process.started_ns
    ]
    return post_mortem(death, engine, older[-1] if older else None)


def _death(life: Life) -> Death | None:
    if life.ending is None:
        return None
    return Death(life.process, life.snapshot, life.ending.outcome, life.ending.cause, life.ending.at_ns)
