"""ListFailures of a cluster: every host is asked for the same page of groups, and the pages are merged.

A page is the first groups behind a cursor, so the first of all pages are the page of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from foqs.engine.dead_letters import GroupKey, merged
from foqs.errors import FoqsError
from foqs.rows import FailureGroup

Found = tuple[list[FailureGroup], bool]
"""Groups by (fingerprint, cause), and whether there are more."""


class FailureGathering:
    """Calls `done(groups, more, missing)` when all `hosts` have answered. `missing`: shards that have no host."""

    def __init__(
        self,
        hosts: Iterable[str],
        missing: Iterable[str],
        limit: int,
        done: Callable[[list[FailureGroup], bool, list[str]], None],
    ) -> None:
        self._waiting = set(hosts)
        self._missing = list(missing)
        self._limit = limit
        self._done = done
        self._groups: dict[GroupKey, FailureGroup] = {}
        self._more = False

    def add(self, host: str, found: Found | FoqsError) -> None:
        """Merge the page of a host, or note that it did not answer."""
        if isinstance(found, FoqsError):
            self._missing.append(host)
        else:
            groups, more = found
            for group in groups:
                key = (group.fingerprint, group.cause)
                self._groups[key] = merged(self._groups.get(key), group)
            self._more = self._more or more
        self._waiting.discard(host)
        if not self._waiting:
            keys = sorted(self._groups)
            page = [self._groups[key] for key in keys[: self._limit]]
            self._done(page, self._more or len(keys) > self._limit, sorted(self._missing))

    def answered_by(self, host: str) -> Callable[[Any, FoqsError | None], None]:
        """Return what takes the answer of another host."""
        return partial(self._answered, host)

    def _answered(self, host: str, response: Any, error: FoqsError | None) -> None:
        if error is not None:
            self.add(host, error)
        else:
            self.add(host, ([group_of(group) for group in response.groups or ()], response.cursor is not None))


def group_of(struct: Any) -> FailureGroup:
    """Return the value of a FailureGroup of the contract."""
    return FailureGroup(
        struct.fingerprint or 0,
        struct.cause or 0,
        struct.count or 0,
        struct.first_died_at_ms or 0,
        struct.last_died_at_ms or 0,
        struct.sample_id or 0,
        (struct.sample_reason or "").encode(),
    )
