"""Work on very many topics, of which each turn of the event loop does a part.

An owner whose loop stalls is not confirmed in time, and other requests wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from foqs.engine.state import State


def begin(state: State, work: Iterator[None]) -> None:
    """Do the first part of `work` now, and one more in each of the next turns. The parts end where it yields."""
    for _ in work:
        state.long_work.append(work)
        state.wake()
        return


def go_on(state: State) -> None:
    """Do the next part of the work that has waited longest."""
    begin(state, state.long_work.popleft())
    if state.long_work:  # of other work, where this one has ended
        state.wake()
