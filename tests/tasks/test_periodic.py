"""Tasks at set times: declared on an App, written by its workers, and fired by the service."""

import asyncio
import hashlib
import json
import re
import sys
import threading
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest

from foqs import App, Job
from foqs.client import Client, Invalid, RetryKind, RetryRule
from foqs.tasks.periodic import apply, changed
from tests.api.hosts import foqs
from tests.client.peer import LATER, eventually
from tests.client.real_server import PATIENT_MS, Server, on_each_host


async def applied(app, workers):
    """Return for each of several workers whether it has written the schedules."""
    async with app:
        changes = await asyncio.gather(*[apply(app.aclient, app.schedules) for _ in range(workers)])
    return [change is not None for change in changes]


@on_each_host
@pytest.mark.threads
def test_the_service_enqueues_tasks_at_set_times(app, start):
    runs = []

    @app.periodic("@every 1s", catch_up="all", jitter=timedelta(milliseconds=1))
    @app.task(topic="refresh", max_attempts=3)
    async def refresh(job: Job, pages: int = 5) -> None:
        runs.append((job.headers["schedule"], job.headers["schedule_at_ms"], pages))

    @app.periodic("@every 1s", name="calls")
    @app.task(topic="calls", batch=2, batch_wait=0)
    def gathered(calls: list) -> None:
        runs.extend([("gathered", call.kwargs, call.args) for call in calls])

    start(app)
    eventually(lambda: ("gathered", {}, []) in runs and sum(run[0] == "refresh" for run in runs) > 1)
    fired = [run for run in runs if run[0] == "refresh"]
    assert {pages for *_, pages in fired} == {5}
    assert len(set(fired)) == len(fired), "a time fired twice"


@on_each_host
@pytest.mark.threads
def test_a_worker_writes_its_schedules(app, start):
    @app.periodic("0 3 * * *", timezone="Europe/Berlin")
    def nightly() -> None: ...

    def entry():
        return json.loads(app.client.settings("schedule.").entries.get("schedule.nightly", "{}"))

    app.client.put_settings({"schedule.other": '{"cron": "0 3 * * *", "topic": "t"}'})
    start(app)
    eventually(lambda: entry().get("cron") == "0 3 * * *")
    assert asyncio.run(applied(app, 1)) == [False]
    paused = {**entry(), "paused": True, "cron": "0 4 * * *"}
    app.client.put_settings({"schedule.nightly": json.dumps(paused)})
    start(app)
    eventually(lambda: entry()["cron"] == "0 3 * * *")
    assert entry()["paused"]
    assert set(app.client.settings("schedule.").entries) == {"schedule.nightly", "schedule.other"}


@on_each_host
@pytest.mark.threads
def test_workers_that_start_together_write_once(app):
    for n in range(5):
        app.periodic("0 3 * * *", name=f"s{n}")(app.task(name=f"t{n}")(lambda: None))
    assert sorted(asyncio.run(applied(app, 8))) == [False] * 7 + [True]
    assert len(app.client.settings("schedule.").entries) == 5


@on_each_host
@pytest.mark.threads
def test_a_schedule_that_the_service_refuses_ends_the_worker(app):
    @app.periodic("0 3 * * *")
    def never() -> None: ...

    @app.periodic("0 4 * * *")
    def sound() -> None: ...

    app.schedules["never"]["cron"] = "61 * * * *"
    with pytest.raises(Invalid, match=r"schedule\.never: cron: the minute is not valid"):
        app.worker(wait_ms=100).run()
    assert app.client.settings("schedule.").entries == {}, "all are written, or none"


@pytest.mark.memory
@pytest.mark.parametrize(
    ("cron", "timezone", "why"),
    [
        ("61 * * * *", "UTC", "cron: the minute is not valid"),
        ("0 3 * *", "UTC", "cron: it has five fields"),
        ("0 0 30 2 *", "UTC", "cron: "),
        ("@every 0s", "UTC", "is not @every with a whole number of s, m, h or d"),
        ("@hourly", "UTC", "is not @every"),
        ("0 3 * * *", "Europe/Berln", "timezone: there is no time zone 'Europe/Berln'"),
        ("@every 1h", "localtime", "timezone: there is no time zone 'localtime'"),
        ("0 3 * * *", "../etc/passwd", "timezone: there is no time zone"),
    ],
)
def test_wrong_times_are_refused(cron, timezone, why):
    app = App()
    with pytest.raises(Invalid, match=f"^task never: .*{re.escape(why)}"):
        app.periodic(cron, timezone=timezone)(app.task(name="never")(lambda: None))
    assert app.schedules == {}


@pytest.mark.memory
def test_what_a_machine_cannot_check_the_service_does(monkeypatch):
    """It has no cronsim, and no list of time zones."""
    monkeypatch.setitem(sys.modules, "cronsim", None)
    monkeypatch.setattr("foqs.ticks.ZoneInfo", lambda name: ZoneInfo("Of/Nowhere"))
    app = App()
    app.periodic("61 * * * *", timezone="Europe/Berln")(app.task(name="late")(lambda: None))
    assert app.schedules.keys() == {"late"}
    with pytest.raises(Invalid, match="is not @every"):
        app.periodic("@every 0s")(app.task(name="never")(lambda: None))


@pytest.mark.threads
def test_a_worker_whose_token_may_not_names_the_command(tmp_path, start, caplog):
    principals = tmp_path / "principals.toml"
    rights = {"worker": '["produce", "consume"]', "operator": '["admin"]'}
    principals.write_text(
        "".join(
            f'[principals.{name}]\ntoken_sha256 = "{hashlib.sha256(name.encode()).hexdigest()}"\n'
            f'rights = {{ "shop" = {given} }}\n'
            for name, given in rights.items()
        )
    )
    server = Server(tmp_path / "data", FOQS_AUTH__PRINCIPALS_FILE=str(principals))
    try:
        app = App(server.address, "shop", token="worker", timeout_ms=PATIENT_MS)
        ran = threading.Event()

        @app.periodic("0 3 * * *")
        def nightly() -> None:
            ran.set()

        start(app)
        eventually(lambda: "`foqs schedule apply MODULE:APP` does it with a token that may" in caplog.text)
        nightly.enqueue()
        assert ran.wait(LATER), "the worker works without them"
        with Client(server.address, "shop", token="operator") as client:
            assert not client.settings("schedule.").entries
            (tmp_path / "declares.py").write_text(
                f'from foqs import App\napp = App("{server.address}", "shop", token="worker")\nempty = App()\n'
                'empty.task(name="t")(print)\n@app.periodic("0 3 * * *")\ndef nightly() -> None: ...\n'
            )
            command = ["schedule", "apply", "--app-dir", tmp_path, "--token"]
            assert "worker has no right admin" in foqs(*command, "worker", "declares:app").stderr
            for said in ("version 1 is in effect on ", "nothing to change"):
                assert foqs(*command, "operator", "declares:app").stdout.startswith(said)
            assert client.settings("schedule.").entries.keys() == {"schedule.nightly"}
            assert (
                "declares:empty declares no schedules: @app.periodic does"
                in foqs(*command, "x", "declares:empty").stderr
            )
        app.close()
    finally:
        server.stop()


@pytest.mark.threads
def test_schedules_are_written_when_the_host_is_back(app, server, start, monkeypatch):
    monkeypatch.setattr("foqs.tasks.runner._APPLY_AGAIN_S", 0.1)

    @app.periodic("0 3 * * *")
    def nightly() -> None: ...

    server.kill()
    start(app)
    server.start()
    eventually(lambda: "schedule.nightly" in app.client.settings("schedule.").entries)


@pytest.mark.memory
def test_a_declaration_is_a_setting():
    app = App()
    options = {"topic": "mail", "priority": -1, "tenant": "acme", "throttle": ["smtp"], "headers": {"a": "b"}}
    retry = RetryRule(RetryKind.CONSTANT, first_ms=1, jitter=0)

    @app.periodic("@every 10s", name="poll", catch_up="none", overlap="skip", jitter=timedelta(seconds=1))
    @app.task(retry=retry, max_attempts=2, **options)
    def task() -> None: ...

    fields = app.schedules["poll"]
    rules = fields.pop("rules")
    assert (rules["max_attempts"], rules["retry"]["first_ms"]) == (2, 1)
    assert fields == {
        "cron": "@every 10s", "timezone": "UTC", "catch_up": "none", "overlap": "skip", "topic": "mail",
        "headers": {"a": "b", "foqs-task": "task"}, "priority": -1, "fairness_key": "acme", "throttle_keys": ["smtp"],
        "jitter_ms": 1000,
    }  # fmt: skip


@pytest.mark.memory
def test_only_what_differs_is_put():
    fields = {"cron": "0 3 * * *", "topic": "t"}
    entries = {"schedule.same": json.dumps({**fields, "paused": True}), "schedule.old": json.dumps({"cron": "x"})}
    schedules = {"same": fields, "old": fields, "new": fields}
    assert {name: json.loads(text) for name, text in changed(entries, schedules).items()} == {
        "schedule.old": fields,
        "schedule.new": fields,
    }


@pytest.mark.memory
def test_wrong_declarations_are_refused():
    app, other = App(), App()

    @app.periodic("0 3 * * *")
    @app.task
    def fine(a: int = 1) -> None: ...

    @other.task(name="fine2")
    def needs(a: int) -> None: ...

    with pytest.raises(Invalid, match=r"task fine2.*missing a required argument: 'a'; a schedule gives no arguments"):
        app.periodic("0 3 * * *")(needs)
    with pytest.raises(Invalid, match="there is a schedule fine already: give one of the two another name"):
        app.periodic("0 4 * * *")(fine)
    with pytest.raises(Invalid, match="schedules do not have the option unique; they have topic, priority"):
        app.periodic("0 3 * * *", name="u")(fine.options(unique="u"))
    with pytest.raises(Invalid, match="cron is 5: give a text"):
        app.periodic(5, name="c")(fine)
    with pytest.raises(Invalid, match="jitter is 5: give a timedelta"):
        app.periodic("0 3 * * *", name="c", jitter=5)(fine)
    with pytest.raises(Invalid, match="task fine is a task already: put other decorators of the App above @app"):
        app.task(fine)
    other.periodic("0 3 * * *", name="fine")(other.task(name="fine3")(lambda: None))
    with pytest.raises(Invalid, match="there is a schedule fine already"):
        app.include(other)
