"""One line of the log for all shards that cannot be opened, with a growing pause."""

from itertools import pairwise

from foqs.server.outages import Line, OpenFailures

AWAY = "cannot reach db-1:3306"
ALL = range(1, 9)


def lines(
    unopened: OpenFailures, until_ms: int, *, every_ms: int = 1_000, shards: range = ALL
) -> list[tuple[int, Line]]:
    """Fail each of `shards` at every `every_ms`, and return the lines with their times."""
    found = []
    for now_ms in range(0, until_ms, 100):
        if now_ms % every_ms == 0:
            for shard in shards:
                unopened.failed(shard, AWAY, now_ms, held=False)
        if unopened.due_ms is not None and unopened.due_ms <= now_ms:
            line = unopened.line(ALL, now_ms)
            assert line is not None
            found.append((now_ms, line))
    return found


def test_all_shards_share_a_line() -> None:
    ((at_ms, line),) = lines(OpenFailures(), 1_500)
    assert at_ms == 200
    assert line == Line(list(ALL), not_open=8, reason=AWAY, reasons=1, waiting=0, again_ms=2_000)


def test_the_pause_between_lines_grows_to_a_minute() -> None:
    times = [at_ms for at_ms, _ in lines(OpenFailures(), 300_000)]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses == [2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]


def test_one_more_shard_is_said_soon() -> None:
    unopened = OpenFailures()
    lines(unopened, 20_000, shards=range(1, 3))
    unopened.failed(7, "no schema", 20_000, held=False)
    assert unopened.due_ms == 20_200
    line = unopened.line(ALL, 20_200)
    assert line is not None
    assert (line.shards, line.reason, line.reasons) == ([1, 2, 7], AWAY, 2)


def test_shards_that_fail_in_turn_cannot_fill_the_log() -> None:
    """Each opens and fails again within a second, so that each failure is news."""
    unopened = OpenFailures()
    written = 0
    for now_ms in range(0, 60_000, 100):
        shard = now_ms // 100 % 8 + 1
        unopened.opened(shard)
        unopened.failed(shard, AWAY, now_ms, held=False)
        if unopened.due_ms is not None and unopened.due_ms <= now_ms:
            written += unopened.line(ALL, now_ms) is not None
    assert written <= 31


def test_a_standby_says_once_that_it_waits() -> None:
    unopened = OpenFailures()
    unopened.failed(1, "another host has the shard", 0, held=True)
    line = unopened.line(ALL, 200)
    assert line is not None
    assert (line.not_open, line.waiting) == (1, 1)
    for now_ms in range(400, 100_000, 200):
        unopened.failed(1, "another host has the shard", now_ms, held=True)
    assert unopened.due_ms is None
    unopened.failed(1, AWAY, 100_000, held=False)  # its database is away now
    assert unopened.line(ALL, 101_000) is not None


def test_opened_shards_leave_the_line_and_reset_the_pause() -> None:
    unopened = OpenFailures()
    lines(unopened, 30_000, shards=range(1, 3))
    unopened.opened(1)
    unopened.failed(2, AWAY, 30_000, held=False)
    unopened.opened(2)
    assert unopened.due_ms is None
    unopened.failed(2, AWAY, 100_000, held=False)
    line = unopened.line(ALL, 100_200)
    assert line is not None
    assert (line.shards, line.again_ms) == ([2], 2_000)


def test_a_shard_that_other_hosts_got_leaves_the_line() -> None:
    unopened = OpenFailures()
    unopened.failed(1, AWAY, 0, held=False)
    assert unopened.line((), 200) is not None  # not assigned for a moment, between two attempts
    assert unopened.line((), 10_000) is None
    assert unopened.due_ms is None
