"""`foqs hook`: try, list and stats, on a real host."""

from __future__ import annotations

import json
from pathlib import Path

from foqs.client import Client
from tests.support.live import Run, client, host, in_terminal, lines, run

__all__ = ["client", "host", "run"]  # fixtures
ROUTE = """function on_enqueue(item)
  if item.headers.customer == "none" then return {refuse = "no such customer"} end
  return {fairness_key = item.headers.customer, delay_ms = tonumber(foqs.get("delay"))}
end
"""
DECIDE = (
    "function on_failure(item) return {action = item.cause == 'expired' and item.attempt > 2 and 'dead' or nil} end"
)


def test_a_file_is_tried_on_a_sample(run: Run, tmp_path: Path, client: Client) -> None:
    client.put_settings({"delay": "250"})
    script, sample = tmp_path / "route.lua", tmp_path / "item.json"
    script.write_text(ROUTE)
    sample.write_text('{"topic": "jobs", "headers": {"customer": "acme"}, "priority": 3}')
    (tried,) = lines(run("hook", "try", script, "--sample", sample))
    assert tried["item"] == {"topic": "jobs", "fairness_key": "acme", "priority": 3, "delay_ms": 250}
    assert tried.keys() == {"item", "elapsed_us", "memory_bytes"}
    sample.write_text('{"headers": {"customer": "none"}}')
    (tried,) = lines(run("hook", "try", "-", "--sample", sample, stdin=ROUTE))
    assert tried["refuse"] == "no such customer"


def test_a_script_of_the_settings_is_tried(run: Run, client: Client) -> None:
    client.put_settings({"script.decide": DECIDE})
    failed = ("hook", "try", "--script", "decide", "--hook", "on_failure", "--cause", "expired", "--attempt")
    assert "action" not in lines(run(*failed, 2))[0]
    assert lines(run(*failed, 3))[0]["action"] == "dead"
    assert "script.none" in run("hook", "try", "--script", "none", status=1).stderr


def test_a_script_that_fails_ends_the_command_with_1(run: Run) -> None:
    done = run("hook", "try", "-", stdin="function on_enqueue(item) return {wait = 1} end", status=1)
    assert lines(done)[0]["error"].startswith("invalid: there is no field 'wait'")
    done = run("hook", "try", "-", stdin="function on_enqueue(", status=1)
    assert lines(done)[0]["error"].startswith("error: tried:1:")


def test_wrong_arguments(run: Run, tmp_path: Path) -> None:
    assert "give either a FILE or --script NAME" in run("hook", "try", status=2).stderr
    assert "give either a FILE or --script NAME" in run("hook", "try", "-", "--script", "a", status=2).stderr
    assert "No such file" in run("hook", "try", tmp_path / "none.lua", status=1).stderr
    sample = tmp_path / "item.json"
    sample.write_text('{"colour": 1}')
    assert "unknown field 'colour'" in run("hook", "try", "-", "--sample", sample, stdin=ROUTE, status=1).stderr


def test_scripts_are_listed_with_the_policies_that_name_them(run: Run, client: Client) -> None:
    hooks = json.dumps({"hooks": {"on_enqueue": "route", "on_failure": "decide"}})
    policies = {"topic.jobs": hooks, "topic.a*": json.dumps({"hooks": {"on_failure": "decide"}}), "topic.b": "{}"}
    client.put_settings({"script.route": ROUTE, "script.decide": DECIDE, "script.unused": ROUTE} | policies)
    size = len(ROUTE)
    assert lines(run("hook", "list")) == [
        {"script": "decide", "bytes": len(DECIDE), "named_by": ["topic.a*: on_failure", "topic.jobs: on_failure"]},
        {"script": "route", "bytes": size, "named_by": ["topic.jobs: on_enqueue"]},
        {"script": "unused", "bytes": size, "named_by": []},
    ]
    status, shown = in_terminal(client, "hook", "list")
    assert status == 0
    assert "topic.jobs: on_enqueue" in shown


def test_calls_are_counted(run: Run, client: Client) -> None:
    run("settings", "set", "script.route=function on_enqueue(item) error('no ' .. item.headers.no) end")
    run("topic", "policy", "jobs", 'hooks={"on_enqueue": "route"}')
    for at in range(3):
        client.enqueue("jobs", b"x", headers={"no": f"{at}"})
    (found,) = lines(run("hook", "stats", "jobs"))
    assert (found["hook"], found["script"], found["calls"], found["failures"]) == ("on_enqueue", "route", 3, 3)
    assert found["breaker_open"] is True
    assert json.loads(run("topic", "stats", "jobs").stdout)["hooks"][0]["failures"] == 3
    status, shown = in_terminal(client, "hook", "stats", "jobs")
    assert status == 0
    assert "open" in shown
    assert "error: route:1: no 2" in shown
