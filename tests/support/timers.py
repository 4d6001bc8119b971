"""The clocks and timers of a host in a test."""

from collections.abc import Callable


class TestTimers:
    """The functions that a test passes, in the shape of `foqs.peers.forwarded.Timers`."""

    __test__ = False

    def __init__(
        self,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int] | None = None,
        soon: Callable[[Callable[[], None]], object] = lambda do: None,
        later: Callable[[int, Callable[[], None]], object] = lambda after_ms, do: None,
    ) -> None:
        """`monotonic_ms`: by default `now_ms`."""
        self.now_ms = now_ms
        self.monotonic_ms = monotonic_ms or now_ms
        self.soon = soon
        self.later = later
