"""Client of gRPC's interop tests, with grpcio: runs the named cases one after another.

    python client.py --server_port=PORT --test_case=CASE,CASE,... [--ca_file=FILE --server_host_override=NAME]

The cases are those of the gRPC interop test descriptions. The options have the names that other interop clients use.
"""

from __future__ import annotations

import argparse
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

messages, services = grpc.protos_and_services("testing.proto")

# Bound for a whole case.
SECONDS = 60
LARGE_REQUEST_BYTES = 271_828
LARGE_RESPONSE_BYTES = 314_159
REQUEST_BYTES = (27_182, 8, 1_828, 45_904)
RESPONSE_BYTES = (31_415, 9, 2_653, 58_979)
INITIAL_KEY = "x-grpc-test-echo-initial"
TRAILING_KEY = "x-grpc-test-echo-trailing-bin"
METADATA = ((INITIAL_KEY, "test_initial_metadata_value"), (TRAILING_KEY, b"\xab\xab\xab"))
SPECIAL_MESSAGE = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"


def payload(size: int) -> Any:
    return messages.Payload(body=bytes(size))


def large_request() -> Any:
    return messages.SimpleRequest(response_size=LARGE_RESPONSE_BYTES, payload=payload(LARGE_REQUEST_BYTES))


def streaming_request(response_bytes: int, request_bytes: int, **fields: Any) -> Any:
    parameters = [messages.ResponseParameters(size=response_bytes)]
    return messages.StreamingOutputCallRequest(
        response_parameters=parameters, payload=payload(request_bytes), **fields
    )


def check_size(response: Any, size: int) -> None:
    assert len(response.payload.body) == size, len(response.payload.body)


def check_failure(call: Callable[[], Any], code: grpc.StatusCode, details: str | None = None) -> None:
    """Checks that the call fails with this status."""
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() is code, error
        assert details is None or error.details() == details, error
    else:
        raise AssertionError(f"succeeded instead of {code}")


class Requests:
    """Requests of a stream, which are sent as they are put in."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Any] = queue.Queue()

    def send(self, request: Any) -> None:
        self._queue.put(request)

    def end(self) -> None:
        self._queue.put(None)

    def __iter__(self) -> Iterator[Any]:
        return iter(lambda: self._queue.get(timeout=SECONDS), None)


class Cases:
    """One method for each case."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._service = services.TestServiceStub(channel)
        self._unimplemented = services.UnimplementedServiceStub(channel)

    def empty_unary(self) -> None:
        assert self._service.EmptyCall(messages.Empty(), timeout=SECONDS) == messages.Empty()

    def large_unary(self) -> None:
        check_size(self._service.UnaryCall(large_request(), timeout=SECONDS), LARGE_RESPONSE_BYTES)

    def client_streaming(self) -> None:
        requests = (messages.StreamingInputCallRequest(payload=payload(size)) for size in REQUEST_BYTES)
        response = self._service.StreamingInputCall(requests, timeout=SECONDS)
        assert response.aggregated_payload_size == sum(REQUEST_BYTES), response

    def server_streaming(self) -> None:
        parameters = [messages.ResponseParameters(size=size) for size in RESPONSE_BYTES]
        request = messages.StreamingOutputCallRequest(response_parameters=parameters)
        sizes = [len(part.payload.body) for part in self._service.StreamingOutputCall(request, timeout=SECONDS)]
        assert sizes == list(RESPONSE_BYTES), sizes

    def ping_pong(self) -> None:
        requests = Requests()
        responses = self._service.FullDuplexCall(iter(requests), timeout=SECONDS)
        for request_bytes, response_bytes in zip(REQUEST_BYTES, RESPONSE_BYTES, strict=True):
            requests.send(streaming_request(response_bytes, request_bytes))
            check_size(next(responses), response_bytes)
        requests.end()
        assert list(responses) == []

    def empty_stream(self) -> None:
        assert list(self._service.FullDuplexCall(iter(()), timeout=SECONDS)) == []

    def timeout_on_sleeping_server(self) -> None:
        requests = Requests()
        requests.send(streaming_request(RESPONSE_BYTES[0], REQUEST_BYTES[0]))
        responses = self._service.FullDuplexCall(iter(requests), timeout=0.001)
        check_failure(lambda: list(responses), grpc.StatusCode.DEADLINE_EXCEEDED)
        requests.end()

    def cancel_after_begin(self) -> None:
        requests = Requests()
        call = self._service.StreamingInputCall.future(iter(requests), timeout=SECONDS)
        call.cancel()
        assert call.cancelled() and call.code() is grpc.StatusCode.CANCELLED, call
        requests.end()

    def cancel_after_first_response(self) -> None:
        requests = Requests()
        requests.send(streaming_request(RESPONSE_BYTES[0], REQUEST_BYTES[0]))
        responses = self._service.FullDuplexCall(iter(requests), timeout=SECONDS)
        check_size(next(responses), RESPONSE_BYTES[0])
        responses.cancel()
        check_failure(lambda: list(responses), grpc.StatusCode.CANCELLED)
        requests.end()

    def status_code_and_message(self) -> None:
        self._check_status(2, "test status message", grpc.StatusCode.UNKNOWN)

    def special_status_message(self) -> None:
        self._check_status(2, SPECIAL_MESSAGE, grpc.StatusCode.UNKNOWN)

    def _check_status(self, code: int, message: str, expected: grpc.StatusCode) -> None:
        status = messages.EchoStatus(code=code, message=message)
        unary = messages.SimpleRequest(response_status=status)
        check_failure(lambda: self._service.UnaryCall(unary, timeout=SECONDS), expected, message)
        stream = messages.StreamingOutputCallRequest(response_status=status)
        call = self._service.FullDuplexCall(iter([stream]), timeout=SECONDS)
        check_failure(lambda: list(call), expected, message)

    def custom_metadata(self) -> None:
        call = self._service.UnaryCall.future(large_request(), timeout=SECONDS, metadata=METADATA)
        check_size(call.result(), LARGE_RESPONSE_BYTES)
        self._check_metadata(call)
        request = streaming_request(RESPONSE_BYTES[0], REQUEST_BYTES[0])
        call = self._service.FullDuplexCall(iter([request]), timeout=SECONDS, metadata=METADATA)
        assert len(list(call)) == 1
        self._check_metadata(call)

    def _check_metadata(self, call: Any) -> None:
        sent = dict(METADATA)
        assert dict(call.initial_metadata())[INITIAL_KEY] == sent[INITIAL_KEY], call.initial_metadata()
        assert dict(call.trailing_metadata())[TRAILING_KEY] == sent[TRAILING_KEY], call.trailing_metadata()

    def unimplemented_method(self) -> None:
        call = self._service.UnimplementedCall
        check_failure(lambda: call(messages.Empty(), timeout=SECONDS), grpc.StatusCode.UNIMPLEMENTED)

    def unimplemented_service(self) -> None:
        call = self._unimplemented.UnimplementedCall
        check_failure(lambda: call(messages.Empty(), timeout=SECONDS), grpc.StatusCode.UNIMPLEMENTED)


def connect(options: argparse.Namespace) -> grpc.Channel:
    target = f"{options.server_host}:{options.server_port}"
    if options.ca_file is None:
        return grpc.insecure_channel(target)
    credentials = grpc.ssl_channel_credentials(options.ca_file.read_bytes())
    name = [("grpc.ssl_target_name_override", options.server_host_override)]
    return grpc.secure_channel(target, credentials, name)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--server_host", default="127.0.0.1")
    parser.add_argument("--server_port", type=int, required=True)
    parser.add_argument("--test_case", required=True)
    parser.add_argument("--ca_file", type=Path)
    parser.add_argument("--server_host_override")
    options = parser.parse_args()
    with connect(options) as channel:
        cases = Cases(channel)
        for name in options.test_case.split(","):
            getattr(cases, name)()
            print(name)


if __name__ == "__main__":
    main()
