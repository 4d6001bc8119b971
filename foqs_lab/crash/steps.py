"""Jobs of many steps with checkpoints, whose workers and host are killed: which steps are done twice.

A worker writes down each step, and each checkpoint that was answered OK. A host writes checkpoints up to a second
later; so only a step before a checkpoint of the last second before a kill of the host may be done again.
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import NamedTuple

from foqs.client import Client, ItemSpec
from foqs.errors import FoqsError
from foqs_lab.cluster import HostProcess, Shard

NAMESPACE = "steps"
TOPIC = "jobs"
_WORKERS = 8
_LEASE_MS = 1_500
_STEP_S = 0.03
_WRITTEN_NS = 1_000_000_000
_LIMIT_S = 300.0


Span = tuple[int, int]
"""From when until when (ns) a host, or a database, was killed and away."""


class Step(NamedTuple):
    """Step `number` of a job begins at `at_ns`."""

    at_ns: int
    job: int
    number: int


class Saved(NamedTuple):
    """The checkpoint that says `number` steps of the job are done, sent at `asked_ns` and answered OK at `at_ns`."""

    at_ns: int
    job: int
    number: int
    asked_ns: int

    def lost(self, out: Span) -> bool:
        """Return True if it may have been taken in the last second before `out`, or during it."""
        return self.asked_ns <= out[1] and self.at_ns > out[0] - _WRITTEN_NS


class Repeated(NamedTuple):
    """A step that was done again, though a checkpoint behind it had been answered OK."""

    step: Step
    saved: Saved


@dataclass
class Report:
    """`excused`: steps done again for a checkpoint of the last second before a kill of the host. `wrong`: all other
    repeated steps. `unfinished`: jobs of which no worker has done the last step."""

    seed: int
    jobs: int
    steps: int
    worker_kills: int
    host_kills: int
    excused: int
    wrong: list[Repeated]
    unfinished: int
    took_s: float

    @property
    def good(self) -> bool:
        return not (self.wrong or self.unfinished)

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.jobs} jobs, {self.steps} steps, {self.worker_kills} kills of workers and "
            f"{self.host_kills} of the host in {self.took_s:.0f} s",
            f"done again: {self.excused} steps for a checkpoint of the last second before a kill of the host",
            *(f"wrong: {one.step} after {one.saved}" for one in self.wrong[:10]),
        ]
        if self.unfinished:
            lines.append(f"{self.unfinished} jobs were not finished")
        return "\n  ".join(lines)


def repeated(steps: Iterable[Step], saved: Iterable[Saved], outages: Sequence[Span]) -> tuple[int, list[Repeated]]:
    """Return how many steps were excused, and which were wrong."""
    of_job: dict[int, list[Saved]] = defaultdict(list)
    for one in saved:
        of_job[one.job].append(one)
    excused, wrong = 0, []
    for step in steps:
        behind = [one for one in of_job[step.job] if one.number > step.number and one.at_ns < step.at_ns]
        kept = [one for one in behind if not any(map(one.lost, outages))]
        if kept:
            wrong.append(Repeated(step, kept[0]))
        excused += bool(behind) and not kept
    return excused, wrong


def run_steps(shards: Sequence[Shard], folder: Path, seed: int, jobs: int, steps: int, kills: int) -> Report:
    """Let workers do `jobs` of `steps` steps, and kill one of them or the host `kills` times. Logs go to `folder`."""
    began, rng = monotonic(), random.Random(f"{seed}/steps")
    host_kills: list[Span] = []
    with HostProcess("host", shards, folder) as host:
        with Client(f"127.0.0.1:{host.port}", NAMESPACE) as client:
            specs = [ItemSpec(TOPIC, b"%d" % steps, dedup_key=f"job {number}") for number in range(jobs)]
            client.enqueue_many(specs)
        crew = [_started(host.port, folder, number) for number in range(_WORKERS)]
        started = len(crew)
        try:
            for number in range(kills):
                _wait_until_done(folder, jobs * number // (kills + 1), began)
                if number % 2:
                    before_ns = monotonic_ns()
                    host.kill()
                    host_kills.append((before_ns, monotonic_ns()))
                    host.launch()
                    host.wait_listening()
                else:
                    at = rng.randrange(len(crew))
                    crew[at].kill()
                    crew[at] = _started(host.port, folder, started)
                    started += 1
            _wait_until_done(folder, jobs, began)
        finally:
            for worker in crew:
                worker.kill()
                worker.join()
    found, saved, done = _read(folder)
    excused, wrong = repeated(found, saved, host_kills)
    return Report(
        seed, jobs, len(found), kills - len(host_kills), len(host_kills), excused, wrong, jobs - len(done),
        monotonic() - began,
    )  # fmt: skip


def _started(port: int, folder: Path, number: int) -> BaseProcess:
    worker = get_context("spawn").Process(target=_work, args=(port, folder / f"worker-{number}.jsonl"), daemon=True)
    worker.start()
    return worker


def _work(port: int, path: Path) -> None:
    with path.open("a", buffering=1) as log, Client(f"127.0.0.1:{port}", NAMESPACE, timeout_ms=20_000) as client:
        while True:
            with suppress(FoqsError):
                for item in client.dequeue(TOPIC, count=1, wait_ms=1_000, lease_ms=_LEASE_MS):
                    for number in range(int(item.checkpoint or 0), int(item.payload)):
                        log.write(json.dumps(["step", monotonic_ns(), item.id, number]) + "\n")
                        time.sleep(_STEP_S)
                        asked_ns = monotonic_ns()
                        client.extend(item, _LEASE_MS, checkpoint=b"%d" % (number + 1))
                        log.write(json.dumps(["saved", monotonic_ns(), item.id, number + 1, asked_ns]) + "\n")
                    # Before the ack: a worker that is killed behind it would not write that the job is done.
                    log.write(json.dumps(["done", monotonic_ns(), item.id, 0]) + "\n")
                    client.ack(item)


def _read(folder: Path) -> tuple[list[Step], list[Saved], set[int]]:
    steps, saved, done = [], [], set()
    for path in folder.glob("worker-*.jsonl"):
        for line in path.read_text().splitlines():
            with suppress(ValueError):  # the last line of a worker that was killed
                match json.loads(line):
                    case ["step", *of_step]:
                        steps.append(Step(*of_step))
                    case ["saved", *of_saved]:
                        saved.append(Saved(*of_saved))
                    case [_, _, job, _]:
                        done.add(job)
    return sorted(steps), sorted(saved), done


def _wait_until_done(folder: Path, jobs: int, began: float) -> None:
    """Raises TimeoutError."""
    while len(_read(folder)[2]) < jobs:
        if monotonic() - began > _LIMIT_S:
            raise TimeoutError(f"fewer than {jobs} jobs were done in {_LIMIT_S:.0f} s")
        time.sleep(0.05)
