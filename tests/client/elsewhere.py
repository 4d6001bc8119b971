"""What tests run in other processes."""

from __future__ import annotations

from typing import Any

from foqs.client import Client, ItemSpec, Producer, Retry


def is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


class Remade(Client):
    """A client that an application sends by a rule of its own."""

    def __reduce__(self) -> Any:
        return Remade, (self.address,)


def fail_unread(address: str) -> None:
    with Client(address, routing=False) as client, Producer(client) as producer:
        producer.enqueue("", b"x")


def look_for(address: str, item_id: int) -> None:
    with Client(address, routing=False) as client:
        client.get_item(item_id)


def enqueue(client: Client) -> int:
    return client.enqueue("t", b"x")


def enqueue_at(address: str) -> int:
    with Client(address, routing=False) as client:
        return enqueue(client)


def through_a_process(address: str) -> Any:
    with Client(address, routing=False) as client:
        client.enqueue_many([ItemSpec("t", b"x", headers={"a": "b"})])
        return client.dequeue("t", wait_ms=1_000)


def ask_for_another_attempt() -> None:
    raise Retry(5, b"m")
