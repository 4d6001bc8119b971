"""Addresses, and which of them gets which request: pure decisions over the routing that a host returned.

Any host takes any request, so a wrong choice costs a hop and nothing else.
"""

from __future__ import annotations

# A thread that connects would import it at its first name of a host, and a child forked then could never use names.
import encodings.idna  # noqa: F401
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush
from ipaddress import IPv6Address
from typing import Any, NamedTuple

from foqs.bounds import DEFAULT_PORT, TURN_MS
from foqs.checks import host_port, shown
from foqs.errors import Invalid
from foqs.ids import HASH_SLOTS, digest_of, hash_slot_of, shard_of

PIECE_ITEMS = 500
"""The fewest new items of a part of a request. Smaller requests cost more for each item."""
OTHERS = 3
"""Hosts to try in addition to the best one, before the addresses that the user gave."""


_GOLDEN = 0x9E37_79B1
"""The golden section of 32 bits, odd."""


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return host_port(self.host, self.port)


Sample = Callable[[Sequence[Address], int], Sequence[Address]]
"""Returns a number of hosts out of several, at random."""

OwnerOf = Callable[[Any], Address | None]
"""The host of an id or slot, when there is a choice and it is known."""


@dataclass(frozen=True)
class Routes:
    """`owners` by shard number; `hosts`: all that live; `slots`: the shard of each slot of deduplication keys, empty
    where that is not known; `version` names the content, None: nothing is known; `quiet`: one host at a time has time
    for all small requests."""

    version: int | None = None
    owners: Mapping[int, Address] = field(default_factory=dict)
    hosts: tuple[Address, ...] = ()
    slots: Sequence[int] = ()
    quiet: bool = False
    alone: bool = field(init=False, repr=False, compare=False)
    """True if there is no choice."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "alone", len(self.hosts) < 2)

    @cached_property
    def serving(self) -> tuple[Address, ...]:
        """The hosts that have shards, or all if none has. A host without shards may be about to stop."""
        return tuple(sorted(set(self.owners.values()))) or self.hosts

    @cached_property
    def _turns(self) -> tuple[Address, ...]:
        return tuple([self.owners[shard] for shard in sorted(self.owners)]) or self.hosts

    def host_in_turn(self, now_s: float) -> Address | None:
        """Return the host to which all clients of a quiet cluster send small requests now, None if there is no such
        host. The items of several clients then share transactions, and lie where consumers look for them.

        `now_s` is the time of the machine. A host has a turn for each of its shards, in the order of Weyl's sequence.
        """
        if self.alone or not self.quiet:
            return None
        turns = self._turns
        return turns[(int(now_s * 1_000) // TURN_MS * _GOLDEN & 0xFFFF_FFFF) * len(turns) >> 32]

    def owner(self, item_id: Any) -> Address | None:
        """Return the host of the item's shard, if there is a choice and it is known."""
        if self.alone or not isinstance(item_id, int):
            return None
        return self.owners.get(shard_of(item_id))

    def owner_of_hash_slot(self, number: Any) -> Address | None:
        """Return the host of the shard that has the hash slot, as for `owner`."""
        if self.alone or number is None or not self.slots:
            return None
        return self.owners.get(self.slots[number])


class Part(NamedTuple):
    """Items of a request, by their indices, and the hosts to ask about them, in this order."""

    to: Sequence[Address]
    asked: Sequence[int]


_Turn = tuple[float, int, int, Address]
"""(items that a host got for each of its shards, a number that decides between equal ones, its shards, the host)."""


class Spread:
    """The hosts for new items, in turn: the next host has got the fewest for each of its shards. `random` returns an
    exponentially distributed number for a rate: many clients that store one item each begin with different hosts.

    Thread-safe without a lock, which a signal handler could not take: a thread takes a host out of the heap, and puts
    it back."""

    def __init__(self, random: Callable[[float], float]) -> None:
        self._random = random
        self._state: tuple[Routes | None, list[_Turn]] = (None, [])

    def next(self, routes: Routes, items: int, last: Collection[Address] = ()) -> Address | None:
        """Return the host for a request with `items` items, None if other threads have taken all hosts out.

        Hosts in `last` are taken only when there is no other one."""
        known, heap = self._state
        if known is not routes:
            heap = self._follow(routes, heap)
        passed: list[_Turn] = []
        try:
            while (turn := heappop(heap))[3] in last:
                passed.append(turn)
        except IndexError:  # all are in `last`, or with other threads
            if not passed:
                return None
            turn = passed.pop(0)
        for one in passed:
            heappush(heap, one)
        given, number, shards, host = turn
        heappush(heap, (given + items / shards, number, shards, host))
        return host

    def _follow(self, routes: Routes, before: list[_Turn]) -> list[_Turn]:
        """Return the turns of the hosts that have shards now. A new host begins with the
        account of the host that is next."""
        given = {host: items for items, _, _, host in before}
        shards = Counter(routes.owners.values()) or Counter(routes.hosts)
        least = min((given[host] for host in shards if host in given), default=0.0)
        turns = [
            (given[host] if host in given else least + self._random(count), number, count, host)
            for number, (host, count) in enumerate(shards.items())
        ]
        heapify(turns)
        self._state = (routes, turns)
        return turns


def pieces(asked: Sequence[int]) -> list[Sequence[int]]:
    """Cut new items that any host may store into pieces of about equal size, `PIECE_ITEMS` at least.

    >>> [len(piece) for piece in pieces(range(1_250))]
    [625, 625]
    """
    count = max(1, len(asked) // PIECE_ITEMS)
    return [asked[len(asked) * n // count : len(asked) * (n + 1) // count] for n in range(count)]


def routes_of(response: Any) -> Routes:
    """Return the routes of a GetRoutingResponse, without hosts whose address cannot be read."""
    addresses = {text: _address(text) for text in {*(response.hosts or ()), *(r.host for r in response.shards or ())}}
    owners = {}
    for route in sorted(response.shards or (), key=lambda route: route.epoch or 0):
        if (address := addresses[route.host]) is not None:
            owners[route.shard] = address
    hosts = {address for text in response.hosts or () if (address := addresses[text]) is not None}
    slots = tuple(response.slots or ())
    known_slots = slots if len(slots) == HASH_SLOTS else ()
    return Routes(response.version, owners, tuple(sorted(hosts)), known_slots, bool(response.quiet))


def hash_slot(namespace: Any, key: Any) -> int | None:
    """Return the hash slot of a dedup key, None for an invalid key, which the server refuses."""
    return hash_slot_of(digest_of(namespace, key)) if isinstance(key, str) else None


def by_owner(
    owner_of: OwnerOf, ids: Sequence[Any], asked: Sequence[int], refused: Mapping[int, Address]
) -> dict[Address | None, list[int]]:
    """Return the indices `asked` of `ids`, by the host to send them to; None: to any. `refused` has, by index, the host
    that did not serve the shard: it is not asked again before the routing names another one."""
    groups: dict[Address | None, list[int]] = {}
    for i in asked:
        owner = owner_of(ids[i])
        groups.setdefault(None if owner == refused.get(i) else owner, []).append(i)
    return groups


def order(
    routes: Routes,
    given: Sequence[Address],
    sample: Sample,
    *,
    among: Collection[Address] = (),
    last: Collection[Address] = (),
) -> tuple[Address, ...]:
    """Return the hosts to try, in this order: one of `among` that has shards, the rest that have shards, what the user
    gave; those in `last` not before all these. Empty: what the user gave is all there is."""
    if routes.alone:
        # A host that is alone may call itself by a name that means nothing here.
        return () if not routes.hosts or routes.hosts[0] in given else (*given, *routes.hosts)
    serving = routes.serving
    if last:
        serving = tuple(host for host in serving if host not in last)
    best = [host for host in among if host in serving]
    chosen = (*sample(best, min(1, len(best))), *sample(serving, min(OTHERS, len(serving))))
    return tuple(dict.fromkeys((*chosen, *(host for host in given if host not in last), *last)))


def hosts_by_topic(active: Iterable[Any], least: int = 0) -> dict[str, frozenset[Address]]:
    """Return the hosts of each ActiveTopic with at least `least` ready items, by the topic's name."""
    return {
        found.topic: frozenset(address for text in found.hosts or () if (address := _address(text)) is not None)
        for found in active
        if (found.ready or 0) >= least
    }


def _address(text: Any) -> Address | None:
    """Return None for an invalid address. Text that is not UTF-8 arrives as bytes, and an absent text as None."""
    try:
        return parse_addresses(text)[0] if isinstance(text, str) else None
    except Invalid:
        return None


def parse_addresses(text: str) -> list[Address]:
    """Parse `host:port,host:port`; the port may be left out, and an IPv6 address with a port needs brackets.

    >>> [str(a) for a in parse_addresses("db1:7000, db2, [::1]:7001")]
    ['db1:7000', 'db2:7707', '[::1]:7001']
    """
    addresses = [_parse(part.strip()) for part in text.split(",") if part.strip()]
    if not addresses:
        raise Invalid("no address given: give host:port, or several with commas")
    return addresses


def _parse(text: str) -> Address:
    if "://" in text:
        scheme, _, rest = text.partition("://")
        tls = " and turn TLS on with tls (--tls on)" if scheme in ("https", "tls", "ssl") else ""
        plain = rest.partition("/")[0].rpartition("@")[2]
        raise Invalid(f"an address of foqs is no URL ({scheme}://...): give host:port alone ({plain}){tls}")
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") > 1:
        host, port = text, ""
        if not _is_ipv6(host):
            raise Invalid(f"address {text!r} is neither host:port nor an IPv6 address")
    else:
        host, _, port = text.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and len(port) < 10 and 0 < int(port) < 65536)):
        raise Invalid(f"address {shown(text)} is not host:port, with a port from 1 to 65535")
    return Address(host, int(port) if port else DEFAULT_PORT)


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True
