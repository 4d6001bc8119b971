"""`foqs topic`: pause, close and look at a topic, and change its policy."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from foqs.bounds import MOST_LISTED
from foqs.checks import counted
from foqs.checks import printable as name
from foqs.cli import settings
from foqs.cli.connection import Connection, say_unknown, unknown
from foqs.cli.look import minute_columns
from foqs.cli.main import JsonOption, command, commands
from foqs.cli.terminal import Column, duration, fail, in_table, listing, piped, say, show, table, write_line

if TYPE_CHECKING:
    from rich.table import Table

    from foqs.client import HookStats, PolicyFields, TenantStats, TopicStats, WorkerStats

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The command works on this topic.")]
_OUT = object()
"""In place of a value: the field is taken out."""
Tenants = Annotated[
    list[str] | None,
    typer.Option("--tenant", help="Only the items with this fairness key, '' for items without one; repeatable."),
]
_JSON = {
    "retry": ("object, or null", '{"kind": "exponential"}'),
    "dead": ("object, or null", '{"topic": "failed", "ttl_ms": 604800000}'),
    "fair": ("object", '{"weights": {"gold:*": 4}}'),
    "throttles": ("list", '["api"]'),
    "paused_tenants": ("list", '["acme"]'),
    "enforce": ("list", '["max_attempts"]'),
    "order": ("object", '{"on_failure": "skip"}'),
    "hooks": ("object, or null", '{"on_enqueue": "route"}'),
}
"""Fields whose values are objects or lists, with an example of each."""
_SAID = {
    ("paused", True): ("paused", "already paused"),
    ("paused", False): ("resumed", "not paused"),
    ("closed", True): ("closed", "already closed"),
    ("closed", False): ("open", "already open"),
}
"""(field, its new value): the state of a topic that had the other value, and of one that had this value already."""

_OF_POLICY = ("policy", "policy_layers", "overruled")

app = typer.Typer()
topics = commands(
    app,
    "topic",
    "Pause, close and look at a topic, and change its policy.",
    "foqs topic pause mail --ns shop",
)


@command(topics, "foqs topic pause mail --ns shop", "foqs topic pause mail --tenant acme")
def pause(topic: Topic, tenant: Tenants = None, *, connection: Connection) -> None:
    """Deliver no more items of the topic, or of one tenant of it.

    Enqueues continue, and leases end as usual. The hosts that the command names deliver no item of the topic, or of the
    tenant, from now on. A host that did not confirm may: repeat the command to ask it again.
    """
    if tenant:
        _switch_tenants(topic, tenant, connection, on=True)
    else:
        _switch(topic, connection, "paused", on=True)


@command(topics, "foqs topic resume mail --ns shop", "foqs topic resume mail --tenant acme")
def resume(topic: Topic, tenant: Tenants = None, *, connection: Connection) -> None:
    """Deliver the items of a paused topic, or of a paused tenant of it, again.

    A topic that is resumed keeps its paused tenants.
    """
    if tenant:
        _switch_tenants(topic, tenant, connection, on=False)
    else:
        _switch(topic, connection, "paused", on=False)


@command(topics, "foqs topic close mail --ns shop")
def close(topic: Topic, *, connection: Connection) -> None:
    """Refuse enqueues into the topic.

    Items that it has are delivered.
    """
    _switch(topic, connection, "closed", on=True)


@command(topics, "foqs topic open mail --ns shop", name="open")
def open_(topic: Topic, *, connection: Connection) -> None:
    """Take items into a closed topic again."""
    _switch(topic, connection, "closed", on=False)


@command(
    topics,
    "foqs topic policy mail --ns shop",
    """foqs topic policy mail max_attempts=5 'retry={"kind": "constant"}'""",
    "foqs topic policy mail max_attempts= --ns shop",
)
def policy(
    topic: Topic,
    fields: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FIELD=JSON...]",
            help="Each field of the topic's policy gets its value; FIELD= takes the field out of it.",
        ),
    ] = None,
    *,
    connection: Connection,
) -> None:
    """Change fields of the topic's own policy, and keep its other fields.

    Without fields, the command lists the policy in effect, and the settings entry that each value is from: a table on a
    terminal, else JSON lines.
    """
    if fields:
        given = dict(map(_field, fields))
        if len(given) < len(fields):
            fail("the command sets a field more than once", 2)
        put = {field: value for field, value in given.items() if value is not _OUT}
        with connection.client() as client:
            settings.report(client.set_policy(topic, cast("PolicyFields", put), without=given.keys() - put.keys()))
    else:
        _show(topic, connection)


@command(topics, "foqs topic stats mail --ns shop")
@piped
def stats(topic: Topic, as_json: JsonOption = False, *, connection: Connection) -> None:
    """Show the topic's items by state, its rates, workers and tenants: tables on a terminal, else JSON.

    Workers with handlers that hang are first, then workers that hold leases, in the order of their oldest leases. Hosts
    that did not answer are in `missing`, or named on stderr, and their items are not counted. Of the ready items,
    "paused" ones wait for the end of a pause, and "throttled" ones for a throttle. `foqs topic tenants` lists the
    tenants.
    """
    with connection.client() as client:
        found = client.topic_stats(topic)
        if not (found.ready or found.delayed or found.leased or found.behind or found.completed or found.failed):
            say_unknown(client, topic)
    if not in_table(as_json):
        write_line(_stats_json(found))
        return
    _say_missing(found)
    state = [word for word, on in (("paused", found.paused), ("closed", found.closed)) if on]
    print(f"{connection.topic(topic)}{': ' if state else ''}{' and '.join(state)}")
    if found.attempts_failed_10_minutes:
        print(f"{counted(found.attempts_failed_10_minutes, 'attempt')} failed in the last 10 minutes, "
              f"{found.attempts_failed_minute:,} in the last one: see foqs failing {quote(topic)}")  # fmt: skip
    for each in _stats_tables(found):
        print()
        show(each)


def _stats_json(found: TopicStats) -> dict[str, Any]:
    """Return all figures; `foqs topic policy` shows the policy."""
    shown = {name: value for name, value in found._asdict().items() if name not in _OF_POLICY}
    return {**_plain(shown), "more_tenants": found.more_tenants and _further(found.more_tenants)}


def _plain(value: Any) -> Any:
    """Return figures as JSON has them."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _stats_tables(found: TopicStats) -> Iterator[Table]:
    """Yield the counts, and a table each of the workers, the tenants and the scripts if there are any."""

    def oldest(worker: WorkerStats) -> str | None:
        return duration(worker.oldest_lease_ms) if worker.held else None

    def state(hook: HookStats) -> str:
        return f"not called for {duration(hook.retry_after_ms)}" if hook.breaker_open else "called"

    counts: list[Column[TopicStats]] = [
        Column("ready", lambda topic: topic.ready, "number"),
        Column("delayed", lambda topic: topic.delayed, "number"),
        Column("leased", lambda topic: topic.leased, "number"),
    ]
    if found.ready_paused:
        counts.append(Column("paused", lambda topic: topic.ready_paused, "number"))
    if found.ready_throttled:
        counts.append(Column("throttled", lambda topic: topic.ready_throttled, "number"))
    if found.behind:
        counts.append(Column("behind", lambda topic: topic.behind, "number"))
    if found.completed or found.failed:
        counts.append(Column("completed", lambda topic: topic.completed, "number"))
        counts.append(Column("failed", lambda topic: topic.failed, "number"))
    counts += minute_columns()
    yield table([found], counts)
    workers: list[Column[WorkerStats]] = [
        Column("worker", lambda worker: name(worker.worker) or "(no name)", "folded"),
        Column("held", lambda worker: worker.held, "number"),
        Column("oldest lease", oldest, "number"),
        Column("hung", lambda worker: worker.hung, "number"),
    ]
    if found.workers:
        yield table(found.workers, workers)
    if found.tenants:
        rows = _tenants(found)
        yield table(rows, _columns(rows))
    hooks: list[Column[HookStats]] = [
        Column("hook", lambda hook: hook.hook),
        Column("script", lambda hook: name(hook.script), "folded"),
        Column("calls", lambda hook: hook.calls, "number"),
        Column("failures", lambda hook: hook.failures, "number"),
        Column("state", state),
    ]
    if found.hooks:
        yield table(found.hooks, hooks)


def _say_missing(found: TopicStats) -> None:
    for address in found.missing:
        print(f"host {address} did not answer: its items are not counted", file=sys.stderr)


@command(topics, "foqs topic tenants mail --ns shop", "foqs topic tenants mail --limit 1000 --json")
@piped
def tenants(
    topic: Topic,
    limit: Annotated[int, typer.Option(min=1, max=MOST_LISTED, help="List at most this many tenants.")] = 100,
    as_json: JsonOption = False,
    *,
    connection: Connection,
) -> None:
    """List the tenants of the topic with the most ready items: a table on a terminal, else JSON lines.

    "share" is the part of the turns that is due to a tenant by its weight, while it has items that wait for no throttle
    ("parked" ones do, and all items of a paused tenant). "waits for" is the throttle key of most of the parked ones.
    "served" is the sum of its deliveries since the hosts have items of it, in the unit of the topic's policy. The last
    row sums up all further tenants, if there are any.
    """
    with connection.client() as client:
        found = client.topic_stats(topic, tenants=limit)
        if not found.tenants:
            say_unknown(client, topic)
    _say_missing(found)
    rows = _tenants(found)
    listing(rows, _columns(rows), as_json, lambda row: _further(row[1]) if row[0] is None else row[1]._asdict())


def _tenants(found: TopicStats) -> list[tuple[str | None, TenantStats]]:
    """Return each tenant with its key; the key of all further tenants together is None."""
    more = [] if found.more_tenants is None else [(None, found.more_tenants)]
    return [*((one.fairness_key, one) for one in found.tenants), *more]


def _tenant(row: tuple[str | None, TenantStats]) -> str:
    key, _ = row
    return "(further tenants)" if key is None else name(key) or "(no key)"


_TENANTS: list[Column[tuple[str | None, TenantStats]]] = [
    Column("tenant", _tenant, "folded"),
    Column("weight", lambda row: row[1].weight, "number"),
    Column("share", lambda row: f"{row[1].share:.1%}", "number"),
    Column("served", lambda row: f"{row[1].served:,.0f}", "number"),
    Column("ready", lambda row: row[1].ready, "number"),
    Column("parked", lambda row: row[1].parked, "number"),
]
_PAUSED: Column[tuple[str | None, TenantStats]] = Column("state", lambda row: "paused" if row[1].paused else None)


_WAITS: Column[tuple[str | None, TenantStats]] = Column(
    "waits for", lambda row: f"throttle {name(row[1].waits_for)}" if row[1].waits_for else None, "folded"
)


def _columns(rows: list[tuple[str | None, TenantStats]]) -> list[Column[tuple[str | None, TenantStats]]]:
    """Return the columns for these tenants: the throttle key of one that waits, and their state if one is paused."""
    waits = [_WAITS] if any(one.waits_for for _, one in rows) else []
    return [*_TENANTS, *waits, *([_PAUSED] if any(one.paused for _, one in rows) else [])]


def _further(more: TenantStats) -> dict[str, Any]:
    """Return the sums of tenants without names, as they are written in JSON."""
    return more._asdict() | {"fairness_key": None}


def _switch(topic: str, connection: Connection, field: str, *, on: bool) -> None:
    """Set a field that is true or false. Where it is false without an entry of the topic, it is taken out.

    A value that the topic has already is written again: so a repeated command asks the hosts that did not confirm."""
    from foqs.client.settings_types import Changes, with_fields
    from foqs.policies.layers import NamespacePolicies

    key = f"topic.{topic}"
    already = False
    tenants: frozenset[str] = frozenset()

    def decide(entries: Mapping[str, str]) -> Changes:
        nonlocal already, tenants
        policy = NamespacePolicies(entries).of(topic)
        already, tenants = getattr(policy, field) is on, policy.paused_tenants
        put, removed = with_fields(entries, key, {}, [field])
        rest = {one: value for one, value in (dict(entries) | dict(put)).items() if one not in removed}
        if not on and not getattr(NamespacePolicies(rest).of(topic), field):
            return put, removed
        return with_fields(entries, key, {field: on})

    with connection.client() as client:
        why = "" if topic.endswith("*") else unknown(client, topic)
        done = client.change_settings(decide)
    if why:
        say(f"{'' if done is None else 'the policy is for a new name: '}{why}")
    print(_said(topic, _SAID[field, on][already]))
    if (field, on) == ("paused", False) and tenants:
        are = "1 tenant of it is" if len(tenants) == 1 else f"{len(tenants):,} tenants of it are"
        print(f"{are} still paused, such as {name(min(tenants)) or '(no key)'}: foqs topic resume with --tenant")
    settings.report(done)


def _switch_tenants(topic: str, tenants: list[str], connection: Connection, *, on: bool) -> None:
    """Add tenants to the paused ones in effect, or take them out. The list is in the topic's own entry then, unless
    wider entries give the same."""
    from foqs.client.settings_types import Changes, with_fields
    from foqs.policies.layers import NamespacePolicies

    key, field = f"topic.{topic}", "paused_tenants"
    before: frozenset[str] = frozenset()

    def decide(entries: Mapping[str, str]) -> Changes:
        nonlocal before
        before = NamespacePolicies(entries).of(topic).paused_tenants
        wanted = before.union(tenants) if on else before.difference(tenants)
        put, removed = with_fields(entries, key, {}, [field])
        rest = {one: value for one, value in (dict(entries) | dict(put)).items() if one not in removed}
        if NamespacePolicies(rest).of(topic).paused_tenants == wanted and not on:
            return put, removed
        return with_fields(entries, key, {field: sorted(wanted)})

    with connection.client() as client:
        why = "" if topic.endswith("*") else unknown(client, topic)
        done = client.change_settings(decide)
    if why:
        say(f"{'' if done is None else 'the policy is for a new name: '}{why}")
    for tenant in dict.fromkeys(tenants):
        state = _SAID["paused", on][(tenant in before) is on]
        who = f"tenant {name(tenant)}" if tenant else "the tenant without a fairness key"
        print(f"{who} of {name(topic)} is {state}")
    settings.report(done)


def _said(topic: str, state: str) -> str:
    if topic.endswith("*"):
        return f"topics {name(topic)} are {state}, except where a longer name's policy says otherwise"
    return f"{name(topic)} is {state}"


def _field(text: str) -> tuple[str, Any]:
    field, found, value = text.partition("=")
    if not found:
        fail(f"{text}: this is not FIELD=JSON", 2)
    if not value:
        return field, _OUT
    read: Any
    try:
        read = json.loads(value)
    except RecursionError:
        fail(f"{field}: the JSON is too deep", 2)
    except ValueError:
        read = value  # delivery=at_most_once
    if field in _JSON:
        kind, example = _JSON[field]
        if not (read is None or isinstance(read, type(json.loads(example)))):
            fail(f"{text}: {field} is a JSON {kind}; for example: '{field}={example}'", 2)
    return field, read


def _show(topic: str, connection: Connection) -> None:
    with connection.client() as client:
        found = client.topic_stats(topic)
    columns: list[Column[str]] = [
        Column("field", lambda field: field),
        Column("value", lambda field: json.dumps(found.policy[field], ensure_ascii=False), "folded"),
        Column("from", lambda field: found.overruled.get(field) or found.policy_layers.get(field, "built in")),
    ]

    def record(field: str) -> dict[str, Any]:
        origin = {"from": found.policy_layers.get(field), "overruled": found.overruled.get(field)}
        return {"field": field, "value": found.policy[field], **origin}

    listing(found.policy, columns, as_json=False, record=record)
