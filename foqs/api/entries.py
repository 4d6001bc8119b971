"""The entries of a request about items by id: which of them are carried out, and the outcome of each.

An entry that is wrong in itself has its error, and nothing else of the request depends on it. Entries that ask for the
same end share one outcome: the first of them that is right is carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from foqs.engine.item_ops import Op
from foqs.errors import FoqsError, Invalid
from foqs.travel import bare
from foqs.wire.usual_requests import AckColumns

T = TypeVar("T")


class Sifted(NamedTuple):
    """`places` has the entries that are carried out. `answers` has for each entry of the request the position in
    `places` whose outcome is its own, or its error."""

    places: list[int]
    answers: list[int | FoqsError]

    def of(self, column: Sequence[T]) -> list[T]:
        """Return the values of the entries that are carried out. `column` has one for each entry."""
        return [column[at] for at in self.places]

    def outcomes(self, found: Sequence[FoqsError | None]) -> list[FoqsError | None]:
        """Return the outcome of each entry of the request; `found` has those of `places`."""
        return [answer if isinstance(answer, FoqsError) else found[answer] for answer in self.answers]


def sift(
    ids: Sequence[int], errors: Mapping[int, FoqsError], end_of: Callable[[int], Hashable] | None = None
) -> Sifted | None:
    """Separate the entries that are carried out from the rest. None: all of them are, each by itself.

    `errors` are those of entries that are wrong in themselves. Entries with one `end_of` ask for the same end; by
    default those with one id."""
    if not errors and len(set(ids)) == len(ids):
        return None
    first: dict[Hashable, int] = {}
    places: list[int] = []
    answers: list[int | FoqsError] = []
    for at, item_id in enumerate(ids):
        error = errors.get(at)
        if error is not None:
            answers.append(error)
            continue
        place = first.setdefault(item_id if end_of is None else end_of(at), len(places))
        if place == len(places):
            places.append(at)
        answers.append(place)
    return Sifted(places, answers) if len(places) < len(ids) else None


def checked(entries: Sequence[Any], op_of: Callable[[Any], Op]) -> tuple[list[int], list[Op], dict[int, FoqsError]]:
    """Return the ids of the entries, what `op_of` makes of each, and by entry the error that it raised."""
    ids: list[int] = []
    ops: list[Op] = []
    errors: dict[int, FoqsError] = {}
    for at, entry in enumerate(entries):
        try:
            if entry.id is None or entry.lease is None:
                raise _missing(entry)
            op = op_of(entry)
        except Invalid as error:
            errors[at] = bare(error)
            op = _never
        ids.append(entry.id or 0)
        ops.append(op)
    return ids, ops, errors


def sifted_acks(acks: Sequence[Any], ids: list[int], leases: list[int]) -> tuple[list[int], list[int], Sifted | None]:
    """Return the ids and the leases of the acks that are carried out, and what `sift` says about the list."""
    errors: dict[int, FoqsError] = {}
    if not isinstance(acks, AckColumns):  # which have both fields
        errors = {at: _missing(ack) for at, ack in enumerate(acks) if ack.id is None or ack.lease is None}
    sifted = sift(ids, errors, lambda at: (ids[at], leases[at]))
    return (ids, leases, None) if sifted is None else (sifted.of(ids), sifted.of(leases), sifted)


def _never(*_: object) -> FoqsError | bool:
    """The op of an entry that is wrong, which is sifted out."""
    raise AssertionError("an entry that is wrong is not carried out")


def _missing(entry: Any) -> Invalid:
    what = "id" if entry.id is None else "lease"
    return Invalid(f"{what} is missing: give the id and the lease of the delivered item")
