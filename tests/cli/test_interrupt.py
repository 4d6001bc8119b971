"""Ctrl-C, SIGTERM and SIGHUP at any moment of a command: one line, the status of the signal, no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from foqs.cli.connection import BATCH_ITEMS
from foqs.idl import idl
from tests.api.hosts import ROOT, environment, start
from tests.cli.test_starting import HOOK
from tests.client.peer import LATER, Act, Peer, script
from tests.support.waiting import wait_until

# SIGINT arrives at a call of a function. FOQS_TEST_CALL says at which call after the start of `main`; 0 counts all.
PROFILE = """
import os, signal, sys

wanted, count, begun = int(os.environ["FOQS_TEST_CALL"]), 0, False

def called(frame, event, argument):
    global count, begun
    if event != "call":
        return
    begun = begun or frame.f_code.co_name == "_run" and frame.f_code.co_filename.endswith("/foqs/__main__.py")
    count += begun
    if begun and count == wanted:
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)

if "foqs" in sys.orig_argv:
    sys.setprofile(called)
    if not wanted:
        import atexit
        atexit.register(lambda: print("calls", count, file=sys.stderr))
"""


def run(folder: Path, hook: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(hook)
    return subprocess.run(
        [sys.executable, "-m", "foqs", *words],
        env=environment(PYTHONPATH=f"{folder}:{ROOT}", **variables),
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.parametrize("module", ["foqs.cli.main", "typer", "foqs.cli.logs"])
@pytest.mark.parametrize("words", [["--help"], ["enqueue", "t", "x", "--address", "127.0.0.1:1"], ["settings", "get"]])
def test_ctrl_c_while_modules_are_imported(tmp_path: Path, words: list[str], module: str) -> None:
    """`foqs.cli.logs` is imported by the module of the log, which is half made then."""
    done = run(tmp_path, HOOK, *words, FOQS_TEST_INTERRUPT=module)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "foqs: interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["enqueue", "t", "x", "--address", "127.0.0.1:1", "--timeout-ms", "1"]])
def test_ctrl_c_at_any_call(tmp_path: Path, words: list[str]) -> None:
    calls = int(run(tmp_path, PROFILE, *words, FOQS_TEST_CALL="0").stderr.split()[-1])
    assert calls > 10_000
    for part in (0.001, 0.03, 0.2, 0.4, 0.6, 0.8, 0.9, 0.97, 0.99, 0.999):
        done = run(tmp_path, PROFILE, *words, FOQS_TEST_CALL=str(int(calls * part)))
        assert "Traceback" not in done.stderr, (part, done.stderr)
        assert done.returncode == 130 and done.stderr.endswith("foqs: interrupted\n"), (part, done)


COMMAND = """
import atexit, signal, sys, time, weakref
from foqs.cli import interrupt, terminal

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup`, which may have started the tests, ignores it
interrupt.end_at_once()
ctrl_c = lambda *_, **__: signal.raise_signal({number})

@terminal.report_errors
def body():
    print("begun")
    {body}

try:
    body()
except KeyboardInterrupt:
    interrupt.end()
"""


@pytest.mark.parametrize(
    "body",
    [
        "ctrl_c()",
        "terminal.print = ctrl_c; ctrl_c()",
        # The interpreter prints an exception of a callback, and goes on.
        "thing = set(); found = weakref.ref(thing, ctrl_c); del thing; time.sleep(90)",
        "atexit.register(ctrl_c)",
    ],
    ids=["in the body", "while it is reported", "in a callback of the interpreter", "at the end"],
)
def test_ctrl_c_in_a_command(body: str) -> None:
    assert _ran(body, signal.SIGINT) == (130, "begun\n", "foqs: interrupted\n")


ON_A_LOOP = """
    import asyncio
    async def main():
        news = asyncio.Event()
        def changed():  # as `Event.set`, in the middle of which the signal comes
            for waiter in news._waiters:
                if not waiter.done():
                    ctrl_c()
                    waiter.set_result(True)
        asyncio.get_running_loop().call_soon(changed)
        try:
            await news.wait()
            await asyncio.sleep(90)
        finally:
            print("cleaned up")
    interrupt.run_on_loop(main())"""


IN_A_THREAD = """
    import asyncio, threading
    over = threading.Event()
    async def main():
        asyncio.get_running_loop().call_soon(over.set)
        asyncio.get_running_loop().run_in_executor(None, lambda: (over.wait(), ctrl_c()))
    interrupt.run_on_loop(main())
    print("not ended")"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_loop_waits_for_threads(number: signal.Signals) -> None:
    status, out, error = _ran(IN_A_THREAD, number)
    expected = (130, "interrupted") if number is signal.SIGINT else (-number, f"ended by {number.name}")
    assert (status, out, error) == (expected[0], "begun\n", f"foqs: {expected[1]}\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_a_callback_answers(number: signal.Signals) -> None:
    status, out, error = _ran(ON_A_LOOP, number)
    assert out == "begun\ncleaned up\n"
    expected = (130, "interrupted") if number is signal.SIGINT else (-number, f"ended by {number.name}")
    assert (status, error) == (expected[0], f"foqs: {expected[1]}\n")


@pytest.mark.parametrize(
    "body",
    [
        "ctrl_c()",
        "try: ctrl_c()\n    finally: print('cleaned up'); ctrl_c()",
        "thing = set(); found = weakref.ref(thing, ctrl_c); del thing; time.sleep(90)",
        "signal.signal(signal.SIGINT, signal.SIG_IGN); ctrl_c()",
    ],
    ids=["in the body", "twice", "in a callback of the interpreter", "in the background"],
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_another_signal_in_a_command(body: str, number: signal.Signals) -> None:
    status, out, error = _ran(body, number)
    assert (status, error) == (-number, f"foqs: ended by {number.name}\n")
    assert out == ("begun\ncleaned up\n" if "cleaned up" in body else "begun\n")


def _ran(body: str, number: signal.Signals) -> tuple[int, str, str]:
    code = COMMAND.replace("{body}", body).replace("{number}", str(int(number)))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=dict(os.environ)
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_long_command_says_how_far_it_came(number: signal.Signals) -> None:
    """Its second request gets no answer."""
    redriven = "2 items redriven from t.dlq before the last request; repeat the command for the rest"
    found = idl.RedriveItemsResponse(2, 2, 0, True, [])
    changed = idl.ChangeItemsResponse([idl.ItemOutcome()] * BATCH_ITEMS)
    ids = "".join(f"{item}\n" for item in range(1, BATCH_ITEMS + 2))
    for words, method, first, said in (
        (["dead", "redrive", "t.dlq"], "RedriveItems", found, redriven),
        (["delete", "-"], "DeleteItems", Act.SERVE, f"{BATCH_ITEMS} items deleted"),
        (["change", "-", "--now"], "ChangeItems", changed, f"{BATCH_ITEMS} items changed"),
    ):
        with Peer(script(method, first, Act.IGNORE)) as peer, tempfile.TemporaryFile("w+") as error:
            peer.items = dict.fromkeys(range(1, BATCH_ITEMS + 2), True)
            with tempfile.TemporaryFile("w+") as lines:
                lines.write(ids)
                lines.seek(0)
                command = start(words, lines.fileno(), error.fileno(), error.fileno(), {"FOQS_ADDRESS": peer.address})
            wait_until(lambda peer=peer, method=method: len(peer.named(method)) == 2)
            command.send_signal(number)
            status = command.wait(LATER)
            error.seek(0)
            ended = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
            assert error.read() == f"foqs: interrupted: {said}\nfoqs: {ended}\n"
            assert status == (130 if number == signal.SIGINT else -signal.SIGTERM)
