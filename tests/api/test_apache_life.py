"""The whole life of an item with a client made by Apache's compiler over Apache's library: nothing of thriftpy2."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.api.hosts import ROOT, HostProcess

IDL = ROOT / "thrift" / "foqs.thrift"

# Runs in a process of its own, in which thriftpy2 cannot be imported.
LIFE = textwrap.dedent(
    """
    import sys
    import time

    sys.modules["thriftpy2"] = None
    from foqs_thrift import Foqs
    from foqs_thrift.ttypes import *
    from thrift.protocol import TBinaryProtocol
    from thrift.Thrift import TApplicationException, TMessageType
    from thrift.transport.TSocket import TSocket
    from thrift.transport.TTransport import TFramedTransport

    host, port, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    topic = "apache-" + kind
    transport = TFramedTransport(TSocket(host, port))
    protocol = getattr(TBinaryProtocol, kind)(transport, strictRead=True, strictWrite=True)
    client = Foqs.Client(protocol)
    transport.open()

    info = client.GetServerInfo(GetServerInfoRequest(context=RequestContext(request_id="r", timeout_ms=5000)))
    assert info.version and info.limits["payload_bytes"] == 1 << 20, info

    items = [
        ItemSpec(topic=topic, payload=b"second\\x00\\xff", priority=2, headers={"k": "\\u00fc"}, metadata=b"m"),
        ItemSpec(topic=topic, payload=b"first", priority=1, ttl_ms=3_600_000),
        ItemSpec(topic=topic, payload=b"bad", ttl_ms=0),
        ItemSpec(topic=topic, payload=b"later", delay_ms=3_600_000, delivery=Delivery.AT_MOST_ONCE),
    ]
    outcomes = client.Enqueue(EnqueueRequest(ns="apache", items=items)).outcomes
    assert [o.error is None for o in outcomes] == [True, True, False, True], outcomes
    assert outcomes[2].error.code == ErrorCode.INVALID and outcomes[2].id is None
    second, first, later = outcomes[0].id, outcomes[1].id, outcomes[3].id

    wants = [TopicCount(topic=topic, count=10)]
    found = client.Dequeue(DequeueRequest(ns="apache", wants=wants, lease_ms=60_000, wait_ms=10_000)).items
    assert [item.id for item in found] == [first, second], found
    assert [item.payload for item in found] == [b"first", b"second\\x00\\xff"]
    assert found[1].headers == {"k": "\\u00fc"} and found[1].metadata == b"m" and found[0].headers is None
    assert found[0].expires_at_ms == found[0].enqueued_at_ms + 3_600_000 and found[1].expires_at_ms is None
    assert found[0].lease and found[0].attempt == 1 and found[0].delivery == Delivery.AT_LEAST_ONCE

    longer = ExtendItem(id=first, lease=found[0].lease, lease_ms=90_000)
    extended = client.ExtendLease(ExtendLeaseRequest(items=[longer]))
    assert extended.outcomes[0].error is None
    looked = client.GetItem(GetItemRequest(id=first))
    assert looked.state == ItemState.LEASED and looked.item.lease == 0
    assert looked.item.lease_expires_at_ms > found[0].lease_expires_at_ms

    nack = NackItem(id=first, lease=found[0].lease, metadata=b"half done", reason="not yet")
    assert client.Nack(NackRequest(items=[nack], ns="apache")).outcomes[0].error is None
    (again,) = client.Dequeue(DequeueRequest(ns="apache", wants=wants, wait_ms=10_000)).items
    assert (again.id, again.attempt, again.metadata) == (first, 2, b"half done")

    acks = [AckItem(id=first, lease=found[0].lease), AckItem(id=first + 12345, lease=1)]
    codes = [o.error.code for o in client.Ack(AckRequest(items=acks)).outcomes]
    assert codes == [ErrorCode.STALE_LEASE, ErrorCode.NOT_FOUND], codes
    released = client.Nack(NackRequest(items=[NackItem(id=second, lease=found[1].lease, release=True)]))
    assert released.outcomes[0].error is None
    (given_back,) = client.Dequeue(DequeueRequest(ns="apache", wants=wants, wait_ms=10_000)).items
    assert (given_back.id, given_back.attempt) == (second, 1)
    acks = [AckItem(id=again.id, lease=again.lease), AckItem(id=second, lease=given_back.lease)]
    assert [o.error for o in client.Ack(AckRequest(items=acks, ns="apache")).outcomes] == [None, None]

    (more,) = client.Enqueue(EnqueueRequest(ns="apache", items=[ItemSpec(topic=topic, payload=b"more")])).outcomes
    both = AckAndDequeueRequest(ns="apache", acks=[], wants=wants, wait_ms=10_000)
    (item,) = client.AckAndDequeue(both).items
    both.acks = [AckItem(id=item.id, lease=item.lease), AckItem(id=second, lease=1)]
    last = client.AckAndDequeue(both)
    assert (item.id, last.items, last.doubtful, last.error) == (more.id, [], None, None), last
    assert [o.error and o.error.code for o in last.outcomes] == [None, ErrorCode.NOT_FOUND], last

    listed = client.ListItems(ListItemsRequest(ns="apache", topic=topic))
    while listed.cursor is not None and not listed.items:
        listed = client.ListItems(ListItemsRequest(ns="apache", topic=topic, cursor=listed.cursor))
    (only,) = listed.items
    assert (only.id, only.state, only.delivery) == (later, ItemState.DELAYED, Delivery.AT_MOST_ONCE)
    client.Enqueue(EnqueueRequest(ns="apache", items=[ItemSpec(topic=topic, payload=b"x")]))
    topics = client.GetActiveTopics(GetActiveTopicsRequest(ns="apache", limit=10)).topics
    (mine,) = [t for t in topics if t.topic == topic]
    assert mine.ready == 1 and mine.hosts == ["%s:%d" % (host, port)], mine
    assert [o.error for o in client.DeleteItems(DeleteItemsRequest(ids=[later])).outcomes] == [None]
    try:
        client.GetItem(GetItemRequest(id=later))
    except RequestError as error:
        assert error.code == ErrorCode.NOT_FOUND and error.message
    else:
        raise AssertionError("a deleted item was found")

    # A method that the service does not have: Apache's own exception, and the connection goes on.
    protocol.writeMessageBegin("Nonsense", TMessageType.CALL, 7)
    protocol.writeByte(0)
    protocol.writeMessageEnd()
    transport.flush()
    name, message_type, seqid = protocol.readMessageBegin()
    refused = TApplicationException()
    refused.read(protocol)
    protocol.readMessageEnd()
    assert (message_type, seqid, refused.type) == (TMessageType.EXCEPTION, 7, TApplicationException.UNKNOWN_METHOD)
    assert client.GetServerInfo(GetServerInfoRequest()).version
    transport.close()
    print("whole life")
    """
)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what Apache's compiler makes of the IDL."""
    compiler = shutil.which("thrift")
    if compiler is None:
        missing = "no thrift compiler on PATH (Debian: thrift-compiler)"
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail(f"required in CI: {missing}", pytrace=False)
        pytest.skip(missing)
    out = tmp_path_factory.mktemp("apache")
    made = subprocess.run([compiler, "--gen", "py", "-out", str(out), str(IDL)], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return out


@pytest.mark.parametrize("kind", ["TBinaryProtocol", "TBinaryProtocolAccelerated"])
def test_the_whole_life_of_an_item(host: HostProcess, generated: Path, kind: str) -> None:
    address, port = host.address
    done = subprocess.run(
        [sys.executable, "-c", LIFE, address, str(port), kind],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(generated)},
        timeout=120,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "whole life"), done.stderr
