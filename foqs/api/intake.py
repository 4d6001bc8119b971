"""The items of an enqueue, as the engine takes them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from copy import copy
from itertools import repeat
from operator import add
from typing import Any

from foqs.api.validation import (
    all_headers,
    batch_id,
    blob,
    due_of,
    fairness_key,
    headers,
    moment,
    name,
    new_name,
    new_names,
    order_key,
    tenancy,
    within,
)
from foqs.bounds import NAME_BYTES, Limits, Quota
from foqs.buffers.pending_dedup import Keyed
from foqs.errors import FoqsError, Invalid
from foqs.fairness.keys import (
    ORDERED,
    LaneKey,
    TopicKey,
    has_members,
    lane_key,
    rules_of,
    tenancy_of,
    topic_key,
    until_of,
)
from foqs.ids import Dedup, OnDuplicate, content_of, dedups_of, digest_of, order_digest
from foqs.policies import item_rules
from foqs.policies.entries import all_good_names
from foqs.policies.layers import BUILT_IN_POLICIES, NamespacePolicies
from foqs.policies.remedy import closed
from foqs.policies.topic_policy import TopicPolicy
from foqs.rows import AT_LEAST_ONCE, AT_MOST_ONCE, NewItem, NewMember, NewOrdered
from foqs.travel import bare
from foqs.wire.usual_requests import SpecColumns


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
        "errors", "hooked", "indices", "items", "keyed", "keys", "members", "plain", "ruled", "sizes", "weighed",
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
        self.members = False  # some item belongs to a batch
        self.plain = True  # no item has an error, a hook, a bound, a deduplication key or an order key
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
        self.keyed: list[Keyed] = []  # items with a deduplication key or an order key; they are not in `items`
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
                new_names(dedup_keys, "dedup_key", limits.name_bytes)
            if metadata is not None:
                blob(max(metadata, key=len), "metadata", limits.metadata_bytes)
                sizes = list(map(add, sizes, map(len, metadata)))
            if specs.headers is not None:
                packed = all_headers(specs.headers, limits)
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
        if first.batch is not None:
            items = [NewMember.of(item, first.batch) for item in items]
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
            if spec.rules is not None or spec.dedup_until:
                key = self._ruled(key, spec)
            if has_members(lane):
                key = self._joined(key)
            return self._ordered(key) if spec.order_key else key
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
        """Keep the items at these positions, without keys."""
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
        due_ms = 0 if spec.deliver_after_ms is spec.delay_ms is None else due_of(spec, limits, now_ms)
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
        if spec.batch is not None:
            item, key = self._member(spec.batch, item, key)
        if spec.dedup_key is not None or spec.order_key:
            self._take_keyed(index, spec, item, key, size)
            return
        self.items.append(item)
        self.keys.append(key)
        self.indices.append(index)
        self.sizes.append(size)

    def _member(self, batch: int, item: NewItem, lane: LaneKey) -> tuple[NewItem, LaneKey]:
        """Return an item of a batch, and its lane. Raises Invalid."""
        made = NewMember.of(item, batch_id(batch, "batch"))
        self.members = True
        return made, self._joined(lane)

    def _take_keyed(self, index: int, spec: Any, item: NewItem, lane: LaneKey, size: int) -> None:
        """Take an item with a deduplication key or an order key. Raises Invalid."""
        ns, topic, replaces, made = self._ns, spec.topic, False, item
        if spec.order_key:
            order = order_key(spec.order_key)
            if spec.dedup_key is not None:
                raise Invalid("both dedup_key and order_key are given: each of them decides the shard of the item")
            made, lane = NewOrdered.of(item, order.encode(), order_digest(ns, topic, order)), self._ordered(lane)
            dedup = Dedup(made.digest, 0)
        else:
            dedup_key = new_name(spec.dedup_key, "dedup_key", self._limits.name_bytes)
            dedup = Dedup(digest_of(ns, dedup_key), content_of(topic, b"" if until_of(lane) else spec.payload))
            replaces = spec.on_duplicate == OnDuplicate.REPLACE
        self.keyed.append(Keyed(index, dedup, made, lane, size, spec.weight or 0, replaces))
        self.plain = False

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

    def _ordered(self, lane: LaneKey) -> LaneKey:
        """Return the lane of items with order keys that are otherwise like the items of `lane`."""
        key = lane_key(topic_key(lane), *tenancy_of(lane), rules_of(lane), ORDERED, has_members(lane))
        return self._tenants.setdefault(key, key)

    def _joined(self, lane: LaneKey) -> LaneKey:
        """Return the lane of members of batches that are otherwise like the items of `lane`."""
        key = lane_key(topic_key(lane), *tenancy_of(lane), rules_of(lane), until_of(lane), members=True)
        return self._tenants.setdefault(key, key)

    def _lanes(self, spec: Any, tenants: Sequence[str]) -> list[LaneKey]:
        """Return the lanes of items that differ from `spec` in their fairness keys only."""
        topic, (_, throttles, _) = topic_key(self._keys[spec.topic]), tenancy(spec, self._limits)
        rules, _ = item_rules.of_spec(spec)
        joined = spec.batch is not None
        lanes = {fairness: lane_key(topic, fairness, throttles, rules, members=joined) for fairness in set(tenants)}
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
