//! Four processes at once on one limit admit exactly what it has room for.

use crate::hammer::{CALLS, PROCESSES, hammer};
use crate::redis_server::RedisServer;
use crate::world::*;

#[test]
fn four_processes_admit_exactly_what_there_is_room_for() {
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
