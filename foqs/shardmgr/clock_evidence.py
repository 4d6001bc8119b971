"""Decide which time a host's databases and its last run agree on. Pure: readings in, a correction or a reason out.

A lead is the difference of a clock to the host's present time, in ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from foqs.checks import part_of
from foqs.ids import Stamp

PATIENCE_MS = 5_000
"""Time for databases to answer. A database without an answer is away."""
SHORT_PATIENCE_MS = 1_000
"""The same if this machine's clock agrees with the answers."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the clocks and the last runs say.

    `leads`: one for each database server that was read; `silent` counts the known servers that were not.
    `asked`: each of these was asked and has failed; else `waited_ms` is the time that they had. `machine_lead` is that
    of this machine's clock, and `apart` says that it is another clock than the databases' clocks. `stamps` are of the
    last runs, `host` is this one's id.
    """

    now_ms: int
    leads: Sequence[int]
    silent: int = 0
    asked: bool = False
    waited_ms: int = 0
    machine_lead: int = 0
    apart: bool = True
    stamps: Sequence[Stamp] = ()
    host: str = ""


class Verdict(NamedTuple):
    """`by_ms` is the correction of the host's clock, None while nothing bounds the time; `why` says why. `doubt`: more
    than the next readings is needed for an end of that, so the operator has to know."""

    by_ms: int | None
    why: str = ""
    doubt: bool = False


def middle(leads: Sequence[int], bound_ms: int, machine_lead: int) -> int:
    """Return the median. Of two that differ, return the lead that agrees with the machine's clock, or the earlier."""
    found = sorted(leads)
    low, high = found[(len(found) - 1) // 2], found[len(found) // 2]
    if high - low > bound_ms and abs(machine_lead - high) <= bound_ms < abs(machine_lead - low):
        return high
    return low


def agreeing(leads: Sequence[int], lead: int, bound_ms: int) -> int:
    return sum(abs(one - lead) <= bound_ms for one in leads)


def judge(seen: Evidence, bound_ms: int) -> Verdict:
    """Decide about the time of a host that has none yet. Clocks that differ by at most `bound_ms` agree.

    A majority of the known servers bounds the time, and so do any two servers that answer. One clock alone does if
    nothing speaks against it: no other clock, and no time that the last run stored.
    """
    known = len(seen.leads) + seen.silent
    lead = middle(seen.leads, bound_ms, seen.machine_lead)
    same = agreeing(seen.leads, lead, bound_ms)
    if same > 1 and 2 * same > known:
        return Verdict(lead)
    confirmed = abs(seen.machine_lead - lead) <= bound_ms
    if seen.silent and not seen.asked and seen.waited_ms < (SHORT_PATIENCE_MS if confirmed else PATIENCE_MS):
        return Verdict(None, f"{part_of(len(seen.leads), known, 'database', 'has', 'have')} answered")
    if same > 1:
        return Verdict(lead)
    stamp = max(seen.stamps, default=Stamp())
    if seen.silent and not confirmed and not _as_before(seen, stamp, lead, bound_ms):
        off_s = (lead - seen.machine_lead) / 1000
        answered = part_of(len(seen.leads), known, "database", "answers", "answer with different times")
        return Verdict(
            None,
            f"{answered}, and the clock differs by {off_s:+.1f} s from this machine's",
            doubt=True,
        )
    if why := _against(seen, stamp, lead, bound_ms, confirmed=confirmed):
        return Verdict(None, why, doubt=True)
    return Verdict(lead)


def _as_before(seen: Evidence, stamp: Stamp, lead: int, bound_ms: int) -> bool:
    """Return True if the clock and the machine's differ as they did when the last run on this host stored both."""
    then, now = stamp.machine_ms - stamp.at_ms, seen.machine_lead - lead
    return bool(stamp.at_ms) and stamp.host == seen.host and abs(now - then) <= bound_ms


def _against(seen: Evidence, stamp: Stamp, lead: int, bound_ms: int, *, confirmed: bool) -> str:
    """Return what the times of the last run say against a single clock, '' for nothing."""
    at_ms = seen.now_ms + lead
    if not stamp.at_ms or (confirmed and seen.apart):
        return ""
    passed_ms = at_ms - stamp.at_ms
    if passed_ms < -bound_ms:
        return f"the database's clock is {-passed_ms / 1000:.1f} s behind the time of the last run"
    machine_ms = seen.now_ms + seen.machine_lead - stamp.machine_ms
    if stamp.host == seen.host and not confirmed and passed_ms > machine_ms + bound_ms:
        ahead = (passed_ms - machine_ms) / 1000
        return f"since the last run the database's clock has advanced by {ahead:.1f} s more than this machine's"
    return ""
