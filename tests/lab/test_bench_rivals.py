"""Each installed rival does the whole work: it enqueues, leases and acks every item."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from foqs_lab.bench import rounds as run
from foqs_lab.bench.clients import Measured, NodeClient, PythonClient, Run, Shape, measure, shares
from foqs_lab.bench.machine import cpu_s
from foqs_lab.bench.rig import Rig
from foqs_lab.bench.rivals import RIVALS, Rivals
from foqs_lab.bench.rivals.beanstalkd import Beanstalkd
from foqs_lab.bench.rivals.node import BullMq, GraphileWorker
from foqs_lab.bench.rivals.rival import Rival
from foqs_lab.bench.rivals.sql import Pgmq, SkipLocked
from foqs_lab.servers import ServerUnavailable
from tests.conftest import Server

SINGLE = Shape(21, 1, 2, 2)
BATCHES = Shape(505, 100, 2, 2)


def complete(rival: Rival) -> None:
    """Run every workload on small shapes. A client that loses an item never ends, one that fails is an error."""
    runs = [rival.measure_pair(SINGLE), rival.measure_callers(SINGLE)]
    runs += [rival.measure_pair(BATCHES)] if rival.has_batches else []
    for measured in runs:
        assert measured.items_per_s > 0
        assert set(measured.cpu_us) == {"server", "clients"}
        assert measured.cpu_us["clients"] > 0
    assert runs[0].enqueue_p50_ms is None
    assert (runs[1].enqueue_p50_ms or 0) > 0


@pytest.mark.server
@pytest.mark.timeout(120)
@pytest.mark.parametrize("make", [Pgmq, GraphileWorker, BullMq, Beanstalkd])
def test_a_rival_with_a_server_of_its_own(make: Callable[[], Rival]) -> None:
    rival = make()
    try:
        rival.start()
    except ServerUnavailable as error:
        pytest.skip(error.reason)
    try:
        complete(rival)
        assert rival.version
    finally:
        rival.close()


@pytest.mark.mariadb
@pytest.mark.timeout(120)
def test_skip_locked_on_the_server_of_the_shards(mariadb: Server, tmp_path: Path) -> None:
    url = mariadb.url(mariadb.create_database("bench_rival"))
    rival = SkipLocked(Rig("mariadb", mariadb.version, [url], tmp_path, tmp_path, mariadb.pid))
    try:
        complete(rival)
    finally:
        rival.close()
        mariadb.drop_database("bench_rival")


def test_shares_are_all_items() -> None:
    assert shares(10, 4) == [3, 3, 2, 2]
    assert [part.items for part in Shape(5, 1, 2, 2).parts()] == [3, 2]


def test_every_rival_has_a_name_of_its_own() -> None:
    assert list(RIVALS) == ["skip_locked", "pgmq", "graphile_worker", "bullmq", "beanstalkd"]


def works() -> Run:
    return lambda: [1.0, 3.0, 2.0]


def fails_to_connect() -> Run:
    raise OSError("no server")


def fails_at_work() -> Run:
    def run() -> list[float]:
        raise OSError("no server")

    return run


def test_clients_report_together() -> None:
    measured = measure([PythonClient(works), PythonClient(works)], 10, {"server": os.getpid()})
    assert measured.items_per_s > 0
    assert set(measured.cpu_us) == {"server", "clients"}
    assert measured.enqueue_p50_ms == 2.0


@pytest.mark.parametrize("fails", [fails_to_connect, fails_at_work])
def test_a_client_that_fails_ends_the_measurement(fails: Callable[[], Run]) -> None:
    with pytest.raises(RuntimeError, match="a client of the benchmark failed"):
        measure([PythonClient(works), PythonClient(fails)], 10, {})


def never_ends() -> Run:
    def run() -> list[float]:
        threading.Event().wait()
        return []

    return run


def test_a_client_that_never_ends_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "program.cjs"
    program.write_text("echo ready; exec cat >/dev/null")
    for client in (PythonClient(never_ends), NodeClient("/bin/sh", program, {})):
        with pytest.raises(RuntimeError, match="took too long"):
            measure([client], 10, {}, limit_s=0.5)


def test_a_node_client_that_fails_ends_the_measurement(tmp_path: Path) -> None:
    program = tmp_path / "program.cjs"
    for body in ("exit 1", "echo ready; read line; exit 1"):
        program.write_text(body)
        with pytest.raises(RuntimeError, match=r"program\.cjs failed"):
            measure([NodeClient("/bin/sh", program, {})], 10, {})


def test_processor_time_includes_children() -> None:
    before = cpu_s(os.getpid())
    with PythonClient(partial(works)) as client:
        client.ready()
        assert cpu_s(os.getpid()) > before
    assert cpu_s(1 << 30) == 0


class Broken(Rival):
    name = "pgmq"
    title = "pgmq"

    def start(self) -> None: ...

    def close(self) -> None: ...

    def servers(self) -> dict[str, int]:
        return {}

    def pair(self, shape: Shape) -> list[PythonClient]:
        raise RuntimeError("a client of the benchmark failed")

    callers = pair


def test_a_rival_that_fails_is_left_out() -> None:
    rivals, figures = Rivals([Broken()]), run.Figures("mariadb", "10")
    figures.add_run("pgmq", Measured(1.0, {"server": 1.0}), parts=False)
    plan = run.Plan(2, {"callers": Shape(1)})
    run._rival(rivals.running[0], rivals, plan, "callers", figures, lambda _: None)
    assert rivals.running == []
    assert figures.missing == {"pgmq": "a client of the benchmark failed"}
    assert figures.values == {}
