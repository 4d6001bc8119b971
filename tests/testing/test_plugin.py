"""The fixtures of pytest, in the project of an application."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from foqs import extras
from tests.api.hosts import environment

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path):
    """`project({"test_a.py": ...}, *options)` runs the tests of a project whose environment has foqs."""

    def run(files, *options):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_foqs", "-p", "no:cacheprovider", *options]
        env = {**environment(), "PYTHONPATH": f"{tmp_path}:{ROOT}"}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)

    return run


def test_a_project_that_uses_no_fixture_imports_nothing_of_foqs(project):
    ran = project({"test_a.py": "import sys\ndef test_a(): assert not {'foqs', 'thriftpy2'} & sys.modules.keys()\n"})
    assert ran.returncode == 0, ran.stdout


def test_each_test_has_its_own_service(project):
    text = """
        import pytest
        from foqs.client import Client

        @pytest.mark.parametrize("time", range(2))
        @pytest.mark.parametrize("kind", ["foqs_server", "foqs_dev"])
        def test_alone(request, kind, time):
            with Client(request.getfixturevalue(kind).address) as client:
                assert list(client.list_items("t")) == []
                client.enqueue("t", b"x")
    """
    ran = project({"test_a.py": "\n".join(line[8:] for line in text.splitlines())}, "-W", "error")
    assert "4 passed" in ran.stdout, ran.stdout + ran.stderr


def test_the_installation_names_the_plugin():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"pytest_foqs": "pytest_foqs"}
    assert "pytest_foqs.py" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]


def test_without_its_extra_the_line_of_the_installation_is_said():
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['sqlalchemy']))\n"
        "try:\n    import foqs.testing\nexcept ModuleNotFoundError as error:\n    print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == extras.missing("the package sqlalchemy, which foqs.testing needs,", "testing")
