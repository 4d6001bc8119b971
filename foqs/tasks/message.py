"""A call of a task that is not enqueued yet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from foqs.client import Duplicate, ItemSpec, Replaced
from foqs.tasks.arguments import Signature
from foqs.tasks.clients import Clients
from foqs.tasks.follow_ups import members_of
from foqs.tasks.handle import Handle

R = TypeVar("R")


class HasClients(Protocol):
    clients: Clients
    signature: Signature


@dataclass(frozen=True, slots=True)
class Message(Generic[R]):
    """A call of a task that is not enqueued yet; `App.enqueue_many` takes several, and a batch calls one back."""

    task: HasClients
    spec: ItemSpec

    def enqueue(self) -> Handle[R]:
        """Store the call, and return its handle, as `Task.enqueue`."""
        item_id, sent = self.task.clients.enqueue(self.spec)
        return replace(self, spec=sent).handle(item_id)

    async def aenqueue(self) -> Handle[R]:
        """Like `enqueue`, for coroutines."""
        item_id, sent = await self.task.clients.aenqueue(self.spec)
        return replace(self, spec=sent).handle(item_id)

    def in_batch(self, batch: int) -> Message[R]:
        """Return the call, and the further calls of its chain, as members of the batch with this id."""
        headers = members_of(self.spec.headers or {}, batch)
        return replace(self, spec=replace(self.spec, batch=batch, headers=headers))

    def handle(self, item_id: int) -> Handle[R]:
        """Return the handle of the item that stores the call."""
        # A repeated request finds its own item by the random key.
        there = isinstance(item_id, Duplicate | Replaced) and self.spec.dedup_until is not None
        key = self.spec.dedup_key if self.spec.dedup_until is None else None
        return Handle(self.task.clients, int(item_id), self.task.signature, duplicate=there, key=key)
