"""`foqs outbox`: the relay as a process, and held rows."""

import json
import signal
import tempfile

import pytest
from sqlalchemy import text

from foqs.client import ItemSpec
from tests.client.peer import LATER
from tests.client.real_server import ENVIRONMENT
from tests.outbox.conftest import stored
from tests.support import forked
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.threads]
DAY_MS = 86_400_000


def foqs(rows, verb, *args):
    """Run a command. Return its status, stdout and stderr."""
    to = ["--address", rows.address, "--ns", rows.namespace] if verb == "relay" else []
    ran = forked.run(["outbox", verb, rows.url, *args, *to], ENVIRONMENT)
    return ran.returncode, ran.stdout.decode(), ran.stderr.decode()


def add(rows, *specs):
    with rows.engine.begin() as connection:
        for spec in specs:
            rows.outbox.add_item(connection, spec)


def test_once_ends_when_the_outbox_is_empty(rows):
    add(rows, *[ItemSpec("a", b"%d" % number) for number in range(7)])
    assert foqs(rows, "relay", "--once", "--batch", "3") == (0, "", "")
    assert rows.count() == 0
    assert sorted(stored(rows.client, "a")) == [b"%d" % number for number in range(7)]


def test_held_rows_are_listed_and_sent_again(rows):
    now_ms = rows.client.server_info().now_ms
    add(rows, ItemSpec("a", b"late", dedup_key="k"), ItemSpec("", b"refused"))
    rows.set(attempted_at_ms=now_ms - DAY_MS)
    add(rows, ItemSpec("", b"refused"))
    code, _, log = foqs(rows, "relay", "--once")
    assert code == 0
    assert log.count("outbox.held") == 3
    code, listed, _ = foqs(rows, "held")
    late, _, refused = map(json.loads, listed.splitlines())
    assert (code, late["topic"], late["dedup_key"]) == (0, "a", "k")
    assert late["attempted_at_ms"] == now_ms - DAY_MS
    assert "may be stored already" in late["error"]
    assert "topic" in refused["error"]
    assert foqs(rows, "relay", "--once") == (0, "", ""), "a held row is left alone"
    code, said, _ = foqs(rows, "retry", "--row", str(late["id"]))
    assert (code, said) == (0, "the relay sends 1 row again\n")
    assert foqs(rows, "relay", "--once") == (0, "", "")
    assert stored(rows.client, "a") == [b"late"]
    code, said, error = foqs(rows, "retry", "--row", str(late["id"]), "--row", str(refused["id"]))
    assert (code, said) == (1, "the relay sends 1 row again\n")
    assert error == "foqs: the outbox does not hold 1 row of these ids\n"
    assert foqs(rows, "retry", "--all")[:2] == (0, "the relay sends 1 row again\n")
    assert foqs(rows, "held") == (0, "", "")
    assert foqs(rows, "retry")[0] == 2


def test_another_table_is_named(rows):
    with rows.engine.begin() as connection:
        connection.execute(text("CREATE TABLE other (id INTEGER)"))
    for verb, args in (("relay", ["--once"]), ("relay", []), ("held", []), ("retry", ["--all"])):
        code, _, error = foqs(rows, verb, "--table", "nothing", *args)
        assert (code, error) == (
            1,
            "foqs: the database has no table nothing: name that of the Outbox by --table, or create it by the "
            "create_all of its metadata\n",
        )
        assert "no column attempted_at_ms" in foqs(rows, verb, "--table", "other", *args)[2]


@pytest.mark.server
def test_a_table_in_a_schema(new_rows):
    rows = new_rows("postgresql")
    add(rows, ItemSpec("a", b"1"))
    assert foqs(rows, "relay", "--once", "--table", "public.foqs_outbox") == (0, "", "")
    assert stored(rows.client, "a") == [b"1"]


def test_a_relay_runs_until_sigterm_and_alone(rows):
    with tempfile.TemporaryFile("w+b") as stderr, open("/dev/null") as nothing:
        args = ["outbox", "relay", rows.url, "--address", rows.address, "--ns", rows.namespace, "--poll-ms", "10"]
        process = forked.Forked(args, [nothing.fileno(), nothing.fileno(), stderr.fileno()], ENVIRONMENT)
        for number in range(3):
            add(rows, ItemSpec("a", b"%d" % number))
            wait_until(lambda: rows.count() == 0)
        code, _, error = foqs(rows, "relay", "--once")
        if rows.engine.dialect.name != "sqlite":
            assert (code, error) == (
                1, "foqs: another relay has the outbox foqs_outbox: end it, or give --unordered\n"
            )  # fmt: skip
        process.send_signal(signal.SIGTERM)
        assert process.wait(LATER) == 0
        stderr.seek(0)
        assert stderr.read() == b""
    assert stored(rows.client, "a") == [b"0", b"1", b"2"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_relay_at_once(rows, number):
    if rows.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has no lock that a read waits for so long")
    add(rows, ItemSpec("a", b"1"))
    postgresql = rows.engine.dialect.name == "postgresql"
    with (
        rows.engine.connect() as locking,
        tempfile.TemporaryFile("w+b") as stderr,
        open("/dev/null") as nothing,
    ):
        locking.execute(text("LOCK TABLE foqs_outbox" if postgresql else "LOCK TABLES foqs_outbox WRITE"))
        args = ["outbox", "relay", rows.url, "--address", rows.address, "--ns", rows.namespace]
        process = forked.Forked(args, [nothing.fileno(), nothing.fileno(), stderr.fileno()], ENVIRONMENT)
        try:
            waits = (
                "SELECT count(*) FROM pg_locks WHERE NOT granted"
                if postgresql
                else "SELECT count(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table%' "
                "AND db = DATABASE()"
            )
            wait_until(lambda: locking.execute(text(waits)).scalar())

            def signalled():
                process.send_signal(number)
                return process.poll() is not None

            wait_until(signalled)  # by the first one that comes more than a second after the first
            assert process.wait(LATER) == -number
        finally:
            process.kill()
            if not postgresql:
                locking.execute(text("UNLOCK TABLES"))
    assert rows.count() == 1


def test_once_ends_at_the_first_error(new_rows, tmp_path):
    rows = new_rows("sqlite")
    add(rows, ItemSpec("a", b"1"))
    ran = forked.run(["outbox", "relay", rows.url, "--once", "--address", "127.0.0.1:1"], ENVIRONMENT)
    assert ran.returncode == 1
    assert b"127.0.0.1:1" in ran.stderr
    ran = forked.run(["outbox", "relay", f"sqlite:///{tmp_path}/no/file", "--once"], ENVIRONMENT)
    assert (ran.returncode, ran.stderr) == (1, b"foqs: the database: unable to open database file\n")
    assert rows.count() == 1
