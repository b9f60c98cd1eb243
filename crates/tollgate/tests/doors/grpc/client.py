"""Scenarios of a gRPC client: client.py SCENARIO ADDRESS. A failed assertion is the exit code."""
import queue
import sys
import time

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.duration_pb2 import Duration
from google.protobuf.wrappers_pb2 import UInt64Value
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from envoy.service.rate_limit_quota.v3 import rlqs_pb2, rlqs_pb2_grpc
from envoy.type.v3 import ratelimit_unit_pb2

OK = rls_pb2.RateLimitResponse.OK
OVER = rls_pb2.RateLimitResponse.OVER_LIMIT
Unit = rls_pb2.RateLimitResponse.RateLimit
scenario, address = sys.argv[1:3]
channel = grpc.insecure_channel(address)
stub = rls_pb2_grpc.RateLimitServiceStub(channel)


def descriptor(*entries, **more):
    entries = [ratelimit_pb2.RateLimitDescriptor.Entry(key=key, value=value) for key, value in entries]
    return ratelimit_pb2.RateLimitDescriptor(entries=entries, **more)


def ask(*descriptors, domain="shop", hits=0, **more):
    request = rls_pb2.RateLimitRequest(domain=domain, descriptors=descriptors, hits_addend=hits)
    return stub.ShouldRateLimit(request, timeout=20, **more)


def fails(code, call):
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == code, error
        return error
    raise AssertionError(f"expected {code}")


def one():
    assert ask(descriptor(("free", "x"))).overall_code == OK


def statuses():
    alice, login = descriptor(("client", "a")), descriptor(("client", "a"), ("path", "/login"))
    answer = ask(alice, login, descriptor(("none", "x")), descriptor(("free", "x")))
    assert answer.overall_code == OK
    assert [status.code for status in answer.statuses] == [OK] * 4
    assert [status.limit_remaining for status in answer.statuses] == [1, 0, 0, 2**32 - 1]
    limits = [(status.current_limit.requests_per_unit, status.current_limit.unit) for status in answer.statuses]
    assert limits == [(2, Unit.MINUTE), (1, Unit.HOUR), (0, Unit.UNKNOWN), (0, Unit.UNKNOWN)], limits
    assert 3500 < answer.statuses[1].duration_until_reset.seconds <= 3600
    answer = ask(alice, login)
    assert answer.overall_code == OVER
    assert [status.code for status in answer.statuses] == [OK, OVER]
    headers = {header.key: header.value for header in answer.response_headers_to_add}
    assert headers["ratelimit-policy"] == '"client.path_/login";q=1;w=3600', headers
    assert headers["ratelimit"].startswith('"client.path_/login";r=0;t='), headers
    assert 3500 < int(headers["retry-after"]) <= 3600
    # The refused request took nothing of the client's limit.
    assert ask(alice).statuses[0].limit_remaining == 0
    assert ask(alice).overall_code == OVER


def hits():
    tokens = lambda **more: ask(descriptor(("tokens", "u"), **more)).statuses[0]
    assert ask(descriptor(("tokens", "u")), hits=40).statuses[0].limit_remaining == 60
    assert tokens(hits_addend=UInt64Value(value=0)).limit_remaining == 60
    back = descriptor(("tokens", "u"), hits_addend=UInt64Value(value=10))
    # `is_negative_hits` is field 4, and newer than the definitions of this client.
    back.MergeFromString(b"\x20\x01")
    assert ask(back).statuses[0].limit_remaining == 70
    assert tokens(hits_addend=UInt64Value(value=90)).code == OVER
    assert tokens(hits_addend=UInt64Value(value=0)).code == OVER
    limit = ratelimit_pb2.RateLimitDescriptor.RateLimitOverride(requests_per_unit=1, unit=ratelimit_unit_pb2.DAY)
    codes = [ask(descriptor(("client", "o"), limit=limit)).overall_code for _ in range(2)]
    assert codes == [OK, OVER], codes
    unknown = ratelimit_pb2.RateLimitDescriptor.RateLimitOverride(requests_per_unit=1)
    fails(grpc.StatusCode.INVALID_ARGUMENT, lambda: ask(descriptor(("client", "o"), limit=unknown)))
    fails(grpc.StatusCode.INVALID_ARGUMENT, lambda: ask())
    fails(grpc.StatusCode.INVALID_ARGUMENT, lambda: ask(descriptor(("a", "b")), domain=""))


def health():
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ["", "envoy.service.ratelimit.v3.RateLimitService"]:
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=20)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    fails(grpc.StatusCode.NOT_FOUND, lambda: stub.Check(health_pb2.HealthCheckRequest(service="other"), timeout=20))


def watches():
    """Watches without a token are bounded, and an ended watch makes room."""
    stub = health_pb2_grpc.HealthStub(channel)
    watch = lambda: stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=60)
    open_watches = [watch() for _ in range(4)]
    for stream in open_watches:
        assert next(stream).status == health_pb2.HealthCheckResponse.SERVING
    fails(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: next(watch()))
    health()
    open_watches[0].cancel()
    for _ in range(200):
        stream = watch()
        try:
            assert next(stream).status == health_pb2.HealthCheckResponse.SERVING
            return
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
            time.sleep(0.05)
    raise AssertionError("the ended watch is still counted")


def evicted():
    """Connections with health calls alone are closed at the bound, and one with a token is not."""
    token = [("authorization", "Bearer a-token-of-the-test")]
    assert ask(descriptor(("free", "x")), metadata=token).overall_code == OK
    lost = []
    channel.subscribe(lambda state: lost.append(state) if state != grpc.ChannelConnectivity.READY else None)
    lost.clear()
    others = []
    for place in range(80):
        other = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        stub = health_pb2_grpc.HealthStub(other)
        stub.Check(health_pb2.HealthCheckRequest(service=""), timeout=20)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=60)
        others.append((other, watch))
    assert ask(descriptor(("free", "x")), metadata=token).overall_code == OK
    assert grpc.ChannelConnectivity.IDLE not in lost and grpc.ChannelConnectivity.TRANSIENT_FAILURE not in lost, lost
    for other, _ in others:
        other.close()


# Parts that are newer than the definitions of this client.
NEWER = {"is_negative_hits", "WEEK"}


def compare(served, known):
    """Every field, value and message that is served is Envoy's."""
    for field in served.fields:
        if field.name in NEWER and field.name not in known.fields_by_name:
            continue
        other = known.fields_by_name[field.name]
        same = lambda f: (f.number, f.type, f.is_repeated if hasattr(f, "is_repeated") else f.label,
                          f.message_type and f.message_type.full_name, f.enum_type and f.enum_type.full_name,
                          f.containing_oneof and f.containing_oneof.name)
        assert same(field) == same(other), (same(field), same(other))
    for enum in served.enum_types:
        other = known.enum_types_by_name[enum.name]
        values = lambda enum: {v.name: v.number for v in enum.values if v.name not in NEWER}
        assert values(enum) == values(other), enum.name
    for nested in served.nested_types:
        compare(nested, known.nested_types_by_name[nested.name])


def reflection():
    health()
    database = ProtoReflectionDescriptorDatabase(channel)
    names = database.get_services()
    ours = ["envoy.service.rate_limit_quota.v3.RateLimitQuotaService", "envoy.service.ratelimit.v3.RateLimitService"]
    assert set(ours) <= set(names), names
    pool = descriptor_pool.DescriptorPool(database)
    known = descriptor_pool.Default()
    seen = []
    for name in ours:
        service, original = pool.FindServiceByName(name), known.FindServiceByName(name)
        for method in service.methods:
            other = original.methods_by_name[method.name]
            assert (method.client_streaming, method.server_streaming) == (other.client_streaming, other.server_streaming)
            for ours_type, other_type in [(method.input_type, other.input_type), (method.output_type, other.output_type)]:
                compare(ours_type, other_type)
                seen.append(ours_type.name)
    assert len(seen) == 4, seen
    for name in ["envoy.extensions.common.ratelimit.v3.RateLimitDescriptor", "envoy.type.v3.RateLimitStrategy",
                 "envoy.type.v3.TokenBucket", "envoy.config.core.v3.HeaderValue", "google.protobuf.Duration"]:
        compare(pool.FindMessageTypeByName(name), known.FindMessageTypeByName(name))


def token():
    call = lambda **more: ask(descriptor(("free", "x")), **more)
    fails(grpc.StatusCode.UNAUTHENTICATED, call)
    fails(grpc.StatusCode.UNAUTHENTICATED, lambda: call(metadata=[("authorization", "Bearer other")]))
    assert call(metadata=[("authorization", "Bearer a-token-of-the-test")]).overall_code == OK
    health()
    quotas = rlqs_pb2_grpc.RateLimitQuotaServiceStub(channel)
    fails(grpc.StatusCode.UNAUTHENTICATED, lambda: list(quotas.StreamRateLimitQuotas(iter([]), timeout=20)))


class Stream:
    """A stream of the quota service."""

    def __init__(self, domain="shop"):
        self.out = queue.Queue()
        stub = rlqs_pb2_grpc.RateLimitQuotaServiceStub(channel)
        self.answers = stub.StreamRateLimitQuotas(iter(self.out.get, None), timeout=60)
        self.domain = domain

    def report(self, bucket, allowed=0):
        usage = rlqs_pb2.RateLimitQuotaUsageReports.BucketQuotaUsage(
            bucket_id=rlqs_pb2.BucketId(bucket=bucket), time_elapsed=Duration(seconds=1), num_requests_allowed=allowed)
        self.out.put(rlqs_pb2.RateLimitQuotaUsageReports(domain=self.domain, bucket_quota_usages=[usage]))
        self.domain = ""
        action = next(self.answers).bucket_action[0]
        assert dict(action.bucket_id.bucket) == bucket
        return action.quota_assignment_action


def quotas():
    first, second = Stream(), Stream()
    tokens = {"tokens": "q"}
    assigned = first.report(tokens)
    assert assigned.assignment_time_to_live.seconds == 60
    bucket = assigned.rate_limit_strategy.token_bucket
    assert (bucket.max_tokens, bucket.tokens_per_fill.value, bucket.fill_interval.seconds) == (100, 100, 60), bucket
    assert second.report(tokens).rate_limit_strategy.token_bucket.max_tokens == 50
    assert first.report(tokens, allowed=30).rate_limit_strategy.token_bucket.max_tokens == 50
    # Reports are charged to the limit that others are decided by.
    assert ask(descriptor(("tokens", "q"))).statuses[0].limit_remaining == 69
    denied = second.report(tokens, allowed=90)
    assert denied.rate_limit_strategy.blanket_rule == 1 and 0 < denied.assignment_time_to_live.seconds <= 60, denied
    assert ask(descriptor(("tokens", "q"))).overall_code == OVER
    # The entries of a bucket have no order.
    nested = first.report({"path": "/login", "client": "q"}).rate_limit_strategy.token_bucket
    assert (nested.max_tokens, nested.fill_interval.seconds) == (1, 3600), nested
    assert first.report({"banned": "x"}).rate_limit_strategy.blanket_rule == 1
    for free in [{"free": "x"}, {"other": "x"}]:
        assert first.report(free).rate_limit_strategy.WhichOneof("strategy") is None
    second.out.put(None)
    assert list(second.answers) == []
    other = {"tokens": "r"}
    assert first.report(other).rate_limit_strategy.token_bucket.max_tokens == 100
    fails(grpc.StatusCode.INVALID_ARGUMENT, lambda: Stream(domain="").report(other))
    fails(grpc.StatusCode.INVALID_ARGUMENT, lambda: Stream().report({}))


def drain():
    stream = Stream()
    stream.report({"tokens": "d"})
    print("open", flush=True)
    try:
        assert list(stream.answers) == []
    except grpc.RpcError as error:
        assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED), error


def hostile():
    raw = channel.unary_unary("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
    for body in [b"\xff" * 100, b"\x12\xff\xff\xff\xff\x0f", b"\x0a\x05abc"]:
        fails(grpc.StatusCode.INTERNAL, lambda: raw(body, timeout=20))
    fails(grpc.StatusCode.OUT_OF_RANGE, lambda: raw(b"\x0a" + b"x" * 70_000, timeout=20))
    fails(grpc.StatusCode.UNIMPLEMENTED, lambda: channel.unary_unary("/other.Service/Method")(b"", timeout=20))
    one()
    # A message that never ends fails by the time limit of a call, while others are answered.
    begun = time.monotonic()
    waiting = channel.stream_unary("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
    call = waiting.future(iter(queue.Queue().get, None), timeout=60)
    one()
    assert call.code() == grpc.StatusCode.DEADLINE_EXCEEDED and time.monotonic() - begun < 30
    one()


globals()[scenario]()
