"""The settings of a lone host: in its lowest shard's database, written by the shard's owner alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from foqs.errors import FoqsError, OutcomeUnknown, Unavailable
from foqs.peers.settings_sync import HostSettings
from foqs.policies.settings import Settings
from foqs.rows import Opened, SettingRow
from foqs.server.shard_settings import ShardSettings
from foqs.server.shard_worker import worker_of
from foqs.store.link import Database
from foqs.store.protocol import CommitUnknown, ShardStore, StoreDown, StoreError
from tests.conftest import SHARD_KINDS
from tests.engine.laboratory import Laboratory
from tests.policies.settings_contract import Keeper, SettingsContract
from tests.store.proxy import Break
from tests.store.shards import NUMBER, ServerShard, SqliteShard
from tests.support.waiting import wait_until


@pytest.fixture
def shard(shard_kind: str, shard_url: str) -> Iterator[ServerShard | SqliteShard]:
    made = SqliteShard(shard_url) if shard_kind == "sqlite" else ServerShard(shard_url)
    yield made
    made.close()


class Host:
    """The worker of one shard, on a loop that runs in `until` only."""

    def __init__(self, shard: ServerShard | SqliteShard) -> None:
        self.loop = asyncio.new_event_loop()
        self.store: ShardStore = shard.store()
        self.worker = worker_of(self.store, "shard", self.loop, self.loop.call_soon_threadsafe)
        self.engine = Laboratory(1).engine
        self.settings = HostSettings(self.engine)
        self.timers: list[Callable[[], None]] = []
        self.kept = ShardSettings(NUMBER, self.settings, lambda: self.worker, self._later)
        self.opened = self.open()
        self.keeper = Keeper(self.kept, self.until)

    def _later(self, after_ms: int, do: Callable[[], None]) -> None:
        if after_ms:
            self.timers.append(do)
        else:
            self.loop.call_soon(do)

    def open(self) -> Opened:
        outcomes: list[Opened | StoreError] = []
        self.worker.open("host", take_over=True, done=outcomes.append)
        self.until(lambda: outcomes)
        assert isinstance(outcomes[0], Opened), outcomes
        self.kept.opened(NUMBER, outcomes[0].settings)
        return outcomes[0]

    def until(self, condition: Callable[[], object]) -> None:
        wait_until(condition, pause=lambda seconds: self.loop.run_until_complete(asyncio.sleep(seconds)))

    def close(self) -> None:
        closed: list[bool] = []
        self.worker.close(lambda: closed.append(True), clean=True)
        self.until(lambda: closed)
        self.loop.close()


@pytest.fixture
def host(shard: ServerShard | SqliteShard) -> Iterator[Host]:
    made = Host(shard)
    yield made
    made.close()


class TestShardSettings(SettingsContract):
    @pytest.fixture
    def keeper(self, host: Host) -> Keeper:
        return host.keeper

    @pytest.fixture
    def other_keeper(self, host: Host) -> Keeper:
        return host.keeper


def test_a_change_is_in_effect_at_its_outcome(host: Host) -> None:
    made = host.keeper.put("ns", {"topic.t": '{"paused": true}'})
    assert host.settings.of("ns") == made
    assert host.engine.policies.of(("ns", "t")).paused


def test_an_opening_reads_all_namespaces(shard: ServerShard | SqliteShard) -> None:
    first = Host(shard)
    made = [first.keeper.put(ns, {"a": "1"}) for ns in ("ns", "ä")]
    first.close()
    again = Host(shard)
    assert again.kept.known
    assert [again.settings.of(settings.ns) for settings in made] == made
    assert again.keeper.put("ns", {"b": "2"}, expected=1).entries == {"a": "1", "b": "2"}
    again.close()


def test_a_host_that_lost_the_shard_changes_nothing(host: Host, shard: ServerShard | SqliteShard) -> None:
    before = host.keeper.put("ns", {"a": "1"})
    owner = Host(shard)
    with pytest.raises(Unavailable, match="another owner has the shard"):
        host.keeper.put("ns", {"a": "2"})
    assert owner.settings.of("ns") == host.settings.of("ns") == owner.keeper.read("ns") == before
    owner.close()


@pytest.mark.parametrize("shard_kind", SHARD_KINDS[1:], indirect=True)
@pytest.mark.parametrize("arrives", [True, False])
def test_a_commit_without_an_answer_is_looked_up(host: Host, shard: ServerShard, arrives: bool) -> None:
    host.keeper.put("ns", {"a": "1"})
    shard.proxy(host.store).arm(Break("COMMIT", arrives=arrives))
    made = host.keeper.put("ns", {"b": "2"}, "a", expected=1)
    assert made == Settings("ns", 2, {"b": "2"}) == host.keeper.read("ns") == host.settings.of("ns")


@pytest.mark.parametrize("shard_kind", SHARD_KINDS[:1], indirect=True)
def test_a_schema_without_the_table_keeps_no_settings(shard_url: str) -> None:
    shard = SqliteShard(shard_url)
    with Database(shard_url).connect() as connection:
        connection.execute(text("DROP TABLE setting"))
        connection.execute(text("UPDATE shard SET version = 1"))
    host = Host(shard)
    assert host.kept.known
    with pytest.raises(Unavailable, match="foqs shards migrate"):
        host.keeper.put("ns", {"a": "1"})
    host.close()


# ------------------------------------------------------------------------------------------ outcomes of the thread


class Thread:
    """A shard's thread whose calls end as the test says."""

    def __init__(self) -> None:
        self.calls: list[Callable[[Settings | Exception], None]] = []

    def call(self, work: Callable[[ShardStore], Settings], done: Callable[[Settings | Exception], None]) -> None:
        self.calls.append(done)


class Parts:
    """`ShardSettings` without a database."""

    def __init__(self) -> None:
        self.thread: Thread | None = Thread()
        self.timers: list[Callable[[], None]] = []
        self.settings = HostSettings(Laboratory(1).engine)
        self.kept = ShardSettings(1, self.settings, lambda: self.thread, lambda _, do: self.timers.append(do))
        self.told: list[Settings | FoqsError] = []

    def put(self) -> None:
        self.kept.change_settings("ns", lambda settings: settings.changed({"a": "1"}, ()), self.told.append)


def test_after_an_unknown_outcome_the_settings_are_read() -> None:
    """Until that succeeds: the host acts on the stored settings then."""
    parts = Parts()
    parts.put()
    assert parts.thread is not None
    parts.thread.calls.pop()(CommitUnknown("lost"))
    assert isinstance(parts.told[0], OutcomeUnknown)
    stored = Settings("ns", 1, {"a": "1"})
    for outcome in (StoreDown("gone"), stored):
        assert parts.settings.of("ns").version == 0
        parts.timers.pop()()
        parts.thread.calls.pop()(outcome)
    assert parts.settings.of("ns") == stored
    assert (parts.timers, len(parts.told)) == ([], 1)


def test_without_its_shard_a_host_changes_nothing() -> None:
    parts = Parts()
    parts.thread = None
    parts.put()
    assert parts.told == [], "called back before it returned"
    parts.timers.pop()()
    assert [type(error) for error in parts.told] == [Unavailable]


def test_a_fault_is_logged_without_its_text_in_the_answer() -> None:
    parts = Parts()
    parts.put()
    assert parts.thread is not None
    with capture_logs() as lines:
        parts.thread.calls.pop()(ZeroDivisionError("secret"))
    assert [line["event"] for line in lines] == ["settings.failed"]
    assert [str(error) for error in parts.told] == ["internal error"]


def test_only_the_lowest_shard_has_settings() -> None:
    parts, row = Parts(), SettingRow(b"ns", Settings("ns", 3, {"a": "1"}).encoded())
    parts.kept.opened(2, [row])
    assert (parts.kept.known, parts.settings.of("ns").version) == (False, 0)
    parts.kept.opened(1, [row])
    assert (parts.kept.known, parts.settings.of("ns").version) == (True, 3)


def test_an_unreadable_document_is_logged() -> None:
    parts = Parts()
    with capture_logs() as lines:
        parts.kept.opened(1, [SettingRow(b"bad", b"{"), SettingRow(b"ns", Settings("ns", 3, {}).encoded())])
    assert [(line["event"], line["ns"]) for line in lines] == [("settings.not_read", "bad")]
    assert (parts.kept.known, parts.settings.of("ns").version) == (True, 3)
