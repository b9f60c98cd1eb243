"""A gRPC client with client certificates: tls_client.py ADDRESS FOLDER. A failed assertion is the exit code."""
import pathlib
import sys

import grpc
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc

address, folder = sys.argv[1], pathlib.Path(sys.argv[2])


def ask(certificate):
    pair = {}
    if certificate:
        pair["private_key"] = (folder / f"{certificate}.key").read_bytes()
        pair["certificate_chain"] = (folder / f"{certificate}.pem").read_bytes()
    credentials = grpc.ssl_channel_credentials((folder / "servers.pem").read_bytes(), **pair)
    with grpc.secure_channel(address.replace("127.0.0.1", "localhost"), credentials) as channel:
        stub = rls_pb2_grpc.RateLimitServiceStub(channel)
        return stub.ShouldRateLimit(rls_pb2.RateLimitRequest(domain="default", descriptors=[]), timeout=10)


def fails(code, certificate):
    try:
        ask(certificate)
    except grpc.RpcError as error:
        assert error.code() in code, error
        return
    raise AssertionError(certificate)


try:
    ask("client")
except grpc.RpcError as error:
    # A call without descriptors is invalid, which only an authorized client learns.
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
for certificate in ["stranger", None]:
    fails([grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED], certificate)
