"""What `add` stores, and when."""

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from foqs import App
from foqs.client import DedupUntil, Delivery, Invalid, ItemRules, ItemSpec, OnDuplicate, RetryKind, RetryRule
from foqs.client.item_copies import spec_json, spec_of_line
from foqs.outbox import Outbox
from foqs.outbox.table import fixed_item, item_of

NOW_MS = 1_800_000_000_000
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=9)
TIMES = st.none() | st.integers(1, 10**15)
RULES = st.builds(
    ItemRules,
    st.none() | st.builds(RetryRule, st.sampled_from(RetryKind), TIMES, TIMES, st.none() | st.floats(1, 9), TIMES),
    st.none() | st.integers(0, 99), TIMES, st.none() | TEXTS, TIMES, st.none() | st.booleans(),
)  # fmt: skip
SPECS = st.builds(
    ItemSpec, TEXTS, st.binary(), metadata=st.none() | st.binary(), headers=st.none() | st.dictionaries(TEXTS, TEXTS),
    priority=st.integers(-(1 << 31), (1 << 31) - 1), deliver_after_ms=TIMES, lease_ms=TIMES, expires_at_ms=TIMES,
    delivery=st.sampled_from(Delivery), dedup_key=TEXTS, fairness_key=st.none() | TEXTS,
    throttle_keys=st.none() | st.lists(TEXTS), weight=TIMES, rules=st.none() | RULES,
    dedup_until=st.none() | st.sampled_from(DedupUntil), on_duplicate=st.none() | st.sampled_from(OnDuplicate),
)  # fmt: skip


@pytest.mark.memory
@given(SPECS)
def test_a_row_has_the_whole_item(spec):
    assert item_of(json.dumps(spec_json(spec))) == spec
    assert spec_of_line(json.dumps(spec_json(spec), ensure_ascii=False).encode(), topic="other") == spec


@pytest.mark.memory
def test_times_count_from_the_add():
    spec = fixed_item(ItemSpec("a", b"", delay_ms=5_000, ttl_ms=60_000), "key", NOW_MS)
    assert (spec.delay_ms, spec.deliver_after_ms) == (None, NOW_MS + 5_000)
    assert (spec.ttl_ms, spec.expires_at_ms) == (None, NOW_MS + 60_000)
    assert spec.dedup_key == "key"
    assert fixed_item(ItemSpec("a", b"", dedup_key="own"), "key", NOW_MS) == ItemSpec("a", b"", dedup_key="own")


@pytest.mark.memory
@pytest.mark.parametrize(
    "spec",
    [ItemSpec("a", "text"), ItemSpec("a", b"", headers={"a": 1}), ItemSpec(1, b""), ItemSpec("a", b"", order_key="k")],
)
def test_a_wrong_item_is_refused(spec):
    with pytest.raises(Invalid):
        fixed_item(spec, "key", NOW_MS)


@pytest.mark.memory
def test_rows_of_other_programs_are_read_strictly():
    for text in ("", "[]", '{"topic": 1', '{"payload": 5}', '{"topic": "a", "unknown": 1}', '{"topic": "a"}'):
        with pytest.raises(Invalid):
            item_of(text)


@pytest.mark.process
def test_no_orm_is_imported():
    program = "import sys, foqs, foqs.outbox; assert 'sqlalchemy.orm' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.process
def test_without_sqlalchemy_the_line_to_install_is_named():
    program = "import sys; sys.modules['sqlalchemy'] = None; import foqs; import foqs.outbox"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "SQLAlchemy, which foqs.outbox needs, is not installed; the extra foqs[outbox] has it: " in ran.stderr


def task_of(app):
    @app.task(topic="mail")
    def send_mail(to: str, task: int = 0) -> None: ...

    return send_mail


@pytest.mark.threads
def test_a_commit_stores_and_a_rollback_does_not(rows):
    send_mail = task_of(rows.app)
    with rows.engine.connect() as connection:
        rows.outbox.add(connection, send_mail, "rolled back")
        connection.rollback()
        key = rows.outbox.add(connection, send_mail, "ada", task=5)
        connection.commit()
    with Session(rows.engine) as session:
        rows.outbox.add(session, send_mail, "eve")
        rows.outbox.add_item(session, ItemSpec("plain", b"\x00\xff"))
        session.commit()
        rows.outbox.add(session, send_mail, "rolled back")
    first, second, third = rows.all()
    assert first.id < second.id < third.id
    assert (first.attempted_at_ms, first.error) == (None, None)
    assert item_of(first.item).dedup_key == key
    assert json.loads(item_of(first.item).payload) == {"args": [], "kwargs": {"to": "ada", "task": 5}}
    assert item_of(third.item).payload == b"\x00\xff"


@pytest.mark.threads
def test_a_large_payload_fits(rows):
    with rows.engine.begin() as connection:
        rows.outbox.add_item(connection, ItemSpec("large", b"\xff" * 200_000))
    (row,) = rows.all()
    assert item_of(row.item).payload == b"\xff" * 200_000


@pytest.mark.memory
def test_wrong_arguments_store_nothing():
    app, statements = App(), []

    class Recorder:
        execute = statements.append

    outbox, send_mail = Outbox(MetaData()), task_of(app)
    for args, kwargs in (((), {}), (("ada", "no number"), {}), (("ada",), {"subject": "?"})):
        with pytest.raises(Invalid, match="task send_mail"):
            outbox.add(Recorder(), send_mail, *args, **kwargs)
    with pytest.raises(Invalid, match="ItemSpec"):
        outbox.add_item(Recorder(), b"no item")
    assert statements == []


@pytest.mark.server
@pytest.mark.threads
def test_an_async_session_runs_it(new_rows):
    rows = new_rows("postgresql")
    send_mail = task_of(rows.app)

    async def add():
        engine = create_async_engine(rows.url)
        async with AsyncSession(engine) as session, session.begin():
            with pytest.raises(Invalid, match="run_sync"):
                rows.outbox.add(session, send_mail, "ada")
            await session.run_sync(rows.outbox.add, send_mail, "ada", task=3)
        await engine.dispose()

    asyncio.run(add())
    (row,) = rows.all()
    assert json.loads(item_of(row.item).payload) == {"args": [], "kwargs": {"to": "ada", "task": 3}}


@pytest.mark.threads
def test_options_of_a_task_travel(new_rows):
    rows = new_rows("sqlite")
    begun = datetime.now(UTC)
    send_mail = task_of(rows.app).options(
        topic="bulk", priority=-7, delay=timedelta(hours=1), ttl=timedelta(hours=2), tenant="acme", weight=3,
        throttle=["smtp"], max_attempts=4, retry=RetryRule(RetryKind.CONSTANT, 900), keep=timedelta(minutes=3),
        headers={"a": "b"}, unique="welcome:1",
    )  # fmt: skip
    with rows.engine.begin() as connection:
        assert rows.outbox.add(connection, send_mail, "ada") == "welcome:1"
        rows.outbox.add(connection, send_mail.options(unique=None, at=begun, at_most_once=True, topic="once"), "eve")
    assert not rows.relay().round()
    assert rows.count() == 0
    (item,) = rows.client.list_items("bulk")
    assert (item.priority, item.fairness_key, item.throttle_keys) == (-7, "acme", ("smtp",))
    assert item.headers == {"a": "b", "foqs-task": "send_mail", "content-type": "application/json"}
    assert item.rules == ItemRules(RetryRule(RetryKind.CONSTANT, 900), 4, keep_ms=180_000)
    begun_ms = int(begun.timestamp() * 1000)
    assert 0 <= item.deliver_after_ms - begun_ms - 3_600_000 < 600_000
    assert item.expires_at_ms - item.deliver_after_ms == 3_600_000
    (once,) = rows.client.list_items("once")
    assert once.at_most_once
