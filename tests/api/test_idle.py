"""Connections that do nothing cost next to nothing."""

import contextlib
import resource
from collections.abc import Callable, Iterator

import pytest

from foqs.idl import idl
from tests.api.conftest import whole
from tests.api.hosts import PATIENT, HostProcess
from tests.api.wire import Wire

COUNT = 2_000
# The event loop's pool (six threads on two cores: marks are written there) fills as it is needed, and a batch of a slow
# database is watched by a thread of its own. Neither depends on the number of connections.
OTHER_THREADS = 20


@pytest.fixture
def host_with_few_files(start_dev: Callable[..., HostProcess]) -> Iterator[HostProcess]:
    """Started with the 256 open files of a careless login; it has to see to it that it may have more. This process
    may have enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = COUNT + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"only {hard} open files are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        host = start_dev(**PATIENT, FOQS_SERVER__MAX_CONNECTIONS_PER_ADDRESS=str(COUNT + 10))
        assert host.address
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        yield whole(host)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_two_thousand_idle_connections(host_with_few_files: HostProcess) -> None:
    """No thread for any of them, little memory, and service goes on; all are served when they speak."""
    host = host_with_few_files
    with Wire(host.address) as wire, contextlib.ExitStack() as stack:
        wire.ack(*(wire.put("t", b""), wire.one("t"))[1:])
        threads, rss_bytes = host.threads(), host.rss_bytes()
        idle = [stack.enter_context(Wire(host.address)) for _ in range(COUNT)]
        for each in idle[::100]:
            assert each.ask("GetServerInfo").version
        assert host.threads() <= threads + OTHER_THREADS
        assert host.rss_bytes() - rss_bytes < COUNT * 20_000
        for n in range(100):
            wire.put("t", b"%d" % n)
            wire.ack(wire.one("t"))
        # Long polls cost no thread either, and each gets its item.
        for number, each in enumerate(idle):
            each.send_call("Dequeue", ns="test", wants=[idl.TopicCount(f"t{number % 7}", 1)], wait_ms=600_000)
        for number in range(COUNT):
            wire.put(f"t{number % 7}", b"x")
        for number, each in enumerate(idle):
            (item,) = each.receive("Dequeue").items
            assert item.topic == f"t{number % 7}"
        assert host.threads() <= threads + OTHER_THREADS
    assert host.stop() == 0
