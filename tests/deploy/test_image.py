"""The image, tested without a container engine: a fixture runs the COPY and install steps of the build in a clean
folder. The tests start the installed `foqs` as a user would."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.deploy.manifests import DEPLOY, Rendered

ROOT = DEPLOY.parent


class Stage(NamedTuple):
    name: str
    base: str
    steps: list[tuple[str, str]]  # instruction, the rest

    def all(self, instruction: str) -> list[str]:
        return [rest for name, rest in self.steps if name == instruction]


def stages() -> dict[str, Stage]:
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    found: list[Stage] = []
    for line in text.splitlines():
        instruction, _, rest = line.strip().partition(" ")
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(Stage(name, base, []))
        elif instruction and instruction != "#" and found:
            found[-1].steps.append((instruction, rest))
    return {stage.name: stage for stage in found}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the build leaves at /opt/foqs."""
    folder = tmp_path_factory.mktemp("image")
    context, target = folder / "src", folder / "foqs"
    build = stages()["build"]
    for step in build.all("COPY"):
        *sources, place = step.split()
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, context / place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                (context / place).mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, context / place)
    (step,) = build.all("RUN")
    program, place = json.loads(step)
    assert place == "/opt/foqs"
    (extras,) = build.all("ARG")
    settings = dict([extras.split("=")])
    done = subprocess.run([context / program, target], env=clean() | settings, cwd=folder, timeout=500)
    assert done.returncode == 0
    shutil.rmtree(context)
    return target


def clean() -> dict[str, str]:
    """An environment that knows nothing of this checkout and its packages."""
    ours = ("FOQS_", "PYTHON", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = [folder for folder in kept["PATH"].split(os.pathsep) if not folder.startswith(str(ROOT / ".venv"))]
    return kept | {"PATH": os.pathsep.join(folder for folder in path if not (Path(folder) / "activate").exists())}


@pytest.fixture
def address(installed: Path, tmp_path: Path) -> Iterator[str]:
    """Of a `foqs dev` from the image."""
    argv = [installed / "bin" / "foqs", "dev", "--port", "0"]
    host = subprocess.Popen(
        argv, cwd=tmp_path, env=clean(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert host.stdout is not None
        yield host.stdout.readline().removeprefix("foqs listening on ").strip()
    finally:
        host.terminate()
        assert host.wait(60) == 0


def pinned() -> dict[str, str]:
    lines = (DEPLOY / "image" / "constraints.txt").read_text().splitlines()
    return dict(line.lower().replace("_", "-").split("==") for line in lines if not line.startswith("#"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_built_image_serves(installed: Path, address: str, tmp_path: Path) -> None:
    def foqs(*args: str, stdin: str = "") -> str:
        argv = [installed / "bin" / "foqs", *args]
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, env=clean(), cwd=tmp_path, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert re.fullmatch(r"foqs \d+\.\d+\.\d+ \((pure Python|compiled)\)\n", foqs("--version"))
    foqs("enqueue", "t", "--raw", "--address", address, stdin="hello\n")
    assert "hello" in foqs("dequeue", "t", "--wait-ms", "30000", "--address", address)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_installed_package_is_pinned_and_pip_is_left_out(installed: Path) -> None:
    program = "import importlib.metadata as m; [print(one.name + '==' + one.version) for one in m.distributions()]"
    argv = [installed / "bin" / "python", "-c", program]
    said = subprocess.run(argv, capture_output=True, text=True, env=clean(), check=True, timeout=60).stdout
    found = dict(line.lower().replace("_", "-").split("==") for line in said.splitlines())
    assert found.pop("foqs")
    assert found.items() <= pinned().items(), "deploy/image/lock rewrites the pins"
    assert "pip" not in found
    assert not list(installed.glob("lib*/python*/site-packages/_foqs.pth")), "nothing refers to the sources"


@pytest.mark.memory
def test_each_requirement_of_the_images_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        project["dependencies"],
        *(project["optional-dependencies"][extra] for extra in ("cli", "server", "sasl", "hooks", "spark")),
    ]
    names = {re.split(r"[\[<>=;]", one)[0].lower().replace("_", "-") for each in wanted for one in each}
    assert names - {"foqs"} <= pinned().keys(), "deploy/image/lock rewrites the pins"


def test_the_image_runs_foqs_as_an_unprivileged_user(rendered: Rendered) -> None:
    found = stages()
    assert list(found)[-1] == "host", "a build without a target makes the last stage"
    assert {stage.base for stage in found.values()} == {"${PYTHON}", "run"}
    run = found["run"]
    accounts = [json.loads(step) for step in run.all("RUN")]
    user = {argv[argv.index("--uid") + 1] for argv in accounts if "--uid" in argv}
    assert run.all("USER") == [f"{uid}:{uid}" for uid in user]
    for stage in found.values():
        assert stage.all("USER")[-1:] in ([], run.all("USER")), "the last word"
    for name in ("foqs", "foqs-shards", "foqs-report"):
        context = rendered.pods[name].spec["securityContext"]
        assert {str(context["runAsUser"]), str(context["runAsGroup"])} == user
    assert run.all("ENTRYPOINT") == ['["foqs"]']
    assert run.all("EXPOSE") == [" ".join(map(str, rendered.host.ports.values()))]


def test_copied_files_are_in_the_build_context() -> None:
    """The file beside the Dockerfile says what of the checkout that is."""
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert lines[0] == "*"
    sent = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {word.removeprefix("./") for step in stages()["build"].all("COPY") for word in step.split()[:-1]}
    assert sent == copied
