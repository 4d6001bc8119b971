"""When a batch is due, and which items it holds."""

from hypothesis import given
from hypothesis import strategies as st

from foqs.client.timing import Batcher


@given(
    sizes=st.lists(st.integers(0, 50), max_size=60),
    max_items=st.integers(1, 10),
    max_bytes=st.integers(1, 100),
)
def test_batches_keep_the_order_and_the_bounds(sizes, max_items, max_bytes):
    gather: Batcher[int] = Batcher(max_items, max_bytes, linger_ms=5)
    for number, size in enumerate(sizes):
        gather.add(number, size, now_ms=0)
    seen: list[int] = []
    while batch := gather.take():
        assert len(batch) <= max_items
        assert len(batch) == 1 or sum(sizes[n] for n in batch) <= max_bytes
        seen += batch
        assert gather.first == len(seen)
        assert gather.bytes == sum(sizes[len(seen) :])
    assert seen == list(range(len(sizes)))


@given(st.lists(st.integers(0, 20), min_size=1, max_size=30), st.integers(2, 40), st.integers(2, 200))
def test_it_is_due_when_full_or_when_the_oldest_lingered(sizes, max_items, max_bytes):
    gather: Batcher[int] = Batcher(max_items, max_bytes, linger_ms=5)
    assert gather.due_at_ms() is None
    for number, size in enumerate(sizes):
        gather.add(number, size, now_ms=100 + number)
    full = len(sizes) >= max_items or sum(sizes) >= max_bytes
    assert gather.due_at_ms() == (0 if full else 105)


def test_a_hurried_item_is_due_at_once_and_later_ones_linger():
    gather: Batcher[str] = Batcher(2, 1000, linger_ms=50)
    for name in "abc":
        gather.add(name, 1, now_ms=10)
    assert gather.deliver_now() == 3
    assert gather.take() == ["a", "b"]
    gather.add("d", 1, now_ms=20)
    assert gather.due_at_ms() == 0
    assert gather.take() == ["c", "d"]
    gather.add("e", 1, now_ms=30)
    assert gather.due_at_ms() == 80
