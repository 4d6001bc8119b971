"""Methods that only hosts call: tokens of quotas, counts of items, shares of tenants, and slots that move."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from foqs.api import responses, validation
from foqs.api.host import Host
from foqs.api.validation import fairness_key
from foqs.bounds import LIMITS, THROTTLE, Bounded
from foqs.buffers import item_batches
from foqs.buffers.pending_dedup import Give, GivenPage
from foqs.engine import batch_homes, batch_members
from foqs.engine.ready_lanes import most_urgent
from foqs.errors import FoqsError, Invalid, NotServed, Unavailable
from foqs.fairness.balance import MOST_TENANTS
from foqs.fairness.keys import TopicKey
from foqs.idl import idl
from foqs.ids import DIGEST_BYTES, FOREVER_MS, HASH_SLOTS, hash_slot_bounds
from foqs.limits.bucket import QUOTA_TOKENS, THROTTLE_TOKENS, Ask, Grant
from foqs.limits.lease_slots import LEASE_SLOTS, SlotAsk
from foqs.peers import hash_slots
from foqs.peers.batch_messages import report_of
from foqs.peers.coordinator import Question, coordinator_hash_slot
from foqs.peers.key_changes import key_of
from foqs.peers.lending import Lending
from foqs.peers.slot_units import MOST_COUNTED, ShardCount
from foqs.peers.tenant_shares import MOST_ASKED, TenantShares
from foqs.policies.entries import throttle_key_error
from foqs.rpc.call import Call
from foqs.travel import bare

T = TypeVar("T")

_MOST_TOKENS = 1 << 40
_MOST_ASKS = 10_000
_MOST_SHARES = 4_096
_NAMES = LIMITS  # the limits of the asking host may differ


class PeerMethods:
    def __init__(self, host: Host, lending: Lending, shares: TenantShares) -> None:
        self._host = host
        self._lending = lending
        self._shares = shares

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {
            "GiveSlot": self.give_slot,
            "ChangeKeys": self.change_keys,
            "ReportMembers": self.report_members,
            "AskMembers": self.ask_members,
            "TakeTokens": self.take_tokens,
            "Lend": self.lend,
            "CountItems": self.count_items,
            "TellShares": self.tell_shares,
            "CountSlots": self.count_slots,
            "TellSlots": self.tell_slots,
        }

    def give_slot(self, call: Call) -> None:
        """Raises as `hash_slots.give`, and Invalid."""
        request = call.request
        slot = validation.within(request.slot, "slot", 0, HASH_SLOTS - 1, -1)
        if slot < 0 or request.shard is None or request.stamp is None:
            raise Invalid("shard, slot or stamp is missing")
        low = request.low or hash_slot_bounds(slot)[0]
        if len(low) != DIGEST_BYTES:
            raise Invalid(f"low has not {DIGEST_BYTES} bytes")
        limit = validation.within(request.limit, "limit", 1, self._host.limits.request_items, 1)

        def done(found: GivenPage | FoqsError) -> None:
            if isinstance(found, FoqsError):
                call.fail(found)
            else:
                keys = [idl.RememberedKey(*row) for row in found.rows]
                homes = [idl.OrderHome(*home) for home in found.homes]
                call.reply(idl.GiveSlotResponse(keys, homes, found.rest))

        give = Give(slot, request.stamp, low, limit, done)
        hash_slots.give(self._host.engine, self._host.forwarder.routing().slots, request.shard, give)

    def change_keys(self, call: Call) -> None:
        """Raises Invalid."""
        request = call.request
        keys = validation.counted(request.keys, "keys", self._host.limits.request_items)
        if request.shard is None or any(None in (key.digest, key.id, key.expires_at_ms) for key in keys):
            raise Invalid("shard is missing, or digest, id or expires_at_ms of a key")
        if any(len(key.digest) != DIGEST_BYTES or key.expires_at_ms < FOREVER_MS for key in keys):
            raise Invalid(
                f"a digest has not {DIGEST_BYTES} bytes, or an expires_at_ms is not of a key that an item frees"
            )

        def told(outcomes: list[int | FoqsError]) -> None:
            plain = [int(one) if isinstance(one, int) else one for one in outcomes]  # a Duplicate counts as an enqueue
            made = responses.enqueue_outcomes(call, plain, self._host.engine.state.counters)
            call.reply(idl.ChangeKeysResponse(made))

        self._host.forwarder.key_changes.here(request.shard, list(map(key_of, keys)), told)

    def report_members(self, call: Call) -> None:
        """Raises Invalid."""
        request = call.request
        reports = validation.counted(request.reports, "reports", _MOST_ASKS)
        fields = ("batch", "shard", "epoch", "serial", "counts")
        if request.shard is None or any(getattr(one, name) is None for one in reports for name in fields):
            raise Invalid(f"shard is missing, or one of {', '.join(fields)} of a report")

        def told(outcomes: list[FoqsError | None]) -> None:
            counters = self._host.engine.state.counters
            errors = [idl.ItemError() if one is None else responses.refusal(call, one, counters) for one in outcomes]
            call.reply(idl.ReportMembersResponse(errors))

        batch_homes.take(self._host.engine.state, request.shard, list(map(report_of, reports)), told)

    def ask_members(self, call: Call) -> None:
        """Raises Invalid and NotServed."""
        request = call.request
        questions = validation.counted(request.questions, "questions", _MOST_ASKS)
        if request.shard is None or any(one.batch is None for one in questions):
            raise Invalid("shard is missing, or the batch of a question")
        asked = [item_batches.Question(one.batch, bool(one.cancel), bool(one.forget)) for one in questions]

        def answer(forgotten: list[int]) -> None:
            call.reply(idl.AskMembersResponse(forgotten))

        batch_members.ask(self._host.engine.state, request.shard, asked, answer)

    def take_tokens(self, call: Call) -> None:
        request = call.request
        ns = validation.name(request.ns, "ns", _NAMES)
        holder = validation.name(request.holder, "holder", _NAMES)
        key, asked = (ns, _topic(request)), _ask(request)
        if self._lending.quota_unit.rule(key) is None:
            raise Unavailable("there is no such quota here: the hosts' configurations, or their settings, differ")

        def answer(grants: list[Grant | None]) -> None:
            if grants[0] is None:
                call.fail(NotServed("this host does not coordinate the quota now"))
            else:
                call.reply(idl.TakeTokensResponse(*grants[0]))

        self._lending.coordinator.lend(holder, [_question(QUOTA_TOKENS, key, asked)], answer)

    def lend(self, call: Call) -> None:
        request = call.request
        holder = validation.name(request.holder, "holder", _NAMES)
        asked, slots_asked = request.tokens or (), request.slots or ()
        count = len(asked)
        if not 0 < count + len(slots_asked) <= _MOST_ASKS:
            raise Invalid(f"tokens and slots: 1 to {_MOST_ASKS} are needed, not {count + len(slots_asked)}")
        tokens = _right(asked, lambda token: _question(THROTTLE_TOKENS, _throttle_key(token), _lend_ask(token)))
        slots = _right(slots_asked, lambda ask: _question(LEASE_SLOTS, _throttle_key(ask), _slot_ask(ask)))

        def answer(grants: list[Any]) -> None:
            made = _in_places(tokens, count, grants[: len(tokens)], None)
            lent = _in_places(slots, len(slots_asked), grants[len(tokens) :], None)
            call.reply(
                idl.LendResponse(
                    [idl.TokenGrant(*(grant or ())) for grant in made],
                    [idl.SlotGrant(*(grant or ())) for grant in lent] or None,
                )
            )

        self._lending.coordinator.lend(holder, [*tokens.values(), *slots.values()], answer)

    def count_slots(self, call: Call) -> None:
        asked = _some(call.request.keys, "keys", MOST_COUNTED)
        keys = _right(asked, lambda key: (_throttle_key(key), key.version or 0))
        shards = frozenset(call.request.shards or ())

        def answer(found: list[ShardCount]) -> None:
            made = [one._replace(leased=_in_places(keys, len(asked), one.leased, -1)) for one in found]
            call.reply(idl.CountSlotsResponse([idl.SlotCount(*one) for one in made]))

        self._lending.slot_unit.count_here(list(keys.values()), shards, answer)

    def tell_slots(self, call: Call) -> None:
        news = _right(_some(call.request.news, "news", _MOST_ASKS), lambda one: (_throttle_key(one), one.shard or 0))
        for key, shard in news.values():
            self._lending.slot_unit.hear(key, shard)
        call.reply(idl.TellSlotsResponse())

    def count_items(self, call: Call) -> None:
        ns = validation.name(call.request.ns, "ns", _NAMES)

        def answer(shards: dict[int, int]) -> None:
            call.reply(idl.CountItemsResponse(shards))

        self._lending.quota_unit.count_here((ns, _topic(call.request)), answer)

    def tell_shares(self, call: Call) -> None:
        request = call.request
        host, topics = validation.name(request.host, "host", _NAMES), request.topics or ()
        if sum(len(topic.tenants or ()) for topic in topics) > _MOST_SHARES:
            raise Invalid(f"topics: more than {_MOST_SHARES} tenants")
        asks = request.urgent or ()
        if len(asks) > MOST_ASKED:
            raise Invalid(f"urgent: more than {MOST_ASKED} topics")
        keys, shares = _right(asks, _topic_key), _right(topics, _shares_of)
        self._shares.heard(host, shares.values())
        now_ms = self._host.now_ms()
        urgent = [idl.TopicUrgency(*key, most_urgent(self._host.engine.state, key, now_ms)) for key in keys.values()]
        call.reply(idl.TellSharesResponse(urgent or None))


def _question(unit: str, key: Bounded, ask: Any) -> Question:
    return Question(unit, key, coordinator_hash_slot(*key), ask)


def _right(entries: Sequence[Any], read: Callable[[Any], T]) -> dict[int, T]:
    """Return what `read` makes of the entries, by their places, without wrong ones: these must not stop the exchange of
    all keys and topics of a host. Raises Invalid if each entry is wrong."""
    made: dict[int, T] = {}
    first: Invalid | None = None
    for at, entry in enumerate(entries):
        try:
            made[at] = read(entry)
        except Invalid as error:
            first = first or bare(error)
    if first is not None and not made:
        try:
            raise first
        finally:
            del first  # or it would hold itself, by this frame
    return made


def _in_places(right: Mapping[int, object], count: int, answers: Sequence[T], missing: T) -> list[T]:
    """Return an answer for each of `count` entries; `answers` has the answers to the right entries."""
    if len(right) == count:
        return list(answers)
    found = dict(zip(right, answers, strict=True))
    return [found.get(at, missing) for at in range(count)]


def _topic_key(one: Any) -> TopicKey:
    """Raises Invalid."""
    return validation.name(one.ns, "ns", _NAMES), validation.name(one.topic, "topic", _NAMES)


def _shares_of(share: Any) -> tuple[TopicKey, list[tuple[str, int]]]:
    """Return (topic, [(fairness key, service)]) of a TopicShare. Raises Invalid."""
    key = _topic_key(share)
    tenants = share.tenants or ()
    if len(tenants) > MOST_TENANTS:
        raise Invalid(f"tenants: more than {MOST_TENANTS}")
    if any(one.served is None or one.served < 0 for one in tenants):
        raise Invalid("served is missing, or below 0")
    return key, [(fairness_key(one.fairness_key), one.served) for one in tenants]


def _ask(request: Any) -> Ask:
    """Return the question of a request. Raises Invalid."""
    numbers = (request.number, request.wanted, request.held, request.back)
    if any(number is None or not 0 <= number < _MOST_TOKENS for number in numbers):
        raise Invalid("number, wanted, held or back is missing, or not in its bounds")
    return Ask(*numbers)


def _lend_ask(token: Any) -> Ask:
    """Raises Invalid."""
    ago_ms = token.spent_ago_ms or 0
    if not 0 <= ago_ms < _MOST_TOKENS:
        raise Invalid("spent_ago_ms is not in its bounds")
    return _ask(token)._replace(spent_ago_ms=ago_ms)


def _slot_ask(ask: Any) -> SlotAsk:
    """Raises Invalid."""
    numbers = (ask.shard, ask.epoch, ask.number, ask.has, ask.leased, ask.wanted)
    waiting_ms, begun = ask.waiting_ms or 0, ask.begun
    if any(number is None or not 0 <= number < _MOST_TOKENS for number in (*numbers, waiting_ms, begun or 0)):
        raise Invalid("shard, epoch, number, has, leased, wanted, waiting_ms or begun is missing, or not in its bounds")
    return SlotAsk(*numbers, ask.priority or 0, waiting_ms, begun)


def _some(given: Any, name: str, most: int) -> Any:
    """Raises Invalid."""
    if not given or len(given) > most:
        raise Invalid(f"{name}: 1 to {most} are needed, not {len(given or ())}")
    return given


def _throttle_key(token: Any) -> Bounded:
    """Raises Invalid."""
    ns, key = validation.name(token.ns, "ns", _NAMES), token.key
    error = "key is missing" if key is None else throttle_key_error(key)
    if error is not None:
        raise Invalid(error)
    return ns, THROTTLE + key


def _topic(request: Any) -> str:
    """Return the topic of a request, "" for the whole namespace. Raises Invalid."""
    return "" if request.topic is None else validation.name(request.topic, "topic", _NAMES)
