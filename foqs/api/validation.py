"""Checks of requests, and their conversion into the engine's types. Each check raises `Invalid`.

The codec guarantees the types of numbers and containers; strings may be `bytes` (not UTF-8) and absent fields None.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from copy import copy
from itertools import repeat
from operator import add
from typing import Any, NamedTuple

from foqs.bounds import MOST_STEPS, MOST_WEIGHT, NAME_BYTES, PROGRESS_TEXT_BYTES, Limits, Quota
from foqs.buffers.pending_dedup import Keyed
from foqs.checks import has_control, is_text, is_time, time_fault
from foqs.errors import FoqsError, Invalid
from foqs.fairness.keys import LaneKey, TopicKey, lane_key, tenancy_of, topic_key, until_of
from foqs.ids import Dedup, OnDuplicate, content_of, dedups_of, digest_of
from foqs.policies import item_rules
from foqs.policies.entries import all_good_names, name_error, throttle_key_error, throttles_error
from foqs.policies.layers import BUILT_IN_POLICIES, NamespacePolicies
from foqs.policies.remedy import closed
from foqs.policies.topic_policy import TopicPolicy
from foqs.rows import AT_LEAST_ONCE, AT_MOST_ONCE, LOG_BYTES, NewItem, ProgressRow
from foqs.travel import bare
from foqs.wire.usual_requests import SpecColumns, Wants

_MOST_HUNG = 1_000_000
_NAMES_KEPT = 4_096
NO_NAME = 1 << 62
name_bytes: dict[str, int] = {}
"""The sizes of names that were checked."""
_quoted = json.encoder.encode_basestring  # as json.dumps with ensure_ascii=False, which takes longer to begin


def name(value: Any, what: str, limits: Limits, most_bytes: int = 0) -> str:
    """Check a name that many requests have: UTF-8, 1 to `most_bytes` bytes (default: `name_bytes`), no control
    characters."""
    most_bytes = most_bytes or limits.name_bytes
    if name_bytes.get(value, NO_NAME) > most_bytes:
        new_name(value, what, most_bytes)
        if len(name_bytes) >= _NAMES_KEPT:
            name_bytes.clear()
        name_bytes[value] = len(value.encode())
    return value  # type: ignore[no-any-return]


def new_name(value: object, what: str, most_bytes: int) -> str:
    """Check a name that comes once: as `name`."""
    if type(value) is not str:
        raise Invalid(f"{what} is missing" if value is None else f"{what} is not UTF-8")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise Invalid(f"{what} is not UTF-8") from None
    if not 0 < size <= most_bytes:
        raise Invalid(f"{what} must have 1 to {most_bytes} bytes")
    if not value.isprintable() and has_control(value):
        raise Invalid(f"{what} holds a control character")
    return value


def _new_names(values: Sequence[str], what: str, most_bytes: int) -> None:
    """Check names that come once: as `new_name` each."""
    if all_good_names(values, most_bytes) and all(values):
        return
    for value in values:
        new_name(value, what, most_bytes)


def text(value: Any, what: str) -> str:
    if not is_text(value):
        raise Invalid(f"{what} is not UTF-8")
    return value


def progress_of(item: Any, limits: Limits) -> ProgressRow | None:
    """Return what an extension gives about its item; None if it gives nothing."""
    if item.checkpoint is None and item.progress is None and item.log is None:
        if item.durable:
            raise Invalid("durable needs a checkpoint, progress or a log")
        return None
    checkpoint, said = blob(item.checkpoint, "checkpoint", limits.checkpoint_bytes), item.progress
    row = ProgressRow(item.id, checkpoint, log=_log(item.log or ()))
    if said is None:
        return row
    if said.done is None:
        raise Invalid("progress.done is missing")
    done = within(said.done, "progress.done", 0, MOST_STEPS, 0)
    total = None if said.total is None else within(said.total, "progress.total", 0, MOST_STEPS, 0)
    words = None if said.text is None else text(said.text, "progress.text").encode()
    if words is not None and len(words) > PROGRESS_TEXT_BYTES:
        raise Invalid(f"progress.text has {len(words)} bytes, more than {PROGRESS_TEXT_BYTES}")
    return row._replace(done=done, total=total, text=words)


def _log(lines: Sequence[Any]) -> bytes:
    log = "".join([f"{text(line, 'a line of log')}\n" for line in lines]).encode()
    if len(log) > LOG_BYTES:
        raise Invalid(f"log has {len(log)} bytes with a newline for each line, more than {LOG_BYTES}")
    return log


def timeout_ms(request: Any, limits: Limits) -> int:
    """Return the time the caller waits, from the context, which the codec has checked, or the default."""
    return (request.context and request.context.timeout_ms) or limits.timeout_default_ms


def counted(items: Any, what: str, most: int) -> Sequence[Any]:
    """Return a list of 1 to `most` entries."""
    if not items:
        raise Invalid(f"{what} is empty")
    if len(items) > most:
        raise Invalid(f"{what} has {len(items)} entries, more than {most}")
    return items  # type: ignore[no-any-return]


def within(value: int | None, what: str, low: int, high: int, default: int) -> int:
    if value is None:
        return default
    if not low <= value <= high:
        hint = ", which is a time and no duration" if what.endswith("_ms") and is_time(value) else ""
        raise Invalid(f"{what} is {value}, not in {low}..{high}{hint}")
    return value


def moment(at_ms: int | None, what: str, now_ms: int) -> int | None:
    """Return a time in Unix epoch milliseconds; refuse a number that is clearly in another unit, or a duration. Where
    the clock itself shows such a number, as a test's may, it is a time."""
    if at_ms is not None and is_time(now_ms) and (fault := time_fault(at_ms)) is not None:
        raise Invalid(f"{what} is {at_ms}, {fault}")
    return at_ms


def due_of(spec: Any, limits: Limits, now_ms: int) -> int:
    """Return the time from which an item may be delivered; 0 for now (a time in the past means now)."""
    at_ms, delay_ms = spec.deliver_after_ms, spec.delay_ms
    most = limits.delay_max_ms
    if delay_ms is not None:
        if at_ms is not None:
            raise Invalid("both deliver_after_ms and delay_ms are given")
        within(delay_ms, "delay_ms", 0, most, 0)
        return now_ms + int(delay_ms) if delay_ms else 0
    if moment(at_ms, "deliver_after_ms", now_ms) is None:
        return 0
    if at_ms - now_ms > most:
        raise Invalid(f"deliver_after_ms is {at_ms}, more than {most} ms ahead")
    return int(at_ms) if at_ms > now_ms else 0


def topics(
    ns: str, wants: Sequence[Any], limits: Limits, most: int | None = None
) -> tuple[list[tuple[TopicKey, int]], int, Mapping[TopicKey, int] | None]:
    """Return each topic that a dequeue wants with its count, the most bytes that the names of one item take, and the
    weights of the topics, if one has a weight. `most` bounds the items of all topics together."""
    found: dict[TopicKey, int] = {}
    longest_bytes, weights = 0, None
    for want in wants:
        topic = name(want.topic, "topic", limits)
        found[(ns, topic)] = want.count or 0
        if (size := name_bytes[topic]) > longest_bytes:
            longest_bytes = size
        if want.holding is not None and want.holding < 0:
            raise Invalid("holding is negative")
        if want.hung is not None:
            raise Invalid("hung is for a report: the count of each topic must be 0")
        if want.weight is not None and weights is None:
            weights = {(ns, one.topic): within(one.weight, "weight", 1, MOST_WEIGHT, 1) for one in wants}
    if len(found) != len(wants):
        raise Invalid("wants lists a topic more than once")
    counts = found.values()
    if not 1 <= min(counts) <= limits.request_items:
        within(min(counts), "count", 1, limits.request_items, 1)
    names_bytes = len(ns.encode()) + longest_bytes
    if most is None:
        if sum(counts) > limits.request_items:
            within(sum(counts), "the sum of the counts", 1, limits.request_items, 1)
        if weights is not None:
            raise Invalid("weight needs most: without it the topics are emptied in their order")
        return list(found.items()), names_bytes, None
    within(max(counts), "count", 1, limits.request_items, 1)
    within(most, "most", 1, limits.request_items, 1)
    return [(key, min(count, most)) for key, count in found.items()], names_bytes, weights


class Asked(NamedTuple):
    """What a dequeue asks for, without its context, as these limits allow it."""

    limits: Limits
    keys: list[tuple[TopicKey, int]]
    names_bytes: int
    lease_ms: int
    wait_ms: int
    max_bytes: int  # 0: a whole frame
    worker: str
    most: int | None
    weights: Mapping[TopicKey, int] | None


def asked(request: Any, limits: Limits) -> Asked:
    """Check a dequeue. Its usual wants keep the result: the equal requests of a connection are checked once."""
    ns, wants = name(request.ns, "ns", limits), counted(request.wants, "wants", limits.request_topics)
    keys, names_bytes, weights = topics(ns, wants, limits, request.most)
    lease_ms = within(request.lease_ms, "lease_ms", limits.lease_min_ms, limits.lease_max_ms, 0)
    wait_ms = within(request.wait_ms, "wait_ms", 0, limits.wait_max_ms, 0)
    max_bytes = within(request.max_bytes, "max_bytes", 1, (1 << 63) - 1, 0)
    if request.worker is not None:
        name(request.worker, "worker", limits, limits.worker_bytes)
    if request.begins is not None and request.begins < 0:
        raise Invalid("begins is negative")
    most = request.most if len(keys) > 1 else None
    made = Asked(limits, keys, names_bytes, lease_ms, wait_ms, max_bytes, request.worker or "", most, weights)
    if isinstance(wants, Wants):
        wants.checked = made
    return made


def hung(ns: str, wants: Sequence[Any], limits: Limits) -> list[tuple[TopicKey, int]]:
    """Return each topic of a report of hung handlers, with their number."""
    counted(wants, "wants", limits.request_topics)
    found = []
    for want in wants:
        if want.count or want.hung is None:
            raise Invalid("a report of hung handlers has a count of 0, and hung, for each topic")
        found.append(((ns, name(want.topic, "topic", limits)), within(want.hung, "hung", 0, _MOST_HUNG, 0)))
    return found


def blob(value: bytes | None, what: str, most: int) -> bytes | None:
    if value is not None and len(value) > most:
        raise Invalid(f"{what} has {len(value)} bytes, more than {most}")
    return value


def headers(value: Any, limits: Limits) -> bytes | None:
    """Return the pairs as they are stored."""
    if value is None:
        return None
    # With spaces each pair is no shorter than in an answer, whose size is estimated from the stored bytes.
    try:
        stored = f"{{{', '.join([f'{_quoted(key)}: {_quoted(text)}' for key, text in value.items()])}}}".encode()
    except (TypeError, UnicodeEncodeError):
        raise Invalid("headers hold text that is not UTF-8") from None
    if len(stored) > limits.headers_bytes:
        size = sum([len(key.encode()) + len(text.encode()) for key, text in value.items()])
        if size > limits.headers_bytes:
            raise Invalid(f"headers have {size} bytes, more than {limits.headers_bytes}")
    return stored


def _all_headers(column: Sequence[dict[str, str]], limits: Limits) -> list[bytes]:
    """Return the headers of items as they are stored. Raises Invalid."""
    made, last, stored = [], None, b""
    for value in column:
        if value is not last:
            last, stored = value, headers(value, limits) or b""
        made.append(stored)
    return made


def tenancy(spec: Any, limits: Limits) -> tuple[str, tuple[str, ...], int]:
    """Return (fairness key, sorted throttle keys, weight) of an ItemSpec: ('', (), 0) where it sets none of them."""
    fairness = "" if spec.fairness_key is None else fairness_key(spec.fairness_key)
    keys = spec.throttle_keys or ()
    for key in keys[: limits.throttle_keys]:
        refuse("throttle_keys", throttle_key_error(text(key, "throttle_keys")))
    if keys:
        refuse("throttle_keys", throttles_error(keys, limits.throttle_keys, limits.throttle_keys_bytes))
    return fairness, tuple(sorted(keys)), within(spec.weight, "weight", 1, MOST_WEIGHT, 0)


def fairness_key(given: object) -> str:
    """Check a fairness key; "" is none."""
    key = text(given, "fairness_key")
    if key:
        refuse("fairness_key", name_error(key))
    return key


def refuse(what: str, error: str | None) -> None:
    """Raise Invalid if a check of a value found an error."""
    if error is not None:
        raise Invalid(f"{what}: {error}")


def filled(spec: Any, policy: TopicPolicy, limits: Limits) -> Any:
    """Return the ItemSpec with the values of the policy where the producer set none, cut to the limits of the host.

    A priority of 0 and AT_LEAST_ONCE count as not set: clients send them with every item."""
    made = copy(spec)
    made.priority = spec.priority or policy.priority
    if spec.delivery == AT_LEAST_ONCE:
        made.delivery = policy.delivery
    if spec.lease_ms is None and policy.lease_ms is not None:
        made.lease_ms = min(max(policy.lease_ms, limits.lease_min_ms), limits.lease_max_ms)
    if spec.ttl_ms is None and spec.expires_at_ms is None and policy.ttl_ms is not None:
        made.ttl_ms = min(policy.ttl_ms, limits.ttl_max_ms)
    if spec.delay_ms is None and spec.deliver_after_ms is None:
        made.delay_ms = min(policy.delay_ms, limits.delay_max_ms)
    return made


_MOST_PLAIN = 1_000


class Intake:
    """Turns the specs of one enqueue into items. `keys` (lanes), `indices` and `sizes` run along with `items`."""

    __slots__ = (
        "_asked", "_filling", "_keys", "_limits", "_now_ms", "_ns", "_plain_topics", "_policies", "_tenants", "bounded",
        "errors", "hooked", "indices", "items", "keyed", "keys", "plain", "ruled", "sizes", "weighed",
    )  # fmt: skip

    def __init__(
        self,
        ns: str,
        specs: Sequence[Any],
        limits: Limits,
        now_ms: int,
        policies: NamespacePolicies | None = None,
        plain_topics: dict[str, LaneKey] | None = None,
    ) -> None:
        """`policies`: the policies of the namespace, if it has any of its own. `plain_topics`: topics of the namespace
        with good names whose policies do nothing to an enqueue; the intake adds some, up to `_MOST_PLAIN`."""
        self._ns = ns
        self._limits = limits
        self._now_ms = now_ms
        self._policies = policies
        self.ruled = False  # some item has rules
        self.plain = True  # no item has an error, a hook, a bound or a deduplication key
        self.bounded: dict[TopicKey, Quota] = {}  # topics with a bound on their stored items
        self.hooked: list[str] = []  # topics with a hook of enqueues
        self._filling: dict[str, TopicPolicy] = {}  # by topic: policies with values for unset fields of an item
        self._plain_topics = {} if plain_topics is None else plain_topics
        self._keys: dict[str, LaneKey] = {}
        self._asked: dict[tuple[Any, ...], LaneKey] = {}  # by the fields of specs that say which lane an item is in
        self._tenants: dict[LaneKey, LaneKey] = {}  # one object for each lane that is not plain
        self.items: list[NewItem] = []
        self.keys: list[LaneKey] = []
        self.indices: list[int] = []
        self.sizes: list[int] = []
        self.weighed: dict[int, tuple[LaneKey, int]] = {}  # by index: the lane of an item, and the weight it brings
        self.keyed: list[Keyed] = []  # items with a deduplication key; they are not in `items`
        self.errors: dict[int, FoqsError] = {}
        if isinstance(specs, SpecColumns) and self._take_columns(specs):
            return
        for index, spec in enumerate(specs):
            try:
                self._take(index, spec)
            except FoqsError as error:
                # Without its frames, which refer to this: the payloads would wait for the garbage collector.
                self.errors[index] = bare(error)
                self.plain = False

    @property
    def weights(self) -> dict[LaneKey, int] | None:
        """The weights that `items` bring, as in `Chunk`; None where `weighed` is empty."""
        return dict(self.weighed[index] for index in self.indices if index in self.weighed) or None

    def _take_columns(self, specs: SpecColumns) -> bool:
        """Take all items at once. False when one of them may be refused."""
        limits, first, payloads = self._limits, specs.first, specs.payloads
        metadata, tenants, dedup_keys = specs.metadata, specs.tenants, specs.dedup_keys
        sizes, count = list(map(len, payloads)), len(payloads)
        packed = None
        try:
            if max(sizes) > limits.payload_bytes or first.dedup_until or first.on_duplicate:
                return False
            if tenants is not None and not all_good_names(tenants, NAME_BYTES):
                for tenant in set(tenants):
                    fairness_key(tenant)
            if dedup_keys is not None:
                _new_names(dedup_keys, "dedup_key", limits.name_bytes)
            if metadata is not None:
                blob(max(metadata, key=len), "metadata", limits.metadata_bytes)
                sizes = list(map(add, sizes, map(len, metadata)))
            if specs.headers is not None:
                packed = _all_headers(specs.headers, limits)
                sizes = list(map(add, sizes, map(len, packed)))
            self._take(0, first)
        except FoqsError:
            return False
        made, lane = (self.items[0], self.keys[0]) if dedup_keys is None else (self.keyed[0].item, self.keyed[0].lane)
        after_ms, due_ms, now_ms, expires_at_ms = made.deliver_after_ms, made.due_ms, self._now_ms, made.expires_at_ms
        lease_ms, delivery = made.lease_ms, made.delivery
        priorities = self._priorities(specs)
        items = [
            NewItem(payload, meta, pairs, priority, after_ms, due_ms, now_ms, expires_at_ms, lease_ms, delivery)
            for payload, meta, pairs, priority in zip(
                payloads, metadata or repeat(None, count), packed or repeat(None, count), priorities, strict=True
            )
        ]
        lanes = [lane] * count if tenants is None else self._lanes(first, tenants)
        if dedup_keys is not None:
            dedups = dedups_of(self._ns, first.topic, dedup_keys, payloads)
            self.keyed = list(map(Keyed, range(count), dedups, items, lanes, sizes, repeat(first.weight or 0)))
            return True
        self.items, self.keys, self.indices, self.sizes = items, lanes, list(range(count)), sizes
        if weight := first.weight:
            self.weighed = {index: (lane, weight) for index, lane in enumerate(self.keys)}
        return True

    def _priorities(self, specs: SpecColumns) -> list[int]:
        policy = self._filling.get(specs.first.topic)
        if policy is None:
            return specs.priorities
        return [priority or policy.priority for priority in specs.priorities]

    def amend(self, specs: Sequence[Any], changed: Container[int]) -> None:
        """Take the tenants, throttle keys, weights, priorities and times of the items at `changed` from their specs
        again. Drop items that have an error. Of columns, only tenants and priorities have changed."""
        if isinstance(specs, SpecColumns):
            self._amend_columns(specs)
            return
        lanes, errors = self.keys, self.errors
        for at, index in enumerate(self.indices):
            if index in changed and index not in errors:
                lanes[at] = self._again(index, specs[index], self.items[at], lanes[at])
        for one in self.keyed:
            if one.at in changed and one.at not in errors:
                spec = specs[one.at]
                one.lane, one.weight = self._again(one.at, spec, one.item, one.lane), spec.weight or 0
        if errors:
            self._only([at for at, index in enumerate(self.indices) if index not in errors])
            self.keyed = [one for one in self.keyed if one.at not in errors]

    def _amend_columns(self, specs: SpecColumns) -> None:
        """Do the work of `amend` for all items of a request, none of which has an error."""
        items = [one.item for one in self.keyed] or self.items
        for item, priority in zip(items, self._priorities(specs), strict=True):
            item.priority = priority
        if specs.tenants is None:
            return
        lanes = self._lanes(specs.first, specs.tenants)
        for one, lane in zip(self.keyed, lanes, strict=False):
            one.lane = lane
        if self.items:
            self.keys = lanes
        self.weighed = {index: (lanes[index], weight) for index, (_, weight) in self.weighed.items()}

    def _again(self, index: int, spec: Any, item: NewItem, lane: LaneKey) -> LaneKey:
        """Set the fields of an item, and return its lane."""
        topic = spec.topic
        try:
            if topic in self._filling:
                spec = filled(spec, self._filling[topic], self._limits)
            item.priority = spec.priority
            item.due_ms = due_of(spec, self._limits, self._now_ms)
            item.deliver_after_ms = item.due_ms or self._now_ms
            if spec.ttl_ms is not None or spec.expires_at_ms is not None:
                item.expires_at_ms = self._expires_at_ms(spec)
            key = self._keys[topic]
            if spec.fairness_key is not None or spec.throttle_keys is not None or spec.weight is not None:
                key = self._tenant(index, key, spec)
            return self._ruled(key, spec) if spec.rules is not None or spec.dedup_until else key
        except FoqsError as error:
            self.errors[index] = bare(error)
            return lane

    def places(self, key: TopicKey | None = None) -> list[int]:
        """Return the indices of the items, with keys or without; with `key`, of one topic only."""
        plain = [at for at, one in zip(self.indices, self.keys, strict=True) if key is None or topic_key(one) == key]
        return sorted([*plain, *(one.at for one in self.keyed if key is None or topic_key(one.lane) == key)])

    def keep(self, count: int, key: TopicKey | None = None) -> None:
        """Drop all but the first `count` items; with `key`, of one topic only."""
        dropped = set(self.places(key)[count:])
        kept = [at for at, index in enumerate(self.indices) if index not in dropped]
        self._only(kept)
        self.keyed = [one for one in self.keyed if one.at not in dropped]

    def _only(self, kept: Sequence[int]) -> None:
        """Keep the items at these positions, of those without deduplication keys."""
        self.items, self.keys = [self.items[at] for at in kept], [self.keys[at] for at in kept]
        self.indices, self.sizes = [self.indices[at] for at in kept], [self.sizes[at] for at in kept]

    def _take(self, index: int, spec: Any) -> None:
        limits, now_ms = self._limits, self._now_ms
        topic, payload, metadata = spec.topic, spec.payload, spec.metadata
        key = self._keys.get(topic)
        if key is None:
            key = self._keys[topic] = self._plain_topics.get(topic) or self._new_key(topic)
        if topic in self._filling:
            spec = filled(spec, self._filling[topic], limits)
        if payload is None:
            raise Invalid("payload is missing")
        size = len(payload)
        if size > limits.payload_bytes:
            raise Invalid(f"payload has {size} bytes, more than {limits.payload_bytes}")
        packed = None
        if metadata is not None or spec.headers is not None:
            blob(metadata, "metadata", limits.metadata_bytes)
            packed = headers(spec.headers, limits)
            size += len(metadata or b"") + len(packed or b"")
        delivery = spec.delivery
        if delivery not in (AT_LEAST_ONCE, AT_MOST_ONCE):
            raise Invalid("delivery is neither AT_LEAST_ONCE nor AT_MOST_ONCE")
        due_ms = 0
        if spec.deliver_after_ms is not None or spec.delay_ms is not None:
            due_ms = due_of(spec, limits, now_ms)
        lease_ms = expires_at_ms = 0
        if spec.lease_ms is not None:
            lease_ms = within(spec.lease_ms, "lease_ms", limits.lease_min_ms, limits.lease_max_ms, 0)
        if spec.ttl_ms is not None or spec.expires_at_ms is not None:
            expires_at_ms = self._expires_at_ms(spec)
        after_ms = due_ms or now_ms
        if spec.fairness_key is not None or spec.throttle_keys is not None or spec.weight is not None:
            key = self._tenant(index, key, spec)
        if spec.rules is not None or spec.dedup_until or spec.on_duplicate:
            key = self._ruled(key, spec)
        item = NewItem(
            payload, metadata, packed, spec.priority, after_ms, due_ms, now_ms, expires_at_ms, lease_ms, delivery
        )
        if spec.dedup_key is not None:
            dedup_key = new_name(spec.dedup_key, "dedup_key", limits.name_bytes)
            dedup = Dedup(digest_of(self._ns, dedup_key), content_of(topic, b"" if until_of(key) else payload))
            replaces = spec.on_duplicate == OnDuplicate.REPLACE
            self.keyed.append(Keyed(index, dedup, item, key, size, spec.weight or 0, replaces))
            self.plain = False
            return
        self.items.append(item)
        self.keys.append(key)
        self.indices.append(index)
        self.sizes.append(size)

    def _tenant(self, index: int, plain: LaneKey, spec: Any) -> LaneKey:
        """Return the lane of an item with a tenant, throttle keys or a weight, which is noted."""
        throttles, weight = spec.throttle_keys, spec.weight
        asked = (plain, spec.fairness_key, tuple(throttles) if throttles else (), weight)
        known = self._asked.get(asked)
        if known is None:
            fairness, keys, _ = tenancy(spec, self._limits)
            known = self._asked[asked] = self._lane(plain, fairness, keys)
        if weight:
            self.weighed[index] = known, weight
        return known

    def _ruled(self, lane: LaneKey, spec: Any) -> LaneKey:
        """Return the lane of an item that brings rules, or says when its key is free. Raises Invalid."""
        (rules, until), (ns, topic) = item_rules.of_spec(spec), topic_key(lane)
        if rules is None and not until:
            return lane
        if rules is not None and (dead := rules.dead_topic) is not None:
            if dead == topic:
                raise Invalid("rules.dead_topic is the topic of the item")
            if (self._policies or BUILT_IN_POLICIES).of(dead).dead_topic is not None:
                raise Invalid(f"rules.dead_topic is {dead}, whose policy has a dead-letter topic")
        self.ruled = self.ruled or rules is not None
        key = lane_key((ns, topic), *tenancy_of(lane), rules, until)
        return self._tenants.setdefault(key, key)

    def _lanes(self, spec: Any, tenants: Sequence[str]) -> list[LaneKey]:
        """Return the lanes of items that differ from `spec` in their fairness keys only."""
        topic, (_, throttles, _) = topic_key(self._keys[spec.topic]), tenancy(spec, self._limits)
        rules, _ = item_rules.of_spec(spec)
        lanes = {fairness: lane_key(topic, fairness, throttles, rules) for fairness in set(tenants)}
        return [lanes[fairness] for fairness in tenants]

    def _lane(self, plain: LaneKey, fairness: str, throttles: tuple[str, ...]) -> LaneKey:
        key = lane_key(topic_key(plain), fairness, throttles)
        return self._tenants.setdefault(key, key)

    def _new_key(self, topic: str) -> LaneKey:
        """Return the key of a topic's plain lane, after a check of the topic. Raises Invalid and Unavailable."""
        key = lane_key((self._ns, name(topic, "topic", self._limits)))
        policy = None if self._policies is None else self._policies.of(topic)
        if policy is not None and not policy.plain:
            self._begin(topic, policy)
        elif len(self._plain_topics) < _MOST_PLAIN:
            self._plain_topics[topic] = key
        return key

    def _begin(self, topic: str, policy: TopicPolicy) -> None:
        """Record the policy's effects on this topic's items. Raises Unavailable."""
        if policy.closed:
            raise closed(self._ns, topic)
        if policy.fills:
            self._filling[topic] = policy
        if policy.max_stored is not None:
            self.bounded[self._ns, topic] = Quota(None, 0, policy.max_stored)
            self.plain = False
        if policy.hooks is not None and policy.hooks.on_enqueue is not None:
            self.hooked.append(topic)
            self.plain = False

    def _expires_at_ms(self, spec: Any) -> int:
        """Return the time at which the TTL of an item ends."""
        at_ms, most = spec.expires_at_ms, self._limits.ttl_max_ms
        if at_ms is None:
            return self._now_ms + within(spec.ttl_ms, "ttl_ms", 1, most, 0)
        if spec.ttl_ms is not None:
            raise Invalid("both expires_at_ms and ttl_ms are given")
        moment(at_ms, "expires_at_ms", self._now_ms)
        if at_ms < self._now_ms // 100:  # 0 would remove the item at once
            raise Invalid(f"expires_at_ms is {at_ms}: it must be Unix epoch milliseconds")
        if at_ms - self._now_ms > most:
            raise Invalid(f"expires_at_ms is {at_ms}, more than {most} ms ahead")
        return max(int(at_ms), self._now_ms + 1)  # scans of TTLs look for no earlier time
