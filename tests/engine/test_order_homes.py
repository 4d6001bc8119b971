"""Order keys whose items are in another shard than their hash slots: the items that a shard takes, and its answers."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.buffers.pending_dedup import Give, Keyed
from foqs.engine import dead_orders, dedup, item_ops, order_homes
from foqs.engine.calls import EnqueueCall
from foqs.engine.shard import Shard
from foqs.errors import KeyElsewhere, NotServed, Unavailable
from foqs.ids import HASH_SLOTS, Dedup, hash_slot_bounds, hash_slot_of, next_digest, order_digest
from foqs.order import KeyHome, OrderHome
from foqs.rows import Holding, NewOrdered
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.routing import bits_of
from foqs.store.protocol import StoreBusy
from tests.engine.laboratory import KEY, ORDERED_LANE, Laboratory
from tests.engine.test_redrive import begun, redrive

SLOT = hash_slot_of(order_digest(*KEY, "k"))
ALL = bits_of(range(HASH_SLOTS))
REST = bits_of(slot for slot in range(HASH_SLOTS) if slot != SLOT)
OLD = KeyHome(1, 5)
EMPTY = KeyHome(1, 5, True)


def digest(key: str) -> bytes:
    return order_digest(*KEY, key)


def cluster(*keys: str, **how: Any) -> Laboratory:
    """Shard 1 has items of `keys`, and all slots."""
    lab = Laboratory(1, shards_elsewhere=True)
    hold(lab, ALL)
    if keys:
        lab.ordered(*keys, **how)
    return lab


def hold(lab: Laboratory, bits: bytes) -> None:
    shard = lab.engine.state.shards[1]
    shard.queue.keys.wanted = Holding(shard.queue.keys.held.stamp + 1, bits)
    lab.engine.state.touch(shard)
    lab.settle()


def orders(lab: Laboratory) -> Any:
    return lab.engine.state.shards[1].memory.orders


def put(lab: Laboratory, *keys: str, home: KeyHome | None = None, shard: int = 1) -> list[Any]:
    """Enqueue an item of each key; the list gets the outcomes, by `KeyElsewhere.home` where it is one."""
    answers: list[Any] = []

    def reply(outcomes: list[Any]) -> None:
        answers.extend(one.home if isinstance(one, KeyElsewhere) else one for one in outcomes)

    call, items = EnqueueCall(len(keys), reply), []
    lab.engine.state.deadlines.push(lab.now_ms + 5_000, call)
    for at, key in enumerate(keys):
        item = NewOrdered.of(lab.item(), key.encode(), digest(key))
        items.append(Keyed(at, Dedup(item.digest, 0), item, ORDERED_LANE, 7, home=home))
    away = dedup.place_taken(lab.engine.state, call, shard, items, lab.now_ms)
    call.refused([one.at for one in away], NotServed())
    return answers


def ask(lab: Laboratory, *keys: str, home: KeyHome | None = OLD) -> list[Any]:
    answers = put(lab, *keys, home=home)
    lab.settle()
    return answers


def give(lab: Laboratory, *, limit: int = 10, low: bytes = b"", slot: int = SLOT) -> list[Any]:
    given: list[Any] = []
    shard = lab.engine.state.shards[1]
    stamp = shard.queue.keys.last.stamp + 1
    shard.queue.keys.gives.append(Give(slot, stamp, low or hash_slot_bounds(slot)[0], limit, given.append))
    lab.engine.state.touch(shard)
    return given


# ------------------------------------------------------------------------------------------ the shard without the slot


def test_a_shard_with_items_takes_new_ones() -> None:
    lab = cluster("k")
    hold(lab, REST)
    (answer,) = ask(lab, "k")
    assert answer > 0
    assert type(ask(lab, "k", home=None)[0]) is NotServed, "its host knows nothing of it"
    assert type(ask(lab, "k", home=KeyHome(2, 5))[0]) is NotServed
    assert type(ask(lab, "k", home=EMPTY)[0]) is NotServed


def test_a_shard_without_items_says_so() -> None:
    lab = cluster()
    hold(lab, REST)
    assert ask(lab, "k") == [EMPTY]
    assert not lab.dbs[1].items


@pytest.mark.parametrize("delay_ms", [0, 60_000])
def test_a_key_is_empty_when_its_last_item_is_gone(delay_ms: int) -> None:
    """A delayed item is found in the database alone."""
    lab = cluster("k", delay_ms=delay_ms)
    hold(lab, REST)
    (item_id,) = lab.dbs[1].items
    assert (digest("k") in orders(lab).keys) is (delay_ms == 0)
    (other,) = ask(lab, "k")
    assert other > item_id
    for one in (item_id, other):
        lab.operate(one, item_ops.delete)
        lab.settle()
    assert ask(lab, "k") == [EMPTY]


def test_an_accepted_item_counts_until_its_transaction_has_ended() -> None:
    lab = cluster("k")
    hold(lab, REST)
    (item_id,) = lab.dbs[1].items
    first = put(lab, "k", home=OLD)
    lab.operate(item_id, item_ops.delete)
    ((shard, batch),) = lab.send()
    second = put(lab, "k", home=OLD)
    lab.arrive(shard, batch)
    lab.settle()
    assert len({*first, *second}) == 2 and set(lab.dbs[1].items) == {*first, *second}


def test_an_item_that_is_not_stored_does_not_count() -> None:
    lab = cluster("k")
    hold(lab, REST)
    (item_id,) = lab.dbs[1].items
    lab.operate(item_id, item_ops.delete)
    late = put(lab, "k", home=OLD)
    lab.faults[1].commits.extend(["busy"] * 30)
    lab.go_on(6_000)
    assert type(late[0]) is Unavailable
    lab.faults[1].commits.clear()
    lab.go_on(2_000)
    lab.settle()
    assert not lab.dbs[1].items
    assert ask(lab, "k") == [EMPTY]


def test_a_question_that_times_out_stores_nothing() -> None:
    lab = cluster("k", delay_ms=600_000)
    hold(lab, REST)
    asked = put(lab, "k", home=OLD)
    ((shard, batch),) = lab.send()
    lab.ring(5_001)
    assert [type(answer) for answer in asked] == [Unavailable]
    lab.arrive(shard, batch)
    lab.settle()
    assert len(lab.dbs[1].items) == 1 and not shard.memory.orders.asks


def test_a_replaced_owner_does_not_say_that_a_key_is_empty() -> None:
    lab = cluster()
    hold(lab, REST)
    asked = put(lab, "k", home=OLD)
    ((shard, batch),) = lab.send()
    lab.dbs[1].epoch += 1
    lab.arrive(shard, batch)
    assert [type(answer) for answer in asked] == [NotServed]


def test_a_read_that_fails_is_repeated() -> None:
    lab = cluster("k", delay_ms=60_000)
    hold(lab, REST)
    lab.faults[1].reads.append(StoreBusy("lock wait"))
    asked = put(lab, "k", home=OLD)
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch)
    assert not asked
    lab.go_on(200)
    assert asked[0] > 0


def test_a_closed_shard_answers_all_questions() -> None:
    lab = cluster()
    hold(lab, REST)
    asked = [put(lab, "k", home=OLD)]
    lab.send()
    asked.append(put(lab, "k", home=OLD))
    lab.engine.lose(lab.engine.state.shards[1], lab.now_ms)
    assert [[type(answer) for answer in answers] for answers in asked] == [[NotServed], [NotServed]]


def test_a_shard_that_is_not_open_is_not_asked() -> None:
    lab = cluster()
    shard: Shard = lab.engine.state.shards[1]
    lab.engine.drained(shard, lab.now_ms)
    shard.owner.to(ShardState.ASSIGNED)
    assert type(put(lab, "k", home=OLD)[0]) is NotServed


# ------------------------------------------------------------------------------------------ the shard with the slot


def away(lab: Laboratory, *keys: str, home: KeyHome = KeyHome(2, 5)) -> None:  # noqa: B008 - a value
    """The items of the keys are in another shard."""
    orders(lab).goes_elsewhere([OrderHome(digest(key), home.shard, home.stamp) for key in keys])
    lab.dbs[1].homes.update((digest(key), OrderHome(digest(key), home.shard, home.stamp)) for key in keys)


def test_a_key_that_is_elsewhere_is_refused() -> None:
    lab = cluster()
    away(lab, "k")
    home = KeyHome(2, 5)
    others = [None, home, KeyHome(2, 4, True), KeyHome(3, 5, True)]
    assert [ask(lab, "k", home=other) for other in others] == [[home]] * 4
    (stored,) = ask(lab, "other", home=None)
    assert stored > 0
    (stored,) = ask(lab, "k", home=home._replace(empty=True))
    assert stored > 0 and not lab.dbs[1].homes and not orders(lab).elsewhere
    assert ask(lab, "k", home=None)[0] > stored


def test_a_key_that_is_not_stored_stays_elsewhere() -> None:
    lab = cluster()
    away(lab, "k")
    empty = KeyHome(2, 5, True)
    lab.faults[1].commits.append("busy")
    asked = put(lab, "k", home=empty)
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch)
    assert digest("k") in lab.dbs[1].homes and digest("k") in orders(lab).elsewhere
    lab.go_on(200)
    assert type(asked[0]) is Unavailable or asked[0] > 0
    assert (digest("k") in lab.dbs[1].homes) is (digest("k") in orders(lab).elsewhere)


def test_a_new_owner_knows_the_keys_that_are_elsewhere() -> None:
    lab = cluster()
    away(lab, "k", "other")
    lab.reopen()
    assert ask(lab, "k", home=None) == [KeyHome(2, 5)]


# ------------------------------------------------------------------------------------------ the list


def test_the_list_has_all_keys_with_items() -> None:
    lab = cluster("k")
    lab.ordered("k", delay_ms=60_000)
    waiting = put(lab, "k")
    given = give(lab)
    lab.settle()
    assert [(page.rows, page.homes, page.rest) for page in given] == [([], [OrderHome(digest("k"), 0, 0)], None)]
    assert waiting[0] > 0


def test_a_key_whose_first_item_is_accepted_is_listed() -> None:
    """The transaction that gives the slot away is in flight when the last item goes."""
    lab = cluster("k")
    given, (item_id,) = give(lab), lab.dbs[1].items
    lab.operate(item_id, item_ops.delete)
    ((shard, batch),) = lab.send()
    late = put(lab, "k", home=OLD)
    lab.arrive(shard, batch)
    assert given[0].homes == [OrderHome(digest("k"), 0, 0)]
    lab.settle()
    assert late[0] > 0


def test_an_older_owner_gives_no_list() -> None:
    lab = cluster("k")
    given = give(lab)
    lab.settle()
    lab.ordered("other")
    again = give(lab)
    ((shard, batch),) = lab.send()
    lab.dbs[1].epoch += 1
    lab.arrive(shard, batch)
    assert given[0].homes and not hasattr(again[0], "homes")


def test_the_list_comes_in_pages() -> None:
    lab = cluster()
    low, high = hash_slot_bounds(SLOT)
    digests = [low[:-1] + bytes([number]) for number in range(10)]
    homes = [OrderHome(one, 2, 7) for one in digests[::2]]
    lab.dbs[1].homes = {home.digest: home for home in homes}
    orders(lab).dead.when_known(lambda error: None, some=False)
    for number, one in enumerate(digests[1::2]):
        orders(lab).dead.died(number + 1, one)
    orders(lab).dead.died(99, digests[0])
    pages, low_of = [], low
    while low_of is not None:
        given = give(lab, limit=2, low=low_of)
        lab.settle()
        pages.append(given[0])
        low_of = given[0].rest
    found = [home for page in pages for home in page.homes]
    assert sorted(found) == sorted([OrderHome(one, 0, 0) for one in (digests[0], *digests[1::2])] + homes[1:])
    assert all(len(page.homes) <= 4 for page in pages) and len(pages) > 3
    assert [page.rest for page in pages[:-1]] == [next_digest(max(page.homes).digest) for page in pages[:-1]]
    assert high > digests[-1]


# ------------------------------------------------------------------------------------------ dead letters


@pytest.mark.parametrize("page_rows", [1, 2, 100])
def test_dead_letters_are_followed(page_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_orders, "_READ_ROWS", page_rows)
    dead = dead_orders.DeadOrders(Laboratory(1).engine.state.budget)
    called: list[Any] = []
    dead.died(1, b"a" * 16)
    assert not dead.items, "no slot moves"
    dead.when_known(called.append, some=True)
    assert dead.due and not called
    dead.died(7, b"b" * 16)
    dead.died(7, b"b" * 16)
    rows: list[tuple[int, bytes | None]] = [(5, bytes(9) + b"a" * 16), (6, None), (7, bytes(9) + b"b" * 16)]
    dead.read(rows[:2], last=False)
    assert dead.read_to == 6 and dead.has(b"a" * 16)
    dead.left([5])
    dead.read(rows[2:], last=True)
    assert (called, dead.items, dead.due) == ([None], {7: b"b" * 16}, False)
    dead.left([7, 8])
    assert not dead.has(b"b" * 16)
    dead.when_known(called.append, some=True)
    assert called == [None, None]


# ------------------------------------------------------------------------------------------ redrives


def dead_letter(lab: Laboratory) -> int:
    (item_id,) = lab.ordered("k")
    assert lab.taken() == [item_id]
    lab.operate(item_id, item_ops.reject(lab.lease_of(item_id), "bad"))
    lab.settle()
    assert item_id in lab.dbs[1].failures
    return item_id


@pytest.mark.parametrize("bits", [ALL, REST])
def test_a_dead_letter_returns_to_the_shard_that_its_key_has(bits: bytes) -> None:
    lab = cluster()
    dead_letter(lab)
    hold(lab, bits)
    assert redrive(lab).redriven == 1
    assert ask(lab, "k")[0] > 0


def test_a_dead_letter_goes_to_no_topic_without_its_slot() -> None:
    lab = cluster()
    item_id = dead_letter(lab)
    hold(lab, REST)
    refused = redrive(lab, to_topic="other").refused["other"]
    assert (refused.items, type(refused.error)) == (1, Unavailable)
    assert item_id in lab.dbs[1].failures
    hold(lab, ALL)
    assert redrive(lab, to_topic="other").redriven == 1


def test_a_redrive_under_way_is_listed() -> None:
    lab = cluster()
    dead_letter(lab)
    answers = begun(lab, to_topic="other")
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch)  # its page is read, and the move waits
    assert not answers
    given = give(lab)
    lab.faults[1].commits.append("busy")
    other = order_digest("ns", "other", "k")
    assert other in order_homes.pending(shard.queue)
    lab.go_on(500)
    assert answers and (not hasattr(given[0], "homes") or other in [home.digest for home in given[0].homes])


def test_a_dead_letter_that_ends_frees_its_key() -> None:
    lab = cluster()
    item_id = dead_letter(lab)
    hold(lab, REST)
    (other,) = ask(lab, "k")
    assert other > 0
    lab.operate(other, item_ops.delete)
    lab.settle()
    assert ask(lab, "k")[0] > 0, "a redrive may return it"
    lab.operate(item_id, item_ops.delete)
    for one in sorted(lab.dbs[1].items):
        lab.operate(one, item_ops.delete)
    lab.settle()
    assert ask(lab, "k") == [EMPTY]
