"""Calls of the pool with real processes: order, kills, breakers, bounds, turns and settings."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from foqs.hooks.call_queues import OPEN_MS
from foqs.hooks.frames import FLUSH_CALLS
from foqs.hooks.protocol import (
    Action,
    Answered,
    Entries,
    Failed,
    FailureResult,
    Hook,
    HookCall,
    HookKey,
    Kind,
    Outcome,
    Script,
)
from tests.hooks.rig import ECHO, GOOD, ITEM, SLOW, STUCK, call_of, hooks, keys_of, kinds_of, numbered, on_enqueue
from tests.support.waiting import wait_until_on_loop


def test_outcomes_come_in_the_order_of_the_calls() -> None:
    async def main() -> None:
        async with hooks() as of:
            outcomes = await of.run(*numbered(ECHO, 300))
            assert keys_of(outcomes) == [f"n{number}" for number in range(300)]
            assert (of.pool.calls, of.pool.queued, of.pool.failures) == (300, 0, Counter())

    asyncio.run(main())


def test_done_is_never_called_inside_of_run() -> None:
    async def main() -> None:
        async with hooks() as of:
            for calls in ([], [call_of(GOOD)]):
                got: list[list[Outcome]] = []
                of.pool.run(calls, 30_000, got.append)
                assert not got
                await wait_until_on_loop(lambda got=got: got)  # type: ignore[misc]
                assert len(got[0]) == len(calls)

    asyncio.run(main())


@pytest.mark.parametrize("proven", [False, True])
def test_the_stuck_call_alone_is_killed(proven: bool) -> None:
    """All other calls of its batch are answered, also those that a process had in flight."""
    source = on_enqueue(f"if item.headers.n == 'n57' then {STUCK} end return {{fairness_key = item.headers.n}}")

    async def main() -> None:
        async with hooks() as of:
            if proven:
                await of.prove(source)
            outcomes = await of.run(*numbered(source, 100))
            assert keys_of(outcomes) == [None if number == 57 else f"n{number}" for number in range(100)]
            killed = outcomes[57]
            assert isinstance(killed, Failed)
            assert killed.kind is Kind.KILLED
            assert 1 <= of.pool.kills <= 2
            await wait_until_on_loop(lambda: of.pool.children == 2)

    asyncio.run(main())


def test_three_failures_open_the_breaker_of_one_topic() -> None:
    now_ms = [0]
    source = on_enqueue("if item.headers.n then error('no ' .. item.headers.n, 0) end return {}")

    async def main() -> None:
        async with hooks(lambda: now_ms[0]) as of:
            outcomes = await of.run(*[call_of(source, item=numbered(source, 1)[0].item)] * 3)
            assert kinds_of(outcomes) == {Kind.ERROR: 3}
            outcomes = await of.run(*numbered(source, 200))
            assert kinds_of(outcomes) == {Kind.OPEN: 200}
            last = outcomes[-1]
            assert isinstance(last, Failed)
            assert last.retry_after_ms == OPEN_MS
            assert last.text.endswith("not called now; the last error: no n0")
            breaker = of.pool.breaker(HookKey("shop", "jobs", Hook.ON_ENQUEUE))
            assert breaker is not None
            assert (breaker.script, breaker.calls, breaker.failures, breaker.is_open) == ("route", 3, 3, True)
            assert [error.text for error in breaker.last_errors] == ["no n0"] * 3
            assert kinds_of(await of.run(call_of(source, "another topic"))) == {"answered": 1}

            now_ms[0] += OPEN_MS - 1
            assert kinds_of(await of.run(call_of(source))) == {Kind.OPEN: 1}
            now_ms[0] += 1
            assert kinds_of(await of.run(*numbered(source, 50))) == {Kind.ERROR: 1, Kind.OPEN: 49}
            now_ms[0] += OPEN_MS
            assert kinds_of(await of.run(*[call_of(source)] * 50)) == {"answered": 50}
            assert not breaker.is_open

    asyncio.run(main())


def test_a_batch_fails_at_once_when_its_breaker_opens() -> None:
    """Calls that a process has already keep their own outcomes. After a time-out the process leaves the rest."""

    async def main() -> None:
        async with hooks() as of:
            kinds = kinds_of(await of.run(*numbered(on_enqueue("error('x')"), 200, "quick to fail")))
            assert kinds == {Kind.ERROR: kinds[Kind.ERROR], Kind.OPEN: 200 - kinds[Kind.ERROR]}
            assert 3 <= kinds[Kind.ERROR] <= 3 + FLUSH_CALLS
            late = on_enqueue("if tonumber(item.headers.n:sub(2)) >= 50 then while true do end end return {}")
            kinds = kinds_of(await of.run(*numbered(late, 200, "loops")))
            assert kinds["answered"] == 50
            assert 3 <= kinds[Kind.TIMEOUT] <= 4
            assert kinds[Kind.OPEN] == 150 - kinds[Kind.TIMEOUT]

    asyncio.run(main())


def test_calls_that_are_not_guarded_have_no_breaker() -> None:
    async def main() -> None:
        async with hooks() as of:
            outcomes = await of.run(*[call_of(on_enqueue("error('x')"), guarded=False)] * 8)
            assert kinds_of(outcomes) == {Kind.ERROR: 8}
            assert of.pool.breaker(HookKey("shop", "jobs", Hook.ON_ENQUEUE)) is None

    asyncio.run(main())


def test_a_call_has_an_outcome_when_its_time_is_over() -> None:
    async def main() -> None:
        async with hooks() as of:
            await of.still_good()
            outcomes = await of.run(*numbered(SLOW, 2_000), within_ms=100)
            kinds = kinds_of(outcomes)
            assert kinds[Kind.UNAVAILABLE] > 1_000
            assert of.pool.queued == 0
            late = outcomes[-1]
            assert isinstance(late, Failed)
            assert late.text.startswith("the call did not run in 100 ms")
            await of.still_good()

    asyncio.run(main())


def test_waiting_calls_are_bounded() -> None:
    async def main() -> None:
        async with hooks(queue_calls=256) as of:
            outcomes = await of.run(*numbered(ECHO, 300))
            assert kinds_of(outcomes) == {"answered": 256, Kind.UNAVAILABLE: 44}
            assert kinds_of(await of.run(*numbered(ECHO, 200))) == {"answered": 200}

    asyncio.run(main())


@pytest.mark.parametrize("proven", [False, True])
def test_a_slow_script_does_not_hold_up_another_topic(proven: bool) -> None:
    """The slow one has seconds of work when the quick one begins."""

    async def main() -> None:
        async with hooks() as of:
            if proven:
                await of.prove(ECHO, "quick")
            slow = asyncio.ensure_future(of.run(*numbered(SLOW, 1_000, "slow")))
            await wait_until_on_loop(lambda: of.pool.calls > 45 or (not proven and of.pool.calls))
            for _ in range(20):
                assert kinds_of(await of.run(*numbered(ECHO, 40, "quick"))) == {"answered": 40}
            assert not slow.done()
            slow.cancel()

    asyncio.run(main())


def test_new_settings_are_read_by_the_next_call() -> None:
    reader = on_enqueue("return {fairness_key = foqs.get('k') or 'none'}")

    async def main() -> None:
        async with hooks() as of:
            for version in range(30):
                entries = Entries("shop", {"k": f"v{version}"} if version % 3 else {})
                expected = f"v{version}" if version % 3 else "none"
                assert (await of.answered(reader, entries=entries)).fairness_key == expected
            old, new = Entries("shop", {"k": "old"}), Entries("shop", {"k": "new"})
            outcomes = await of.run(*[call_of(reader, entries=one) for one in (old, new, old, new)])
            assert keys_of(outcomes) == ["old", "new", "old", "new"]

    asyncio.run(main())


def test_large_settings_are_not_the_memory_of_the_script() -> None:
    values = {f"plans/{number}": "x" * 60 for number in range(10_000)} | {"plans/acme": "gold"}

    async def main() -> None:
        async with hooks() as of:
            for _version in range(3):
                result = await of.answered(GOOD, entries=Entries("shop", values))
                assert result.weight == 4
            taken = on_enqueue("local t = ('x'):rep(450000) return {weight = #t // 1000}")
            assert (await of.answered(taken, entries=Entries("shop", values))).weight == 450
            too_much = on_enqueue("local t = ('x'):rep(1100000) return {weight = 1}")
            assert (await of.failed(too_much, entries=Entries("shop", values))).kind is Kind.MEMORY

    asyncio.run(main())


def test_more_scripts_and_namespaces_than_a_process_keeps() -> None:
    async def main() -> None:
        async with hooks() as of:
            for _ in range(2):
                calls = []
                for number in range(100):
                    ns = f"ns{number % 40}"
                    source = on_enqueue(f"return {{fairness_key = '{number}' .. foqs.get('name')}}")
                    entries = Entries(ns, {"name": ns})
                    calls.append(HookCall(Script(ns, "s", source), HookKey(ns, "t", Hook.ON_ENQUEUE), ITEM, entries))
                assert keys_of(await of.run(*calls)) == [f"{number}ns{number % 40}" for number in range(100)]

    asyncio.run(main())


def test_values_of_items_cross_unchanged() -> None:
    item: dict[str, Any] = {
        "topic": "t", "priority": -(1 << 31), "payload_size": 1 << 40, "share": 0.5, "yes": True, "no": False,
        "empty": "", "text": "ü☃\0\n", "headers": {"": "x", "ключ": "значение", "n": "1"}, "none": {},
    }  # fmt: skip
    source = on_enqueue(
        """
        local h = item.headers
        local seen = {item.topic, item.priority, item.payload_size, item.share, tostring(item.yes),
          tostring(item.no), item.empty, #item.text, h[""], h["ключ"], h.n, tostring(next(item.none)), tostring(h.x)}
        return {fairness_key = table.concat(seen, "|")}
        """
    )

    async def main() -> None:
        async with hooks() as of:
            result = await of.answered(source, item=item)
            assert result.fairness_key == f"t|{-(1 << 31)}|{1 << 40}|0.5|true|false||7|x|значение|1|nil|nil"

    asyncio.run(main())


def test_on_failure_decides_about_the_item() -> None:
    source = """
    function on_failure(item)
      if item.attempt >= 3 then return {action = "dead"} end
      if item.cause == "REJECTED" then return {action = "drop"} end
      if item.reason == "later" then return {action = "retry", delay_ms = 60 / 2 * 1000} end
    end
    """
    cases: dict[tuple[int, str, str], FailureResult] = {
        (3, "FAILED", ""): FailureResult(Action.DEAD),
        (1, "REJECTED", ""): FailureResult(Action.DROP),
        (1, "FAILED", "later"): FailureResult(Action.RETRY, 30_000),
        (1, "FAILED", "x"): FailureResult(),
    }

    async def main() -> None:
        async with hooks() as of:
            for (attempt, cause, reason), expected in cases.items():
                item = {**ITEM, "attempt": attempt, "cause": cause, "reason": reason}
                outcome = await of.one(source, hook=Hook.ON_FAILURE, item=item)
                assert isinstance(outcome, Answered)
                assert outcome.result == expected

    asyncio.run(main())


def test_time_and_memory_of_a_call_are_reported() -> None:
    async def main() -> None:
        async with hooks(timeout_ms=1_000) as of:
            outcome = await of.one(on_enqueue("local t = ('x'):rep(300000) for i = 1, 300000 do end return {}"))
            assert isinstance(outcome, Answered)
            assert outcome.elapsed_us > 300
            assert 300_000 < outcome.memory_bytes < 400_000

    asyncio.run(main())
