"""What was sent to RPC servers, as the library counts it: for bench/network.py and the tests."""

from typing import NamedTuple

from pymtp.binding.library import check, ffi, lib


class RpcCounters(NamedTuple):
    """What was sent to an RPC server since the process began."""

    n_answers: int
    """Those that were waited for."""
    n_graphs_sent: int
    """A server keeps the graphs that it was sent."""
    n_graphs_run: int


def rpc_counters(endpoint: str) -> RpcCounters:
    """What was sent to the server at `endpoint` (host:port), of all models together."""
    counters = ffi.new("struct pymtp_rpc_counters *")
    check(lib.pymtp_rpc_count(endpoint.encode(), counters))
    return RpcCounters(*(getattr(counters, name) for name in RpcCounters._fields))
