"""Jobs: changes that take longer than one request, in steps of at most about a second.

A job acts with the session of the user who began it, or continued it, and stops with that session. With a folder it is
kept there, without the token, so that a user may continue it after a restart of the console.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from foqs.checks import counted, printable
from foqs.client import AsyncClient
from foqs.console.sessions import Session
from foqs.errors import Conflict, FoqsError, Forbidden, NotFound, OutcomeUnknown, Overloaded, Unauthenticated
from foqs.folders import replace_file

log = structlog.get_logger("foqs.console")

MOST_KEPT = 100
"""Jobs of a console. The oldest ended job makes room."""
MOST_RUNNING = 4
MOST_ACTIVE_OF_OWNER, MOST_RUNNING_OF_OWNER = 25, 3
"""Of one principal, which leaves places to other ones."""
MOST_STEP = 1_000
"""Items of one step: a host takes a fraction of a second for them."""
MOST_LOST = 3
"""Steps with a lost answer, one after another, after which a job ends."""
_AGAIN_S = 1.0
"""Before the next step after one that changed nothing, or whose answer was lost."""
_PREFIX, _SUFFIX = "job-", ".json"


class JobState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    CANCELLED = "cancelled"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"


_ACTIVE = (JobState.WAITING, JobState.RUNNING)


class Stepped(NamedTuple):
    """From `at_least` to `at_most` items were changed. `more`: another step is needed. `said`: what the user has to
    know of the rest; `failed`: it needs another try. Both count for the last step only. `advanced`: the next step does
    not wait, though this one may have changed nothing: it has read further."""

    at_least: int
    at_most: int
    more: bool
    said: str = ""
    failed: bool = False
    advanced: bool = False


@dataclass(slots=True)
class Job:
    """`kind` names the step function, and `given` are its arguments, JSON. `what` is the change in words. `pace`: items
    a second, 0: no limit. `total`: items at its begin, about; None: not known. `said`: the last error, or what stays.
    Times are Unix epoch milliseconds. The rest is for the step function: `so_far`, what users see besides the counts;
    `progress`, JSON; `memory`, which no file keeps, and which lasts until the job ends or stops."""

    id: str
    kind: str
    given: Mapping[str, Any]
    owner: str
    ns: str
    what: str
    pace: int = 0
    total: int | None = None
    begun_ms: int = 0
    ended_ms: int | None = None
    at_least: int = 0
    at_most: int = 0
    said: str = ""
    state: JobState = JobState.WAITING
    so_far: str = ""
    progress: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def active(self) -> bool:
        return self.state in _ACTIVE

    @property
    def may_continue(self) -> bool:
        return not self.active and self.state is not JobState.FINISHED

    @property
    def step_items(self) -> int:
        """The most items of one step."""
        return min(self.pace or MOST_STEP, MOST_STEP)

    @property
    def done(self) -> str:
        """How many items it changed, in words."""
        if self.at_least == self.at_most:
            return counted(self.at_least, "item")
        return f"between {self.at_least:,} and {self.at_most:,} items"

    def wait_s(self, items: int, took_s: float) -> float:
        """Return how long the next step has to wait, after `items` in the `took_s` since this run of the job began."""
        return max(0.0, items / self.pace - took_s) if self.pace else 0.0

    def stepped(self, step: Stepped) -> None:
        self.at_least += step.at_least
        self.at_most += step.at_most

    def lost(self, items: int) -> None:
        """The answer of a step about `items` items is lost."""
        self.at_most += items

    def begin(self) -> None:
        self.state, self.said = JobState.RUNNING, ""

    def end(self, state: JobState, now_ms: int, said: str = "") -> None:
        self.state, self.ended_ms, self.said = state, now_ms, said
        self.memory.clear()

    def again(self, owner: str) -> None:
        """Wait for another run, with the rights of `owner`. Raises Conflict."""
        if not self.may_continue:
            raise Conflict(f"the job is {self.state.value}: there is nothing to continue")
        self.state, self.owner, self.ended_ms = JobState.WAITING, owner, None

    def document(self) -> dict[str, Any]:
        """Return what a file keeps."""
        kept = asdict(self) | {"state": self.state.value}
        del kept["memory"]
        return kept

    @classmethod
    def of(cls, document: Any) -> Job:
        """Return a job of a file. One that was at work has stopped. Raises ValueError."""
        if not isinstance(document, dict) or document.keys() != {one.name for one in fields(cls)} - {"memory"}:
            raise ValueError("these are not the fields of a job")
        job = cls(**document | {"state": JobState(document["state"])})
        texts = (job.id, job.kind, job.owner, job.ns, job.what, job.said, job.so_far)
        numbers = (job.pace, job.begun_ms, job.at_least, job.at_most)
        maybe = (job.total, job.ended_ms)
        if not (
            all(isinstance(one, str) for one in texts)
            and all(type(one) is int and one >= 0 for one in numbers)
            and all(one is None or type(one) is int for one in maybe)
            and isinstance(job.given, dict)
            and isinstance(job.progress, dict)
        ):
            raise ValueError("a field of the job has another type")
        if job.active:
            job.end(JobState.STOPPED, job.ended_ms or job.begun_ms, "the console was restarted: continue the job")
        return job


Step = Callable[[AsyncClient, Job, int], Awaitable[Stepped]]
"""step(client, job, most): change at most `most` items. Raises what the calls raise."""


async def _pause(woken: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await woken.wait()


class Jobs:
    """The jobs of a console. `steps`: by the kind of a job. `lasts` returns False for a session that ended. `now_ms` is
    Unix epoch time; `now_s` is monotonic. `pause(woken, seconds)` returns when the event is set, or after that time."""

    def __init__(
        self,
        steps: Mapping[str, Step],
        lasts: Callable[[Session], bool],
        now_ms: Callable[[], int],
        now_s: Callable[[], float],
        folder: Path | None = None,
        pause: Callable[[asyncio.Event, float], Awaitable[None]] = _pause,
    ) -> None:
        self._steps = steps
        self._lasts = lasts
        self._now_ms = now_ms
        self._now_s = now_s
        self._pause = pause
        self._files = None if folder is None else _Files(folder)
        found = [] if self._files is None else self._files.read()
        self._jobs = {job.id: job for job in sorted(found, key=lambda job: job.begun_ms) if job.kind in steps}
        self._sessions: dict[str, Session] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancels: dict[str, asyncio.Event] = {}

    def of(self, session: Session) -> list[Job]:
        """Return the jobs of namespaces in which the user has the right `admin`, the newest first."""
        return [job for job in reversed(self._jobs.values()) if session.info.may("admin", job.ns)]

    def begin(
        self, session: Session, kind: str, given: Mapping[str, Any], *, ns: str, what: str, pace: int = 0,
        total: int | None = None,
    ) -> Job:  # fmt: skip
        """Begin a job. Raises Forbidden without the right `admin`, and Overloaded when none of `MOST_KEPT` jobs has
        ended, or the user has too many."""
        if not session.info.may("admin", ns):
            raise Forbidden(f"a job needs the right `admin` in namespace {printable(ns)}")
        self._check_owner(session.principal)
        while len(self._jobs) >= MOST_KEPT:
            oldest = next((job.id for job in self._jobs.values() if not job.active), None)
            if oldest is None:
                raise Overloaded(f"{MOST_KEPT} jobs of this console have not ended: wait for one, or cancel one")
            self._forget(oldest)
        job_id = secrets.token_hex(6)
        job = Job(job_id, kind, dict(given), session.principal, ns, what, pace, total, self._now_ms())
        self._jobs[job_id] = job
        self._queue(job, session)
        return job

    def resume(self, session: Session, job_id: str) -> Job:
        """Continue a job with the rights of the session. Raises NotFound, Conflict, Overloaded."""
        job = self.find(session, job_id)
        self._check_owner(session.principal)
        job.again(session.principal)
        self._queue(job, session)
        return job

    def cancel(self, session: Session, job_id: str) -> Job:
        """Ask a job to end after its present step. Raises NotFound, Conflict."""
        job = self.find(session, job_id)
        if not job.active:
            raise Conflict(f"the job is {job.state.value}: there is nothing to cancel")
        if job.state is JobState.WAITING:
            self._end(job, JobState.CANCELLED)
        elif job.id in self._cancels:
            self._cancels[job.id].set()
        return job

    def find(self, session: Session, job_id: str) -> Job:
        """Raises NotFound, also for a job that the user may not see."""
        job = self._jobs.get(job_id)
        if job is None or not session.info.may("admin", job.ns):
            raise NotFound("the console has no such job; it keeps the last ones only")
        return job

    async def close(self) -> None:
        """Stop all jobs, and wait for their files."""
        for job in self._jobs.values():
            if job.state is JobState.WAITING:
                self._end(job, JobState.STOPPED, _ENDED)
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._files is not None:
            await asyncio.to_thread(self._files.close)

    # ------------------------------------------------------------------------------------- runs

    def _check_owner(self, owner: str) -> None:
        if sum(job.active and job.owner == owner for job in self._jobs.values()) >= MOST_ACTIVE_OF_OWNER:
            raise Overloaded(f"{MOST_ACTIVE_OF_OWNER} of your jobs have not ended: wait for one, or cancel one")

    def _queue(self, job: Job, session: Session) -> None:
        self._sessions[job.id] = session
        self._keep(job)
        self._start()

    def _start(self) -> None:
        for job in self._jobs.values():
            if len(self._tasks) >= MOST_RUNNING:
                return
            running = sum(self._jobs[one].owner == job.owner for one in self._tasks)
            if job.state is JobState.WAITING and running < MOST_RUNNING_OF_OWNER:
                job.begin()
                cancel = self._cancels[job.id] = asyncio.Event()
                run = self._run(job, self._sessions[job.id], cancel)
                self._tasks[job.id] = asyncio.create_task(run, name=f"job {job.id}")

    async def _run(self, job: Job, session: Session, cancel: asyncio.Event) -> None:
        try:
            async with session.use(job.ns) as client:
                ended = await self._work(job, session, client, cancel)
        except asyncio.CancelledError:
            self._end(job, JobState.STOPPED, _ENDED)
            raise
        except Unauthenticated:
            ended = JobState.STOPPED, _SIGN_IN
        except FoqsError as error:
            ended = JobState.FAILED, error.message
        except Exception as error:
            log.error("console.job_failed", job=job.id, kind=job.kind, ns=job.ns, exc_info=error)
            ended = JobState.FAILED, "the console failed: its log has the error"
        finally:
            del self._tasks[job.id], self._cancels[job.id]
        self._end(job, *ended)
        self._start()

    async def _work(
        self, job: Job, session: Session, client: AsyncClient, cancel: asyncio.Event
    ) -> tuple[JobState, str]:
        begun_s, before, lost = self._now_s(), job.at_most, 0
        await self._keep(job)  # nothing changes before the file says that the job has begun
        while True:
            if cancel.is_set():
                return JobState.CANCELLED, ""
            if not self._lasts(session):
                return JobState.STOPPED, _SIGN_IN
            most, wait_s = job.step_items, 0.0
            try:
                step = await self._steps[job.kind](client, job, most)
            except OutcomeUnknown:
                job.lost(most)
                lost += 1
                if lost == MOST_LOST:
                    raise
                wait_s = _AGAIN_S
            except asyncio.CancelledError:
                job.lost(most)
                raise
            else:
                lost = 0
                job.stepped(step)
                if not step.more:
                    return JobState.FAILED if step.failed else JobState.FINISHED, step.said
                if not (step.at_most or step.advanced):
                    wait_s = _AGAIN_S
            await self._keep(job)
            wait_s = max(wait_s, job.wait_s(job.at_most - before, self._now_s() - begun_s))
            if wait_s:
                await self._pause(cancel, wait_s)

    def _end(self, job: Job, state: JobState, said: str = "") -> None:
        job.end(state, self._now_ms(), said)
        self._sessions.pop(job.id, None)
        self._keep(job)
        log.info(
            "console.job_ended", job=job.id, kind=job.kind, ns=job.ns, who=job.owner, state=state.value,
            items=job.at_most, said=said,
        )  # fmt: skip

    def _keep(self, job: Job) -> asyncio.Future[None]:
        """Return what ends when the file has the job as it is now."""
        if self._files is not None:
            return self._files.write(job)
        kept = asyncio.get_running_loop().create_future()
        kept.set_result(None)
        return kept

    def _forget(self, job_id: str) -> None:
        del self._jobs[job_id]
        if self._files is not None:
            self._files.remove(job_id)


_SIGN_IN = "the session ended: sign in and continue the job"
_ENDED = "the console ended: continue the job"


class _Files:
    """One file a job. One thread writes them, in the order of the calls. A disk that refuses one ends no job: the log
    says it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, "jobs")

    def close(self) -> None:
        """Wait until all files are written."""
        self._thread.shutdown()

    def _path(self, job_id: str) -> Path:
        return self._folder / f"{_PREFIX}{job_id}{_SUFFIX}"

    def read(self) -> list[Job]:
        found = []
        for path in sorted(self._folder.glob(f"{_PREFIX}*{_SUFFIX}")):
            try:
                job = Job.of(json.loads(path.read_text(encoding="utf-8")))
                if path != self._path(job.id):
                    raise ValueError("the job has another id than its file")
            except (OSError, ValueError, TypeError) as error:
                log.warning("console.job_unread", file=path.name, error=str(error))
            else:
                found.append(job)
        return found

    def write(self, job: Job) -> asyncio.Future[None]:
        document = json.dumps(job.document()).encode()
        return self._later(lambda: replace_file(self._path(job.id), document), job.id)

    def remove(self, job_id: str) -> None:
        self._later(lambda: self._path(job_id).unlink(missing_ok=True), job_id)

    def _later(self, change: Callable[[], object], job_id: str) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(self._thread, _changed, change, job_id)


def _changed(change: Callable[[], object], job_id: str) -> None:
    try:
        change()
    except OSError as error:
        log.warning("console.job_not_kept", job=job_id, error=str(error))
