"""The timers of a host in a test."""

import asyncio

import pytest

from foqs.testing.time import MovedTime

pytestmark = pytest.mark.memory


def moved(*by_ms, set_up):
    """Return the notes of `set_up(time, note)`, each with its time, after each of the advances."""
    notes = []

    async def main():
        time = MovedTime(asyncio.get_running_loop(), 1_000)

        async def settle():
            for _ in range(3):
                await asyncio.sleep(0)

        set_up(time, lambda what: notes.append((what, time.now_ms())))
        for each in by_ms:
            await time.advance(each, settle)
        return time.now_ms()

    assert asyncio.run(main()) == 1_000 + sum(by_ms)
    return notes


def test_timers_ring_at_their_times_and_in_order():
    def set_up(time, note):
        for after_ms in (30, 10, 10, 40):
            time.later(after_ms, lambda after_ms=after_ms: note(after_ms))

    assert moved(39, set_up=set_up) == [(10, 1_010), (10, 1_010), (30, 1_030)]
    assert moved(39, 1, set_up=set_up)[-1] == (40, 1_040)


def test_what_a_timer_begins_is_done_at_its_time():
    def set_up(time, note):
        def ring():
            time.soon(lambda: note("soon"))
            time.later(0, lambda: note("at once"))
            time.later(5, lambda: note("later"))

        time.later(10, ring)
        time.later(11, lambda: note("next"))

    assert moved(20, set_up=set_up) == [("soon", 1_010), ("at once", 1_010), ("next", 1_011), ("later", 1_015)]


def test_a_cancelled_timer_does_not_ring():
    def set_up(time, note):
        for after_ms in (0, 10):
            time.later(after_ms, lambda: note("rang")).cancel()

    assert moved(20, set_up=set_up) == []


def test_work_of_each_second_is_left_out():
    async def main():
        time, beats, notes = MovedTime(asyncio.get_running_loop(), 0), [], []

        def beat():
            beats.append(time.now_ms())
            time.later(1_000, beat)

        async def settle():
            await asyncio.sleep(0)

        beat()
        for at_ms in (500, 3_600_000):
            time.later(at_ms, lambda: notes.append(time.now_ms()))
        await time.advance(86_400_000, settle, lambda: time.due_ms(without=(beat,)))
        return beats, notes, time.now_ms()

    beats, notes, now_ms = asyncio.run(main())
    assert (notes, now_ms) == ([500, 3_600_000], 86_400_000)
    assert len(beats) < 20
    assert [at_ms for at_ms in beats if 3_590_000 < at_ms <= 3_600_000] == list(range(3_595_000, 3_600_001, 1_000))
