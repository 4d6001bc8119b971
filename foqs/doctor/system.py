"""The facts of a verdict: the answers of all hosts together, and the words for their parts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from shlex import quote
from typing import Any

from foqs.checks import printable, shard_list
from foqs.figures import HostStatus, QuotaStatus, RateStatus, ShardStatus, TopicStatus, merged

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


class Facts:
    """What the hosts said. `errors`: why addresses that were asked did not answer, if none did."""

    def __init__(self, hosts: Sequence[HostStatus], missing: Sequence[str] = (), errors: Sequence[str] = ()) -> None:
        self.hosts = [host for host in hosts if host.version]
        self.older = [host.address for host in hosts if not host.version]
        self.missing = missing
        self.errors = errors
        self.now_ms = max((host.now_ms for host in self.hosts), default=0)
        self.topics: list[TopicStatus] = _together(host.topics for host in self.hosts)
        self.quotas: list[QuotaStatus] = _together(host.quotas for host in self.hosts)
        self.rates: list[RateStatus] = _together((host.rates for host in self.hosts), 1)

    @property
    def shards(self) -> list[tuple[HostStatus, ShardStatus]]:
        return [(host, shard) for host in self.hosts for shard in host.shards]

    @property
    def serving(self) -> set[int]:
        """The shards that a host serves, whatever their databases do."""
        return {shard.shard for _, shard in self.shards if shard.state in ("serving", "draining")}

    @property
    def unserved(self) -> list[int]:
        """The shards that no host serves, as hosts with news of the cluster say; else as all hosts say."""
        fresh = [host for host in self.hosts if host.session in ("", "connected")] or self.hosts
        found = {number for host in fresh for number in host.unserved}
        troubled = {shard.shard for _, shard in self.shards if shard.trouble}
        return sorted(found - self.serving - troubled)

    def troubled(self, trouble: str) -> Iterator[tuple[HostStatus, list[ShardStatus]]]:
        """Yield the hosts that have shards with this trouble, and these."""
        for host in self.hosts:
            shards = [shard for shard in host.shards if shard.trouble == trouble]
            if shards:
                yield host, shards

    def old(self) -> list[TopicStatus]:
        """Return the topics with ready items that nothing explains, the oldest first."""
        waiting = [one for one in self.topics if one.ready and not (one.paused or one.dead)]
        return sorted(waiting, key=lambda one: (one.oldest_ready_at_ms, one.ns, one.topic))


def _together(lists: Iterable[Iterable[Any]], keys: int = 2) -> list[Any]:
    """Return the figures of all hosts, by the first `keys` fields."""
    found: dict[tuple[str, ...], Any] = {}
    for figures in lists:
        for one in figures:
            key = one[:keys]
            found[key] = merged(found[key], one) if key in found else one
    return [*found.values()]


# --------------------------------------------------------------------------------------------- words


def topic_words(one: TopicStatus) -> str:
    return f"{printable(one.ns)}/{printable(one.topic)}"


def command_words(verb: str, one: TopicStatus) -> str:
    return printable(f"foqs {verb} {quote(one.topic)} --ns {quote(one.ns)}")


def bound_words(one: QuotaStatus) -> str:
    if not one.topic:
        return f"the quota of namespace {printable(one.ns)}"
    return f"max_stored of topic {printable(one.ns)}/{printable(one.topic)}"


def wider_words(one: QuotaStatus) -> str:
    if not one.topic:
        return "consume items, or raise stored_items in [quotas] of the hosts' foqs.toml"
    command = f"foqs topic policy {quote(one.topic)} max_stored=N --ns {quote(one.ns)}"
    return f"consume items, or: {printable(command)}"


def shards_of(host: HostStatus, shards: Sequence[ShardStatus]) -> str:
    """Return words for shards of a host, with the databases' servers."""
    servers = sorted({printable(shard.place.rpartition("/")[0]) for shard in shards if shard.place})
    where = f" ({', '.join(servers[:3])})" if servers else ""
    return f"{shard_list([shard.shard for shard in shards])} on {printable(host.host)}{where}"


def span(ms: int) -> str:
    seconds = max(0, ms) // 1000
    unit, size = next((one for one in _UNITS if seconds >= one[1]), _UNITS[-1])
    return f"{seconds // size}{unit}"
