"""Methods of `Client` for batches of items, which call back when they end."""

from __future__ import annotations

from foqs.bounds import YEAR_MS
from foqs.client import methods
from foqs.client._async.requests import Requests
from foqs.client.arguments import checked, whole
from foqs.client.batches import Batch, check_batch, check_callback, check_parent
from foqs.client.items import ItemSpec
from foqs.idl import idl
from foqs.ids import parse_id
from foqs.second_answer import END_ITEM, ONCE

_ID = "the id of a batch"


class BatchCalls:
    """A part of `Client`."""

    namespace: str
    _requests: Requests

    @checked(
        on_success=check_callback,
        on_end=check_callback,
        ttl_ms=whole(1_000, YEAR_MS, none=True),
        parent=check_parent,
    )
    async def create_batch(
        self,
        *,
        on_success: ItemSpec | None = None,
        on_end: ItemSpec | None = None,
        ttl_ms: int | None = None,
        parent: int | str | None = None,
        timeout_ms: int | None = None,
    ) -> int:
        """Create a batch, and return its id. Items become members by `batch=`; after `close_batch` it ends with its
        last member.

        on_success  is enqueued when each member was acked
        on_end      is enqueued when each member has ended in any way, with headers that say how
        ttl_ms      the batch ends after it at the latest, as EXPIRED: 1 s to 366 days, default 7 days
        parent      a batch that this one becomes a member of

        A callback has no dedup_key, order_key, batch, deliver_after_ms or expires_at_ms; its delay_ms and ttl_ms count
        from the end of the batch. Raises Invalid: a callback is refused, or the parent takes no members; Overloaded:
        too many batches live; OutcomeUnknown: it may have been created. Its id is lost then, and its ttl_ms ends it.

        >>> batch = await client.create_batch(on_success=ItemSpec("reports", b"done"))          # doctest: +SKIP
        >>> await client.enqueue("pages", b"1", batch=batch)                                     # doctest: +SKIP
        >>> await client.close_batch(batch)                                                      # doctest: +SKIP
        """
        of = None if parent is None else parse_id(parent, "the id of a parent")
        request = idl.CreateBatchRequest(self.namespace, on_success, on_end, ttl_ms, of)
        return int((await self._requests.call(methods.CREATE_BATCH, request, timeout_ms, policy=ONCE)).id)

    @checked(batch=check_batch)
    async def close_batch(self, batch: int | str, *, timeout_ms: int | None = None) -> None:
        """Let a batch end with its last member: at once, if all have ended. From then on only members add members.
        Closing it again changes nothing. Raises NotFound."""
        number = parse_id(batch, _ID)
        request = idl.CloseBatchRequest(self.namespace, number)
        await self._requests.call(methods.CLOSE_BATCH, request, timeout_ms, number, policy=END_ITEM)

    @checked(batch=check_batch)
    async def cancel_batch(self, batch: int | str, *, timeout_ms: int | None = None) -> None:
        """Remove the members that no consumer has, and refuse new ones. The batch ends, as CANCELLED, when the other
        members have ended; batches that are members are cancelled, too. A batch that has ended stays as it is. Raises
        NotFound."""
        number = parse_id(batch, _ID)
        request = idl.CancelBatchRequest(self.namespace, number)
        await self._requests.call(methods.CANCEL_BATCH, request, timeout_ms, number, policy=END_ITEM)

    @checked(batch=check_batch)
    async def get_batch(self, batch: int | str, *, timeout_ms: int | None = None) -> Batch:
        """The state of a batch, and how its members have ended. Raises NotFound, also when it ended more than
        `limits.batch_keep_ms` ago."""
        number = parse_id(batch, _ID)
        request = idl.GetBatchRequest(self.namespace, number)
        return Batch.of(await self._requests.call(methods.GET_BATCH, request, timeout_ms, number))
