"""Reads a history and says where a promise was broken: a pure function of the events.

An event only says that something happened between its `began` and its `ended`. The checker reports a lie if no possible
order explains the replies to the clients, so it never accuses a correct host. A crash explains some of them: the host
forgets leases that it has not written yet. An older copy of a database explains the loss of later commits, and of
nothing else (`losses.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from enum import StrEnum
from itertools import combinations, pairwise
from typing import NamedTuple

from foqs_lab.crash.history import (
    NS_PER_MS,
    Ack,
    Answer,
    Crash,
    Delivery,
    Dequeue,
    Enqueue,
    Event,
    Look,
    Nack,
    Step,
)
from foqs_lab.crash.losses import Losses, losses_of

_COMPLETED = 4
_MAYBE_DONE = (Answer.OK, Answer.UNKNOWN)
_ACKS_UNDONE = "acks undone"
_ONCE_UNDONE = "at-most-once deliveries undone"
_LEASES_ENDED = "leases ended"


class Rule(StrEnum):
    LOST = "a stored item was lost: it was not delivered until an ack"
    LOST_AT_MOST_ONCE = "more at-most-once items are missing than unanswered dequeues can have taken"
    CAME_BACK = "an item was delivered after its ack had been answered OK"
    TWICE = "an at-most-once item was delivered twice"
    STALE_ACK = "an ack with an old lease was answered OK"
    REFUSED_ACK = "an ack of a living lease was answered STALE_LEASE or NOT_FOUND"
    TWO_HOLDERS = "an item was delivered while another delivery's lease held"
    DUPLICATE = "one enqueue stored two items"
    REFUSED_STORED = "an item was delivered although its enqueue was answered with an error"
    FORGOTTEN = "a look-up of an item, after its ack had been answered OK, did not find its end"
    WRONG_RESULT = "a look-up of an item found a result of none of its acks"
    STEPPED_BACK = "an item was delivered with an older checkpoint than one that had been answered OK"
    NOT_GIVEN = "an item was delivered with a checkpoint that no consumer gave, or that was answered with an error"
    SAME_ID = "two enqueues have one id"
    INVENTED = "an item was delivered that no client enqueued, or under another id than its enqueue returned"


class Lie(NamedTuple):
    rule: StrEnum
    text: str

    def __str__(self) -> str:
        return f"{self.rule.value}: {self.text}"


class Tally(NamedTuple):
    """Counts of a history; `redelivered` are deliveries of an item beyond its first, `ends_seen` look-ups that found
    the end of a kept item, and `steps` checkpoints that were answered OK."""

    host_crashes: int
    database_crashes: int
    enqueued: int
    enqueue_unknown: int
    enqueue_refused: int
    unknown_but_stored: int
    delivered: int
    redelivered: int
    acked: int
    ack_unknown: int
    stale_refused: int
    ends_seen: int
    steps: int

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self._asdict().items())


class _Item:
    """All that is known of one id."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.acks: list[Ack] = []
        self.nacks: list[Nack] = []
        self.looks: list[Look] = []
        self.steps: list[Step] = []


class _History:
    def __init__(self, events: Iterable[Event], losses: Losses) -> None:
        self.losses = losses
        self.enqueues: dict[str, Enqueue] = {}
        self.keys: dict[str, set[int]] = defaultdict(set)
        self.items: dict[int, _Item] = defaultdict(_Item)
        self.crashes: list[Crash] = []
        self.untold = 0
        self.doubtful: set[int] = set()
        for event in events:
            match event:
                case Enqueue():
                    self.enqueues[event.key] = event
                    if event.answer is Answer.OK:
                        self.keys[event.key].add(event.id)
                case Delivery():
                    self.keys[event.key].add(event.id)
                    self.items[event.id].deliveries.append(event)
                case Ack():
                    self.items[event.id].acks.append(event)
                case Nack():
                    self.items[event.id].nacks.append(event)
                case Step():
                    self.items[event.id].steps.append(event)
                case Look():
                    self.items[event.id].looks.append(event)
                case Crash():
                    self.crashes.append(event)
                case Dequeue():
                    self.untold += 0 if event.answered else event.wanted
                    self.doubtful.update(event.doubtful)

    def host_crashed(self, began: int, ended: int) -> bool:
        """Return True if the owner may have been gone at a moment in between."""
        return any(c.what == "host" and c.began < ended and began < c.ended for c in self.crashes)

    def forgot_leases(self, item_id: int, began: int, ended: int) -> bool:
        """Return True if the leases of the item's shard may have been forgotten at a moment in between."""
        return self.host_crashed(began, ended) or self.losses.forgot_leases(_LEASES_ENDED, item_id, began, ended)


def check(events: Iterable[Event], losses: Losses | None = None) -> list[Lie]:
    """Every lie in `events`, which are of a queue that was drained in the end; their order does not matter.

    `losses` counts the lost changes. Default: a count that nothing reads."""
    events = list(events)
    history = _History(events, losses_of(events) if losses is None else losses)
    lies = _never_came(history) + _same_ids(history)
    for key, ids in history.keys.items():
        lies += _identity(history.enqueues.get(key), key, ids, history)
    for item in history.items.values():
        lies += _came_back(item, history.losses)
        lies += _looked(item, history.losses)
        lies += _stepped_back(item, history.losses)
        lies += _stale_acks(item, history)
        lies += _refused_acks(item, history)
        lies += _two_holders(item, history)
    return lies


def tally(events: Iterable[Event]) -> Tally:
    events = list(events)
    enqueues = [e for e in events if isinstance(e, Enqueue)]
    deliveries = [e for e in events if isinstance(e, Delivery)]
    acks = [e for e in events if isinstance(e, Ack)]
    crashes = [e.what for e in events if isinstance(e, Crash)]
    came = {e.key for e in deliveries}
    return Tally(
        host_crashes=crashes.count("host"),
        database_crashes=crashes.count("database"),
        enqueued=sum(e.answer is Answer.OK for e in enqueues),
        enqueue_unknown=sum(e.answer is Answer.UNKNOWN for e in enqueues),
        enqueue_refused=sum(e.answer is Answer.REFUSED for e in enqueues),
        unknown_but_stored=sum(e.answer is Answer.UNKNOWN and e.key in came for e in enqueues),
        delivered=len(deliveries),
        redelivered=len(deliveries) - len({e.id for e in deliveries}),
        acked=sum(e.answer is Answer.OK for e in acks),
        ack_unknown=sum(e.answer is Answer.UNKNOWN for e in acks),
        stale_refused=sum(e.answer in (Answer.STALE, Answer.NOT_FOUND) for e in acks),
        ends_seen=sum(isinstance(e, Look) and e.state == _COMPLETED for e in events),
        steps=sum(isinstance(e, Step) and e.answer is Answer.OK for e in events),
    )


def _never_came(history: _History) -> list[Lie]:
    lies, missing = [], []
    losses = history.losses
    for key, ids in history.keys.items():
        enqueue = history.enqueues.get(key)
        for item_id in ids:
            item = history.items[item_id]
            if enqueue is not None and enqueue.at_most_once:
                if (
                    not item.deliveries
                    and item_id not in history.doubtful
                    and not _never_stored(enqueue, item, item_id, losses)
                ):
                    missing.append(key)
            elif any(_may_have_ended(ack, losses) for ack in item.acks):
                continue
            elif enqueue is None or not _never_stored(enqueue, item, item_id, losses):
                lies.append(Lie(Rule.LOST, f"{key} ({item_id}), delivered {len(item.deliveries)} times"))
    if len(missing) > history.untold:
        text = f"{len(missing)} are missing, {history.untold} may have been taken: {', '.join(missing[:5])} ..."
        lies.append(Lie(Rule.LOST_AT_MOST_ONCE, text))
    return lies


def _may_have_ended(ack: Ack, losses: Losses) -> bool:
    """Return True unless the ack ended nothing, or its end was undone for certain: then the item must come again."""
    if ack.answer is Answer.OK:
        return not losses.certain(ack.id, ack.began, ack.ended)
    return ack.answer is Answer.UNKNOWN


def _never_stored(enqueue: Enqueue, item: _Item, item_id: int, losses: Losses) -> bool:
    """Return True if a loss may have undone the enqueue. Without an answer, it was committed before it came."""
    ended = min([enqueue.ended] if enqueue.answer is Answer.OK else [one.ended for one in item.deliveries])
    return losses.undone("items lost", item_id, enqueue.began, ended)


def _same_ids(history: _History) -> list[Lie]:
    owners: dict[int, list[str]] = defaultdict(list)
    for key, ids in history.keys.items():
        for item_id in ids:
            owners[item_id].append(key)
    return [Lie(Rule.SAME_ID, f"{one}: {', '.join(keys)}") for one, keys in owners.items() if len(keys) > 1]


def _identity(enqueue: Enqueue | None, key: str, ids: set[int], history: _History) -> list[Lie]:
    """Check that each enqueue stored one item under the returned id, and that no other item was delivered."""
    deliveries = [d for item_id in ids for d in history.items[item_id].deliveries]
    if enqueue is None:
        return [Lie(Rule.INVENTED, f"{key} was never enqueued")]
    lies = []
    if enqueue.answer is Answer.OK and any(d.id != enqueue.id for d in deliveries):
        lies.append(Lie(Rule.INVENTED, f"{key} was stored as {enqueue.id} and delivered as {_listed(ids)}"))
    if enqueue.answer is Answer.REFUSED and deliveries:
        lies.append(Lie(Rule.REFUSED_STORED, f"{key} was delivered as {_listed(ids)}"))
    if len(ids) > 1:
        lies.append(Lie(Rule.DUPLICATE, f"{key} ({enqueue.answer}) has the ids {_listed(ids)}"))
    if enqueue.at_most_once:
        for first, second in pairwise(sorted(deliveries)):
            if not history.losses.undone(_ONCE_UNDONE, first.id, first.began, first.ended, second.ended):
                lies.append(Lie(Rule.TWICE, f"{key}: {deliveries}"))
    return lies


def _came_back(item: _Item, losses: Losses) -> list[Lie]:
    ends: list[tuple[Ack | Look, str]] = [(ack, str(ack.lease)) for ack in item.acks if ack.answer is Answer.OK]
    ends += [(look, look.result) for look in item.looks if look.state == _COMPLETED]
    return [
        Lie(Rule.CAME_BACK, f"{delivery} was requested after {end}")
        for end, lease in ends
        for delivery in item.deliveries
        if delivery.began > end.ended and not _undone(item, end, lease, losses, delivery.ended)
    ]


def _undone(item: _Item, end: Ack | Look, lease: str, losses: Losses, seen: int) -> bool:
    """Return True if an ack with this lease may have ended the item by `end`, and that was undone by `seen`. A repeated
    ack may be answered from memory: an earlier one may have done it."""
    return any(
        losses.undone(_ACKS_UNDONE, ack.id, ack.began, ack.ended, seen)
        for ack in item.acks
        if str(ack.lease) == lease and ack.answer in _MAYBE_DONE and ack.began <= end.ended
    )


def _looked(item: _Item, losses: Losses) -> list[Lie]:
    """Check the look-ups of an item that its topic keeps."""
    lies = []
    for look in item.looks:
        may_have_ended = [ack for ack in item.acks if ack.answer in _MAYBE_DONE and ack.began < look.ended]
        if look.state == _COMPLETED:
            if look.result not in [str(ack.lease) for ack in may_have_ended]:
                lies.append(Lie(Rule.WRONG_RESULT, f"{look}, of {may_have_ended}"))
            continue
        ended = [ack for ack in may_have_ended if ack.answer is Answer.OK and ack.ended < look.began]
        if any(not _undone(item, ack, str(ack.lease), losses, look.ended) for ack in ended):
            lies.append(Lie(Rule.FORGOTTEN, f"{look}, after {may_have_ended}"))
    return lies


def _stepped_back(item: _Item, losses: Losses) -> list[Lie]:
    """Check that deliveries have the checkpoints which the consumers of the item gave."""
    lies = []
    numbers = {step.number for step in item.steps if step.answer in _MAYBE_DONE}
    for delivery in item.deliveries:
        if delivery.checkpoint and delivery.checkpoint not in numbers:
            lies.append(Lie(Rule.NOT_GIVEN, f"{delivery}, given were {item.steps}"))
        lies += [
            Lie(Rule.STEPPED_BACK, f"{delivery}, after {step}")
            for step in item.steps
            if step.answer is Answer.OK and step.ended < delivery.began and delivery.checkpoint < step.number
            if not losses.undone("checkpoints undone", step.id, step.began, step.ended, delivery.ended)
        ]
    return lies


def _stale_acks(item: _Item, history: _History) -> list[Lie]:
    lies = []
    for ack in item.acks:
        if ack.answer is not Answer.OK:
            continue
        own = [d for d in item.deliveries if d.lease == ack.lease]
        if not own:
            lies.append(Lie(Rule.STALE_ACK, f"{ack}: no delivery had this lease"))
            continue
        # A delivery that began after the own one had ended took the item over; only a crash makes it forgotten.
        later = [d for d in item.deliveries if d.began > own[0].ended and d.ended < ack.began]
        if any(not history.forgot_leases(d.id, d.began, ack.ended) for d in later):
            lies.append(Lie(Rule.STALE_ACK, f"{ack}: {later[-1]} had taken the item over"))
        ended = [n for n in item.nacks if n.lease == ack.lease and n.answer is Answer.OK and n.ended < ack.began]
        if any(not history.losses.undone("nacks undone", n.id, n.began, n.ended, ack.ended) for n in ended):
            lies.append(Lie(Rule.STALE_ACK, f"{ack}: {ended[0]} had ended the lease"))
    return lies


def _refused_acks(item: _Item, history: _History) -> list[Lie]:
    lies = []
    endings: list[Ack | Nack] = [*item.acks, *item.nacks]
    for ack in item.acks:
        if ack.answer not in (Answer.STALE, Answer.NOT_FOUND):
            continue
        for own in item.deliveries:
            if own.lease != ack.lease or ack.ended >= own.began + own.lease_ms * NS_PER_MS:
                continue
            others = [
                other
                for other in endings
                if other is not ack
                and other.lease == ack.lease
                and other.began < ack.ended
                and other.answer in _MAYBE_DONE
            ]
            if not others and not history.forgot_leases(own.id, own.began, ack.ended):
                lies.append(Lie(Rule.REFUSED_ACK, f"{ack} of {own}"))
    return lies


def _two_holders(item: _Item, history: _History) -> list[Lie]:
    lies = []
    for first, second in combinations(sorted(item.deliveries, key=lambda d: d.began), 2):
        both_held = max(first.ended, second.ended) < min(
            first.began + first.lease_ms * NS_PER_MS, second.began + second.lease_ms * NS_PER_MS
        )
        began, ended = min(first.began, second.began), max(first.ended, second.ended)
        given_back = any(
            nack.lease in (first.lease, second.lease) and nack.began < ended and nack.answer in _MAYBE_DONE
            for nack in item.nacks
        )
        if both_held and not given_back and not history.forgot_leases(first.id, began, ended):
            lies.append(Lie(Rule.TWO_HOLDERS, f"{first} and {second}"))
    return lies


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ids)))
