"""Acks, and the items of an enqueue, in columns: a struct for each costs twice the time."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from struct import Struct
from typing import Any

from foqs.idl import idl
from foqs.wire.protocol import I64, STOP

# An element as each encoder writes it: two fields (type, number, value) in their order, then the end.
_ACK = Struct(">BhqBhqB")
ACK_BYTES = _ACK.size
_acks_of = _ACK.iter_unpack


class AckColumns:
    """A list of AckItem, each with both of its fields."""

    __slots__ = ("ids", "leases")

    def __init__(self, elements: bytes) -> None:
        """Raises ValueError unless each element of the list is ACK_BYTES long and of the usual form; `elements` is a
        multiple of that."""
        self.ids: list[int] = []
        self.leases: list[int] = []
        ids, leases = self.ids, self.leases
        for id_type, id_number, item_id, lease_type, lease_number, lease, end in _acks_of(elements):
            if id_type != I64 or id_number != 1 or lease_type != I64 or lease_number != 2 or end != STOP:
                raise ValueError("an ack of another form")
            ids.append(item_id)
            leases.append(lease)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, at: int) -> Any:
        return idl.AckItem(self.ids[at], self.leases[at])


class SpecColumns:
    """A list of ItemSpec that are like `first` but for their payloads, priorities and, where `tenants` is not None,
    fairness keys. Reads as a list of structs."""

    __slots__ = ("first", "payloads", "priorities", "tenants")

    def __init__(self, first: Any) -> None:
        self.first = first
        self.tenants: list[str] | None = None
        self.payloads: list[bytes] = [first.payload]
        self.priorities: list[int] = []

    def __len__(self) -> int:
        return len(self.payloads)

    def __getitem__(self, at: int) -> Any:
        spec = copy(self.first)
        spec.payload, spec.priority = self.payloads[at], self.priorities[at]
        if self.tenants is not None:
            spec.fairness_key = self.tenants[at]
        return spec


def ids_and_leases(acks: AckColumns | Sequence[Any] | None) -> tuple[list[int], list[int]]:
    """Return the columns of a list of AckItem; 0 stands for an absent field."""
    if isinstance(acks, AckColumns):
        return acks.ids, acks.leases
    if acks is None:
        return [], []
    return [ack.id or 0 for ack in acks], [ack.lease or 0 for ack in acks]
