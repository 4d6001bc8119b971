"""Second runs for tests whose order of events is not fixed. script/test loads this plugin; a plain pytest does not.

A test that carries a marker of `real.MARKERS`, and did start a process, thread or connection, gets up to two reruns.
A deterministic test gets none: its failure repeats. The run prints the first failure of each rerun test. It fails if
more than 1 % of the tests that may be rerun needed a rerun.
"""

from functools import partial

import pytest

from tests.support import real

RERUNS = 2
_LINES_OF_A_SECTION = 40


def allowed(tests: int) -> int:
    """Return how many of `tests` tests may need a rerun: 1 %, but one test in a small selection."""
    return max(1, tests // 100)


def verdict(rerun: int, tests: int) -> str:
    """Return why the run fails, or '' if `rerun` of `tests` tests is few enough."""
    if rerun <= allowed(tests):
        return ""
    return (
        f"{rerun} of {tests} tests that may be rerun needed a rerun; at most {allowed(tests)} may (1 %, at least one). "
        "Repair the tests or the defects whose first failures are above."
    )


def pytest_configure(config: pytest.Config) -> None:
    real.watch(config)
    # Workers of xdist send their reports to the process that prints them.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Reruns(), "foqs-reruns")


@pytest.hookimpl(trylast=True)  # after tests/conftest.py has added its markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("flaky") is not None:
            raise pytest.UsageError(
                f"{item.nodeid}: @pytest.mark.flaky is set by tests/support/reruns.py alone; remove it"
            )
        if any(mark.name in real.MARKERS for mark in item.iter_markers()):
            item.add_marker(pytest.mark.flaky(reruns=RERUNS, condition=partial(_is_real, item)))


def _is_real(item: pytest.Item, error: BaseException | None) -> bool:
    return real.is_real(item)


class Reruns:
    """What one run has seen: the tests that may be rerun, and the first failure of each that was."""

    def __init__(self) -> None:
        self._tests: set[str] = set()
        self._first: dict[str, pytest.TestReport] = {}
        self._times: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if real.was_real(report) and (report.failed or (report.when == "call" and report.passed)):
            self._tests.add(report.nodeid)  # a skipped test would lower the rate
        if report.outcome == "rerun":
            self._tests.add(report.nodeid)
            self._first.setdefault(report.nodeid, report)
            self._times[report.nodeid] = self._times.get(report.nodeid, 0) + 1

    @pytest.hookimpl(tryfirst=True)  # before the terminal prints its sections
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        reason = verdict(len(self._first), len(self._tests))
        if not reason:
            return
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:  # pytest's closing line counts it as an error
            terminal.stats.setdefault("error", []).append(
                pytest.TestReport("too many reruns", ("", None, ""), {}, "failed", reason, "teardown")
            )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._first:
            return
        terminalreporter.section("reruns: the first failure of each test")
        for name, report in sorted(self._first.items()):
            terminalreporter.write_sep("_", f"{name}, rerun {self._times[name]} of at most {RERUNS} times", yellow=True)
            terminalreporter.write_line(report.longreprtext)
            for title, text in report.sections:
                terminalreporter.write_sep("-", title)
                terminalreporter.write_line("\n".join(text.splitlines()[-_LINES_OF_A_SECTION:]))
        terminalreporter.write_line(
            f"reruns: {len(self._first)} of {len(self._tests)} tests that may be rerun; "
            f"at most {allowed(len(self._tests))} may be (1 %, at least one)"
        )
