"""Every transition of the shard driver's table, and the reports that must change nothing."""

from collections.abc import Callable

import pytest

from foqs.engine import shard_driver
from foqs.engine.shard_driver import (
    DRAIN_CHECK_MS,
    HELD_RETRY_MS,
    LOST_RETRY_MS,
    RETRY_MS,
    Changed,
    Close,
    Discard,
    Drain,
    End,
    Forget,
    NotOpened,
    Open,
    Prepare,
    Retire,
    Retry,
    Serve,
    ShardDriver,
    Step,
    Steps,
)
from foqs.ids import Mark
from foqs.opened import Opened
from foqs.shardmgr.lifecycle import ShardState, moved

ASSIGNED, OPENING, SERVING, DRAINING, CLOSED = ShardState
OPENED = Opened(7, 1, 0, 0, [], [], {}, 0, [], replaced=False)
REPLACED = Opened(7, 1, 0, 0, [], [], {}, 0, [], replaced=True)
N = 3


class Shard:
    def __init__(self) -> None:
        self.state = ASSIGNED
        self.owner = self  # the shard driver moves it

    def to(self, state: ShardState) -> None:
        self.state = moved(self.state, state)


class Host:
    """A shell with one shard that moves it as the engine does, and keeps the steps for the test to compare."""

    def __init__(self, *, static: bool = False, take_over: bool = True) -> None:
        self.shards = {N: Shard()}
        self.driver = ShardDriver(self.shards, static=static, take_over=take_over)
        self.attempt = 0

    def do(self, todo: Steps) -> list[Step]:
        for step in todo:
            match step:
                case Prepare(_, attempt):
                    self.attempt = attempt
                case Serve():
                    self.shards[N].to(SERVING)
                case Retire():
                    self.shards[N].to(DRAINING)
                case End():
                    self.shards[N].to(CLOSED)
                case Forget():
                    del self.shards[N]
        return todo

    @property
    def state(self) -> ShardState | None:
        return self.shards[N].state if N in self.shards else None

    # What brings a shard to a state.

    def opening(self, epoch_above: int = 0) -> "Host":
        self.do(self.driver.take(N, epoch_above))
        return self

    def serving(self) -> "Host":
        self.opening().do(self.driver.opened(N, self.attempt, OPENED))
        return self

    def draining(self, now_ms: int = 0) -> "Host":
        self.serving().do(self.driver.release(N, now_ms, 100))
        return self

    def failed(self, *, held: bool = False, down: bool = False, read_only: bool = False) -> "Host":
        self.opening().not_opened(held=held, down=down, read_only=read_only)
        return self

    def lost(self) -> "Host":
        self.serving().shards[N].to(CLOSED)
        self.do(self.driver.lost(N))
        return self

    def unwanted(self) -> "Host":
        assert self.opening().do(self.driver.release(N, 0, 100)) == []
        assert self.state is OPENING
        return self

    def not_opened(self, *, held: bool = False, down: bool = False, read_only: bool = False) -> list[Step]:
        return self.do(self.driver.not_opened(N, self.attempt, "why", held=held, down=down, read_only=read_only))

    def drained(self, now_ms: int = 0, *, idle: bool = True, in_grace: bool = False) -> list[Step]:
        return self.do(self.driver.drained(N, self.attempt, now_ms, idle=idle, in_grace=in_grace))


# ----------------------------------------------------------------------------------------- open


def test_a_taken_shard_is_prepared_and_opened() -> None:
    host, marks = Host(), {"a1": Mark(1, 2, 3)}
    assert host.do(host.driver.take(N, 5)) == [Prepare(N, 1), Changed()]
    assert host.state is OPENING
    assert host.driver.prepared(N, 1, marks) == [Open(N, 1, take_over=True, epoch_above=5, marks=marks)]
    assert host.do(host.driver.opened(N, 1, OPENED)) == [Serve(N, OPENED), Changed()]
    assert (host.state, host.driver.tried) == (SERVING, {N})


@pytest.mark.parametrize(("held", "pause_ms"), [(True, HELD_RETRY_MS), (False, RETRY_MS)])
def test_a_shard_that_does_not_open_is_tried_again(held: bool, pause_ms: int) -> None:
    host = Host().opening()
    assert host.not_opened(held=held) == [NotOpened(N, "why", held), Discard(N), Retry(N, 1, pause_ms), Changed()]
    assert (host.state, host.driver.tried) == (ASSIGNED, {N})


def test_a_retry_of_a_cluster_host_leaves_the_decision_to_facts() -> None:
    host = Host().failed()
    assert host.do(host.driver.retry(N, 1)) == [Forget(N), Changed()]
    assert host.state is None


def test_a_retry_of_a_static_host_opens_with_a_new_attempt() -> None:
    host = Host(static=True).failed()
    assert host.do(host.driver.retry(N, 1)) == [Prepare(N, 2)]
    assert host.state is OPENING


def test_the_epoch_bound_outlives_a_retry() -> None:
    host = Host(static=True).opening(epoch_above=9)
    host.not_opened()
    host.do(host.driver.retry(N, 1))
    assert host.driver.prepared(N, 2, None) == [Open(N, 2, take_over=True, epoch_above=9, marks=None)]


def test_a_database_that_is_down_is_reported_until_it_answers() -> None:
    host = Host(static=True).failed(down=True)
    assert host.driver.unreachable == {N}
    host.do(host.driver.retry(N, 1))
    host.not_opened(held=True)
    assert host.driver.unreachable == set()
    host.do(host.driver.retry(N, 2))
    host.not_opened(down=True)
    host.do(host.driver.retry(N, host.attempt))
    host.do(host.driver.opened(N, host.attempt, OPENED))
    assert host.driver.unreachable == set()


def test_a_read_only_database_is_reported_until_it_takes_writes() -> None:
    host = Host(static=True).failed(down=True, read_only=True)
    assert host.driver.unreachable == host.driver.read_only == {N}
    host.do(host.driver.retry(N, 1))
    host.not_opened(down=True)
    assert (host.driver.unreachable, host.driver.read_only) == ({N}, set())
    host.do(host.driver.retry(N, 2))
    host.not_opened(down=True, read_only=True)
    host.do(host.driver.retry(N, host.attempt))
    host.do(host.driver.opened(N, host.attempt, OPENED))
    assert host.driver.unreachable == host.driver.read_only == set()
    host = Host().failed(down=True, read_only=True)
    host.driver.keep_unreachable({N + 1})
    assert host.driver.read_only == set()


def test_unreachable_shards_of_other_hosts_are_dropped() -> None:
    host = Host().failed(down=True)
    host.driver.keep_unreachable({N})
    assert host.driver.unreachable == {N}
    host.driver.keep_unreachable({N + 1})
    assert host.driver.unreachable == set()


def test_an_unusable_url_waits_for_a_release_and_a_take() -> None:
    host = Host().opening()
    assert host.do(host.driver.unusable(N, 1)) == []
    assert host.state is ASSIGNED
    assert host.do(host.driver.release(N, 0, 100)) == [Forget(N), Changed()]


# ----------------------------------------------------------------------------------------- unwanted while opening


@pytest.mark.parametrize("report", ["prepared", "unusable"])
def test_an_unwanted_shard_is_not_even_opened(report: str) -> None:
    host = Host().unwanted()
    todo = host.driver.prepared(N, 1, None) if report == "prepared" else host.driver.unusable(N, 1)
    assert host.do(todo) == [Forget(N), Changed()]


@pytest.mark.parametrize(("opened", "clean"), [(OPENED, True), (REPLACED, False)])
def test_an_unwanted_shard_that_opens_is_closed_unserved(opened: Opened, clean: bool) -> None:
    """Not clean when an owner was replaced: that one may live, so the next owner has to wait as well."""
    host = Host().unwanted()
    assert host.do(host.driver.opened(N, 1, opened)) == [Close(N, 1, clean)]
    assert host.state is CLOSED
    assert host.do(host.driver.closed(N, 1)) == [Forget(N), Changed()]


def test_an_unwanted_shard_that_does_not_open_is_closed() -> None:
    host = Host().unwanted()
    assert host.not_opened(down=True) == [Close(N, 1, clean=False)]
    assert (host.state, host.driver.unreachable) == (CLOSED, {N})
    assert host.do(host.driver.closed(N, 1)) == [Forget(N), Changed()]


# ----------------------------------------------------------------------------------------- release


def test_a_released_shard_is_closed_once_it_is_idle() -> None:
    host = Host().serving()
    assert host.do(host.driver.release(N, 1_000, 100)) == [Retire(N), Changed(), Drain(N, 1, 0)]
    assert host.drained(1_000, idle=False) == [Drain(N, 1, DRAIN_CHECK_MS)]
    assert host.drained(1_010) == [End(N, in_order=True), Close(N, 1, clean=True)]
    assert host.do(host.driver.closed(N, 1)) == [Forget(N), Changed()]


@pytest.mark.parametrize(("idle", "in_grace"), [(False, False), (True, True), (False, True)])
def test_a_released_shard_may_be_closed_out_of_order(idle: bool, in_grace: bool) -> None:
    """Work is left at the deadline, or the owner that was replaced may still hand out items."""
    host = Host().draining(1_000)
    assert host.drained(1_100, idle=idle, in_grace=in_grace) == [End(N, in_order=False), Close(N, 1, clean=False)]


def test_a_waiting_shard_is_forgotten_on_release() -> None:
    host = Host().failed()
    assert host.do(host.driver.release(N, 0, 100)) == [Forget(N), Changed()]
    assert host.driver.retry(N, 1) == [], "the pause of a shard that is gone"


@pytest.mark.parametrize("bring", [Host.draining, Host.lost, Host.unwanted], ids=["draining", "lost", "unwanted"])
def test_a_second_release_changes_nothing(bring: Callable[[Host], Host]) -> None:
    host = bring(Host())
    before = host.state
    assert host.driver.release(N, 0, 100) == []
    assert host.state is before


def test_the_release_of_an_unknown_shard_changes_nothing() -> None:
    assert Host().driver.release(N + 1, 0, 100) == []


# ----------------------------------------------------------------------------------------- lost


@pytest.mark.parametrize("bring", [Host.serving, Host.draining], ids=["serving", "draining"])
def test_a_lost_shard_is_discarded_and_forgotten_later(bring: Callable[[Host], Host]) -> None:
    host = bring(Host())
    host.shards[N].to(CLOSED)
    assert host.driver.lost(N) == [Discard(N), Retry(N, 1, LOST_RETRY_MS), Changed()]
    assert host.driver.lost(N) == [], "once"
    assert host.driver.drained(N, 1, 0, idle=True, in_grace=False) == []
    assert host.do(host.driver.retry(N, 1)) == [Forget(N), Changed()]


def test_a_static_host_stands_by_after_a_loss() -> None:
    """It opens the shard again, but not from a living owner: two hosts would take it from each other in turn."""
    host = Host(static=True, take_over=True).serving()
    host.shards[N].to(CLOSED)
    assert host.driver.lost(N) == [Discard(N), Retry(N, 1, HELD_RETRY_MS), Changed()]
    assert host.do(host.driver.retry(N, 1)) == [Prepare(N, 2)]
    assert host.driver.prepared(N, 2, None) == [Open(N, 2, take_over=False, epoch_above=0, marks=None)]


def test_a_shard_that_is_handed_over_is_not_lost() -> None:
    host = Host().draining()
    host.drained()
    assert host.driver.lost(N) == []


# ----------------------------------------------------------------------------------------- stop


def test_a_stopping_host_opens_and_retries_nothing() -> None:
    opening, failed, new = Host().opening(), Host(static=True).failed(), Host()
    for host in (opening, failed, new):
        host.driver.stop()
    assert opening.driver.prepared(N, 1, None) == []
    assert failed.driver.retry(N, 1) == []
    assert new.driver.take(N) == []


@pytest.mark.parametrize("bring", [Host.serving, Host.draining], ids=["serving", "draining"])
@pytest.mark.parametrize("in_order", [True, False])
def test_a_stopping_host_ends_its_served_shards(bring: Callable[[Host], Host], in_order: bool) -> None:
    host = bring(Host())
    host.driver.stop()
    assert host.driver.drained(N, 1, 0, idle=True, in_grace=False) == [], "`ended` closes it"
    assert host.do(host.driver.ended(() if in_order else {N})) == [End(N, in_order), Close(N, 1, in_order)]
    assert host.driver.closed(N, 1) == []


@pytest.mark.parametrize(("opened", "clean"), [(OPENED, True), (REPLACED, False)])
def test_a_shard_opened_while_stopping_is_not_served(opened: Opened, clean: bool) -> None:
    host = Host().opening()
    host.driver.stop()
    assert host.do(host.driver.opened(N, 1, opened)) == [Close(N, 1, clean)]
    assert host.state is CLOSED
    assert host.driver.ended(()) == [], "it is closed already"


def test_a_shard_that_fails_to_open_while_stopping_is_closed() -> None:
    host = Host().opening()
    host.driver.stop()
    assert host.not_opened() == [Close(N, 1, clean=False)]


def test_a_stop_closes_a_store_that_is_still_opening() -> None:
    host = Host().opening()
    host.driver.stop()
    assert host.do(host.driver.ended(())) == [Close(N, 1, clean=False)]


@pytest.mark.parametrize("bring", [Host.failed, Host.lost], ids=["failed", "lost"])
def test_a_stop_has_nothing_to_close_without_a_store(bring: Callable[[Host], Host]) -> None:
    host = bring(Host())
    host.driver.stop()
    assert host.driver.ended(()) == []


def test_a_hand_over_that_began_is_not_closed_twice() -> None:
    host = Host().draining()
    host.drained()
    host.driver.stop()
    assert host.driver.ended(()) == []
    assert host.driver.lost(N) == []


# ----------------------------------------------------------------------------------------- stale reports


def test_reports_of_an_earlier_attempt_change_nothing() -> None:
    host = Host(static=True).failed()
    host.do(host.driver.retry(N, 1))
    for stale in (
        host.driver.prepared(N, 1, None),
        host.driver.unusable(N, 1),
        host.driver.opened(N, 1, OPENED),
        host.driver.not_opened(N, 1, "why", held=False, down=True),
        host.driver.retry(N, 1),
        host.driver.drained(N, 1, 0, idle=True, in_grace=False),
        host.driver.closed(N, 1),
    ):
        assert stale == []
    assert (host.state, host.driver.unreachable) == (OPENING, set())


def test_the_table_in_the_docstring_names_every_step() -> None:
    table = shard_driver.__doc__ or ""
    names = [step.__name__ for step in Step.__args__ if step is not Changed]
    assert [name for name in names if name not in table] == []
