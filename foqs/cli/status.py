"""`foqs status` and `foqs consumers`: the state of the system, and its consumers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from textwrap import wrap
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foqs.checks import printable as name
from foqs.cli.connection import Connection
from foqs.cli.main import JsonOption, command
from foqs.cli.terminal import (
    Column,
    duration,
    fail,
    in_table,
    piped,
    say,
    say_first,
    set_fields,
    show,
    table,
    write_line,
)
from foqs.errors import FoqsError, Forbidden, Invalid, Unauthenticated

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from foqs.capacity import Capacity
    from foqs.client import ConsumerStats, HostStatus, QuotaStatus, RateStatus, ShardStatus, Status
    from foqs.doctor.system import Facts
    from foqs.doctor.verdict import Verdict

HEDGE_S = 0.7
"""The next address is asked after this time without an answer."""
PATIENCE_S = 4.5
UNKNOWN = 3
"""The exit status if a host refuses to say how it is."""
_WIDE = 10_000
_MOST_ROWS = 50

app = typer.Typer()


@command(app, "foqs status", "foqs status --json", "foqs status --address host-a:7707,host-b:7707")
@piped
def status(
    as_json: Annotated[bool, typer.Option("--json", help="The command prints one JSON document.")] = False,
    *,
    connection: Connection,
) -> None:
    """Say if the system is HEALTHY, DEGRADED or DOWN, and why.

    The first line is the verdict, and the exit status is 0, 1 or 2. The reasons follow, the worst first, each with its
    remedy; then figures of items, hosts, shards and quotas. It is 3 if a host refuses to answer this caller. The host
    that gets the command's request asks all other hosts, and waits 2 s for them. The command ends within 5 s.

    Use it first. It asks the hosts, so it works for a host without a cluster too. `foqs cluster status` shows what
    ZooKeeper says instead, as the hosts' owner of shards and moves in progress, also while no host answers.
    `foqs doctor` finds faults of a setup.
    """
    from foqs.capacity import estimate
    from foqs.doctor.system import Facts
    from foqs.doctor.verdict import judge

    if connection.wait_server:
        fail("foqs status does not wait for a host: leave out --wait-server", 2)
    found, errors = ask(connection)
    facts = Facts(() if found is None else found.hosts, () if found is None else found.missing, errors)
    verdict, capacity = judge(facts), estimate(facts.hosts)
    if as_json:
        print(json.dumps(document(facts, verdict, capacity), indent=2))
    else:
        _print(facts, verdict, capacity)
    sys.stdout.flush()
    raise SystemExit(verdict.word.exit_status)


def ask(connection: Connection) -> tuple[Status | None, list[str]]:
    """Return the answer of the first address that answers, or why none did. An address that hangs delays the next
    one by `HEDGE_S`. Ends the command if a host refuses this caller."""
    left = [one.strip() for one in connection.address.split(",") if one.strip()]
    until_s, errors = monotonic() + PATIENCE_S, list[str]()
    open_: dict[Future[Status], str] = {}
    while (left or open_) and monotonic() < until_s:
        if left:
            address = left.pop(0)
            open_[_begin(replace(connection, address=address))] = address
        patience_s = until_s - monotonic()
        done, _ = wait(open_, min(HEDGE_S, patience_s) if left else patience_s, FIRST_COMPLETED)
        for future in done:
            address, error = open_.pop(future), future.exception()
            if error is None:
                return future.result(), []
            if isinstance(error, Invalid | Forbidden | Unauthenticated):
                older = isinstance(error, Invalid) and "unknown method" in error.message
                hint = "; the host is of an older version: use foqs cluster status" if older else ""
                fail(f"{address}: {error}{hint}", UNKNOWN)
            if not isinstance(error, FoqsError):
                raise error
            errors.append(error.message if address in error.message else f"{address}: {error.message}")
    return None, [*errors, *(f"{address} did not answer within {PATIENCE_S:g} s" for address in open_.values())]


def _begin(connection: Connection) -> Future[Status]:
    """Ask one address on a thread of its own, which does not keep the command from its end."""
    answer: Future[Status] = Future()

    def work() -> None:
        try:
            with connection.client() as client:
                answer.set_result(client.status(timeout_ms=int(PATIENCE_S * 1000)))
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            answer.set_exception(error)

    Thread(target=work, name="status", daemon=True).start()
    return answer


# --------------------------------------------------------------------------------------------- the output


def document(facts: Facts, verdict: Verdict, capacity: Capacity | None) -> dict[str, Any]:
    """Return all as it is written in JSON. Notes are the reasons with the level HEALTHY."""
    oldest = next(iter(facts.old()), None)
    return {
        "verdict": verdict.word.value,
        "reasons": [one._asdict() | {"level": one.level.value} for one in verdict.reasons],
        "items": totals(facts.hosts),
        "oldest": None
        if oldest is None
        else {"ns": oldest.ns, "topic": oldest.topic, "age_ms": facts.now_ms - oldest.oldest_ready_at_ms},
        "capacity": None if capacity is None else capacity._asdict(),
        "hosts": [_plain(one) for one in facts.hosts],
        "older": facts.older,
        "missing": list(facts.missing),
        "topics": [_plain(one) for one in facts.topics],
        "quotas": [_plain(one) for one in facts.quotas],
        "rates": [_plain(one) for one in facts.rates],
    }


_TOGETHER = ("topics", "quotas", "rates")
"""Lists of a host that the answer has once, for all hosts."""


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {field: _plain(one) for field, one in value._asdict().items() if field not in _TOGETHER}
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def totals(hosts: Sequence[HostStatus]) -> dict[str, int]:
    """Return the items of all hosts by state; `dead` of them are in topics with dead letters."""
    return {state: sum(getattr(host, state) for host in hosts) for state in _STATES}


_STATES = ("ready", "delayed", "leased", "kept", "dead")


def _print(facts: Facts, verdict: Verdict, capacity: Capacity | None) -> None:
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, emoji=False, width=_WIDE)
    console.print(verdict.word.value)
    _reasons(console, verdict)
    if not facts.hosts:
        return
    console.print()
    for line in _summary(facts, capacity):
        console.print(line)
    for each in _tables(facts):
        console.print()
        console.print(each, crop=False)


def _reasons(console: Console, verdict: Verdict) -> None:
    from foqs.doctor.verdict import Word

    for number, one in enumerate(verdict.reasons, 1):
        console.print()
        note = "note: " if one.level is Word.HEALTHY else ""
        indented(console, f"{number}. ", f"{note}{one.text}")
        indented(console, "   -> ", one.remedy)


def indented(console: Console, head: str, text: str) -> None:
    """Print a text under a head such as "1. ", folded between words."""
    lines = wrap(text, max(20, console.width - len(head)), break_long_words=False, break_on_hyphens=False)
    console.print(head + f"\n{' ' * len(head)}".join(lines), soft_wrap=True)


def _summary(facts: Facts, capacity: Capacity | None) -> list[str]:
    items = totals(facts.hosts)
    words = [f"{items[state]:,} {state}" for state in ("ready", "delayed", "leased")]
    words += [f"{items['kept']:,} kept"] if items["kept"] else []
    words += [f"{items['dead']:,} of them in topics with dead letters"] if items["dead"] else []
    lines = [f"items     {', '.join(words)}"]
    for one in facts.old()[:1]:
        age = duration(facts.now_ms - one.oldest_ready_at_ms)
        lines.append(f"oldest    ≤{age}, ready in {name(one.ns)}/{name(one.topic)}")
    if capacity is None:
        lines.append("capacity  not known: the hosts do too little to measure it")
    else:
        lines.append(
            f"capacity  {capacity.now_per_s:,.0f} items/s now, about {_rounded(capacity.more_per_s):,} more at the"
        )
        lines.append(f"          present mix; limited by {name(capacity.limit)}")
    return lines


def _rounded(rate: float) -> int:
    """Return an estimate with two digits.

    >>> _rounded(3149.0), _rounded(7.6)
    (3100, 8)
    """
    unit = int(10 ** max(0, len(str(int(rate))) - 2))
    return round(rate / unit) * unit


def _tables(facts: Facts) -> list[Table]:
    from foqs.doctor.verdict import FULL

    tables = [table(facts.hosts, _HOSTS)]
    shards = sorted(facts.shards, key=lambda one: (not one[1].trouble, one[1].state == "serving", one[1].shard))
    if shards:
        tables.append(table(shards[:_MOST_ROWS], _SHARDS))
    quotas = sorted(facts.quotas, key=lambda one: -one.used / max(1, one.most))
    quotas = [one for at, one in enumerate(quotas) if at < _MOST_ROWS // 5 or one.used >= FULL * one.most]
    if quotas:
        tables.append(table(quotas[:_MOST_ROWS], _QUOTAS))
    rates = sorted(facts.rates, key=lambda one: -one.used / one.most)
    if rates:
        tables.append(table(rates[: _MOST_ROWS // 5], _RATES))
    return tables


def _bytes(size: int | None) -> str | None:
    """Return a size with one unit. None: the database does not report it.

    >>> _bytes(None), _bytes(512), _bytes(5 << 20), _bytes(3 << 40)
    (None, '512 B', '5.0 MiB', '3.0 TiB')
    """
    if size is None:
        return None
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1_024 and len(units) > 1:
        value, units = value / 1_024, units[1:]
    return f"{size} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def _ms(value: int | None) -> str | None:
    return None if value is None else f"{value:,}ms"


_HOSTS: list[Column[HostStatus]] = [
    Column("host", lambda host: name(host.host), "folded"),
    Column("address", lambda host: name(host.address), "folded"),
    Column("version", lambda host: name(host.version)),
    Column("busy", lambda host: f"{host.loop_busy:.0%}", "number"),
    Column("lag", lambda host: f"{host.loop_lag_ms}ms", "number"),
    Column("memory", lambda host: f"{host.budget_used_bytes / max(1, host.budget_limit_bytes):.0%}", "number"),
    Column("items/s", lambda host: f"{host.items_per_s:,.0f}", "number"),
    Column("ZooKeeper", lambda host: host.session or None),
]
_SHARDS: list[Column[tuple[HostStatus, ShardStatus]]] = [
    Column("shard", lambda row: row[1].shard, "number"),
    Column("state", lambda row: row[1].trouble.replace("_", " ") or row[1].state),
    Column("host", lambda row: name(row[0].host), "folded"),
    Column("call open", lambda row: duration(row[1].waiting_ms) if row[1].waiting_ms >= 1_000 else None, "number"),
    Column("busy", lambda row: f"{row[1].busy:.0%}", "number"),
    Column("commit", lambda row: _ms(row[1].transaction_ms), "number"),
    Column("items", lambda row: row[1].items, "number"),
    Column("used", lambda row: _bytes(row[1].used_bytes), "number"),
    Column("disk free", lambda row: _bytes(row[1].free_bytes), "number"),
]
_QUOTAS: list[Column[QuotaStatus]] = [
    Column("namespace", lambda one: name(one.ns), "folded"),
    Column("topic", lambda one: name(one.topic) if one.topic else "(quota)", "folded"),
    Column("stored", lambda one: one.used, "number"),
    Column("most", lambda one: one.most, "number"),
    Column("level", lambda one: f"{one.used / max(1, one.most):.0%}", "number"),
]
_RATES: list[Column[RateStatus]] = [
    Column("namespace", lambda one: name(one.ns), "folded"),
    Column("quota", lambda one: f"used {one.used:,.0f} of {one.most:,g} items/s"),
    Column("level", lambda one: f"{one.used / one.most:.0%}", "number"),
]


# --------------------------------------------------------------------------------------------- consumers


@command(app, "foqs consumers --all-namespaces", "foqs consumers --topic mail --ns shop")
@piped
def consumers(
    topic: Annotated[str | None, typer.Option(help="The list has consumers of this topic only.")] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="The list covers every namespace.")
    ] = False,
    as_json: JsonOption = False,
    *,
    connection: Connection,
) -> None:
    """List the workers and other consumers, hung handlers first: a table on a terminal, else JSON lines.

    Workers with handlers over their time limit ("hung") are first, then the oldest leases. Consumers that asked in the
    last 10 minutes and hold nothing are listed too. "asked" is the time since the last request.
    """
    with connection.client() as client:
        found = client.consumers(topic, all_namespaces=all_namespaces)
    for address in found.missing:
        say(f"host {address} did not answer: its leases are not counted")
    if found.more:
        say_first(len(found.consumers), "consumer", "--topic and --ns list fewer")
    if not in_table(as_json):
        for one in found.consumers:
            write_line(set_fields(one._asdict()))
    elif found.consumers:
        show(consumers_table(found.consumers, all_namespaces=all_namespaces))
    else:
        where = "" if all_namespaces else f" in namespace {name(connection.namespace)}"
        print(f"no consumer{where} has asked for items in the last 10 minutes, and no item is leased")


def consumers_table(found: Sequence[ConsumerStats], *, all_namespaces: bool) -> Table:
    """Return a row for each consumer."""

    def age(ms: int | None) -> str | None:
        return None if ms is None else duration(ms)

    columns: list[Column[ConsumerStats]] = [
        Column("worker", lambda one: name(one.worker) or "(no name)", "folded"),
        Column("hung", lambda one: one.hung, "number"),
        Column("held", lambda one: one.held, "number"),
        Column("oldest", lambda one: age(one.oldest_lease_ms) if one.held else None, "number"),
        Column("asked", lambda one: age(one.asked_ago_ms), "number"),
        Column("topics", lambda one: " ".join(map(name, one.topics)), "folded"),
        Column("from", lambda one: " ".join(map(name, one.peers)), "folded"),
        Column("hosts", lambda one: " ".join(map(name, one.hosts)), "folded"),
        Column("client", lambda one: " ".join(map(name, one.clients)), "folded"),
    ]
    if all_namespaces:
        columns.insert(0, Column("namespace", lambda one: name(one.ns), "folded"))
    return table(found, columns)
