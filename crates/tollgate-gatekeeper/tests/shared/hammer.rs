//! A process that sends many requests at once, like a gate among others.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

use crate::fixtures::*;

/// The number of processes, and of requests per process.
pub(crate) const PROCESSES: usize = 4;
pub(crate) const CALLS: usize = 1_000;

/// Set for a worker process: the store, the limit and its size.
const ORDER: &str = "TOLLGATE_TEST_HAMMER";
const ANSWER: &str = "admitted ";

/// The worker process of another test; otherwise it ends immediately.
#[test]
fn a_worker_process_sends_requests() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let [url, name, size] = order.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = open(url, PATIENT);
        let rule = shared(rule(name, limit(name, size.parse().unwrap())));
        let calls: Vec<_> = (0..CALLS)
            .map(|_| {
                let (store, rule) = (store.clone(), rule.clone());
                tokio::spawn(async move { ask(&store, &[(&rule, b"key")]).await.unwrap() })
            })
            .collect();
        let mut admitted = Vec::new();
        for call in calls {
            admitted.extend(call.await.unwrap());
        }
        let mut out = std::io::stdout();
        writeln!(out, "\n{ANSWER}{}", admitted.len()).unwrap();
        out.flush().unwrap();
        // Admitted requests stay in flight until every process has asked.
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        drop(admitted);
    });
}

/// The number of `PROCESSES` times `CALLS` requests that a limit of `size` admits.
pub(crate) fn hammer(url: &str, name: &str, size: u32) -> usize {
    let mut processes: Vec<Child> = (0..PROCESSES)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "hammer::a_worker_process_sends_requests", "--nocapture"])
                .env(ORDER, format!("{url} {name} {size}"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::inherit())
                .spawn()
                .unwrap()
        })
        .collect();
    let admitted = processes.iter_mut().map(|process| {
        let lines = BufReader::new(process.stdout.as_mut().unwrap()).lines().map_while(Result::ok);
        let answer = lines.filter_map(|line| line.strip_prefix(ANSWER)?.parse::<usize>().ok()).next();
        answer.expect("a process that hammers says how many were admitted")
    });
    let admitted = admitted.sum();
    for mut process in processes {
        drop(process.stdin.take());
        drop(process.wait());
    }
    admitted
}
