"""A reader of pages about clusters, on a machine that has MariaDB or MySQL and ZooKeeper as Debian installs them.

The servers are private ones: the reader replaces addresses and `/etc`, and `sudo` is a script that does the same to
them.
"""

from __future__ import annotations

import importlib.util
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from foqs_lab.servers import DatabaseServer, Kind, ServerUnavailable
from foqs_lab.servers.process import ServerProcess, free_port
from tests.api.hosts import until
from tests.conftest import required
from tests.support.pages import Reader

_ZOO_CFG = "# as in Debian's package\ntickTime=2000\ndataDir={folder}/zookeeper\nclientPort=2181\n"
_JAVA = ("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m", "-Dlog4j2.level=WARN")
_MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
_SUDO = """#!/bin/bash
set -e
case "$1" in
apt-get) [[ "$*" == "apt-get install -y "* ]] ;;
service) [ "$3" = start ] || echo "$2" >> "{folder}/restarts" ;;
mariadb | mysql) exec {client} --no-defaults -h 127.0.0.1 -P {port} -u root "${{@:2}}" ;;
install) shift; exec install $(printf '%s ' "$@" | sed -E 's/-o [a-z]+ //') ;;
*) exec "$@" ;;
esac
"""


class Machine:
    """The services of the machine, and its `/etc` as a folder."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.folder = folder
        self.database = DatabaseServer(kind)
        self.ports = {name: str(free_port()) for name in ("2181", "2281")}
        self._zookeeper: ServerProcess | None = None

    @contextmanager
    def running(self, *, zookeeper: bool) -> Iterator[Machine]:
        for name in ("etc/mysql/mariadb.conf.d", "etc/zookeeper/conf"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "etc/zookeeper/conf/zoo.cfg").write_text(self.own(_ZOO_CFG.format(folder=self.folder)))
        (self.folder / "etc/zookeeper/conf/environment").write_text('CLASSPATH="/usr/share/java/zookeeper.jar"\n')
        try:
            self.database.start()
            if zookeeper:
                self._start_zookeeper()
            yield self
        except ServerUnavailable as error:
            (pytest.fail if required() else pytest.skip)(error.reason)
        finally:
            if self._zookeeper is not None:
                self._zookeeper.kill()
            self.database.close()

    def own(self, text: str) -> str:
        """Return a text of a page with the addresses and the folder of this machine."""
        for port, ours in self.ports.items():
            text = re.sub(rf"\b{port}\b", ours, text)
        return text.replace("@127.0.0.1/", f"@127.0.0.1:{self.database.port}/").replace(" /etc/", f" {self.etc}/")

    @property
    def etc(self) -> Path:
        return self.folder / "etc"

    def restart(self, service: str) -> None:
        if service == "zookeeper":
            assert self._zookeeper is not None
            self._zookeeper.stop(grace_ms=10_000)
            self._start_zookeeper()
        else:
            assert service == "mariadb", service
            keys = [re.findall(r"^(\w+) = (.*)$", file.read_text(), re.M) for file in self.etc.rglob("*.cnf")]
            options = [f"--{name.replace('_', '-')}={value}" for found in keys for name, value in found]
            self.database.settings = replace(self.database.settings, options=("--ssl", *options))
            self.database.restart()

    def _start_zookeeper(self) -> None:
        config = self.etc / "zookeeper/conf/zoo.cfg"
        text = config.read_text()
        (self.folder / "zoo.cfg").write_text(
            f"{text.replace('=/etc/', f'={self.etc}/')}\nadmin.enableServer=false\n4lw.commands.whitelist=*\n"
        )
        log = self.folder / "zookeeper.log"
        with log.open("a") as file:
            file.write("start\n")
        (port,) = re.findall(r"^(?:secureC|c)lientPort=(\d+)$", text, re.M)
        process = ServerProcess([*_JAVA, "-cp", f"{jars_with_tls()}/*", _MAIN, str(self.folder / "zoo.cfg")], log=log)
        self._zookeeper = process
        until(lambda: not process.alive or listens(int(port)), "ZooKeeper to listen", 60)
        assert process.alive, log.read_text()


def jars_with_tls() -> Path:
    """Return the folder of PySpark's jars: those of script/zookeeper have no TLS. Raises ServerUnavailable."""
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise ServerUnavailable("PySpark is not installed, whose ZooKeeper has TLS")
    return Path(spark.origin).parent / "jars"


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class MachineReader(Reader):
    """A reader at the machine."""

    def __init__(self, page: Path, machine: Machine) -> None:
        self._machine = machine
        super().__init__(page, machine.folder)
        self._ports |= machine.ports
        for port in set(re.findall(r"\b[79]7\d\d\b", self.text)) - self._ports.keys():
            self._ports[port] = str(free_port())
        sudo = machine.folder / ".bin" / "sudo"
        client = "mariadb" if machine.database.kind == "mariadb" else "mysql"
        sudo.write_text(_SUDO.format(folder=machine.folder, port=machine.database.port, client=client))
        sudo.chmod(0o755)
        self._env["FOQS_ZOOKEEPER_JARS"] = str(jars_with_tls())

    def own(self, text: str) -> str:
        return self._machine.own(super().own(text))

    def _run(self, language: str, text: str, wanted: str | None, where: str) -> None:
        super()._run(language, text, wanted, where)
        restarts = self._machine.folder / "restarts"
        if restarts.exists():
            for service in restarts.read_text().split():
                self._machine.restart(service)
            restarts.unlink()
