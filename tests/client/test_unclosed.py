"""A program that ends without `close` gets a ResourceWarning, and no line about the tasks inside."""

import subprocess
import sys
from typing import Any

import pytest

from foqs.client import AsyncClient

pytestmark = pytest.mark.process

PROGRAM = """
import asyncio, sys
from foqs.client import AsyncClient, AsyncProducer

async def main():
    global client, kept
    client = AsyncClient({address!r})
    if {close}:
        async with client:
            await client.enqueue("t", b"x")
    else:
        await client.enqueue("t", b"x")
        await client.dequeue("t")
    {more}

def left(closes):
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    if closes:
        loop.close()

{run}
"""
RUNS = ["asyncio.run(main())", "left(True)", "left(False)"]


def said(peer: Any, run: str, *options: str, close: bool = False, more: str = "") -> str:
    code = PROGRAM.format(address=peer.address, run=run, close=close, more=more)
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
    return done.stderr


@pytest.mark.parametrize("run", RUNS)
def test_an_unclosed_client_warns(peer: Any, run: str) -> None:
    assert said(peer, run) == ""
    shown = said(peer, run, "-W", "default::ResourceWarning")
    assert f"ResourceWarning: unclosed AsyncClient('{peer.address}', 'default'): await its close()" in shown
    assert "destroyed" not in shown and "ignored" not in shown
    assert "AsyncClient" not in said(peer, run, "-W", "default::ResourceWarning", close=True)


@pytest.mark.parametrize("run", RUNS)
def test_an_unclosed_producer_names_the_number_of_lost_items(peer: Any, run: str) -> None:
    shown = said(peer, run, more='kept = AsyncProducer(client); await kept.enqueue("t", b"lost")')
    assert "the producer is closed, and 1 items are not sent, because of CancelledError in " in shown
    assert "destroyed" not in shown and "ignored" not in shown


def test_a_client_that_was_not_used_needs_no_close(recwarn: pytest.WarningsRecorder) -> None:
    AsyncClient().__del__()
    AsyncClient.__new__(AsyncClient).__del__()
    assert not recwarn.list


@pytest.mark.parametrize("run", ["left(True)", "left(False)"])
def test_a_worker_whose_loop_was_left_says_so_in_one_line(peer: Any, run: str) -> None:
    more = """from foqs.client import AsyncWorker
    begun = asyncio.Event()
    async def handle(item):
        begun.set()
        await asyncio.sleep(3600)
    kept = AsyncWorker(client, "t", handle)
    await client.enqueue("t", b"y")
    await kept.start()
    await begun.wait()"""
    shown = said(peer, run, more=more)
    assert shown == "the event loop ends, and the worker with it: stop it before, or leave its `async with`\n"
