""".ci/run with scripts that only say that they were called."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.manifests import DEPLOY

SETUP = "#!/bin/sh\necho setup $*\n"
TEST = """#!/bin/sh
while [ -e building ] && ! [ -e begun ]; do sleep 0.02; done
echo test $*
exit {status}
"""
KUBERNETES = """#!/bin/sh
case "$1" in
found) [ -e found ] ;;
build)
    {build} ;;
*) echo kubernetes $* ;;
esac
"""
LATE = """trap 'trap "" TERM; echo the build has ended; exit 143' TERM; touch begun; sleep 300 & wait"""
"""`timeout` may send the signal a second time: to its child, and to the group of both."""
NOT_RUN = ".ci/run: the tests of Kubernetes did not run, as its programs were not ready (see above)"


def ran(folder: Path, *, found: bool = False, build: str = "touch begun", status: int = 0) -> tuple[int, list[str]]:
    """Return the exit status, and the lines of both streams."""
    (folder / "script").mkdir()
    (folder / ".ci").mkdir()
    shutil.copy(DEPLOY.parent / ".ci" / "run", folder / ".ci")
    scripts = {"setup": SETUP, "test": TEST.format(status=status), "kubernetes": KUBERNETES.format(build=build)}
    for name, text in scripts.items():
        (folder / "script" / name).write_text(text)
        (folder / "script" / name).chmod(0o755)
    (folder / ("found" if found else "building")).touch()
    argv = ["bash", folder / ".ci" / "run", "-k", "x"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    return done.returncode, done.stdout.splitlines()


def test_programs_that_are_there_are_not_built(tmp_path: Path) -> None:
    assert ran(tmp_path, found=True, build="echo built") == (0, ["setup test", "test -k x"])


def test_built_programs_are_tested_after_the_other_tests(tmp_path: Path) -> None:
    status, lines = ran(tmp_path)
    assert (status, lines) == (0, ["setup test", "test -k x", "kubernetes -p tests.support.reruns"])


def test_a_build_that_fails_fails_no_run(tmp_path: Path) -> None:
    assert ran(tmp_path, build="touch begun; exit 1") == (0, ["setup test", "test -k x", NOT_RUN])


@pytest.mark.parametrize("status", [1, 3])
def test_a_failed_test_ends_the_build(tmp_path: Path, status: int) -> None:
    code, lines = ran(tmp_path, build=LATE, status=status)
    assert (code, lines[:2], lines[2:]) == (status, ["setup test", "test -k x"], ["the build has ended"])
