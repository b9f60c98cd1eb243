//! As many connections as the bound, and more.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::backend::respond;
use crate::support::client::{connect_from, is_closed};
use crate::support::{Backend, Gate, PATIENCE, eventually, read_response};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Raises the limit of open files of this process to its maximum, and returns it.
fn raise_files() -> u64 {
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).unwrap();
    most.unwrap_or(1 << 20)
}

#[test]
fn ten_thousand_idle_connections_are_served_and_cost_less_than_4_kilobytes_each() {
    // With fewer file descriptors there are fewer connections; the bound on memory is per connection.
    let count = 10_000.min(raise_files().saturating_sub(5_000) as usize * 3 / 4);
    assert!(count >= 1_000, "raise the bound on open files (ulimit -Hn) for this test");
    let backend = Backend::saying("ok");
    let gate = Gate::before(&backend);
    let before_kb = gate.rss_kb();
    let started = Instant::now();
    let mut idle: Vec<TcpStream> = Vec::with_capacity(count);
    for number in 0..count {
        // No address exceeds its bound.
        let mut stream = connect_from([127, 1, (number / 500) as u8, 1].into(), gate.address);
        stream.write_all(GET).unwrap();
        assert_eq!(read_response(&mut BufReader::new(&stream)).map(|answer| answer.status), Some(200), "{number}");
        idle.push(stream);
    }
    assert_eq!(gate.metric("tollgate_connections"), count as u64);
    let grown_kb = gate.rss_kb() - before_kb;
    assert!(grown_kb * 1024 / (count as u64) < 4096, "{grown_kb} kB for {count} connections");
    eprintln!("{count} idle connections: {grown_kb} kB, {:?}", started.elapsed());
    for stream in idle.iter_mut().step_by(97) {
        stream.write_all(GET).unwrap();
        assert!(read_response(&mut BufReader::new(&*stream)).is_some(), "kept open and served again");
    }
}

#[test]
fn at_the_bound_the_connection_that_is_idle_the_longest_is_closed() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, "bounds = { connections = 100 }");
    let ask = |stream: &mut TcpStream| {
        stream.write_all(GET).is_ok() && read_response(&mut BufReader::new(&*stream)).is_some()
    };
    let mut idle: Vec<TcpStream> =
        (0..100).map(|number| connect_from([127, 1, 0, 1 + number % 4].into(), gate.address)).collect();
    for stream in &mut idle {
        assert!(ask(stream));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(gate.metric("tollgate_connections"), 100);
    for stream in &mut idle[50..] {
        assert!(ask(stream), "none is closed yet");
    }
    std::thread::sleep(Duration::from_millis(300));
    let mut newcomer = gate.connect();
    assert!(ask(&mut newcomer));
    for stream in &mut idle[50..] {
        assert!(ask(stream), "connections that were idle for less stay open");
    }
    eventually("one had to go", || gate.metric("tollgate_connections") == 100);
    let gone = idle[..50].iter().filter(|stream| {
        stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        is_closed(stream)
    });
    assert_eq!(gone.count(), 1, "one closed for each new one");
}

#[test]
fn busy_connections_of_a_few_addresses_do_not_block_others() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, "bounds = { connections = 64 }");
    let half_a_head = |last: u8| {
        let mut stream = connect_from([127, 5, 0, last].into(), gate.address);
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost");
        stream
    };
    // One address has at most a quarter, so four addresses have all.
    let one: Vec<TcpStream> = (0..40).map(|_| half_a_head(1)).collect();
    eventually("the address has its bound", || gate.metric("tollgate_connections_turned_away_total") == 24);
    assert_eq!(gate.metric("tollgate_connections"), 16);
    let others: Vec<TcpStream> = (2..=4).flat_map(|last| (0..20).map(move |_| last)).map(half_a_head).collect();
    eventually("all connections are taken", || gate.metric("tollgate_connections") == 64);
    for last in 1..=30 {
        let mut stream = connect_from([127, 9, 9, last].into(), gate.address);
        stream.write_all(GET).unwrap();
        let answer = read_response(&mut BufReader::new(&stream));
        assert_eq!(answer.map(|answer| answer.status), Some(200), "{last}");
    }
    assert!(gate.metric("tollgate_connections") <= 64 + 8);
    drop((one, others));
}

#[test]
fn fault_15_a_shortage_of_descriptors_does_not_mark_the_backend_as_down() {
    // The backend responds only after a client got an error about the shortage.
    let told = Arc::new(AtomicBool::new(false));
    let may_answer = told.clone();
    let backend = Backend::answering(move |_, stream| {
        let began = Instant::now();
        while !may_answer.load(Ordering::Relaxed) && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
        respond(stream, "ok")
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.toml");
    std::fs::write(&file, format!("[gate]\nworkers = 1\nin_flight = 200\nbackend = \"{}\"\n", backend.url())).unwrap();
    let mut command = std::process::Command::new("sh");
    // 35 more than those that the gate inherits from the test runner.
    let gate = format!(
        "ulimit -n $((35 + $(ls /proc/$$/fd | wc -l))); exec {} gate --config {} \
         --listen 127.0.0.1:0 --admin 127.0.0.1:0",
        env!("CARGO_BIN_EXE_tollgate"),
        file.display(),
    );
    command.arg("-c").arg(gate);
    let gate = Gate::spawn(command, folder);
    let line = gate.logged("fewer connections than wanted");
    assert!(line.contains("\"WARN\""), "{line}");
    gate.signal("HUP");
    gate.logged("settings reloaded");
    let reported = gate.log().iter().filter(|line| line.contains("fewer connections than wanted")).count();
    assert_eq!(reported, 1, "a reload that does not change the limit repeats nothing");
    // Each needs two descriptors, which is more than there are. The gate accepts all of them first, so that the shortage is
    // met by connections to the backend.
    let crowd: Vec<TcpStream> =
        (0..16).map(|number| connect_from([127, 1, 0, 1 + number].into(), gate.address)).collect();
    eventually("all are accepted", || gate.metric("tollgate_connections") == 16);
    crowd.iter().for_each(|mut stream| stream.write_all(GET).unwrap());
    eventually("somebody is told", || {
        crowd.iter().any(|stream| {
            stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
            stream.peek(&mut [0]).is_ok_and(|read| read > 0)
        })
    });
    told.store(true, Ordering::Relaxed);
    crowd.iter().for_each(|stream| stream.set_read_timeout(Some(PATIENCE)).unwrap());
    let statuses: Vec<u16> = crowd
        .iter()
        .filter_map(|stream| read_response(&mut BufReader::new(stream)).map(|response| response.status))
        .collect();
    assert!(statuses.contains(&200) && statuses.contains(&503), "{statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 200 | 503)), "{statuses:?}");
    drop(crowd);
    eventually("it serves again", || {
        let mut stream = gate.connect();
        stream.write_all(GET).is_ok()
            && read_response(&mut BufReader::new(&stream)).is_some_and(|response| response.status == 200)
    });
    assert_eq!(gate.metric("tollgate_backend_up"), 1);
    assert!(gate.log().iter().all(|line| !line.contains("backend is down")));
}
