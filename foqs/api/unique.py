"""Unique work: an item that has a deduplication key is removed by it, or gets the body of a later enqueue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

from foqs.api import responses, validation
from foqs.api.host import Host
from foqs.api.intake import Intake
from foqs.engine import item_ops
from foqs.engine.calls import ItemsCall
from foqs.errors import Conflict, FoqsError, Invalid, NotFound, NotServed
from foqs.fairness.keys import topic_key
from foqs.idl import idl, is_forwarded
from foqs.ids import digest_of
from foqs.peers import forwarded_requests
from foqs.rows import DedupRow
from foqs.rpc.call import Call
from foqs.second_answer import Duplicate, Replaced


class ItemOfKey:
    """The search for the item of a deduplication key, wherever the slot of the key is: `found` gets its id, or `call`
    fails. A host that another host asks replies `between(id)`, of which `id_of` is the id."""

    __slots__ = ("_between", "_call", "_deadline_ms", "_digest", "_found", "_host", "_id_of")

    def __init__(
        self, host: Host, call: Call, digest: bytes, deadline_ms: int, id_of: Callable[[Any], int],
        between: Callable[[int], Any], found: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._host = host
        self._call = call
        self._digest = digest
        self._deadline_ms = deadline_ms
        self._id_of = id_of
        self._between = between
        self._found = found

    def find(self) -> None:
        host, now_ms = self._host, self._host.now_ms()
        timeout_ms = max(1, self._deadline_ms - now_ms)
        host.engine.find_key(host.forwarder.slots(), self._digest, self._looked, now_ms, timeout_ms)

    def _looked(self, row: DedupRow | None, error: FoqsError | None) -> None:
        call, forwarder = self._call, self._host.forwarder
        if isinstance(error, NotServed) and forwarder.find_key(
            call, self._digest, self.find, self._looked_there, self._deadline_ms, call.method
        ):
            return
        if row is None:
            call.fail(error or NotFound("no item has the dedup_key"))
        elif is_forwarded(call.request):
            call.reply(self._between(row.id))
        else:
            self._found(row.id)

    def _looked_there(self, outcome: Any) -> None:
        if isinstance(outcome, FoqsError):
            self._call.fail(outcome)
        else:
            self._found(self._id_of(outcome))


class Unique:
    """The host with the slot of a key finds its item, and the host with the item's shard removes or changes it."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {"CancelItem": self.cancel, "ReplaceItems": self.replace}

    def cancel(self, call: Call) -> None:
        """Raises Invalid, Overloaded."""
        host, request = self._host, call.request
        host.refuse_when_full()
        deadline_ms = host.now_ms() + validation.timeout_ms(request, host.limits)
        ns = validation.name(request.ns, "ns", host.limits)
        digest = digest_of(ns, validation.name(request.dedup_key, "dedup_key", host.limits))
        if request.id is None:
            found = partial(self._found, call, digest, deadline_ms)
            ItemOfKey(self._host, call, digest, deadline_ms, attrgetter("id"), _found_id, found).find()
        elif is_forwarded(request):
            self._remove(call, digest, deadline_ms)
        else:
            raise Invalid("id is set by hosts only")

    def _found(self, call: Call, digest: bytes, deadline_ms: int, item_id: int) -> None:
        call.request.id = item_id
        # A batch may be in the middle of being applied: the read of the key is part of it.
        self._host.engine.state.slices.soon(partial(self._remove, call, digest, deadline_ms))

    def _remove(self, call: Call, digest: bytes, deadline_ms: int) -> None:
        host, request, now_ms = self._host, call.request, self._host.now_ms()
        op, elsewhere = item_ops.cancel(digest, leased=bool(request.leased)), None
        if host.engine.state.shards_elsewhere:
            elsewhere = partial(
                host.forwarder.items, forwarded_requests.CANCEL, request, [request.id], lambda _: op, deadline_ms
            )
        waiting = ItemsCall(1, partial(_removed, call), call.within, elsewhere)
        host.engine.settle(waiting, [(request.id, op)], request.ns, now_ms, max(1, deadline_ms - now_ms))

    def replace(self, call: Call) -> None:
        """Raises Invalid, Overloaded."""
        host, request, now_ms = self._host, call.request, self._host.now_ms()
        host.refuse_when_full()
        timeout_ms = validation.timeout_ms(request, host.limits)
        ns = validation.name(request.ns, "ns", host.limits)
        entries = validation.counted(request.items, "items", host.limits.request_items)
        if any(None in (one.id, one.item) for one in entries):
            raise Invalid("id or item is missing")
        policies = host.engine.state.policies.namespaces.get(ns)
        taken = Intake(ns, [one.item for one in entries], host.limits, now_ms, policies)
        if taken.errors:  # one that was raised would refer to `taken`, and that to the error
            call.fail(next(iter(taken.errors.values())))
            return
        if any(one.item.dedup_key is None for one in entries):
            raise Invalid("an item has no dedup_key")

        def reply(outcomes: list[FoqsError | None]) -> None:
            call.reply(idl.ReplaceItemsResponse(responses.item_outcomes(call, outcomes, host.engine.state.counters)))

        pairs = zip(entries, taken.keyed, strict=True)
        ops = [(one.id, item_ops.replace(keyed.item, topic_key(keyed.lane))) for one, keyed in pairs]
        host.engine.settle(ItemsCall(len(ops), reply), ops, ns, now_ms, timeout_ms)

    def replaced(
        self, taken: Intake, request: Any, deadline_ms: int, reply: Callable[[list[int | FoqsError]], None],
        outcomes: list[int | FoqsError],
    ) -> None:  # fmt: skip
        """Give items that have the keys of new ones the bodies of these, where the EnqueueRequest asks for it. Then
        call `reply` with the outcomes."""
        host, now_ms = self._host, self._host.now_ms()
        found = [(one, outcomes[one.at]) for one in taken.keyed if one.replaces]
        known = [(one, int(outcome)) for one, outcome in found if isinstance(outcome, Duplicate)]
        if not known:
            reply(outcomes)
            return

        def done(errors: list[FoqsError | None]) -> None:
            for (one, item_id), error in zip(known, errors, strict=True):
                if error is None:
                    outcomes[one.at] = Replaced(item_id)
                elif not isinstance(error, Conflict | NotFound):  # those have begun, or ended: they stay as they are
                    outcomes[one.at] = error
            reply(outcomes)

        ids, elsewhere = [item_id for _, item_id in known], None
        ops = [item_ops.replace(one.item, topic_key(one.lane)) for one, _ in known]
        if host.engine.state.shards_elsewhere:
            entries = [idl.ReplaceItem(item_id, request.items[one.at]) for one, item_id in known]
            sent = idl.ReplaceItemsRequest(entries, request.ns, request.context)
            elsewhere = partial(
                host.forwarder.items, forwarded_requests.REPLACE, sent, ids, ops.__getitem__, deadline_ms
            )
        waiting = ItemsCall(len(known), done, None, elsewhere)
        asked, timeout_ms = list(zip(ids, ops, strict=True)), max(1, deadline_ms - now_ms)
        # A batch may be in the middle of being applied.
        host.engine.state.slices.soon(partial(host.engine.settle, waiting, asked, request.ns, now_ms, timeout_ms))


def _found_id(item_id: int) -> Any:
    return idl.CancelItemResponse(item_id, False)


def _removed(call: Call, outcomes: list[FoqsError | None]) -> None:
    (error,) = outcomes
    if error is None or isinstance(error, Conflict | NotFound):
        call.reply(idl.CancelItemResponse(call.request.id, error is None))
    else:
        call.fail(error)
