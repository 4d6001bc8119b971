"""The settings of a lone host: in the database of each of its shards, written by the shards' owner alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from structlog.testing import capture_logs

from foqs.errors import FoqsError, OutcomeUnknown, Unavailable
from foqs.opened import Opened
from foqs.peers.settings_sync import HostSettings
from foqs.policies.settings import Settings
from foqs.rows import SettingRow
from foqs.server.settings import ShardSettings
from foqs.server.settings_copies import COMPLETE
from foqs.server.shard_worker import worker_of
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
        self.kept = ShardSettings([NUMBER], self.settings, lambda: {NUMBER: self.worker}, self._later)
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
        refused: list[str] = []
        self.kept.settle(NUMBER, outcomes[0].settings, refused.append)
        assert refused == [""]
        self.kept.copies.opened(NUMBER, outcomes[0].settings)
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
    assert host.engine.state.policies.of(("ns", "t")).paused


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


# ------------------------------------------------------------------------------------------ outcomes of the thread


class Thread:
    """The thread of one shard: its calls run when the test says so, on settings in memory, or end in an error."""

    def __init__(self) -> None:
        self.stored: dict[str, Settings] = {}
        self.calls: list[tuple[Callable[[ShardStore], Settings], Callable[[Settings | Exception], None]]] = []

    def call(self, work: Callable[[ShardStore], Settings], done: Callable[[Settings | Exception], None]) -> None:
        self.calls.append((work, done))

    def change_settings(self, ns: str, change: Callable[[Settings], Settings]) -> Settings:
        before = self.stored.get(ns) or Settings(ns)
        made = change(before)
        if made is not before:
            self.stored[ns] = made
        return made

    def run(self, error: Exception | None = None) -> None:
        work, done = self.calls.pop(0)
        try:
            outcome: Settings | Exception = work(self) if error is None else error  # type: ignore[arg-type]
        except Exception as raised:  # noqa: BLE001 - as the shard's thread
            outcome = raised
        done(outcome)

    def rows(self) -> list[SettingRow]:
        return [SettingRow(ns.encode(), settings.encoded()) for ns, settings in self.stored.items()]


class Parts:
    """`ShardSettings` of a host with shards 1 to `shards`, without databases. All but the `new` ones were served."""

    def __init__(self, shards: int = 1, new: tuple[int, ...] = ()) -> None:
        self.threads = {number: Thread() for number in range(1, shards + 1)}
        for number in self.threads.keys() - set(new):
            self.threads[number].stored[""] = COMPLETE
        self.open: list[int] = []
        self.timers: list[Callable[[], None]] = []
        self.settings = HostSettings(Laboratory(1).engine)
        self.kept = ShardSettings(
            self.threads,
            self.settings,
            lambda: {number: self.threads[number] for number in self.open},
            lambda _, do: self.timers.append(do),
        )
        self.told: list[Settings | FoqsError] = []
        self.refused: dict[int, str] = {}

    def put(self, text: str = "1") -> None:
        def change(settings: Settings) -> Settings:
            return settings.changed({"a": text}, (), nonce=text)

        self.kept.change_settings("ns", change, self.told.append)

    def opens(self, *numbers: int) -> None:
        """The shards are opened one after another; those that may be served are served."""
        for number in numbers:
            self.kept.settle(number, self.threads[number].rows(), partial(self._settled, number))

    def _settled(self, number: int, reason: str) -> None:
        self.refused[number] = reason
        if not reason:
            self.open.append(number)
            self.open.sort()
            self.kept.copies.opened(number, self.threads[number].rows())

    def work(self) -> None:
        while any(thread.calls for thread in self.threads.values()):
            for thread in self.threads.values():
                if thread.calls:
                    thread.run()

    def stored(self) -> list[int]:
        """The version of each shard's copy."""
        return [thread.stored.get("ns", Settings("ns")).version for thread in self.threads.values()]


def versions(*nonces: str, start: Settings | None = None) -> Settings:
    settings = start or Settings("ns")
    for nonce in nonces:
        settings = settings.changed({"a": nonce}, (), nonce=nonce)
    return settings


def test_after_an_unknown_outcome_the_settings_are_read() -> None:
    """Until that succeeds: the host acts on the stored settings then."""
    parts = Parts()
    parts.opens(1)
    parts.put()
    thread = parts.threads[1]
    thread.run(CommitUnknown("lost"))
    assert isinstance(parts.told[0], OutcomeUnknown)
    thread.stored["ns"] = stored = versions("1")
    parts.timers.pop()()
    thread.run(StoreDown("gone"))
    assert parts.settings.of("ns").version == 0
    parts.timers.pop()()
    thread.run()
    assert parts.settings.of("ns") == stored
    assert (parts.timers, len(parts.told)) == ([], 1)


def test_without_its_shard_a_host_changes_nothing() -> None:
    parts = Parts()
    parts.put()
    assert parts.told == [], "called back before it returned"
    parts.timers.pop()()
    assert [type(error) for error in parts.told] == [Unavailable]


def test_a_fault_is_logged_without_its_text_in_the_answer() -> None:
    parts = Parts()
    parts.opens(1)
    parts.put()
    with capture_logs() as lines:
        parts.threads[1].run(ZeroDivisionError("secret"))
    assert [line["event"] for line in lines] == ["settings.failed"]
    assert [str(error) for error in parts.told] == ["internal error"]


def test_an_unreadable_document_is_logged() -> None:
    parts, row = Parts(), SettingRow(b"ns", versions("1", "2", "3").encoded())
    refused: list[str] = []
    with capture_logs() as lines:
        parts.kept.settle(1, [SettingRow(b"bad", b"{"), row], refused.append)
    assert [(line["event"], line["ns"]) for line in lines] == [("settings.not_read", "bad")]
    assert (parts.kept.known, parts.settings.of("ns").version, refused) == (True, 3, [""])


# ------------------------------------------------------------------------------------------ several shards


def test_every_shard_gets_a_change() -> None:
    parts = Parts(3)
    parts.opens(1, 2, 3)
    parts.put()
    parts.work()
    assert (parts.stored(), len(parts.told)) == ([1, 1, 1], 1)
    assert [thread.stored["ns"] for thread in parts.threads.values()] == parts.told * 3


def test_a_change_is_confirmed_by_a_majority() -> None:
    """The database of shard 3 hangs."""
    parts = Parts(3)
    parts.opens(1, 2, 3)
    parts.put()
    parts.threads[1].run()
    assert (parts.settings.of("ns").version, parts.told) == (1, []), "in effect here, and not safe yet"
    parts.threads[2].run()
    assert [type(told) for told in parts.told] == [Settings]
    parts.threads[3].run(StoreDown("gone"))
    parts.put("2")
    for number in (1, 2):
        parts.threads[number].run()
    assert (parts.stored(), len(parts.told)) == ([2, 2, 0], 2)
    for timer in parts.timers:
        timer()
    parts.work()
    assert (parts.stored(), len(parts.told)) == ([2, 2, 2], 2)


def test_a_change_without_a_majority_is_unknown() -> None:
    parts = Parts(3)
    parts.opens(1, 2, 3)
    parts.put()
    parts.threads[1].run()
    parts.timers.pop()()
    assert [type(told) for told in parts.told] == [OutcomeUnknown]
    assert "in shard 1 alone" in str(parts.told[0])
    assert parts.settings.of("ns").version == 1


def test_a_change_is_refused_where_no_majority_is_open() -> None:
    parts = Parts(3)
    parts.opens(2, 3)
    parts.open.remove(2)
    parts.put()
    parts.timers.pop()()
    assert isinstance(parts.told[0], Unavailable)
    assert "shard 1, 2 is not served" in str(parts.told[0])


def test_no_shard_is_served_before_a_majority_is_open() -> None:
    """The lowest shard was away during the last change, and has an old copy."""
    parts = Parts(3)
    old = versions("1")
    new = versions("2", start=old)
    parts.threads[1].stored["ns"] = old
    parts.threads[2].stored["ns"] = parts.threads[3].stored["ns"] = new
    parts.opens(1)
    assert (parts.refused, parts.kept.known) == ({}, False)
    parts.opens(3)
    assert parts.refused == {1: "", 3: ""}
    assert parts.settings.of("ns") == new
    parts.work()
    assert parts.stored() == [2, 2, 2]
    parts.opens(2)
    assert parts.refused[2] == ""


def test_of_two_shards_the_lower_one_suffices() -> None:
    for number, known in ((1, True), (2, False)):
        parts = Parts(2)
        parts.opens(number)
        assert parts.kept.known is known


def test_a_host_without_a_majority_gives_its_shards_up() -> None:
    """Another host may need them for its own majority. The host with the lowest shard keeps them for longer."""
    high, low = Parts(3), Parts(3)
    high.opens(2)
    low.opens(1)
    with capture_logs() as lines:
        high.timers.pop()()
        low.timers.pop(0)()
    assert [line["event"] for line in lines] == ["settings.waiting"] * 2
    assert "shard 1, 3 is not" in high.refused[2]
    assert low.refused == {}
    low.timers.pop()()
    assert "shard 2, 3 is not" in low.refused[1]
    low.opens(1, 2)
    assert low.refused == {1: "", 2: ""}


def test_a_timer_of_an_earlier_wait_refuses_nothing() -> None:
    parts = Parts(3)
    parts.opens(2)
    first = parts.timers.pop()
    first()
    parts.opens(2)
    first()
    assert parts.kept._opened.keys() == {2}


def test_a_newer_copy_in_a_shard_that_opens_late_counts() -> None:
    """It is from a cluster, or from a host that had other shards."""
    parts = Parts(3)
    old = versions("1")
    parts.threads[1].stored["ns"] = parts.threads[2].stored["ns"] = old
    parts.threads[3].stored["ns"] = new = versions("2", "3", start=old)
    parts.opens(1, 2, 3)
    assert (parts.refused[3], parts.settings.of("ns")) == ("", new)
    parts.work()
    assert parts.stored() == [3, 3, 3]


def test_shards_of_two_hosts_are_not_served_together() -> None:
    """The settings of neither count for the items of the other. The reason names both, and the commands."""
    parts = Parts(2)
    ours, theirs = versions("1"), versions("5", "6")
    parts.threads[1].stored["ns"] = ours
    parts.threads[2].stored["ns"] = theirs
    parts.opens(1)
    parts.opens(2)
    assert (parts.refused[1], parts.settings.of("ns")) == ("", ours)
    for words in (
        "namespace ns in shard 2 (version 2)",
        "in this host (version 1)",
        "foqs shards settings 2 --discard",
    ):
        assert words in parts.refused[2]
    parts.work()
    assert parts.threads[2].stored["ns"] == theirs
    del parts.threads[2].stored["ns"]
    parts.opens(2)
    parts.work()
    assert (parts.refused[2], parts.threads[2].stored["ns"]) == ("", ours)


def test_a_host_whose_majority_disagrees_serves_nothing() -> None:
    parts = Parts(3)
    parts.threads[1].stored["ns"] = versions("1")
    parts.threads[2].stored["ns"] = versions("5", "6")
    parts.opens(1, 2)
    assert (parts.kept.known, parts.settings.of("ns").version) == (False, 0)
    for number in (1, 2):
        for words in ("shard 1 (version 1)", "shard 2 (version 2)", "`foqs shards settings 2 --discard`"):
            assert words in parts.refused[number]


@pytest.mark.parametrize("numbers", [(1, 2, 3), (3, 2, 1), (2, 3), (3,)])
def test_another_set_of_shards_finds_the_settings(numbers: tuple[int, ...]) -> None:
    """The lowest shard was removed from foqs.toml, or the file lists the shards in another order."""
    before = Parts(3)
    before.opens(1, 2, 3)
    before.put()
    before.work()
    after = Parts(3)
    after.threads = {number: before.threads[number] for number in numbers}
    after.kept = ShardSettings(
        after.threads,
        after.settings,
        lambda: {number: after.threads[number] for number in after.open},
        lambda _, do: after.timers.append(do),
    )
    after.opens(*numbers)
    assert after.settings.of("ns") == before.settings.of("ns")


@pytest.mark.parametrize("shards", [2, 3, 4])
def test_a_new_lowest_shard_hides_nothing(shards: int) -> None:
    """It has no vote, although of two or four shards the lowest has two."""
    parts = Parts(shards, new=(1,))
    for number in range(2, shards + 1):
        parts.threads[number].stored["ns"] = versions("1")
    parts.opens(1)
    assert (parts.refused, parts.kept.known) == ({}, False)
    parts.opens(2, *((3,) if shards > 2 else ()))
    parts.work()
    assert (parts.settings.of("ns").version, parts.stored()[:2]) == (1, [1, 1])
    assert parts.threads[1].stored[""] == COMPLETE


def test_the_first_host_on_new_shards_waits_for_all_of_them() -> None:
    parts = Parts(3, new=(1, 2, 3))
    parts.opens(1, 2)
    assert not parts.kept.known
    parts.opens(3)
    parts.work()
    assert parts.kept.known
    assert all(thread.stored == {"": COMPLETE} for thread in parts.threads.values())


def test_a_new_shard_that_no_host_can_serve_is_left_out() -> None:
    """Where a shard was served before, it may have been the only one with the newest copy."""
    for first in (True, False):
        parts = Parts(2, new=(1, 2))
        if first:
            parts.kept.unusable(2)
        parts.opens(1)
        assert parts.kept.known is first
        if not first:
            parts.kept.unusable(2)
        assert (parts.kept.known, parts.refused) == (True, {1: ""})
    old = Parts(3)
    old.opens(3)
    for number in (1, 2):
        old.kept.unusable(number)
    assert not old.kept.known


def test_a_shard_is_complete_after_its_last_copy() -> None:
    parts = Parts(2, new=(1,))
    parts.threads[2].stored |= {ns: Settings(ns).changed({"a": ns}, ()) for ns in ("x", "y")}
    parts.opens(1, 2)
    for _ in range(3):
        parts.threads[1].run()
    assert list(parts.threads[1].stored) == ["x", "y", ""]


def test_a_shard_that_closes_gets_the_last_copies() -> None:
    parts = Parts(2)
    parts.opens(1, 2)
    parts.put()
    parts.threads[1].run()
    parts.threads[2].run(StoreDown("gone"))
    parts.kept.copies.closing(2, parts.threads[2])
    parts.threads[2].run()
    assert parts.stored() == [1, 1]


def test_a_stored_copy_that_lags_is_no_base_of_a_change() -> None:
    """The copy of the lowest shard could not be written when it was opened."""
    parts = Parts(3)
    parts.threads[1].stored["ns"] = old = versions("1")
    parts.threads[2].stored["ns"] = parts.threads[3].stored["ns"] = versions("2", "3", start=old)
    parts.opens(1, 2)
    parts.threads[1].run(StoreDown("gone"))
    parts.put("4")
    parts.work()
    assert (parts.stored()[:2], parts.settings.of("ns").version) == ([4, 4], 4)
    assert isinstance(parts.told[0], Settings)
