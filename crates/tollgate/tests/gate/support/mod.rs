//! Gates, backends and clients, from the crate for test support.
#![allow(unused_imports, reason = "each test uses a part of it")]

pub(crate) use tollgate_test_support::{
    Backend, Gate, PATIENCE, Response, backend, binary, client, closed, crowd, eventually, free_addresses, gate, http2,
    read_response, roundtrip,
};
