"""Forms as they arrive: their bounds, and the room that large ones share."""

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from foqs.console.requests import SMALL_FORM_BYTES, Forms

pytestmark = pytest.mark.threads

SMALL, LARGE = {"a": "xx"}, {"a": "x" * 2 * SMALL_FORM_BYTES}


class Sender:
    """Sends a form without its last byte, which follows when `may_end` is set. `took` counts the parts that were
    read."""

    def __init__(self, fields: dict[str, str]) -> None:
        data = urlencode(fields).encode()
        cuts = [0, *range(2, len(data) - 1, SMALL_FORM_BYTES), len(data) - 1]
        self._parts = [data[at:end] for at, end in pairwise(cuts)]
        self._last = data[-1:]
        self.may_end = asyncio.Event()
        self.took = 0
        self.request = Request({"type": "http", "method": "POST", "headers": []}, self._receive)

    async def _receive(self) -> Any:
        if self._parts:
            self.took += 1
            return {"type": "http.request", "body": self._parts.pop(0), "more_body": True}
        await self.may_end.wait()
        return {"type": "http.request", "body": self._last, "more_body": False}


async def received(forms: Forms, sender: Sender, principal: str, until: asyncio.Event | None = None) -> dict[str, str]:
    async with AsyncExitStack() as held:
        form = await forms.form_of(sender.request, principal, held)
        if until is not None:
            await until.wait()
        return form


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_large_forms_of_one_principal_wait_for_each_other() -> None:
    async def work() -> None:
        forms, ended = Forms(), asyncio.Event()
        senders = [Sender(LARGE) for _ in range(3)]
        first, *rest = [asyncio.create_task(received(forms, one, "ann", ended)) for one in senders]
        await settle()
        assert [one.took for one in senders] == [3, 2, 2]
        other = Sender(LARGE)
        other.may_end.set()
        assert await received(forms, other, "bob") == LARGE
        senders[0].may_end.set()
        await settle()
        assert senders[1].took == 2, "the request of the first form is not answered"
        ended.set()
        for one in senders:
            one.may_end.set()
        assert await asyncio.gather(first, *rest) == [LARGE] * 3

    asyncio.run(work())


def test_few_large_forms_are_in_progress() -> None:
    async def work() -> None:
        forms = Forms(most_large=2)
        senders = [Sender(LARGE) for _ in range(4)]
        tasks = [asyncio.create_task(received(forms, one, f"user {at}")) for at, one in enumerate(senders)]
        await settle()
        assert [one.took for one in senders] == [3, 3, 2, 2]
        small = Sender(SMALL)
        small.may_end.set()
        assert await received(forms, small, "user 0") == SMALL
        tasks[0].cancel()
        await settle()
        assert [one.took for one in senders] == [3, 3, 3, 2], "a user who gives up makes room"
        for one in senders:
            one.may_end.set()
        assert await asyncio.gather(*tasks[1:]) == [LARGE] * 3

    asyncio.run(work())


def test_a_form_that_is_too_large_is_refused_at_its_bound() -> None:
    async def work() -> None:
        sender = Sender({"a": "x" * (1 << 21)})
        with pytest.raises(HTTPException, match="413"):
            await received(Forms(), sender, "ann")
        assert sender.took <= (1 << 20) // SMALL_FORM_BYTES + 2

    asyncio.run(work())
