"""kazoo's store keeps the contract on a real ZooKeeper; and what only a real one can do to it."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import ExitStack

import pytest
from kazoo.client import KazooClient

from foqs.shardmgr.facts import Assignment, Facts, OwnerFact, Session, ShardFact, encode_shard
from foqs.zk.link import LoopHandler
from foqs.zk.protocol import ZkError, ZkRefused, ZkUnavailable, ZkUnknown
from tests.zk.contract import CONNECTED, EXPIRED, SUSPENDED, Client, FactStoreContract, Rig, host
from tests.zk.loss_contract import LossContract, LossRig
from tests.zk.rig import ZookeeperRig

pytestmark = [pytest.mark.server, pytest.mark.zookeeper]

SHORT_MS = 5_000
"""A session that is to end soon. One of a second kazoo gives up when the server is held up for 0.2 s."""


class TestZookeeper(FactStoreContract):
    @pytest.fixture
    def rig(self, zk_rig: ZookeeperRig) -> Rig:
        return zk_rig


class TestLoss(LossContract):
    @pytest.fixture
    def loss_rig(self, own_rig: ZookeeperRig) -> LossRig:
        return own_rig


# ---------------------------------------------------------------------------------------------- a server's faults


def test_a_restart_of_the_server_ends_no_session(own_rig: ZookeeperRig) -> None:
    a, b = Client(own_rig), Client(own_rig)
    a.join(host("a"))
    assert a.own(1, "a", 1) is None
    b.sees(lambda facts: facts.hosts and facts.owners)
    own_rig.server.kill()
    own_rig.until(lambda: SUSPENDED in a.sessions and SUSPENDED in b.sessions)
    told = len(b.told)
    assert isinstance(a.own(2, "a", 1), ZkUnavailable)
    own_rig.server.start()
    own_rig.until(lambda: len(b.told) > told and a.sessions[-1] is CONNECTED)
    assert a.sessions == b.sessions == [CONNECTED, SUSPENDED, CONNECTED]
    assert (set(b.facts.hosts), b.facts.controller, set(b.facts.owners)) == ({"a"}, "a", {1})
    assert a.own(2, "a", 1) is None
    b.sees(lambda facts: set(facts.owners) == {1, 2})


def test_a_server_that_hangs_for_longer_than_the_time_out(own_rig: ZookeeperRig) -> None:
    a = Client(own_rig, session_ms=SHORT_MS)
    a.join(host("a"))
    assert a.own(1, "a", 1) is None
    own_rig.server.pause()
    own_rig.until(lambda: SUSPENDED in a.sessions)
    outcome = a.own(2, "a", 1)
    assert isinstance(outcome, ZkUnavailable)
    hung = time.monotonic()
    own_rig.until(lambda: time.monotonic() > hung + 1.5 * SHORT_MS / 1_000)
    own_rig.server.resume()
    own_rig.until(lambda: a.sessions[-1] is CONNECTED)
    # The server decides whether the session was over: it may have read from the client before it checked. It also reads
    # from connections that the client has given up, in any order, and each ends the one before it.
    told = [state for state in a.sessions if state is not EXPIRED]
    assert told == [CONNECTED, SUSPENDED] * (len(told) // 2) + [CONNECTED]
    assert len(told) >= 3 and a.sessions.count(EXPIRED) <= 1
    a.sees(lambda facts: set(facts.hosts) == {"a"} and facts.controller == "a")


def test_a_server_that_is_silent_once_costs_no_session(own_rig: ZookeeperRig) -> None:
    """It takes the connection, and never answers on it: the next one is tried while there is time."""
    a = Client(own_rig, session_ms=15_000)
    a.join(host("a"))
    assert a.own(1, "a", 1) is None
    a.sees(lambda facts: 1 in facts.owners)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        own_rig.cut(a.store, "{}:{}".format(*silent.getsockname()))
        with silent.accept()[0]:
            own_rig.until(lambda: SUSPENDED in a.sessions)
            own_rig.mend(a.store)
            own_rig.until(lambda: a.sessions[-1] is CONNECTED)
    assert a.sessions == [CONNECTED, SUSPENDED, CONNECTED]
    a.sees(lambda facts: set(facts.hosts) == {"a"} and facts.owners[1].epoch == 1)


def test_a_server_without_connections_is_given_up() -> None:
    loop = asyncio.new_event_loop()
    handler = LoopHandler(loop, lambda: None, patience_s=0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as stack:
        for _ in range(2):  # those that the system takes for it
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        with pytest.raises(TimeoutError):
            handler.create_connection(full.getsockname(), timeout=300)
    loop.close()


def test_requests_in_flight_at_a_hang_are_unknown(own_rig: ZookeeperRig) -> None:
    a = Client(own_rig, session_ms=SHORT_MS)
    own_rig.server.pause()
    outcomes = [
        a.doing(lambda done, n=n: a.store.put_shard(ShardFact(n, "x"), new=True, done=done)) for n in range(1, 301)
    ]
    own_rig.until(lambda: all(outcomes))
    kinds = [type(error) for (error,) in outcomes]
    assert set(kinds[:100]) == {ZkUnknown}
    assert set(kinds) == {ZkUnknown, ZkUnavailable}
    own_rig.server.resume()
    own_rig.until(lambda: a.sessions[-1] is CONNECTED)
    a.sees(lambda facts: set(facts.shards) <= set(range(1, 301)))


def test_facts_read_at_a_connection_loss_are_not_reported(zk_rig: ZookeeperRig) -> None:
    """The last answer and the end of the connection arrive in one turn of the loop; facts are reported in the next."""
    a = Client(zk_rig)
    zk_rig.loop.call_soon(a.store._view.shards.put, "1", encode_shard(ShardFact(1, "x")), 0)
    zk_rig.loop.call_soon(a.store._down, False)
    zk_rig.until(lambda: a.sessions == [CONNECTED, SUSPENDED])
    zk_rig.loop.run_until_complete(asyncio.sleep(0.01))
    assert a.told == [Facts()]


def test_it_goes_on_trying_before_the_first_connection(own_rig: ZookeeperRig) -> None:
    own_rig.server.stop()
    store, sessions = own_rig.store(), []
    store.start(lambda facts: None, sessions.append)
    store.join(host("a"))
    outcomes: list[ZkError | None] = []
    store.own(OwnerFact(1, "a", "a:1", 1), outcomes.append)
    own_rig.until(lambda: outcomes)
    assert isinstance(outcomes[0], ZkUnavailable)
    assert sessions == []
    own_rig.server.start()
    b = Client(own_rig)
    b.sees(lambda facts: set(facts.hosts) == {"a"})
    assert sessions == [Session.CONNECTED]


def test_kazoo_s_thread_may_die(zk_rig: ZookeeperRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread dies at unexpected answers, such as an unknown error code."""
    a, b = Client(zk_rig), Client(zk_rig)
    a.join(host("a"))
    b.sees(lambda facts: facts.hosts)
    dying = zk_rig.kazoo(a.store)

    def die(*_: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("Invalid error code")

    monkeypatch.setattr(dying._connection, "_read_socket", die)
    assert b.put(ShardFact(2, "x"), new=True) is None  # of which it has to read
    zk_rig.until(lambda: EXPIRED in a.sessions and a.sessions[-1] is CONNECTED)
    assert zk_rig.kazoo(a.store) is not dying
    a.sees(lambda facts: set(facts.hosts) == {"a"} and facts.controller == "a")
    assert b.put(ShardFact(1, "x"), new=True) is None
    a.sees(lambda facts: set(facts.shards) == {1, 2})


# ---------------------------------------------------------------------------------------------- records and sizes


def test_two_thousand_shards_are_loaded_and_reported_once(zk_rig: ZookeeperRig) -> None:
    a = Client(zk_rig)
    outcomes = [
        a.doing(lambda done, n=n: a.store.put_shard(ShardFact(n, f"sqlite:///{n}"), new=True, done=done))
        for n in range(1, 2_001)
    ]
    zk_rig.until(lambda: all(outcomes))
    assert {error for (error,) in outcomes} == {None}
    began = time.monotonic()
    b = Client(zk_rig)
    assert time.monotonic() - began < 30  # a third of a second on two quiet cores
    assert len(b.told) == 1
    assert len(b.facts.shards) == 2_000
    assert a.put(ShardFact(1_000, "elsewhere"), new=False) is None
    b.sees(lambda facts: facts.shards[1_000].url == "elsewhere")


def test_a_record_that_is_too_large_is_refused(zk_rig: ZookeeperRig) -> None:
    a = Client(zk_rig)
    refused = a.put(ShardFact(1, "secret" * 400_000), new=True)
    assert isinstance(refused, ZkRefused)
    assert "secret" not in str(refused)
    assert a.put(ShardFact(1, "x"), new=True) is None
    assert a.sessions == [CONNECTED]


def test_ten_thousand_shards_fit_the_assignment(zk_rig: ZookeeperRig) -> None:
    a = Client(zk_rig)
    hosts = {shard: f"host-{shard % 1_000}.queue.example" for shard in range(1, 10_001)}
    assert a.assign(hosts, -1) is None
    a.sees(lambda facts: facts.assignment == Assignment(0, hosts))


def test_an_unreadable_record_leaves_the_previous_one(zk_rig: ZookeeperRig, capsys: pytest.CaptureFixture[str]) -> None:
    a = Client(zk_rig)
    a.join(host("a"))
    assert a.assign({1: "a"}, -1) is None
    assert a.put(ShardFact(1, "x"), new=True) is None
    a.sees(lambda facts: facts.assignment.version == 0 and 1 in facts.shards)
    by_hand = KazooClient(f"{zk_rig.server.hosts}{zk_rig.root}")
    by_hand.start()
    try:
        good = encode_shard(ShardFact(1, "mysql://u:hunter2@h/db"))
        for path, data in (
            ("/shards/1", good.replace(b"enabled", b"perhaps")),
            ("/shards/0", good),
            ("/shards/002", good),
            ("/shards/99999", good),
            ("/shards/one", good),
            ("/hosts/%61", b"{}"),
            ("/hosts/b", b"{}"),
            ("/owners/1", b"\xff"),
            ("/owners/2", b'{"host": "a", "address": "a:1", "epoch": 1e999}'),
            ("/election/a", b""),
            ("/assignment", b"[]"),
        ):
            by_hand.set(path, data) if by_hand.exists(path) else by_hand.create(path, data)
        a.sees(lambda facts: facts.assignment.version == 1)
        by_hand.create("/shards/7", encode_shard(ShardFact(7, "y")))
        a.sees(lambda facts: set(facts.shards) == {1, 7})
        assert a.facts.shards[1] == ShardFact(1, "x"), "a slip of the pen removes no shard"
        assert (set(a.facts.hosts), a.facts.owners, a.facts.controller) == ({"a"}, {}, "a")
        assert a.facts.assignment == Assignment(1, {1: "a"})
        assert a.own(1, "a", 1) is None
        by_hand.set("/shards/1", good)
        a.sees(lambda facts: facts.shards[1].url.startswith("mysql") and 1 in facts.owners)
        assert a.assign({}, 1) is None
    finally:
        by_hand.stop()
        by_hand.close()
    said = "".join(capsys.readouterr())
    assert "hunter2" not in said
    for node in ("shards/1", "shards/one", "hosts/b", "owners/1", "election/a", "assignment"):
        assert f"node={node} " in said


def test_a_node_that_comes_and_goes_quickly_ends_as_it_is(zk_rig: ZookeeperRig) -> None:
    a, b = Client(zk_rig), Client(zk_rig)
    for n in range(100):
        a.doing(lambda done, n=n: a.store.put_shard(ShardFact(1, str(n + 1)), new=True, done=done))
        a.doing(lambda done: a.store.remove_shard(1, done))
        if n % 10 == 0:
            assert b.own(2, "b", n + 1) is None
    assert a.put(ShardFact(1, "last"), new=True) is None
    b.sees(lambda facts: 1 in facts.shards and facts.shards[1].url == "last")
    assert a.did(lambda done: a.store.remove_shard(1, done)) is None
    b.sees(lambda facts: not facts.shards)
