"""The simulation's call has what handlers may use of the server's."""

from foqs.rpc.call import Call as ServerCall
from tests.sim_peers.exchange import Call


def test_the_simulated_call_has_all_of_the_servers() -> None:
    names = {name for name in dir(ServerCall) if not name.startswith("_")}
    names -= {"answered", "connection"}  # of the connection, and of no handler
    call = Call("Ack", None, lambda response, error: None)
    assert not {name for name in names if not hasattr(call, name)}
