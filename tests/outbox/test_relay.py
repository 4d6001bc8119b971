"""The relay stores each item once: in order or shared, through deaths at each step, and through outages."""

import signal
import threading
from collections import Counter
from contextlib import closing

import pytest
from sqlalchemy import MetaData, event, text

from foqs import App
from foqs.cli.connection import TIMEOUT_MS, WAIT_SERVER_MS
from foqs.client import (
    DedupUntil,
    FoqsError,
    Forbidden,
    Invalid,
    ItemSpec,
    OutcomeUnknown,
    Overloaded,
    Unauthenticated,
    Unavailable,
)
from foqs.outbox import Outbox
from foqs.outbox import relay as relay_module
from foqs.outbox.relay import (
    MARGIN_MS,
    SENDING_S,
    Outcome,
    Relay,
    check_table,
    is_late,
    open_engine,
    outcome_of,
    passes,
    short_ms,
)
from tests.client.peer import LATER
from tests.client.real_server import ENVIRONMENT, Server
from tests.conftest import postgresql_or_skip
from tests.outbox.conftest import stored
from tests.support import forked
from tests.support.waiting import wait_until

DAY_MS = 86_400_000


def fill(rows, count, topic="a", start=0):
    with rows.engine.begin() as connection:
        for number in range(start, start + count):
            rows.outbox.add_item(connection, ItemSpec(topic, b"%d" % number))
    return [b"%d" % number for number in range(start, start + count)]


def drained(relay):
    while relay.round():
        pass


# ------------------------------------------------------------------------------------------------ decisions


@pytest.mark.memory
def test_a_row_is_late_before_the_service_forgets_its_key():
    assert not is_late(None, 10 * DAY_MS, DAY_MS)
    assert not is_late(5, 5 + DAY_MS - MARGIN_MS - 1, DAY_MS)
    assert is_late(5, 5 + DAY_MS - MARGIN_MS, DAY_MS)
    assert is_late(5, 5, 1_000), "a window below the margin: nothing is sent twice"
    assert SENDING_S * 1000 + max(TIMEOUT_MS, WAIT_SERVER_MS) < MARGIN_MS


@pytest.mark.memory
def test_answers_decide_about_rows():
    left = Unavailable("away")
    assert outcome_of([1, 2, 3, 4], [7, Invalid("wrong"), left]) == Outcome([1], {2: "wrong"}, {3: left}, [4])
    assert outcome_of([], []) == Outcome([], {}, {}, [])
    doubtful = [OutcomeUnknown("lost"), FoqsError("of a newer service")]
    answers = [7, Invalid("wrong"), *doubtful, left, Overloaded("full"), Forbidden("no"), Unauthenticated("who")]
    assert sorted(outcome_of(range(1, 11), answers).absent) == [5, 6, 7, 8, 9, 10]
    assert passes(left)
    assert passes(OutcomeUnknown("lost"))
    assert not passes(Forbidden("no right"))
    assert not passes(ValueError())


@pytest.mark.memory
@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("no url", "not one that SQLAlchemy can read"),
        ("nothing://db/shop", "not one that SQLAlchemy can read"),
        ("mssql+pyodbc://u:secret@db/shop", "not for mssql"),
        ("postgresql+asyncpg://u:secret@db/shop", r"name a blocking one, such as postgresql\+psycopg"),
        ("postgresql+psycopg2://u:secret@db/shop", "the driver psycopg2 is not installed"),
    ],
)
def test_a_wrong_url_is_refused(url, error):
    with pytest.raises(Invalid, match=error) as caught:
        open_engine(url)
    assert "secret" not in str(caught.value)


# ------------------------------------------------------------------------------------------------ rounds


@pytest.mark.threads
@pytest.mark.parametrize("in_order", [True, False], ids=["order", "unordered"])
def test_each_row_is_stored_once_and_deleted(rows, in_order):
    payloads = fill(rows, 25)
    drained(rows.relay(in_order=in_order, batch=10))
    assert rows.count() == 0
    assert sorted(stored(rows.client, "a")) == sorted(payloads)


@pytest.mark.server
@pytest.mark.threads
def test_the_dialect_of_mariadb(new_url, new_rows):
    rows = new_rows("mariadb", url=new_url("mariadb").replace("mysql+", "mariadb+"))
    with rows.engine.begin() as connection:
        rows.outbox.add_item(connection, ItemSpec("a", b"\xff" * 70_000))
    drained(rows.relay())
    assert stored(rows.client, "a") == [b"\xff" * 70_000]


@pytest.mark.threads
def test_rows_are_sent_in_the_order_of_ids(rows, monkeypatch):
    payloads = fill(rows, 25)
    sent = []
    enqueue_many = rows.client.enqueue_many

    def send(specs, **options):
        sent.extend(spec.payload for spec in specs)
        return enqueue_many(specs, **options)

    monkeypatch.setattr(rows.client, "enqueue_many", send)
    drained(rows.relay(batch=10))
    assert sent == payloads


@pytest.mark.threads
@pytest.mark.parametrize("in_order", [True, False], ids=["order", "unordered"])
def test_a_lower_id_that_commits_later_is_relayed(rows, in_order):
    if rows.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    relay = rows.relay(in_order=in_order)
    with rows.engine.begin() as slow:
        rows.outbox.add_item(slow, ItemSpec("a", b"lower"))
        fill(rows, 3)
        assert not relay.round()
        assert sorted(stored(rows.client, "a")) == [b"0", b"1", b"2"]
    assert not relay.round()
    assert stored(rows.client, "a") == [b"lower"]


@pytest.mark.threads
@pytest.mark.parametrize("in_order", [True, False], ids=["order", "unordered"])
def test_an_application_adds_and_commits_while_rows_are_sent(rows, in_order, monkeypatch):
    """No lock, and on SQLite no transaction, is in the way of a writer."""
    fill(rows, 5)
    enqueue_many, added = rows.client.enqueue_many, []

    def adding(specs, **_):
        if not added:
            added.extend(fill(rows, 2, start=5))
        return enqueue_many(specs)

    with rows.engine.begin() as connection:
        if rows.engine.dialect.name in ("mysql", "mariadb"):
            connection.execute(text("SET GLOBAL innodb_lock_wait_timeout = 5"))
    rows.engine.dispose()
    monkeypatch.setattr(rows.client, "enqueue_many", adding)
    drained(rows.relay(in_order=in_order, batch=5))
    assert rows.count() == 0
    assert sorted(stored(rows.client, "a")) == [b"%d" % number for number in range(7)]


@pytest.mark.threads
def test_two_relays_share_the_rows(rows):
    payloads = fill(rows, 500)
    took = Counter()

    def work(name):
        relay = rows.relay(in_order=False, batch=20)
        send = relay._answers
        relay._answers = lambda specs, until: took.update({name: len(specs)}) or send(specs, until)
        while rows.count():
            relay.round()

    both = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(LATER)
        assert not thread.is_alive()
    assert Counter(stored(rows.client, "a")) == Counter(payloads)
    if rows.engine.dialect.name != "sqlite":  # which has no locks: both send some rows
        assert sum(took.values()) == 500


@pytest.mark.threads
def test_unordered_relays_skip_the_rows_of_each_other(rows, monkeypatch):
    if rows.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has no locks of rows")
    first, rest = fill(rows, 3), fill(rows, 3, start=3)
    enqueue_many, others = rows.client.enqueue_many, []

    def send(specs, **_):
        if not others:
            others.append(rows.relay(in_order=False, batch=3))
            others[0].round()
            assert sorted(stored(rows.client, "a")) == rest
        return enqueue_many(specs)

    monkeypatch.setattr(rows.client, "enqueue_many", send)
    rows.relay(in_order=False, batch=3).round()
    assert sorted(stored(rows.client, "a")) == first
    assert rows.count() == 0


@pytest.mark.threads
def test_one_relay_works_in_order(rows):
    if rows.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has no such lock")
    first, second = rows.relay(), rows.relay()
    assert not first.round()
    payloads = fill(rows, 3)
    assert not second.round()
    assert rows.count() == 3
    other = Outbox(MetaData(), "other")
    other.table.create(rows.engine)
    assert Relay(rows.engine, other.table, rows.client, in_order=True, batch=1).has_outbox()
    first.close()
    wait_until(second.has_outbox)
    second.round()
    assert sorted(stored(rows.client, "a")) == payloads  # of one millisecond, items of two shards have no order


@pytest.mark.threads
def test_the_spelling_of_a_table_is_not_in_its_lock(rows):
    name = rows.engine.dialect.name
    if name == "sqlite":
        pytest.skip("SQLite has no such lock")
    schema = "public" if name == "postgresql" else rows.engine.url.database
    first = rows.relay()
    with closing(
        Relay(rows.engine, Outbox(MetaData(schema=schema)).table, rows.client, in_order=True, batch=1)
    ) as second:
        assert first.has_outbox()
        assert not second.has_outbox()


# ------------------------------------------------------------------------------------------------ rows that stay


def switch(rows, verb, topic):
    ran = forked.run(["topic", verb, topic, "--address", rows.address, "--ns", rows.namespace], ENVIRONMENT)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.memory
def test_a_short_timeout_lasts_for_large_items():
    assert [short_ms(size) for size in (0, 999_999, 8_000_000)] == [1_000, 1_000, 9_000]


@pytest.mark.process
@pytest.mark.threads
@pytest.mark.parametrize("in_order", [True, False], ids=["order", "unordered"])
def test_rows_that_were_not_stored_have_no_attempt(rows, in_order):
    switch(rows, "close", "shut")
    fill(rows, 1, "shut")
    payloads = fill(rows, 5)
    relay = rows.relay(in_order=in_order)
    relay._client = App(rows.address, rows.namespace, timeout_ms=1_000).client
    with closing(relay._client), pytest.raises(Unavailable, match="the topic shut is closed"):
        relay.round()
    assert [row.attempted_at_ms for row in rows.all()] == [None] * (6 if in_order else 1)
    switch(rows, "open", "shut")
    relay._client = rows.client
    drained(relay)
    assert sorted(stored(rows.client, "a")) == payloads
    assert stored(rows.client, "shut") == [b"0"]


@pytest.mark.threads
@pytest.mark.parametrize("in_order", [True, False], ids=["order", "unordered"])
def test_an_attempt_in_doubt_stays(rows, in_order, monkeypatch):
    """Also when a later one is refused: the first one may have stored the item."""
    fill(rows, 1)
    for error in (OutcomeUnknown("lost"), Unavailable("away")):
        monkeypatch.setattr(rows.client, "enqueue_many", lambda specs, error=error, **_: [error] * len(specs))
        with pytest.raises(type(error)):
            rows.relay(in_order=in_order).round()
        rows.end_relays()
        assert rows.all()[0].attempted_at_ms is not None


@pytest.mark.threads
@pytest.mark.parametrize("error", [OutcomeUnknown("lost"), Unavailable("away")])
def test_another_relay_takes_a_row_after_its_mark(rows, monkeypatch, error):
    """The row is sent by the last relay that took it, and its time is not taken out by an earlier one."""
    fill(rows, 1)
    first, second, sent = rows.relay(in_order=False), rows.relay(in_order=False), []
    monkeypatch.setattr(rows.client, "enqueue_many", lambda specs, **_: sent.extend(specs) or [error] * len(specs))
    mark = first._mark

    def marked(connection):
        batch = mark(connection)
        connection.commit()
        with pytest.raises(type(error)):
            second.round()
        return batch

    monkeypatch.setattr(first, "_mark", marked)
    assert not first.round()
    assert len(sent) == 1
    assert rows.all()[0].attempted_at_ms is not None


@pytest.mark.process
@pytest.mark.threads
@pytest.mark.parametrize("shut", [1, 25])
def test_unordered_rows_pass_rows_that_stay(rows, shut):
    switch(rows, "close", "shut")
    fill(rows, shut, "shut")
    payloads = fill(rows, 100)
    relay = rows.relay(in_order=False, batch=10)
    for _ in range(2):
        with pytest.raises(Unavailable, match="the topic shut is closed"):
            drained(relay)
        assert rows.count() == shut
        assert sorted(stored(rows.client, "a")) == sorted(payloads)
        payloads = fill(rows, 5)
    switch(rows, "open", "shut")
    drained(relay)
    assert len(stored(rows.client, "shut")) == shut


@pytest.mark.threads
def test_a_sweep_ends_although_rows_are_added(new_rows, monkeypatch):
    rows = new_rows("sqlite")
    fill(rows, 3)
    taken = []

    def answer(specs, **options):
        assert 1_000 <= options["timeout_ms"] < SENDING_S * 1000
        taken.extend(int(spec.payload) for spec in specs)
        fill(rows, 2, start=max(taken) + 1)
        return [Unavailable("away") if spec.payload == b"0" else 7 for spec in specs]

    monkeypatch.setattr(rows.client, "enqueue_many", answer)
    relay = rows.relay(in_order=False, batch=2)
    for _ in range(2):
        with pytest.raises(Unavailable, match="away"):
            drained(relay)
    assert taken.count(0) == 2


@pytest.mark.threads
def test_an_error_that_does_not_pass_ends_a_sweep(new_rows, monkeypatch):
    rows = new_rows("sqlite")
    fill(rows, 4)
    errors = iter([Unavailable("away"), Forbidden("no right")])
    monkeypatch.setattr(rows.client, "enqueue_many", lambda specs, **_: [next(errors)])
    relay = rows.relay(in_order=False, batch=1)
    assert relay.round()
    with pytest.raises(Forbidden):
        relay.round()


# ------------------------------------------------------------------------------------------------ deaths


class Killed(BaseException):
    pass


def kill(*_, **__):
    raise Killed


@pytest.mark.threads
@pytest.mark.parametrize("in_order", [True, False], ids=["order", "unordered"])
@pytest.mark.parametrize("point", ["before the mark", "before the send", "after the send", "at the end"])
def test_a_dead_relay_leaves_each_row_to_store_once(rows, point, in_order, monkeypatch):
    payloads = fill(rows, 10)
    client, commits = rows.client, []
    with monkeypatch.context() as patch:
        if point == "before the mark":
            patch.setattr(client, "server_info", kill)
        elif point == "before the send":
            patch.setattr(client, "enqueue_many", kill)
        elif point == "after the send":
            enqueue_many = client.enqueue_many
            patch.setattr(client, "enqueue_many", lambda specs, **_: kill(enqueue_many(specs)))
        else:
            event.listen(rows.engine, "commit", lambda _: commits.append(None) or (len(commits) == 3 and kill()))
        with pytest.raises(Killed):
            rows.relay(in_order=in_order).round()
        rows.end_relays()
    assert rows.count() == 10
    assert all(row.attempted_at_ms is None for row in rows.all()) == (point == "before the mark")
    drained(rows.relay(in_order=in_order))
    assert rows.count() == 0
    assert Counter(stored(client, "a")) == Counter(payloads)


@pytest.mark.threads
def test_unique_work_keeps_its_own_key(new_rows, monkeypatch):
    """A repeated enqueue stores nothing while the first item has the key, and a second item after that."""
    rows = new_rows("sqlite")
    client, relay, outcomes = rows.client, rows.relay(), []
    with rows.engine.begin() as connection:
        rows.outbox.add_item(connection, ItemSpec("a", b"1", dedup_key="k", dedup_until=DedupUntil.DONE))
    enqueue_many = client.enqueue_many
    for _ in range(3):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(client, "enqueue_many", lambda specs, **_: kill(outcomes.extend(enqueue_many(specs))))
            relay.round()
        if len(outcomes) == 2:
            assert stored(client, "a") == [b"1"]
    relay.round()
    first, repeated, second, last = [*outcomes, next(client.list_items("a")).id]
    assert first == repeated != second == last
    assert rows.count() == 0


@pytest.mark.process
@pytest.mark.threads
@pytest.mark.parametrize("options", [("--batch", "50"), ("--batch", "50", "--unordered")], ids=["order", "unordered"])
def test_ten_kills_over_two_thousand_rows(rows, options):
    payloads = fill(rows, 2_000)
    for left in [*range(1_900, 900, -100), 0]:
        process = start(rows, *options)
        wait_until(lambda left=left: rows.count() <= left)
        process.kill()
        process.wait(LATER)
    assert Counter(stored(rows.client, "a")) == Counter(payloads)


def start(rows, *options, stderr=2):
    args = ["outbox", "relay", rows.url, "--address", rows.address, "--ns", rows.namespace, "--poll-ms", "20", *options]
    with open("/dev/null") as nothing:
        return forked.Forked(args, [nothing.fileno(), nothing.fileno(), stderr], ENVIRONMENT)


@pytest.mark.process
@pytest.mark.threads
def test_a_host_is_killed_while_rows_are_relayed(new_rows, kind, tmp_path):
    host = Server(tmp_path / "data")
    try:
        rows = new_rows(kind, host.address)
        payloads = fill(rows, 400)
        process = start(rows)
        for left in (300, 150):
            wait_until(lambda left=left: rows.count() <= left)
            host.kill()
            host.start()
        wait_until(lambda: rows.count() == 0)
        payloads += fill(rows, 3, start=400)
        wait_until(lambda: rows.count() == 0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LATER) == 0
        assert Counter(stored(rows.client, "a")) == Counter(payloads)
    finally:
        host.stop()


@pytest.fixture(params=["mariadb", "postgresql"])
def own_database(request, new_server):
    """A server of the test's own, and the URL of an empty database."""
    if request.param == "mariadb":
        server = new_server("mariadb")
        yield server, server.url(server.create_database("outbox"))
        return
    with postgresql_or_skip() as server:
        yield server, server.url().replace("postgresql:", "postgresql+psycopg:")


@pytest.mark.process
@pytest.mark.server
@pytest.mark.threads
def test_the_database_is_away_for_a_time(own_database, new_rows):
    server, url = own_database
    rows = new_rows("of its own", url=url)
    payloads = fill(rows, 400)
    process = start(rows, "--batch", "20")
    wait_until(lambda: rows.count() <= 300)
    server.stop()
    server.start()
    wait_until(lambda: rows.count() == 0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LATER) == 0
    assert Counter(stored(rows.client, "a")) == Counter(payloads)
    rows.close()


@pytest.mark.threads
def test_a_server_ends_the_session_of_a_machine_that_is_gone(rows):
    asked = {
        "mysql": ["@@session.wait_timeout"],
        "postgresql": [f"current_setting('tcp_keepalives_{name}')" for name in ("idle", "interval", "count")],
    }.get(rows.engine.dialect.name, [])
    with rows.engine.connect() as connection:
        found = [int(connection.execute(text(f"SELECT {name}")).scalar_one()) for name in asked]
    assert found == {"mysql": [120], "postgresql": [60, 10, 6]}.get(rows.engine.dialect.name, [])


@pytest.mark.threads
def test_a_relay_that_waits_ends_at_once(new_rows, monkeypatch):
    rows, stop = new_rows("sqlite"), threading.Event()
    fill(rows, 1)

    def away(*_):
        stop.set()
        raise Unavailable("away")

    monkeypatch.setattr(rows.client, "server_info", away)
    monkeypatch.setattr(relay_module, "_LONGEST_PAUSE_S", LATER * 10)
    rows.relay().run(stop, poll_s=LATER * 10)
    assert rows.all()[0].attempted_at_ms is None, "an outage of the service begins no attempt"


# ------------------------------------------------------------------------------------------------ held rows


@pytest.mark.threads
@pytest.mark.parametrize("in_order", [True, False], ids=["order", "unordered"])
def test_a_row_that_is_refused_is_held_and_blocks_none(rows, in_order):
    with rows.engine.begin() as connection:
        rows.outbox.add_item(connection, ItemSpec("", b"no topic"))
        connection.execute(rows.outbox.table.insert().values(created_at_ms=1, item=r'{"\u2192": 1}'))
        if rows.engine.dialect.name == "sqlite":
            connection.execute(text("INSERT INTO foqs_outbox (created_at_ms, item) VALUES (1, CAST('{}' AS BLOB))"))
        rows.outbox.add_item(connection, ItemSpec("a", b"sound"))
    drained(rows.relay(in_order=in_order))
    no_topic, unknown, *blob = (row.error for row in rows.all())
    assert all("of type bytes" in error for error in blob)
    assert len(blob) == (rows.engine.dialect.name == "sqlite")
    assert "topic" in no_topic
    assert unknown == r"unknown field '\u2192'"
    assert stored(rows.client, "a") == [b"sound"]


@pytest.mark.threads
def test_a_row_that_was_attempted_long_ago_is_held(rows):
    fill(rows, 2)
    now_ms = rows.client.server_info().now_ms
    with rows.engine.begin() as connection:
        table = rows.outbox.table
        late = table.update().where(table.c.id == rows.all()[0].id)
        connection.execute(late.values(attempted_at_ms=now_ms - DAY_MS))
    assert not rows.relay().round()
    (row,) = rows.all()
    assert "may be stored already" in row.error
    assert stored(rows.client, "a") == [b"1"]
    assert not rows.relay().round()
    assert rows.count() == 1


@pytest.mark.threads
@pytest.mark.parametrize("in_order", [True, False], ids=["order", "unordered"])
def test_rows_without_an_answer_stay(new_rows, in_order, monkeypatch):
    rows = new_rows("sqlite")
    fill(rows, 3)
    sent = []

    def answer(specs, **_):
        sent.extend(spec.payload for spec in specs)
        return [Unavailable("away") if spec.payload == b"1" else 7 for spec in specs]

    monkeypatch.setattr(rows.client, "enqueue_many", answer)
    with pytest.raises(Unavailable, match="away"):
        rows.relay(in_order=in_order).round()
    assert sent == [b"0", b"1"] if in_order else [b"0", b"1", b"2"]
    assert rows.count() == (2 if in_order else 1)


@pytest.mark.threads
def test_no_request_begins_after_the_time_of_a_round(new_rows, monkeypatch):
    rows = new_rows("sqlite")
    fill(rows, 3)
    monkeypatch.setattr(relay_module, "SENDING_S", 0)
    monkeypatch.setattr(rows.client, "enqueue_many", kill)
    assert not rows.relay().round()
    assert [row.attempted_at_ms for row in rows.all()] == [None] * 3


@pytest.mark.threads
def test_another_table_is_refused(rows):
    with rows.engine.begin() as connection:
        connection.execute(text("CREATE TABLE other (id INTEGER)"))
    for name, words in (("nothing", "no table nothing"), ("other", "no column attempted_at_ms")):
        table = Outbox(MetaData(), name).table
        with pytest.raises(Invalid, match=words):
            check_table(rows.engine, table)
        with pytest.raises(Invalid, match=words):
            Relay(rows.engine, table, rows.client, in_order=True, batch=1).run(threading.Event(), 1)
