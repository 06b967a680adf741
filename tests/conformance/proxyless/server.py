"""Server of the tests of Sheave's xDS server, with grpcio, which is gRPC's core in C++.

    python server.py serve-xds NAME

It does what `serve-xds` in main.go does, but for the health check and the methods that fail.
"""

from __future__ import annotations

import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
from google.protobuf.wrappers_pb2 import StringValue

THREADS = 8


class NamedHandler(grpc.GenericRpcHandler):
    """Answers every method with a name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        def answer(_request: bytes, _context: grpc.ServicerContext) -> StringValue:
            return StringValue(value=self._name)

        return grpc.unary_unary_rpc_method_handler(answer, response_serializer=StringValue.SerializeToString)


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(THREADS), handlers=[NamedHandler(sys.argv[2])], xds=True)
    # The name of its listener has the port, so the port must be known before. The server shares it with this socket, which
    # keeps it free until then.
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        server.add_secure_port(address, grpc.xds_server_credentials(grpc.insecure_server_credentials()))
        server.start()
    print(address, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
