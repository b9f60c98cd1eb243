//! Four concurrent processes admit exactly the quota of one limit.

use crate::fixtures::*;
use crate::hammer::{CALLS, PROCESSES, hammer};
use crate::redis_server::RedisServer;

#[test]
fn four_processes_admit_exactly_the_limit() {
    let _alone = ALONE.blocking_lock();
    let server = RedisServer::start(&[]);
    for name in LIMITS {
        for size in [10, 500] {
            let expected = room(&rule(name, limit(name, size)));
            assert!(expected < PROCESSES * CALLS);
            assert_eq!(hammer(&server.url(), name, size), expected, "{name} of {size}");
            server.command(&["FLUSHALL"]);
        }
    }
}
