"""`thrift/foqs.json` has all of the IDL that Python programs use, and they parse no IDL."""

from __future__ import annotations

import inspect
import pickle
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import thriftpy2

from foqs.idl import IDL_PATH, idl

ROOT = Path(__file__).parent.parent.parent
UNPARSED = """
import thriftpy2
def refused(*_, **__):
    raise AssertionError("an IDL is parsed")
thriftpy2.load = thriftpy2.load_module = thriftpy2.load_fp = refused
import MODULE
"""


@pytest.fixture(scope="module")
def parsed() -> Any:
    return thriftpy2.load(str(IDL_PATH), module_name="foqs_parsed_thrift")


def test_the_written_file_is_current(parsed: Any) -> None:
    as_json = runpy.run_path(str(ROOT / "script" / "idl.py"))["as_json"]
    written = IDL_PATH.with_suffix(".json").read_text()
    assert written == as_json(parsed), "run script/idl.py"
    assert written == as_json(idl)


def test_structs_are_made_as_those_of_thriftpy2(parsed: Any) -> None:
    structs = [name for name, made in vars(idl).items() if hasattr(made, "thrift_spec")]
    assert len(structs) > 50
    for name in structs:
        ours, its = getattr(idl, name), getattr(parsed, name)
        assert vars(ours()) == vars(its()), name
        assert inspect.signature(ours.__init__) == inspect.signature(its.__init__), name
        assert (ours._ttype, ours.__mro__[1:]) == (its._ttype, its.__mro__[1:]), name


def test_a_struct_takes_its_fields_by_place_and_by_name() -> None:
    made = idl.Foqs.Enqueue_result(idl.EnqueueResponse([]))
    assert (made.success, made.error) == (idl.EnqueueResponse(outcomes=[]), None)
    with pytest.raises(TypeError):
        idl.TopicCount(nothing=1)


def test_structs_are_pickled() -> None:
    assert pickle.loads(pickle.dumps(idl.TopicCount("mail", 1))) == idl.TopicCount("mail", 1)


@pytest.mark.process
@pytest.mark.parametrize("module", ["foqs.client", "foqs.tasks", "foqs.api.handlers"])
def test_no_program_parses_the_idl(module: str) -> None:
    code = UNPARSED.replace("MODULE", module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
