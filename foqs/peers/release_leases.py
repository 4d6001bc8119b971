"""ReleaseLeases of a cluster: every host ends the leases of its shards, and the numbers are added up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from foqs.errors import FoqsError
from foqs.idl import idl


class Gathering:
    """`reply(response)` when each of the hosts `asked` has answered, or could not. `released` and `missing` are this
    host's."""

    def __init__(
        self, asked: Collection[str], released: int, missing: Sequence[str], reply: Callable[[Any], object]
    ) -> None:
        self._left = len(asked)
        self._released = released
        self._missing = set(missing)
        self._reply = reply
        if not asked:
            self._end()

    def answered(self, address: str, response: Any, error: FoqsError | None) -> None:
        if error is not None:
            self._missing.add(address)
        else:
            self._released += response.released or 0
            self._missing.update(response.missing or ())
        self._left -= 1
        if not self._left:
            self._end()

    def _end(self) -> None:
        self._reply(idl.ReleaseLeasesResponse(self._released, sorted(self._missing)))
