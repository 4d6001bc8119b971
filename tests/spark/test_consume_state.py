"""Decisions and files of a consuming stream, without Spark and without a service."""

from pathlib import Path

import pytest

from foqs.client.items import Item
from foqs.errors import Invalid, Unavailable
from foqs.spark.consume_folder import StateFolder
from foqs.spark.consume_options import ConsumeOptions
from foqs.spark.consume_state import Ledger, batch_text, only_new, read_batch, read_state, split, state_text

ITEM = Item(
    id=1 << 62, lease=-(1 << 63), attempt=3, ns="n", topic="t", priority=-7, payload=b"\x00\xff", metadata=b"",
    headers={"é": "ü"}, delivery=2, deliver_after_ms=5, enqueued_at_ms=4,
)  # fmt: skip
GIVEN = {"endpoints": "a:1,b:2", "namespace": "n", "topic": "t, u", "stateDir": "/state"}


def test_a_batch_comes_back_as_it_was() -> None:
    bare = Item(id=2, lease=9, ns="n", topic="t", delivery=1)
    for read, written in zip(read_batch(batch_text(4, [ITEM, bare]), 4), (ITEM, bare), strict=True):
        assert [getattr(read, name) for name in Item.__slots__] == [getattr(written, name) for name in Item.__slots__]


def test_damaged_and_foreign_files_are_refused() -> None:
    text = batch_text(4, [ITEM])
    for wrong in (b"", text[:-1], text[:70], text.replace(b'"t"', b'"u"')):
        with pytest.raises(Invalid, match="damaged"):
            read_batch(wrong, 4)
    with pytest.raises(Invalid, match="holds batch 4"):
        read_batch(text, 5)
    with pytest.raises(Invalid, match="namespace 'n', not 'm'"):
        read_state(state_text(3, "n"), "m")
    assert read_state(state_text(3, "n"), "n") == 3


def test_only_existing_batches_can_be_committed_and_read() -> None:
    ledger = Ledger().added(1).added(2)
    assert ledger.unsettled == ()
    ledger = ledger.commit(1)
    assert ledger.unsettled == (1,)
    assert ledger.commit(1) == ledger
    assert list(ledger.wanted(1, 2)) == [2]
    assert ledger.settled(1) == Ledger(1, (2,))
    with pytest.raises(Invalid, match="at batch 0 and stateDir at batch 1"):
        ledger.commit(0)
    for call in (lambda: ledger.commit(3), lambda: ledger.wanted(2, 3), lambda: ledger.commit(1 << 60)):
        with pytest.raises(Invalid, match="is not in stateDir"):
            call()


@pytest.mark.parametrize("count", range(7))
@pytest.mark.parametrize("parts", range(1, 5))
def test_a_split_keeps_everything_in_order(count: int, parts: int) -> None:
    runs = split(range(count), parts)
    assert [one for run in runs for one in run] == list(range(count))
    assert len(runs) == min(count, parts)
    assert not runs or max(map(len, runs)) - min(map(len, runs)) <= 1


def test_an_item_is_new_when_it_became_ready_later() -> None:
    assert only_new([Item(enqueued_at_ms=5), Item(enqueued_at_ms=1, deliver_after_ms=6)], 4)
    assert not only_new([Item(enqueued_at_ms=5), Item(enqueued_at_ms=4)], 4)


def test_a_folder_remembers(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path / "deep" / "state"), "n")
    folder.open(0)
    folder.add(1, [ITEM])
    folder.add(2, [ITEM, ITEM])
    folder.commit(1)
    other = StateFolder(str(folder.path), "n")
    with pytest.raises(Unavailable, match="in use"):
        other.open(0)
    folder.close()
    (folder.path / "3.batch.tmp").write_bytes(b"half of")
    other.open(0)
    assert other.ledger == Ledger(1, (1, 2))
    assert len(other.read(2)) == 2
    other.remove(1)
    other.close()
    assert sorted(path.name for path in folder.path.iterdir()) == ["2.batch", "lock", "state"]
    folder.open(0)
    assert folder.ledger == Ledger(1, (2,))
    (folder.path / "2.batch").write_bytes(b"nonsense")
    with pytest.raises(Invalid, match=r"2\.batch: .*damaged"):
        folder.read(2)
    folder.close()
    with pytest.raises(Invalid, match="namespace"):
        StateFolder(str(folder.path), "m").open(0)


def test_the_options_have_defaults() -> None:
    options = ConsumeOptions.parse({name.lower(): text for name, text in GIVEN.items()})
    assert options.topics == ["t", "u"]
    assert (options.lease_ms, options.max_items_per_batch, options.partitions) == (60_000, 1_000, 2)
    assert "secret" not in repr(ConsumeOptions.parse({**GIVEN, "token": "secret"}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stateDir": None}, "option stateDir is missing"),
        ({"stateDir": "state"}, "option stateDir: .*absolute"),
        ({"stateDir": "hdfs://host/state"}, "option stateDir: .*a URL does not work"),
        ({"endpoints": ""}, "option endpoints: .*no address"),
        ({"topic": "t,t"}, "option topic: .*one twice"),
        ({"topic": ","}, "option topic: .*names no topic"),
        ({"namespace": ""}, "option namespace: .*empty"),
        ({"leaseMs": "soon"}, "option leaseMs"),
        ({"maxItemsPerBatch": "0"}, "option maxItemsPerBatch"),
        ({"startingOffsets": "x"}, "option startingOffsets is unknown"),
    ],
)
def test_wrong_options_are_named(change: dict[str, str | None], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        ConsumeOptions.parse({name: text for name, text in {**GIVEN, **change}.items() if text is not None})
