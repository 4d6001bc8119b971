"""The entries of a call for many items. An entry that cannot be sent has its error; the other ones are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import Any

from foqs.client.items import ItemSpec, Nack
from foqs.errors import FoqsError, Invalid
from foqs.idl import idl
from foqs.ids import MAX_I64, MIN_I64
from foqs.travel import bare

_SHOWN_BITS = 256


class Entries:
    """`good` are the entries to send, in order; `errors` has those of the other ones, by their place."""

    __slots__ = ("errors", "good")

    def __init__(self, given: Iterable[Any], entry_of: Callable[[Any], Any]) -> None:
        """`entry_of` makes an entry of each given value. Its error is the outcome of that entry alone."""
        entries = given if isinstance(given, list | tuple) else list(given)
        self.errors: dict[int, FoqsError] = {}
        try:
            self.good = [entry_of(one) for one in entries]
        except Exception:  # noqa: BLE001 - an object of the caller may raise anything where it is read
            self.good = []
            for at, one in enumerate(entries):
                try:
                    self.good.append(entry_of(one))
                except Exception as error:  # noqa: BLE001 - as above
                    self.errors[at] = _refusal(one, error)

    def outcomes(self, of_good: Sequence[Any]) -> list[Any]:
        """Return the outcome of each entry; `of_good` has those of `good`."""
        if not self.errors:
            return list(of_good)
        left, total = iter(of_good), len(of_good) + len(self.errors)
        return [self.errors[at] if at in self.errors else next(left) for at in range(total)]


def _refusal(given: object, error: Exception) -> Invalid:
    if isinstance(error, Invalid):
        return bare(error)
    what = f"an entry of type {type(given).__name__} cannot be read ({type(error).__name__})"
    return Invalid(f"{what}: give an object of the type that the call describes")


def ack(item: Any) -> Any:
    """Return the AckItem of an item or a lease. Raises Invalid, and AttributeError without an id or a lease."""
    item_id, lease = item.id, item.lease
    if type(item_id) is not int or type(lease) is not int:
        item_id, lease = whole(item_id, "id"), whole(lease, "lease")
    return idl.AckItem(item_id, lease)


def extension(item: Any, lease_ms: int | None = None, begun: bool | None = None) -> Any:
    """As `ack`, an ExtendItem."""
    item_id, lease = item.id, item.lease
    if type(item_id) is not int or type(lease) is not int:
        item_id, lease = whole(item_id, "id"), whole(lease, "lease")
    return idl.ExtendItem(item_id, lease, lease_ms, begun)


def release(item: Any) -> Nack:
    """As `ack`, a nack of an item that was not begun."""
    item_id, lease = item.id, item.lease
    if type(item_id) is not int or type(lease) is not int:
        item_id, lease = whole(item_id, "id"), whole(lease, "lease")
    return Nack(item_id, lease, None, None, True)


def nack(given: Any) -> Nack:
    """Return `given` if each of its fields has its type. Raises Invalid."""
    if (
        type(given) is Nack and type(given.id) is int and type(given.lease) is int
        and (given.delay_ms is None or type(given.delay_ms) is int)
        and (given.metadata is None or type(given.metadata) is bytes)
    ):  # fmt: skip
        return given
    if not isinstance(given, Nack):
        raise Invalid(f"an entry is of type {type(given).__name__}: make a Nack with Nack.of(item, ...)")
    whole(given.id, "id")
    whole(given.lease, "lease")
    if given.delay_ms is not None:
        whole(given.delay_ms, "delay_ms")
    if not isinstance(given.metadata, bytes | bytearray | memoryview | None):
        raise Invalid(f"metadata is of type {type(given.metadata).__name__}: it must be bytes")
    return given


def spec(given: Any) -> ItemSpec:
    """Return `given` if it is an ItemSpec. Raises Invalid."""
    if not isinstance(given, ItemSpec):
        raise Invalid(f"an entry is of type {type(given).__name__}: make an ItemSpec(topic, payload, ...)")
    return given


def whole(value: object, what: str) -> int:
    """Return an integer of 64 bits. The codec would cut a float. Raises Invalid."""
    wanted = f"it must be an integer from {MIN_I64} to {MAX_I64}"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise Invalid(f"{what} is of type {type(value).__name__}: {wanted}")
    number = index(value)
    if not MIN_I64 <= number <= MAX_I64:
        size = number.bit_length()
        raise Invalid(f"{what} {f'is {number}' if size <= _SHOWN_BITS else f'has {size} bits'}: {wanted}")
    return number
