"""The units: valid, confined, and with the time and the files that a host or a push process needs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from foqs.cli.keeper import END_S
from foqs.config.load import Config
from foqs.server import cluster_node
from tests.conftest import required
from tests.deploy.manifests import DEPLOY
from tests.deploy.test_settings import parsed

UNIT = DEPLOY / "systemd" / "foqs.service"
PUSH = DEPLOY / "systemd" / "foqs-push.service"


def said(key: str, unit: Path = UNIT) -> list[str]:
    """Every value of a key, in order."""
    return [line.partition("=")[2] for line in unit.read_text().splitlines() if line.startswith(f"{key}=")]


@pytest.fixture
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        (pytest.fail if required() else pytest.skip)("no systemd-analyze: it is in the package systemd")
    return found


@pytest.fixture(params=[UNIT, PUSH], ids=lambda unit: unit.stem)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """With a program that is here: systemd looks whether it can be executed."""
    path: Path = tmp_path / request.param.name
    path.write_text(request.param.read_text().replace("/opt/foqs/bin/foqs", sys.executable))
    return path


def test_systemd_understands_it(analyze: str, unit: Path) -> None:
    argv = [analyze, "verify", "--man=no", "--recursive-errors=no"]
    done = subprocess.run([*argv, unit], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    unit.write_text(unit.read_text().replace("NoNewPrivileges", "NoPrivileges"))
    assert "NoPrivileges" in subprocess.run([*argv, unit], capture_output=True, text=True, timeout=60).stderr


def test_it_is_confined(analyze: str, unit: Path) -> None:
    """systemd's own measure, from 0 (nothing is open) to 100."""
    argv = [analyze, "security", "--offline=true", "--threshold=15", "--no-pager", unit]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_it_runs_a_command_that_there_is() -> None:
    (line,) = said("ExecStart")
    program, *args = line.split()
    command, params = parsed(args)
    assert (program, command, str(params["config"])) == ("/opt/foqs/bin/foqs", "serve", "/etc/foqs/foqs.toml")


def test_the_unit_of_push_runs_a_command_that_there_is() -> None:
    (line,) = said("ExecStart", PUSH)
    program, *args = line.split()
    command, params = parsed(args)
    assert (program, command, str(params["config"])) == ("/opt/foqs/bin/foqs", "push run", "/etc/foqs/push.toml")
    assert int(said("TimeoutStopSec", PUSH)[0]) >= params["grace_ms"] / 1000 + 5


def test_a_host_has_the_time_that_it_may_take_to_stop() -> None:
    takes_s = 2 * Config().server.grace_ms / 1000 + max(cluster_node._CLOSE_S, END_S)
    assert int(said("TimeoutStopSec")[0]) >= takes_s + 5
    assert (said("KillSignal"), said("KillMode")) == (["SIGTERM"], ["mixed"])


def test_all_connections_have_a_file() -> None:
    assert int(said("LimitNOFILE")[0]) >= Config().server.open_files


def test_its_account_is_made() -> None:
    lines = (UNIT.with_name("foqs.sysusers")).read_text().splitlines()
    (account,) = [line.split()[1] for line in lines if line.startswith("u ")]
    assert said("User") == said("Group") == [account]
