"""Decisions and files of a consuming stream, without Spark and without a service."""

from pathlib import Path

import pytest

from foqs.client.items import Item
from foqs.errors import Invalid, Unavailable
from foqs.spark.consume_state import Ledger, StateFolder, read_state, ready_ms, split, state_text
from foqs.spark.options import ConsumeOptions

ITEM = Item(id=7, lease=8, topic="t", delivery=2)
GIVEN = {"endpoints": "a:1,b:2", "namespace": "n", "topic": "t, u", "stateDir": "/state"}


def test_damaged_and_foreign_states_are_refused() -> None:
    text = state_text(3, "n")
    assert read_state(text, "n") == 3
    for wrong in (b"", text[:-1], text[:70]):
        with pytest.raises(Invalid, match="damaged"):
            read_state(wrong, "n")
    with pytest.raises(Invalid, match="namespace 'n', not 'm'"):
        read_state(text, "m")


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


def test_an_item_is_ready_when_it_is_there_and_due() -> None:
    assert ready_ms(Item(enqueued_at_ms=5)) == 5
    assert ready_ms(Item(enqueued_at_ms=1, deliver_after_ms=6)) == 6


def test_a_folder_remembers(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path / "deep" / "state"), "n")
    folder.open(0)
    folder.write(1, [ITEM])
    folder.write(2, [ITEM, ITEM])
    assert folder.ledger == Ledger()
    folder.add(1)
    folder.add(2)
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
    with pytest.raises(Invalid, match=r"2\.batch: .*damaged; start with a new"):
        folder.read(2)
    folder.close()
    (folder.path / "again").write_bytes(b"nonsense")
    with pytest.raises(Invalid, match=r"again: .*damaged; if you remove it"):
        folder.open(0)
    (folder.path / "again").unlink()
    folder.open(0)
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
