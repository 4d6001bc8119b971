"""Makes the compiled wheel from the pure one: script/compiled.py PURE_WHEEL FOLDER. script/build-wheels runs it.

The current folder is a copy of the tree, and gets what is compiled; FOLDER gets the wheel. `compiled.txt` names the
modules.
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

MODULES = Path(__file__).with_name("compiled.txt").read_text().split()


class Parallel(build_ext):
    """Runs the compiler for as many files of an extension at once as there are cores."""

    def build_extension(self, ext: Extension) -> None:
        def compiled(source: str) -> list[str]:
            return self.compiler.compile([source], output_dir=self.build_temp, extra_postargs=ext.extra_compile_args,
                                         include_dirs=ext.include_dirs)  # fmt: skip

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            ext.extra_objects = [name for names in pool.map(compiled, ext.sources) for name in names]
        ext.sources = []
        super().build_extension(ext)


def build() -> list[Path]:
    """Compile MODULES beside their sources; the paths of the libraries."""
    # mypy reads its own table only; setuptools would take all others of a pyproject.toml for its own.
    settings = Path("pyproject.toml").rename("mypy.toml")
    extensions = mypycify(
        [f"--config-file={settings}", *MODULES],
        opt_level="2",
        debug_level="0",
        multi_file=True,
        group_name="foqs_compiled",
    )
    setup(
        name="foqs",
        packages=[],
        py_modules=[],
        ext_modules=extensions,
        cmdclass={"build_ext": Parallel},
        script_args=["--quiet", "build_ext", "--inplace"],
    )
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return sorted(Path().glob(f"*{suffix}")) + sorted(Path("foqs").rglob(f"*{suffix}"))


def write(pure: Path, libraries: Iterable[Path], folder: Path) -> None:
    """Write the wheel that holds all of `pure` and the libraries."""
    name, version = pure.name.split("-")[:2]
    python = "cp{}{}".format(*sys.version_info)
    tag = f"{python}-{python}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    path = folder / f"{name}-{version}-{tag}.whl"
    about = f"{name}-{version}.dist-info"
    record: list[str] = []
    with zipfile.ZipFile(pure) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:

        def add(file: str, content: bytes) -> None:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{file},sha256={digest},{len(content)}\n")
            wheel.writestr(file, content)

        for library in libraries:
            add(library.as_posix(), library.read_bytes())
        for file in source.namelist():
            content = source.read(file)
            if file == f"{about}/WHEEL":
                content = content.replace(b"Root-Is-Purelib: true", b"Root-Is-Purelib: false")
                content = content.replace(b"Tag: py3-none-any", f"Tag: {tag}".encode())
            if file != f"{about}/RECORD":
                add(file, content)
        wheel.writestr(f"{about}/RECORD", "".join([*record, f"{about}/RECORD,,\n"]))


if __name__ == "__main__":
    write(Path(sys.argv[1]), build(), Path(sys.argv[2]))
