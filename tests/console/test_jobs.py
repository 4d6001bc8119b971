"""Jobs: pure states, and runs with a step function and a clock of the test."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.client import ServerInfo
from foqs.console.jobs import (
    MOST_ACTIVE_OF_OWNER,
    MOST_KEPT,
    MOST_LOST,
    MOST_RUNNING,
    MOST_RUNNING_OF_OWNER,
    MOST_STEP,
    Job,
    Jobs,
    JobState,
    Stepped,
)
from foqs.errors import Conflict, Forbidden, Invalid, NotFound, OutcomeUnknown, Overloaded, Unauthenticated
from foqs.folders import replace_file

ENDS = [state for state in JobState if state not in (JobState.WAITING, JobState.RUNNING)]


class User(SimpleNamespace):
    """In place of a session. `rights` by namespace."""

    def __init__(self, principal: str = "ann", **rights: tuple[str, ...]) -> None:
        info = ServerInfo("1", {}, 0, principal, rights or {"*": ("admin",)})
        super().__init__(info=info, principal=principal, ended=False)

    @asynccontextmanager
    async def use(self, namespace: str) -> AsyncIterator[tuple[str, str]]:
        yield self.principal, namespace


class Rig:
    """Jobs whose steps change `items` in all. The clock advances with the pauses of jobs alone."""

    def __init__(self, items: int = 0, folder: Path | None = None) -> None:
        self.items = items
        self.now_s = 50.0
        self.steps: list[tuple[float, Any, int]] = []
        self.errors: list[BaseException] = []
        self.before_step: Callable[[], Awaitable[None] | None] = lambda: None
        self.jobs = Jobs(
            {"change": self.step}, lambda user: not user.ended, lambda: int(1_000 * self.now_s), lambda: self.now_s,
            folder, self.pause,
        )  # fmt: skip

    async def step(self, client: Any, _job: Job, most: int) -> Stepped:
        self.steps.append((self.now_s, client, most))
        waits = self.before_step()
        if waits is not None:
            await waits
        if self.errors:
            raise self.errors.pop(0)
        changed = min(most, self.items)
        self.items -= changed
        return Stepped(changed, changed, self.items > 0, "" if self.items else "nothing stays")

    async def pause(self, woken: asyncio.Event, seconds: float) -> None:
        if not woken.is_set():
            self.now_s += seconds

    def begin(self, user: User | None = None, **options: Any) -> Job:
        given = {"ns": "default", "what": "Change items", **options}
        session: Any = user or User()
        return self.jobs.begin(session, "change", {"topic": "t"}, **given)

    async def ended(self, *jobs: Job) -> None:
        async with asyncio.timeout(30):
            while any(job.active for job in jobs):  # noqa: ASYNC110 - a job has no event of its end
                await asyncio.sleep(0)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


# ------------------------------------------------------------------------------------------ runs


def test_a_job_ends_when_its_step_has_nothing_left() -> None:
    async def work() -> None:
        rig = Rig(2 * MOST_STEP + 5)
        job = rig.begin(total=2 * MOST_STEP + 5)
        await rig.ended(job)
        assert (job.state, job.at_least, job.at_most) == (JobState.FINISHED, 2_005, 2_005)
        assert (job.said, job.done) == ("nothing stays", "2,005 items")
        assert [most for _, _, most in rig.steps] == [MOST_STEP] * 3
        assert rig.steps[0][1] == ("ann", "default")

    run(work())


@given(pace=st.integers(1, 5_000), items=st.integers(0, 3_000))
def test_a_job_keeps_its_pace(pace: int, items: int) -> None:
    async def work() -> None:
        rig = Rig(items)
        job = rig.begin(pace=pace)
        await rig.ended(job)
        done = 0
        for at_s, _, most in rig.steps:
            assert done <= pace * (at_s - 50.0) + 1e-6
            assert most <= pace
            done += min(most, items - done)
        assert job.at_most == items

    run(work())


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_cancelled_job_ends_after_its_step_and_may_continue(steps: int) -> None:
    async def work() -> None:
        rig = Rig(100)
        user: Any = User()
        rig.before_step = lambda: rig.jobs.cancel(user, job.id) and None if len(rig.steps) == steps + 1 else None
        job = rig.begin(pace=10)
        await rig.ended(job)
        assert (job.state, job.at_most) == (JobState.CANCELLED, 10 * (steps + 1))
        rig.jobs.resume(user, job.id)
        await rig.ended(job)
        assert (job.state, job.at_most, rig.items) == (JobState.FINISHED, 100, 0)

    run(work())


def test_a_cancel_wakes_a_job_that_waits_for_its_pace() -> None:
    async def work() -> None:
        woken: list[asyncio.Event] = []
        rig = Rig(100)

        async def pause(event: asyncio.Event, _seconds: float) -> None:
            woken.append(event)
            await event.wait()

        rig.jobs._pause = pause
        job = rig.begin(pace=10)
        async with asyncio.timeout(30):
            while not woken:  # noqa: ASYNC110 - the job makes the event
                await asyncio.sleep(0)
        session: Any = User()
        rig.jobs.cancel(session, job.id)
        await rig.ended(job)
        assert (job.state, job.at_most) == (JobState.CANCELLED, 10)

    run(work())


def test_a_lost_answer_raises_the_upper_bound_only() -> None:
    async def work() -> None:
        rig = Rig(30)
        rig.errors = [OutcomeUnknown("lost")] * (MOST_LOST - 1)
        job = rig.begin(pace=20)
        await rig.ended(job)
        lost = 20 * (MOST_LOST - 1)
        assert (job.state, job.at_least, job.at_most) == (JobState.FINISHED, 30, 30 + lost)
        assert job.done == "between 30 and 70 items"

    run(work())


def test_a_job_ends_when_answers_are_lost_again_and_again() -> None:
    async def work() -> None:
        rig = Rig(30)
        rig.errors = [OutcomeUnknown("lost")] * MOST_LOST
        job = rig.begin()
        await rig.ended(job)
        assert (job.state, job.said, job.at_least) == (JobState.FAILED, "lost", 0)
        assert job.at_most == MOST_LOST * MOST_STEP

    run(work())


@pytest.mark.parametrize(
    ("error", "state", "said"),
    [
        (Invalid("no such topic"), JobState.FAILED, "no such topic"),
        (Unauthenticated("who?"), JobState.STOPPED, "sign in and continue"),
        (KeyError("a fault"), JobState.FAILED, "its log has the error"),
    ],
)
def test_an_error_ends_a_job_that_may_continue(error: Exception, state: JobState, said: str) -> None:
    async def work() -> None:
        rig = Rig(30)
        rig.errors = [error]
        job = rig.begin()
        await rig.ended(job)
        assert job.state is state
        assert said in job.said
        session: Any = User("bob")
        rig.jobs.resume(session, job.id)
        await rig.ended(job)
        assert (job.state, job.owner, job.at_most, job.said) == (JobState.FINISHED, "bob", 30, "nothing stays")
        assert rig.steps[-1][1] == ("bob", "default")

    run(work())


def test_a_job_stops_with_its_session() -> None:
    async def work() -> None:
        rig, user = Rig(30), User()
        rig.before_step = lambda: setattr(user, "ended", True)
        job = rig.begin(user, pace=10)
        await rig.ended(job)
        assert (job.state, job.at_most) == (JobState.STOPPED, 10)
        assert "sign in" in job.said

    run(work())


def test_a_few_jobs_run_at_a_time_and_each_gets_its_turn() -> None:
    async def work() -> None:
        rig = Rig(10 * MOST_STEP)
        go_on = asyncio.Event()

        async def wait() -> None:
            await go_on.wait()

        rig.before_step = wait
        begun = [rig.begin(User(f"user {at}")) for at in range(2 * MOST_RUNNING)]
        await asyncio.sleep(0)
        assert [job.state for job in begun] == [JobState.RUNNING] * MOST_RUNNING + [JobState.WAITING] * MOST_RUNNING
        session: Any = User()
        rig.jobs.cancel(session, begun[-1].id)
        assert begun[-1].state is JobState.CANCELLED
        go_on.set()
        await rig.ended(*begun)
        assert [job.state for job in begun[:-1]] == [JobState.FINISHED] * (2 * MOST_RUNNING - 1)

    run(work())


def test_one_user_leaves_places_to_other_ones() -> None:
    async def work() -> None:
        rig, go_on = Rig(), asyncio.Event()

        async def wait() -> None:
            await go_on.wait()

        rig.before_step = wait
        begun = [rig.begin(User("ann")) for _ in range(MOST_ACTIVE_OF_OWNER)]
        bob: Any = User("bob")
        other = rig.begin(bob)
        assert other.state is JobState.RUNNING
        assert [job.state for job in begun].count(JobState.RUNNING) == MOST_RUNNING_OF_OWNER
        with pytest.raises(Overloaded, match="of your jobs"):
            rig.begin(User("ann"))
        rig.jobs.cancel(bob, begun[-1].id)
        rig.begin(User("ann"))
        ann: Any = User("ann")
        with pytest.raises(Overloaded, match="of your jobs"):
            rig.jobs.resume(ann, begun[-1].id)
        go_on.set()
        await rig.ended(other, *begun)

    run(work())


def test_the_console_keeps_active_jobs_and_the_last_ended() -> None:
    async def work() -> None:
        rig = Rig()
        first = rig.begin()
        await rig.ended(first)
        go_on = asyncio.Event()

        async def wait() -> None:
            await go_on.wait()

        rig.before_step = wait
        begun = [rig.begin(User(f"user {at % 4}")) for at in range(MOST_KEPT)]
        session: Any = User()
        assert first not in rig.jobs.of(session)
        assert rig.jobs.of(session) == begun[::-1]
        with pytest.raises(Overloaded, match="have not ended"):
            rig.begin()
        go_on.set()
        await rig.ended(*begun)

    run(work())


def test_jobs_are_for_users_with_the_right_in_their_namespace() -> None:
    async def work() -> None:
        rig = Rig(5)
        job = rig.begin(ns="shop")
        other: Any = User("bob", shop=("produce",), other=("admin",))
        assert rig.jobs.of(other) == []
        for call in (rig.jobs.cancel, rig.jobs.resume):
            with pytest.raises(NotFound):
                call(other, job.id)
        admin: Any = User("eve", shop=("admin",))
        assert rig.jobs.of(admin) == [job]
        await rig.ended(job)

    run(work())


def test_a_job_begins_with_the_right_admin_alone() -> None:
    async def work() -> None:
        rig = Rig(5)
        with pytest.raises(Forbidden, match="needs the right `admin` in namespace shop"):
            rig.begin(User("bob", shop=("produce", "consume"), other=("admin",)), ns="shop")
        assert rig.jobs._jobs == {}

    run(work())


@pytest.mark.parametrize(("advanced", "waited_s"), [(False, 2.0), (True, 0.0)])
def test_a_step_that_changed_nothing_waits_unless_it_advanced(advanced: bool, waited_s: float) -> None:
    async def work() -> None:
        rig = Rig()
        left = [Stepped(0, 0, True, advanced=advanced)] * 2

        async def step(_client: Any, _job: Job, _most: int) -> Stepped:
            return left.pop() if left else Stepped(0, 0, False)

        rig.jobs._steps = {"change": step}
        await rig.ended(rig.begin())
        assert rig.now_s == 50.0 + waited_s

    run(work())


def test_a_job_that_finished_is_neither_continued_nor_cancelled() -> None:
    async def work() -> None:
        rig = Rig(5)
        job = rig.begin()
        await rig.ended(job)
        session: Any = User()
        for call in (rig.jobs.cancel, rig.jobs.resume):
            with pytest.raises(Conflict, match="finished"):
                call(session, job.id)

    run(work())


# ------------------------------------------------------------------------------------------ files


@pytest.mark.threads
def test_a_job_continues_after_a_restart_of_the_console(tmp_path: Path) -> None:
    async def before() -> Job:
        rig = Rig(100, tmp_path)
        waits = asyncio.Event()

        async def wait() -> None:
            if len(rig.steps) == 3:
                waits.set()
                await asyncio.Event().wait()

        rig.before_step = wait
        job = rig.begin(pace=10, total=100)
        async with asyncio.timeout(30):
            await waits.wait()
        await rig.jobs.close()
        assert job.state is JobState.STOPPED
        return job

    stopped = asyncio.run(before())
    assert (stopped.at_least, stopped.at_most) == (20, 30)  # the third step may have changed its items
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o077 == 0

    async def after() -> None:
        rig = Rig(80, tmp_path)
        user: Any = User("bob")
        (job,) = rig.jobs.of(user)
        assert job == stopped
        rig.jobs.resume(user, job.id)
        await rig.ended(job)
        await rig.jobs.close()
        assert (job.state, job.at_least, job.at_most, job.owner) == (JobState.FINISHED, 100, 110, "bob")
        assert json.loads(path.read_text())["state"] == "finished"

    run(after())


def test_a_killed_console_leaves_jobs_that_stopped(tmp_path: Path) -> None:
    job = Job("a1", "change", {}, "ann", "default", "Change items", state=JobState.RUNNING, begun_ms=7)
    (tmp_path / "job-a1.json").write_text(json.dumps(job.document()))
    user: Any = User()
    (found,) = Rig(5, tmp_path).jobs.of(user)
    assert (found.state, found.ended_ms) == (JobState.STOPPED, 7)
    assert "restarted" in found.said


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"id": "b2"}', "\xff"])
def test_a_broken_file_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job-b2.json"
    path.write_bytes(text.encode("latin-1"))
    user: Any = User()
    assert Rig(5, tmp_path).jobs.of(user) == []
    assert path.exists()


@pytest.mark.threads
def test_a_job_that_makes_room_takes_its_file_with_it(tmp_path: Path) -> None:
    async def work() -> None:
        rig = Rig(0, tmp_path)
        for _ in range(MOST_KEPT + 3):
            await rig.ended(rig.begin())
        await rig.jobs.close()

    run(work())
    assert len(list(tmp_path.iterdir())) == MOST_KEPT


@pytest.mark.threads
def test_a_folder_that_refuses_a_file_ends_no_job(tmp_path: Path) -> None:
    async def work() -> None:
        rig = Rig(5, tmp_path / "jobs")
        job = rig.begin()
        await rig.ended(job)
        assert (job.state, job.at_most) == (JobState.FINISHED, 5)
        await rig.jobs.close()

    run(work())


@pytest.mark.threads
def test_a_slow_disk_holds_its_job_and_no_other_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job changes nothing before its file is written."""
    asked, may_write = threading.Event(), threading.Event()

    def slow(path: Path, data: bytes) -> None:
        asked.set()
        assert may_write.wait(60)
        replace_file(path, data)

    monkeypatch.setattr("foqs.console.jobs.replace_file", slow)

    async def work() -> None:
        rig = Rig(5, tmp_path)
        job = rig.begin()
        assert await asyncio.to_thread(asked.wait, 60)
        assert rig.steps == []
        may_write.set()
        await rig.ended(job)
        await rig.jobs.close()
        assert (job.state, len(rig.steps)) == (JobState.FINISHED, 1)

    run(work())


@pytest.mark.threads
def test_files_are_written_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step waits for the file of the one before it; the last file has the end of its job."""
    written: list[tuple[str, int]] = []

    def note(path: Path, data: bytes) -> None:
        document = json.loads(data)
        written.append((document["state"], document["at_least"]))

    monkeypatch.setattr("foqs.console.jobs.replace_file", note)

    async def work() -> None:
        rig = Rig(3 * MOST_STEP, tmp_path)
        rig.before_step = lambda: before.append(written[-1])
        job = rig.begin()
        await rig.ended(job)
        await rig.jobs.close()

    before: list[tuple[str, int]] = []
    run(work())
    assert before == [("running", 0), ("running", 1_000), ("running", 2_000)]
    assert written == [("waiting", 0), *before, ("finished", 3_000)]


# ------------------------------------------------------------------------------------------ states


steps = st.builds(
    lambda least, more: Stepped(least, least + more, True), least=st.integers(0, 1_000), more=st.integers(0, 1_000)
)
moves = st.lists(st.one_of(steps, st.integers(1, 1_000), st.sampled_from(ENDS)))


@given(moves)
def test_counts_are_bounds(made: list[Any]) -> None:
    job = Job("a1", "change", {}, "ann", "default", "Change items")
    at_least = at_most = 0
    for one in made:
        if isinstance(one, JobState):
            job.end(one, 5)
            assert not job.active
            if one is JobState.FINISHED:
                with pytest.raises(Conflict):
                    job.again("bob")
                break
            job.again("bob")
            assert (job.state, job.ended_ms) == (JobState.WAITING, None)
        elif isinstance(one, int):
            job.begin()
            job.lost(one)
            at_most += one
        else:
            job.begin()
            job.stepped(one)
            at_least, at_most = at_least + one.at_least, at_most + one.at_most
        assert (job.at_least, job.at_most) == (at_least, at_most)
        assert job.at_least <= job.at_most


jobs = st.builds(
    Job, id=st.text(), kind=st.text(), given=st.dictionaries(st.text(), st.text() | st.integers()), owner=st.text(),
    ns=st.text(), what=st.text(), pace=st.integers(0, 1 << 40), total=st.none() | st.integers(0, 1 << 60),
    begun_ms=st.integers(0, 1 << 50), ended_ms=st.none() | st.integers(0, 1 << 50), at_least=st.integers(0, 1 << 60),
    at_most=st.integers(0, 1 << 60), said=st.text(), state=st.sampled_from(ENDS), so_far=st.text(),
    progress=st.dictionaries(st.text(), st.none() | st.integers() | st.text()),
)  # fmt: skip


@given(jobs)
def test_a_file_keeps_all_of_a_job_but_its_memory(job: Job) -> None:
    job.memory["secret"] = object()
    assert Job.of(json.loads(json.dumps(job.document()))) == job


@given(jobs, st.data())
def test_a_file_with_a_value_of_another_type_is_refused(job: Job, data: st.DataObject) -> None:
    document = job.document()
    name = data.draw(st.sampled_from(sorted(document)))
    with pytest.raises(ValueError, match=r".*"):
        Job.of(document | {name: [1.5]})
