"""`foqs spark` without Spark: help, refusals, and the error line for a missing extra."""

import subprocess
import sys
from pathlib import Path

import pytest

from foqs.errors import Invalid, Unavailable
from foqs.extras import missing
from foqs.spark import snapshot_shards
from foqs.spark.jobs import command
from foqs.spark.jobs import command as sessions
from foqs.spark.jobs.command import Place, Source
from tests.api.hosts import environment, foqs

JOBS = ("report", "export", "enqueue", "move")
ROOT = Path(__file__).parents[2]
FROM = ("--from-namespace", "a", "--from-topic", "t")
TO = ("--to-namespace", "a", "--to-topic", "u")
HOSTS = ("--endpoints", "127.0.0.1:1")
SHARD = ("--shards", "sqlite:///x.db")
PLAIN = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


@pytest.fixture
def without_pyspark(tmp_path):
    """Settings with which Python finds no PySpark."""
    (tmp_path / "pyspark.py").write_text("raise ImportError('no pyspark')")
    return {"PYTHONPATH": f"{tmp_path}:{ROOT}"}


@pytest.mark.process
@pytest.mark.parametrize("job", JOBS)
def test_help_needs_no_spark(job, without_pyspark):
    done = foqs("spark", job, "--help", env={**PLAIN, **without_pyspark})
    assert done.returncode == 0, done.stderr
    assert "--dry-run" in done.stdout or job in ("report", "export")
    assert "--zookeeper" in done.stdout or job == "enqueue"
    assert "--master" in done.stdout
    assert "--conf" in done.stdout


@pytest.mark.process
def test_help_of_a_move_names_its_races():
    text = " ".join(foqs("spark", "move", "--help", env=PLAIN).stdout.split())
    assert "A snapshot is not a lock" in text
    assert "may be processed in both topics" in text


@pytest.mark.process
@pytest.mark.parametrize("job", JOBS)
def test_a_job_is_a_module_of_its_own(job, without_pyspark):
    """Run a module with the same options, as spark-submit runs a file."""
    for program in ([str(ROOT / f"foqs/spark/jobs/{job}.py")], ["-m", f"foqs.spark.jobs.{job}"]):
        done = subprocess.run(
            [sys.executable, *program, "--help"],
            capture_output=True,
            text=True,
            env=environment(**PLAIN, **without_pyspark),
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert "Options" in done.stdout


@pytest.mark.process
@pytest.mark.parametrize(
    "args",
    [
        ("report", *SHARD),
        ("export", "--out", "x", *SHARD),
        ("enqueue", "--input", "x", "--namespace", "a", "--topic", "t", *HOSTS),
        ("move", *FROM, *TO, *HOSTS, *SHARD),
    ],
)
def test_without_the_extra(args, without_pyspark):
    done = foqs("spark", *args, env=without_pyspark)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"foqs: {missing('PySpark', 'spark')}\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("report",), "exactly one of --shards, --config and --zookeeper"),
        (("report", *SHARD, "--config", "x"), "exactly one of"),
        (("report", *SHARD, "--zookeeper-root", "/x"), "needs --zookeeper"),
        (("report", *SHARD, "--now", "noon"), "--now: 'noon'"),
        (("export", "--out", "x"), "exactly one of"),
        (("enqueue", "--input", "x", "-n", "a", *HOSTS, "--payload-json", "--payload-column", "b"), "--payload-json"),
        (("enqueue", "--input", "x", "-n", "a", *HOSTS, "--topic", "t", "--topic-column", "b"), "--topic-column"),
        (("enqueue", "--input", "x", "-n", "a", *HOSTS, "--on-invalid", "collect"), "go together"),
        (("enqueue", "--input", "x", "-n", "a", *HOSTS, "--invalid-path", "y"), "go together"),
        (("move", *FROM, "--to-namespace", "a", "--to-topic", "t", *HOSTS, *SHARD), "the same topic"),
        (("move", *FROM, *TO, *HOSTS, *SHARD, "--job-id", "a b"), "--job-id"),
        (("move", *FROM, *TO, *HOSTS), "exactly one of"),
        (("move", *FROM, *TO, *HOSTS, *SHARD, "--copy", "--delete-consumed"), "needs a move"),
    ],
)
def test_refusals(args, words, without_pyspark):
    """One line on stderr and exit status 1, before Spark starts."""
    done = foqs("spark", *args, env=without_pyspark)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("foqs: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


@pytest.mark.process
def test_a_session_of_spark_connect_is_refused(without_pyspark):
    """The refusal comes before Spark starts, and names the remedy."""
    done = foqs("spark", "report", *SHARD, env={**without_pyspark, "SPARK_REMOTE": "sc://h"})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("foqs: the jobs do not run over Spark Connect (SPARK_REMOTE=sc://h)")
    assert "--master" in done.stderr


@pytest.mark.process
@pytest.mark.parametrize("args", [("export",), ("move",), ("enqueue",), ("export", "--out", "x", "--mode", "ignore")])
def test_wrong_usage(args):
    done = foqs("spark", *args)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_options_of_the_reader():
    source = Source(("sqlite:///a", "sqlite:///b"), user="reader", password="p", partitions_per_shard=3)
    assert source.options(payloads=True, topic="t") == {
        "shards": "sqlite:///a,sqlite:///b",
        "user": "reader",
        "password": "p",
        "partitionsPerShard": "3",
        "topic": "t",
        "payloads": "true",
    }
    assert Source(zookeeper="h:1", zookeeper_root="/r").options(payloads=False) == {
        "zookeeper": "h:1",
        "zookeeperRoot": "/r",
        "payloads": "false",
    }


class Builder:
    """Builder of a session that records its settings."""

    def __init__(self):
        self.settings = {}

    def master(self, url):
        self.settings["spark.master"] = url
        return self

    def config(self, name, value):
        self.settings[name] = value
        return self

    def getOrCreate(self):
        return self.settings


def test_a_place_without_a_master_is_this_machine(monkeypatch):
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", "given")
    started = sessions._start(Builder(), Place())
    assert (started["spark.master"], started["spark.sql.shuffle.partitions"]) == ("local[*]", "16")
    started = sessions._start(Builder(), Place("local[2]", ("spark.sql.shuffle.partitions=3",)))
    assert (started["spark.master"], started["spark.sql.shuffle.partitions"]) == ("local[2]", "3")


def test_a_cluster_keeps_its_own_settings(monkeypatch):
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    started = sessions._start(Builder(), Place("spark://h:7077", ("spark.executor.memory=2g", "spark.x=a=b")))
    assert (started["spark.master"], started["spark.executor.memory"], started["spark.x"]) == (
        "spark://h:7077",
        "2g",
        "a=b",
    )
    assert "spark.sql.shuffle.partitions" not in started
    assert "PYSPARK_PYTHON" not in sessions.os.environ, "the path of this machine's Python means nothing there"
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert sessions._start(Builder(), Place()) == {}, "spark-submit has set all"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"conf": ("spark.x",)}, "--conf 'spark.x' is not spark.NAME=VALUE"),
        ({"conf": ("x=1",)}, "--conf 'x=1' is not"),
        ({"conf": ("spark.remote=sc://h",)}, r"Spark Connect \(--conf spark.remote=sc://h\)"),
        ({"conf": ("spark.api.mode=connect",)}, "Spark Connect"),
        ({"master": "sc://h:15002"}, r"Spark Connect \(--master sc://h:15002\)"),
    ],
)
def test_places_that_are_refused(given, says):
    with pytest.raises(Invalid, match=says):
        Place(**given)
    assert Place("yarn", ("spark.api.mode=classic",)).settings == {"spark.api.mode": "classic"}


def test_words_of_errors():
    inside = "[PYTHON_DATA_SOURCE_ERROR] Failed\n  File x\nfoqs.errors.Invalid: option topic is missing\n\nSQLSTATE"
    assert command.words_of(inside) == "option topic is missing"
    refused = "An exception was thrown\nTraceback\n  File x\nfoqs.spark.write_sender.Refused: row 0: UNAVAILABLE: away"
    assert command.words_of(refused) == "row 0: UNAVAILABLE: away"
    assert command.words_of("[PATH_NOT_FOUND] Path does not exist: x. SQLSTATE: 42K03") == (
        "Path does not exist: x. SQLSTATE: 42K03"
    )
    assert command.words_of("") != ""
    missing = (
        "An exception was thrown from the Python worker:\nTraceback\nModuleNotFoundError: No module named 'foqs'\n"
    )
    assert "Python of the tasks has no foqs:" in command.words_of(missing)
    assert "docs/reference/spark.md" in command.words_of(missing.replace("'foqs'", "'foqs.spark'"))


def test_times():
    assert command.epoch_ms("2026-03-04T12:00:00Z") == command.epoch_ms("2026-03-04T12:00") == 1_772_625_600_000
    assert command.epoch_ms("2026-03-04T13:00:00+01:00") == 1_772_625_600_000
    with pytest.raises(Invalid):
        command.epoch_ms("yesterday")


def test_a_report_counts_by_the_clock_of_the_databases(monkeypatch, capsys):
    """By the median, as hosts do: each server is asked once."""
    clocks = {"//a/": 5, "//b/": 900, "//c/": 7, "//d/": 8}
    asked = []

    def time_ms(url):
        asked.append(url)
        return next(time for host, time in clocks.items() if host in url)

    monkeypatch.setattr(snapshot_shards, "_time_ms", time_ms)
    urls = [f"mysql://{host}/foqs_{n}" for n, host in enumerate("aabcd")]
    assert sessions.time_of(Source(shards=urls)) == 7
    assert asked == urls[:1] + urls[2:]

    def away(url):
        raise Unavailable("shard 1 cannot be read: it is away")

    monkeypatch.setattr(snapshot_shards, "_time_ms", away)
    assert sessions.time_of(Source(shards=urls)) > 1_772_625_600_000
    assert "this machine's time (--now names another): shard 1 cannot be read" in capsys.readouterr().err
