"""The verdict about a cluster: a table of rules, from the facts of its hosts to reasons with their remedies. Pure.

docs/reference/status.md has the table for operators; a test compares the two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from shlex import quote
from typing import Any, NamedTuple

from foqs.checks import counted, part_of, printable, shard_list
from foqs.doctor.system import Facts, bound_words, command_words, shards_of, span, topic_words, wider_words
from foqs.figures import QuotaStatus

OLD_MS = 3_600_000
IN_USE_MS = OLD_MS
"""A topic that got a ready item in this time is in use. After it, `_item_old` has the topic."""
FULL = 0.9
"""Share of a bound."""
LATE_TIMERS = 3
"""Of 300 in half a minute."""
SLOW_MS = 200
"""Mean time of a transaction."""
FAILED_ATTEMPTS, FAILED_SHARE = 20, 0.5
"""Of a topic, in 10 minutes: from here on its attempts fail."""
LEAST_FREE_BYTES = 1 << 30
CERTIFICATE_MS = 14 * 86_400_000
"""A certificate that ends sooner should have been replaced: authorities renew a month before."""
_MOST_NAMED = 5


class Word(Enum):
    """The verdict, and the level of a reason; a reason of the level HEALTHY is a note. The worst comes last."""

    HEALTHY = "HEALTHY"
    DEGRADED = "DEGRADED"
    DOWN = "DOWN"

    @property
    def exit_status(self) -> int:
        return list(Word).index(self)


class Said(NamedTuple):
    """What a rule found, and what to do about it. `ns` and `topic` name the topic that it is about, if it is one."""

    text: str
    remedy: str
    ns: str = ""
    topic: str = ""


class Reason(NamedTuple):
    """`code` is the name of the rule."""

    level: Word
    code: str
    text: str
    remedy: str
    ns: str = ""
    topic: str = ""


class Verdict(NamedTuple):
    """`reasons`: the worst first, then notes."""

    word: Word
    reasons: tuple[Reason, ...]


def judge(facts: Facts) -> Verdict:
    reasons = [Reason(rule.level, rule.code, *said) for rule in RULES for said in rule.find(facts)]
    reasons.sort(key=lambda one: -one.level.exit_status)
    return Verdict(
        max((one.level for one in reasons), key=lambda one: one.exit_status, default=Word.HEALTHY), tuple(reasons)
    )


class Rule(NamedTuple):
    """`meaning` and `remedy` are for the documentation; `find` says what of a state of the hosts the rule is about."""

    code: str
    level: Word
    meaning: str
    remedy: str
    find: Callable[[Facts], Iterator[Said]]


RULES: list[Rule] = []
"""In the order in which reasons of one level are listed."""


def _rule(level: Word, meaning: str, remedy: str) -> Callable[[Callable[[Facts], Iterator[Said]]], Any]:
    def register(find: Callable[[Facts], Iterator[Said]]) -> Callable[[Facts], Iterator[Said]]:
        RULES.append(Rule(find.__name__.strip("_"), level, meaning, remedy, find))
        return find

    return register


# --------------------------------------------------------------------------------------------- down


@_rule(
    Word.DOWN,
    "no host answered",
    "`foqs doctor --config foqs.toml` on the machine of a host; start the hosts; check `--address`",
)
def _no_answer(facts: Facts) -> Iterator[Said]:
    if not facts.hosts and not facts.older:
        why = "; ".join(facts.errors) or "no address was given"
        yield Said(
            f"no host answered: {why}",
            "check that `foqs serve` runs and --address is right; on its machine: foqs doctor --config foqs.toml",
        )


@_rule(
    Word.DOWN,
    "no shard takes items: none is served, or the database of none works",
    "the further reasons name the shards; `foqs shards add` or `foqs shards enable` if the cluster has none",
)
def _nothing_served(facts: Facts) -> Iterator[Said]:
    if not facts.hosts or facts.older or facts.missing:
        return  # another host may serve
    if any(shard.state == "serving" and not shard.trouble for _, shard in facts.shards):
        return
    if facts.shards or facts.unserved:
        yield Said("no shard takes items", "repair what the next reasons name; foqs doctor --config foqs.toml")
    else:
        yield Said("there is no shard", "check zookeeper.root and [[shards]] of the hosts; foqs shards add")


# --------------------------------------------------------------------------------------------- hosts


@_rule(
    Word.DEGRADED,
    "a host did not answer the host that was asked, within 2 s",
    "its process, its log, the network; restart it if it hangs. `foqs cluster status` shows the owners of its shards",
)
def _host_silent(facts: Facts) -> Iterator[Said]:
    for address in facts.missing:
        yield Said(
            f"host {printable(address)} did not answer within 2 s",
            "look at its process and log; restart it if it hangs; foqs cluster status shows the owners of its shards",
        )


@_rule(
    Word.DEGRADED,
    "a host ended in the last hour without giving up its shards first, and did not return",
    "read the end of its log, and start it again. The reason ends an hour later",
)
def _host_gone(facts: Facts) -> Iterator[Said]:
    living = {host.host for host in facts.hosts}
    gone = sorted({name for host in facts.hosts for name in host.gone if name.partition(" ")[0] not in living})
    for name in gone:
        yield Said(f"host {printable(name)} ended without notice", "read the end of its log, and start it again")


@_rule(
    Word.DEGRADED,
    "a host is not ready (`/readyz`): it does not listen, is not in its cluster, or stops",
    "nothing while it starts or stops; else the text names the missing part",
)
def _host_not_ready(facts: Facts) -> Iterator[Said]:
    for host in facts.hosts:
        if host.missing:
            yield Said(
                f"host {printable(host.host)} is not ready: {'; '.join(map(printable, host.missing))}",
                "wait if it starts or stops; else end what the text names, or read its log",
            )


# --------------------------------------------------------------------------------------------- shards


@_rule(
    Word.DEGRADED,
    "no host serves a shard: its items are unavailable",
    "`foqs cluster status`: `opening` is moved now, or its database refuses the host; `unassigned` has no host",
)
def _shard_unserved(facts: Facts) -> Iterator[Said]:
    if facts.unserved:
        yield Said(
            f"no host serves {shard_list(facts.unserved)}",
            "wait while it moves; else foqs cluster status, foqs shards check, and shard.not_opened in the hosts' logs",
        )


@_rule(
    Word.DEGRADED,
    "the database of a shard does not answer the shard's host: lost, or not opened",
    "start the database server, or repair the network to it. No shard has to move",
)
def _shard_unreachable(facts: Facts) -> Iterator[Said]:
    for host, shards in facts.troubled("unreachable"):
        yield Said(
            f"{shards_of(host, shards)}: the database does not answer",
            "start or repair the database server, and the network to it; foqs doctor --config foqs.toml",
        )


@_rule(
    Word.DEGRADED,
    "the database server of a shard answers, and has no such database or table, or denies the account",
    "do not restart the server. `foqs shards check` names the fault; if the database is gone: "
    "[put back its last dump](../run/backup.md)",
)
def _shard_denied(facts: Facts) -> Iterator[Said]:
    for host, shards in facts.troubled("denied"):
        yield Said(
            f"{shards_of(host, shards)}: the database server answers, but the database or a table is missing, or a "
            "right of the account",
            "do not restart the server: foqs shards check names the fault; if the database is gone, put back its "
            "last dump (docs/run/backup.md)",
        )


@_rule(
    Word.DEGRADED,
    "a call to the database of a shard has had no answer for longer than `breaker.hang_ms` (1 s)",
    "locks, disk and network of the database server; restart it if it is frozen",
)
def _call_hangs(facts: Facts) -> Iterator[Said]:
    for host, shards in facts.troubled("hanging"):
        waiting_ms = max(shard.waiting_ms for shard in shards)
        yield Said(
            f"{shards_of(host, shards)}: a database call has had no answer for {span(waiting_ms)}",
            "look at locks, disk and network of the database server; restart it if it is frozen",
        )


@_rule(
    Word.DEGRADED,
    "the database of a shard takes no writes",
    "let the name in the shard's URL lead to the primary, or end the read-only mode",
)
def _shard_read_only(facts: Facts) -> Iterator[Said]:
    for host, shards in facts.troubled("read_only"):
        yield Said(
            f"{shards_of(host, shards)}: the database is read-only",
            "let the name in the shard's URL lead to the primary, or end the read-only mode of the server",
        )


@_rule(
    Word.DEGRADED,
    "a host cannot reach the database of its shard, and another host can",
    "repair the network between the two; the controller moves the shard within seconds",
)
def _shard_cut_off(facts: Facts) -> Iterator[Said]:
    for host, shards in facts.troubled("cut_off"):
        yield Said(
            f"{shards_of(host, shards)}: the host cannot reach the database, another host can",
            "repair the network between that host and the database server",
        )


@_rule(
    Word.DEGRADED,
    "the circuit breaker of a shard is open: its database fails or is slow",
    "`shard.failed` in the host's log; disk, locks and load of the database server",
)
def _breaker_open(facts: Facts) -> Iterator[Said]:
    for host, shards in facts.troubled("breaker_open"):
        yield Said(
            f"{shards_of(host, shards)}: the circuit breaker is open",
            "read shard.failed in the host's log; look at disk, locks and load of the database server",
        )


@_rule(
    Word.DEGRADED,
    "a transaction of a shard took 200 ms or more on average in the last half minute: the shard is behind",
    "locks, disk, load and network of the database server. Enqueues to the shard and acks take this time, too",
)
def _shard_slow(facts: Facts) -> Iterator[Said]:
    for host in facts.hosts:
        slow = [one for one in host.shards if not one.trouble and (one.transaction_ms or 0) >= SLOW_MS]
        if slow:
            longest_ms = max(one.transaction_ms or 0 for one in slow)
            yield Said(
                f"{shards_of(host, slow)}: the database is slow: a transaction took {longest_ms:,} ms on average in "
                f"the last half minute, and calls were open for {max(one.busy for one in slow):.0%} of it",
                "look at locks, disk, load and network of the database server: enqueues and acks of the shard wait",
            )


@_rule(
    Word.DEGRADED,
    "the disk of a database is full, or has less than 1 GiB free",
    "free space on the database server: consume, delete or move items, or enlarge the disk",
)
def _disk_full(facts: Facts) -> Iterator[Said]:
    for host, shards in facts.troubled("disk_full"):
        mend = "free space on the disk of the database, or enlarge it; acks are stored where the database lets them"
        yield Said(f"{shards_of(host, shards)}: the database is full", mend)
    for host in facts.hosts:
        low = [one for one in host.shards if one.free_bytes is not None and one.free_bytes < LEAST_FREE_BYTES]
        low = [one for one in low if one.trouble != "disk_full"]
        if low:
            free = min(one.free_bytes or 0 for one in low)
            yield Said(
                f"{shards_of(host, low)}: only {free >> 20:,} MiB of the disk are free",
                "free space on the disk of the database, or enlarge it",
            )


@_rule(
    Word.DEGRADED,
    "a host waits until it knows which clock is right, and delivers nothing",
    "correct the clock that is wrong: the text names it; see [clocks](../run/losses.md#clocks)",
)
def _clock_in_doubt(facts: Facts) -> Iterator[Said]:
    for host in facts.hosts:
        if host.clock:
            yield Said(
                f"host {printable(host.host)} waits for the right time: {printable(host.clock)}",
                "correct the clock that is wrong; if the databases are right, set host.clock_wait_ms and reload",
            )


# --------------------------------------------------------------------------------------------- cluster


@_rule(
    Word.DEGRADED,
    "a host has no session with ZooKeeper: no shard moves, and a host that dies now is not replaced",
    "repair ZooKeeper if all hosts report it, else the network of that host. Do not restart hosts before that",
)
def _zookeeper_lost(facts: Facts) -> Iterator[Said]:
    lost = [host for host in facts.hosts if host.session not in ("", "connected")]
    if lost:
        where = "repair ZooKeeper" if len(lost) == len(facts.hosts) else "repair their network to ZooKeeper"
        yield Said(
            f"no session with ZooKeeper: {', '.join(f'{printable(host.host)} ({host.session})' for host in lost)}",
            f"{where}; do not restart hosts before that: they keep their shards",
        )


@_rule(
    Word.DEGRADED,
    "ZooKeeper lost its data, has an older copy, or has another cluster's: hosts keep to the records that they know",
    "wait a minute: hosts write back what they know. If it stays, `foqs doctor`, and `foqs cluster import`",
)
def _zookeeper_data(facts: Facts) -> Iterator[Said]:
    for host in facts.hosts:
        if host.held == "foreign":
            yield Said(
                f"host {printable(host.host)} finds another cluster in ZooKeeper",
                "correct zookeeper.hosts and zookeeper.root of the host, or put the right data back into ZooKeeper",
            )
    held = [printable(host.host) for host in facts.hosts if host.held not in (None, "foreign")]
    if held:
        yield Said(
            f"ZooKeeper lost its data, or has an older copy: {', '.join(held)} wait for the right records",
            "wait a minute: hosts write back what they know; if this stays: foqs doctor, foqs cluster import",
        )


@_rule(
    Word.DEGRADED,
    "no host is elected to place shards",
    "`assignment.not_written` in the logs, and ZooKeeper's ACLs",
)
def _no_controller(facts: Facts) -> Iterator[Said]:
    fresh = [host for host in facts.hosts if host.session == "connected"]
    if fresh and not any(host.controller for host in fresh):
        yield Said("no host is the controller", "read the hosts' logs, and check ZooKeeper's ACLs; foqs doctor")


@_rule(
    Word.DEGRADED,
    "the certificate of a host ends within 14 days, or has ended",
    "replace the files of `[tls]`, and send SIGHUP to the host: [rotation.md](../run/rotation.md)",
)
def _certificate_ends(facts: Facts) -> Iterator[Said]:
    for host in facts.hosts:
        if host.certificate_ends_at_ms is None or host.certificate_ends_at_ms - host.now_ms > CERTIFICATE_MS:
            continue
        left_ms = host.certificate_ends_at_ms - host.now_ms
        ends = f"ends in {span(left_ms)}" if left_ms > 0 else "has ended"
        yield Said(
            f"the certificate of host {printable(host.host)} {ends}",
            "replace the files of [tls], and send SIGHUP to the host",
        )


# --------------------------------------------------------------------------------------------- load


@_rule(
    Word.DEGRADED,
    "over 90 % of `host.budget_bytes` are in use",
    "slow readers, large bodies, a slow database; add hosts, or raise the budget",
)
def _budget_full(facts: Facts) -> Iterator[Said]:
    for host in facts.hosts:
        if host.budget_limit_bytes and host.budget_used_bytes >= FULL * host.budget_limit_bytes:
            share = host.budget_used_bytes / host.budget_limit_bytes
            yield Said(
                f"host {printable(host.host)} uses {share:.0%} of its memory for requests and items",
                "look for slow readers, large bodies, a slow database; add hosts, or raise host.budget_bytes",
            )


@_rule(
    Word.DEGRADED,
    "3 or more timers of the event loop were late by 0.25 s or more in the last half minute",
    "the processor is full, or the machine pauses: add hosts, `foqs shards rebalance`",
)
def _loop_late(facts: Facts) -> Iterator[Said]:
    for host in facts.hosts:
        if host.loop_late >= LATE_TIMERS:
            yield Said(
                f"the event loop of host {printable(host.host)} is late, by up to {host.loop_lag_ms:,} ms",
                "the processor is full, or the machine pauses: add hosts, foqs shards rebalance",
            )


@_rule(
    Word.DEGRADED,
    "a namespace or a topic has reached its quota of stored items (`[quotas]`, `max_stored`), or quotas refused "
    "items in the last half minute",
    "consume items, or raise the bound",
)
def _quota_full(facts: Facts) -> Iterator[Said]:
    full = [one for one in facts.quotas if one.used >= one.most]
    for one in full[:_MOST_NAMED]:
        yield _stored(one)
    if len(full) > _MOST_NAMED:
        yield Said(f"further bounds on stored items that are reached: {len(full) - _MOST_NAMED}", "foqs status --json")
    refused = sum(host.quota_refused for host in facts.hosts)
    if refused and not any(not one.topic for one in full):
        bounds = sorted((one for one in facts.quotas if not one.topic), key=lambda one: -one.used / max(1, one.most))
        fullest = [f"{bound_words(one)} ({one.used:,} of {one.most:,} items stored)" for one in bounds[:1]]
        yield Said(
            f"quotas of namespaces refused {counted(refused, 'item')} in the last half minute"
            + "".join(f"; the fullest is {words}" for words in fullest),
            "slow down the producers, or raise [quotas] of the hosts' foqs.toml",
        )


@_rule(
    Word.DEGRADED,
    "handlers of workers are over their time limits",
    "`foqs consumers --all-namespaces` names the workers: look at them, and restart them",
)
def _handlers_hang(facts: Facts) -> Iterator[Said]:
    hung = sum(host.hung for host in facts.hosts)
    if hung:
        yield Said(
            counted(hung, "handler", "hangs", "hang"),
            "foqs consumers --all-namespaces names the workers; restart them",
        )


@_rule(
    Word.DEGRADED,
    "a topic that is not paused gets items, and nothing asked for them in the last minute",
    "start workers for the topic, or restart hung ones; check the topic's name and the workers' rights",
)
def _not_consumed(facts: Facts) -> Iterator[Said]:
    left = [one for one in facts.old() if not one.consumed and facts.now_ms - one.newest_ready_at_ms <= IN_USE_MS]
    for one in left[:_MOST_NAMED]:
        yield Said(
            f"no worker asks for items of topic {topic_words(one)}: {counted(one.ready, 'item', 'is', 'are')} ready",
            f"start a worker for it, or restart its workers if they hang: foqs consumers --ns {quote(one.ns)}; "
            f"{command_words('explain', one)} says more",
            *one[:2],
        )
    yield from _further(left, "topics get items, and no worker asks for them")


@_rule(
    Word.DEGRADED,
    "an item has been ready for more than an hour. Items that a pause holds, and dead letters, do not count",
    "`foqs explain TOPIC` gives the reason; add consumers",
)
def _item_old(facts: Facts) -> Iterator[Said]:
    old = [one for one in facts.old() if facts.now_ms - one.oldest_ready_at_ms > OLD_MS]
    for one in old[:_MOST_NAMED]:
        yield Said(
            f"an item of topic {topic_words(one)} has been ready for {span(facts.now_ms - one.oldest_ready_at_ms)}",
            f"{command_words('explain', one)} gives the reason; add consumers",
            *one[:2],
        )
    yield from _further(old, "topics have such items")


@_rule(
    Word.DEGRADED,
    "half or more of the attempts of a topic failed in the last 10 minutes, and 20 or more",
    "`foqs failing TOPIC`, or the topic's page of the console, says what fails, since when, and in which workers",
)
def _attempts_fail(facts: Facts) -> Iterator[Said]:
    tried = [one for one in facts.topics if one.failed_10_minutes >= FAILED_ATTEMPTS]
    fail = [one for one in tried if one.failed_10_minutes >= FAILED_SHARE * one.ended_10_minutes]
    for one in sorted(fail, key=lambda one: -one.failed_10_minutes)[:_MOST_NAMED]:
        most = f", most with {printable(one.failure)}" if one.failure else ""
        yield Said(
            f"topic {topic_words(one)}: {one.failed_10_minutes:,} of {one.ended_10_minutes:,} attempts of the last "
            f"10 minutes failed{most}", f"{command_words('failing', one)} says since when, and in which workers",
            *one[:2],
        )  # fmt: skip
    yield from _further(fail, "topics have attempts that fail")


# --------------------------------------------------------------------------------------------- notes


@_rule(
    Word.HEALTHY,
    "hosts, or the clients of consumers, have different versions, as in a rolling upgrade",
    "complete the upgrade",
)
def _versions_differ(facts: Facts) -> Iterator[Said]:
    for address in facts.older:
        yield Said(f"host {printable(address)} is of an older version, which reports nothing", "complete the upgrade")
    by_version: defaultdict[str, list[str]] = defaultdict(list)
    for host in facts.hosts:
        by_version[host.version].append(printable(host.host))
    if len(by_version) > 1:
        shown = ", ".join(f"{version} on {' '.join(hosts)}" for version, hosts in sorted(by_version.items()))
        yield Said(f"hosts have different versions: {shown}", "complete the upgrade")
    clients = sorted({printable(client) for host in facts.hosts for client in host.clients})
    if len(clients) > 1:
        yield Said(f"consumers use the clients {', '.join(clients[:_MOST_NAMED])}", "foqs consumers shows which")


@_rule(
    Word.HEALTHY,
    "hosts have different `[quotas]` or `[limits]` in foqs.toml, which all hosts need alike",
    "give all hosts the same section, and restart the hosts that differ",
)
def _settings_differ(facts: Facts) -> Iterator[Said]:
    for section in sorted({name for host in facts.hosts for name in host.alike}):
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for host in facts.hosts:
            groups[host.alike.get(section, "")].append(printable(host.host))
        groups.pop("", None)  # of an older version
        if len(groups) > 1:
            shown = " | ".join(sorted(" ".join(sorted(hosts)) for hosts in groups.values()))
            yield Said(
                f"[{section}] of foqs.toml is not the same on all hosts: {shown}",
                f"give all hosts the same [{section}], and restart the hosts that differ",
            )


@_rule(
    Word.HEALTHY,
    "over 90 % of a bound on stored items are used",
    "consume items, or raise the bound",
)
def _quota_nearly_full(facts: Facts) -> Iterator[Said]:
    near = [one for one in facts.quotas if FULL * one.most <= one.used < one.most]
    for one in near[:_MOST_NAMED]:
        yield _stored(one)


@_rule(
    Word.HEALTHY, "a pause of a topic, or of its tenants, holds all its ready items",
    "`foqs topic resume TOPIC`, with `--tenant` for a paused tenant, once its reason has ended",
)  # fmt: skip
def _topic_paused(facts: Facts) -> Iterator[Said]:
    paused = sorted([one for one in facts.topics if one.paused and one.ready], key=lambda one: -one.ready)
    for one in paused[:_MOST_NAMED]:
        text = f"topic {topic_words(one)} is paused: {counted(one.ready, 'item', 'waits', 'wait')}"
        yield Said(text, f"{command_words('topic resume', one)}; with --tenant for a paused tenant", *one[:2])
    yield from _further(paused, "topics are paused")


@_rule(
    Word.HEALTHY, "a topic has dead letters", "`foqs dead list TOPIC`, then `foqs dead redrive` or `foqs dead delete`"
)
def _dead_letters(facts: Facts) -> Iterator[Said]:
    dead = sorted([one for one in facts.topics if one.dead and one.ready], key=lambda one: -one.ready)
    for one in dead[:_MOST_NAMED]:
        text = f"topic {topic_words(one)} has dead letters: {counted(one.ready, 'item')}"
        yield Said(text, command_words("dead list", one), *one[:2])
    yield from _further(dead, "topics have dead letters")


# --------------------------------------------------------------------------------------------- words


def _stored(one: QuotaStatus) -> Said:
    text = f"{bound_words(one)}: {part_of(one.used, one.most, 'item', 'is', 'are')} stored"
    return Said(text, wider_words(one), one.ns, one.topic)


def _further(topics: Sequence[object], what: str) -> Iterator[Said]:
    if len(topics) > _MOST_NAMED:
        yield Said(f"{len(topics) - _MOST_NAMED} or more further {what}", "foqs topics --all-namespaces lists them")
