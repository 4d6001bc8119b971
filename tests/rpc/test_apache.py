"""Apache's compiler and library as the client: nothing of thriftpy2 on that side."""

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foqs.idl import IDL_PATH
from tests.rpc.serving import Served
from tests.support.certificates import Authority


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The modules Apache's compiler makes of the IDL: (client, types)."""
    pytest.importorskip("thrift.Thrift", reason="Apache's thrift library is not installed")
    compiler = shutil.which("thrift")
    if compiler is None:
        pytest.skip("no thrift compiler on PATH (Debian: thrift-compiler)")
    out: Path = tmp_path_factory.mktemp("apache")
    made = subprocess.run(
        [compiler, "--gen", "py:package_prefix=", "-out", str(out), str(IDL_PATH)],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    package = next(path.parent for path in out.rglob("Foqs.py"))
    # thriftpy2 has registered a module of the same name as the generated package.
    package.rename(out / "foqs_apache")
    for source in (out / "foqs_apache").glob("*.py"):
        source.write_text(source.read_text().replace("foqs_thrift", "foqs_apache"))
    sys.path.insert(0, str(out))
    try:
        yield importlib.import_module("foqs_apache.Foqs"), importlib.import_module("foqs_apache.ttypes")
    finally:
        sys.path.remove(str(out))


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def encryption(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("fast", [False, True], ids=["binary", "accelerated"])
def test_apache_client(served: Served, authority: Authority, generated: Any, fast: bool, encryption: bool) -> None:
    from thrift.protocol.TBinaryProtocol import TBinaryProtocol, TBinaryProtocolAccelerated
    from thrift.Thrift import TApplicationException
    from thrift.transport.TSocket import TSocket
    from thrift.transport.TSSLSocket import TSSLSocket
    from thrift.transport.TTransport import TFramedTransport

    service, types = generated
    socket = TSSLSocket(*served.address, ca_certs=str(authority.ca_file)) if encryption else TSocket(*served.address)
    transport = TFramedTransport(socket)
    protocol = (TBinaryProtocolAccelerated if fast else TBinaryProtocol)(transport)
    client = service.Client(protocol)
    transport.open()
    try:
        items = [
            types.ItemSpec(topic="t", payload=b"x" * n, headers={"a": "b"} if n % 2 else None, priority=-n)
            for n in range(50)
        ]
        context = types.RequestContext(request_id="r", timeout_ms=1000)
        response = client.Enqueue(types.EnqueueRequest(ns="n", items=items, context=context))
        assert [outcome.id for outcome in response.outcomes] == list(range(50))
        listed = client.ListItems(types.ListItemsRequest(ns="ns-ü", topic="😀"))
        assert (listed.items[0].ns, listed.items[0].topic) == ("ns-ü", "😀")
        with pytest.raises(types.RequestError) as raised:
            client.GetItem(types.GetItemRequest(id=5))
        assert (raised.value.code, raised.value.retry_after_ms) == (types.ErrorCode.NOT_FOUND, 5)
        with pytest.raises(TApplicationException) as refused:
            client.Nack(types.NackRequest(items=[]))
        assert refused.value.type == TApplicationException.UNKNOWN_METHOD
        assert client.Enqueue(types.EnqueueRequest(ns="n", items=[])).outcomes == []
        served.on_loop(served.say_goodbye)
        with pytest.raises(TApplicationException, match="nothing was begun"):
            client.Enqueue(types.EnqueueRequest(ns="n", items=[]))
    finally:
        transport.close()
