//! The descriptions of the services for reflection, so that tools such as grpcurl can call them without Envoy's
//! definitions.
//!
//! They contain the fields that this door uses. Names and numbers are Envoy's, which a test compares.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, MessageOptions, MethodDescriptorProto, OneofDescriptorProto, ServiceDescriptorProto,
};

const DURATION: &str = "google/protobuf/duration.proto";
const WRAPPERS: &str = "google/protobuf/wrappers.proto";
const HEADER: &str = "envoy/config/core/v3/base.proto";
const UNIT: &str = "envoy/type/v3/ratelimit_unit.proto";
const BUCKET: &str = "envoy/type/v3/token_bucket.proto";
const STRATEGY: &str = "envoy/type/v3/ratelimit_strategy.proto";
const DESCRIPTOR: &str = "envoy/extensions/common/ratelimit/v3/ratelimit.proto";
const RLS: &str = "envoy/service/ratelimit/v3/rls.proto";
const RLQS: &str = "envoy/service/rate_limit_quota/v3/rlqs.proto";

/// The type of a field.
#[derive(Clone, Copy)]
enum FieldKind {
    Plain(Type),
    Message(&'static str),
    /// A message that is one of several.
    OneOf(&'static str),
    /// An enumeration that is one of several.
    OneOfEnum(&'static str),
    Enum(&'static str),
    Repeated(&'static str),
}

use FieldKind::{Enum, Message, OneOf, OneOfEnum, Plain, Repeated};

/// All files, each after those that it imports.
pub(super) fn file_descriptors() -> FileDescriptorSet {
    FileDescriptorSet { file: [base_files(), service_files()].concat() }
}

fn base_files() -> Vec<FileDescriptorProto> {
    let duration = message("Duration", &[("seconds", 1, Plain(Type::Int64)), ("nanos", 2, Plain(Type::Int32))]);
    let number = |name, kind| message(name, &[("value", 1, Plain(kind))]);
    let text = Plain(Type::String);
    let unit = enumeration("RateLimitUnit", &["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR"]);
    let token_bucket = message(
        "TokenBucket",
        &[
            ("max_tokens", 1, Plain(Type::Uint32)),
            ("tokens_per_fill", 2, Message(".google.protobuf.UInt32Value")),
            ("fill_interval", 3, Message(".google.protobuf.Duration")),
        ],
    );
    let per_unit =
        [("requests_per_time_unit", 1, Plain(Type::Uint64)), ("time_unit", 2, Enum(".envoy.type.v3.RateLimitUnit"))];
    let mut strategy = message(
        "RateLimitStrategy",
        &[
            ("blanket_rule", 1, OneOfEnum(".envoy.type.v3.RateLimitStrategy.BlanketRule")),
            ("requests_per_time_unit", 2, OneOf(".envoy.type.v3.RateLimitStrategy.RequestsPerTimeUnit")),
            ("token_bucket", 3, OneOf(".envoy.type.v3.TokenBucket")),
        ],
    );
    strategy.oneof_decl.push(one_of("strategy"));
    strategy.nested_type.push(message("RequestsPerTimeUnit", &per_unit));
    strategy.enum_type.push(enumeration("BlanketRule", &["ALLOW_ALL", "DENY_ALL"]));
    vec![
        file(DURATION, "google.protobuf", &[], vec![duration], vec![]),
        file(
            WRAPPERS,
            "google.protobuf",
            &[],
            vec![number("UInt32Value", Type::Uint32), number("UInt64Value", Type::Uint64)],
            vec![],
        ),
        file(
            HEADER,
            "envoy.config.core.v3",
            &[],
            vec![message("HeaderValue", &[("key", 1, text), ("value", 2, text)])],
            vec![],
        ),
        file(UNIT, "envoy.type.v3", &[], vec![], vec![unit]),
        file(BUCKET, "envoy.type.v3", &[DURATION, WRAPPERS], vec![token_bucket], vec![]),
        file(STRATEGY, "envoy.type.v3", &[UNIT, BUCKET], vec![strategy], vec![]),
    ]
}

fn service_files() -> Vec<FileDescriptorProto> {
    const LIMIT: &str = ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor";
    let text = Plain(Type::String);
    let mut descriptor = message(
        "RateLimitDescriptor",
        &[
            ("entries", 1, Repeated(".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry")),
            ("limit", 2, Message(".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride")),
            ("hits_addend", 3, Message(".google.protobuf.UInt64Value")),
            ("is_negative_hits", 4, Plain(Type::Bool)),
        ],
    );
    descriptor.nested_type.push(message("Entry", &[("key", 1, text), ("value", 2, text)]));
    descriptor.nested_type.push(message(
        "RateLimitOverride",
        &[("requests_per_unit", 1, Plain(Type::Uint32)), ("unit", 2, Enum(".envoy.type.v3.RateLimitUnit"))],
    ));
    let request = message(
        "RateLimitRequest",
        &[("domain", 1, text), ("descriptors", 2, Repeated(LIMIT)), ("hits_addend", 3, Plain(Type::Uint32))],
    );
    let mut rls = file(
        RLS,
        "envoy.service.ratelimit.v3",
        &[DURATION, HEADER, DESCRIPTOR],
        vec![request, rate_limit_response()],
        vec![],
    );
    rls.service.push(service(
        "RateLimitService",
        "ShouldRateLimit",
        [".envoy.service.ratelimit.v3.RateLimitRequest", ".envoy.service.ratelimit.v3.RateLimitResponse"],
        false,
    ));
    let package = "envoy.extensions.common.ratelimit.v3";
    vec![file(DESCRIPTOR, package, &[UNIT, WRAPPERS], vec![descriptor], vec![]), rls, quota_file()]
}

fn rate_limit_response() -> DescriptorProto {
    let mut response = message(
        "RateLimitResponse",
        &[
            ("overall_code", 1, Enum(".envoy.service.ratelimit.v3.RateLimitResponse.Code")),
            ("statuses", 2, Repeated(".envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus")),
            ("response_headers_to_add", 3, Repeated(".envoy.config.core.v3.HeaderValue")),
        ],
    );
    response.enum_type.push(enumeration("Code", &["UNKNOWN", "OK", "OVER_LIMIT"]));
    let mut limit = message(
        "RateLimit",
        &[
            ("requests_per_unit", 1, Plain(Type::Uint32)),
            ("unit", 2, Enum(".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit")),
            ("name", 3, Plain(Type::String)),
        ],
    );
    let units = ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"];
    limit.enum_type.push(enumeration("Unit", &units));
    response.nested_type.push(limit);
    response.nested_type.push(message(
        "DescriptorStatus",
        &[
            ("code", 1, Enum(".envoy.service.ratelimit.v3.RateLimitResponse.Code")),
            ("current_limit", 2, Message(".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit")),
            ("limit_remaining", 3, Plain(Type::Uint32)),
            ("duration_until_reset", 4, Message(".google.protobuf.Duration")),
        ],
    ));
    response
}

fn quota_file() -> FileDescriptorProto {
    const BUCKET_ID: &str = ".envoy.service.rate_limit_quota.v3.BucketId";
    let mut reports = message(
        "RateLimitQuotaUsageReports",
        &[
            ("domain", 1, Plain(Type::String)),
            (
                "bucket_quota_usages",
                2,
                Repeated(".envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports.BucketQuotaUsage"),
            ),
        ],
    );
    reports.nested_type.push(message(
        "BucketQuotaUsage",
        &[
            ("bucket_id", 1, Message(BUCKET_ID)),
            ("time_elapsed", 2, Message(".google.protobuf.Duration")),
            ("num_requests_allowed", 3, Plain(Type::Uint64)),
            ("num_requests_denied", 4, Plain(Type::Uint64)),
        ],
    ));
    let mut bucket_id =
        message("BucketId", &[("bucket", 1, Repeated(".envoy.service.rate_limit_quota.v3.BucketId.BucketEntry"))]);
    let mut entry = message("BucketEntry", &[("key", 1, Plain(Type::String)), ("value", 2, Plain(Type::String))]);
    entry.options = Some(MessageOptions { map_entry: Some(true), ..MessageOptions::default() });
    bucket_id.nested_type.push(entry);
    let messages = vec![reports, quota_response(BUCKET_ID), bucket_id];
    let mut file = file(RLQS, "envoy.service.rate_limit_quota.v3", &[DURATION, STRATEGY], messages, vec![]);
    file.service.push(service(
        "RateLimitQuotaService",
        "StreamRateLimitQuotas",
        [
            ".envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports",
            ".envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse",
        ],
        true,
    ));
    file
}

fn quota_response(bucket_id: &'static str) -> DescriptorProto {
    let mut response = message(
        "RateLimitQuotaResponse",
        &[("bucket_action", 1, Repeated(".envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction"))],
    );
    let mut action = message(
        "BucketAction",
        &[
            ("bucket_id", 1, Message(bucket_id)),
            (
                "quota_assignment_action",
                2,
                OneOf(".envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction.QuotaAssignmentAction"),
            ),
            (
                "abandon_action",
                3,
                OneOf(".envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.BucketAction.AbandonAction"),
            ),
        ],
    );
    action.oneof_decl.push(one_of("bucket_action"));
    action.nested_type.push(message(
        "QuotaAssignmentAction",
        &[
            ("assignment_time_to_live", 2, Message(".google.protobuf.Duration")),
            ("rate_limit_strategy", 3, Message(".envoy.type.v3.RateLimitStrategy")),
        ],
    ));
    action.nested_type.push(message("AbandonAction", &[]));
    response.nested_type.push(action);
    response
}

fn file(
    name: &str,
    package: &str,
    imports: &[&str],
    message_type: Vec<DescriptorProto>,
    enum_type: Vec<EnumDescriptorProto>,
) -> FileDescriptorProto {
    FileDescriptorProto {
        name: Some(name.to_owned()),
        package: Some(package.to_owned()),
        dependency: imports.iter().map(|import| (*import).to_owned()).collect(),
        message_type,
        enum_type,
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    }
}

fn message(name: &str, fields: &[(&str, i32, FieldKind)]) -> DescriptorProto {
    let field = |&(name, number, kind): &(&str, i32, FieldKind)| {
        let (field_type, type_name) = match kind {
            Plain(field_type) => (field_type, None),
            Message(name) | OneOf(name) | Repeated(name) => (Type::Message, Some(name.to_owned())),
            Enum(name) | OneOfEnum(name) => (Type::Enum, Some(name.to_owned())),
        };
        let label = if matches!(kind, Repeated(_)) { Label::Repeated } else { Label::Optional };
        FieldDescriptorProto {
            name: Some(name.to_owned()),
            number: Some(number),
            label: Some(label.into()),
            r#type: Some(field_type.into()),
            type_name,
            oneof_index: matches!(kind, OneOf(_) | OneOfEnum(_)).then_some(0),
            ..FieldDescriptorProto::default()
        }
    };
    let field = fields.iter().map(field).collect();
    DescriptorProto { name: Some(name.to_owned()), field, ..DescriptorProto::default() }
}

fn one_of(name: &str) -> OneofDescriptorProto {
    OneofDescriptorProto { name: Some(name.to_owned()), ..OneofDescriptorProto::default() }
}

fn enumeration(name: &str, values: &[&str]) -> EnumDescriptorProto {
    let value = |(number, name): (i32, &&str)| EnumValueDescriptorProto {
        name: Some((*name).to_owned()),
        number: Some(number),
        ..EnumValueDescriptorProto::default()
    };
    let value = (0..).zip(values).map(value).collect();
    EnumDescriptorProto { name: Some(name.to_owned()), value, ..EnumDescriptorProto::default() }
}

fn service(name: &str, method: &str, [input, output]: [&str; 2], is_stream: bool) -> ServiceDescriptorProto {
    let method = MethodDescriptorProto {
        name: Some(method.to_owned()),
        input_type: Some(input.to_owned()),
        output_type: Some(output.to_owned()),
        client_streaming: Some(is_stream),
        server_streaming: Some(is_stream),
        ..MethodDescriptorProto::default()
    };
    ServiceDescriptorProto { name: Some(name.to_owned()), method: vec![method], ..ServiceDescriptorProto::default() }
}
