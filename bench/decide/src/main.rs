//! One keyed decision, against the governor crate in the same run: see `bench/README.md`.
#![deny(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark talks to the person who started it")]

mod contender;
mod heap;
mod keys;

use std::hint::black_box;

use clap::Parser;
use contender::{Contender, Kind};
use keys::Draw;

/// Measures one keyed decision, clock included, in alternating rounds.
#[derive(Parser)]
struct Arguments {
    /// Rounds; in each, every contender decides the same requests once.
    #[arg(long, default_value_t = 11)]
    rounds: usize,
    /// Decisions per contender, round and thread.
    #[arg(long, default_value_t = 2_000_000)]
    decisions: usize,
    /// Keys in the small and in the large case.
    #[arg(long, default_values_t = [1_000_000, 10_000_000], num_args = 2)]
    keys: Vec<u32>,
}

/// One contender's times, a figure per round: nanoseconds per decision as one thread sees it.
struct Times {
    kind: Kind,
    nanos: Vec<f64>,
    admitted: f64,
}

fn main() {
    let arguments = Arguments::parse();
    println!("{}\n", machine());
    println!(
        "| keys | room for | draw | threads | contender | ns per decision | governor / it | admitted | bytes per key |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let [few, many] = arguments.keys[..] else { unreachable!("there are as many as asked for") };
    // A table is as large as the day with the most callers needs it, so few callers in a large table are a case of their own.
    for (keys, room) in [(few, few), (few, many), (many, many)] {
        let contenders: Vec<_> = Kind::ALL
            .into_iter()
            .map(|kind| {
                let before = heap::bytes();
                let contender = kind.contender(keys, room);
                let bytes = heap::bytes() - before + contender.mapped_bytes();
                (kind, contender, bytes as f64 / f64::from(room))
            })
            .collect();
        for draw in Draw::ALL {
            let draws = draw.draw(keys, arguments.decisions);
            for threads in [1, 2] {
                let times = measure(&contenders, &draws, threads, arguments.rounds);
                report([keys, room], draw, threads, &times, &contenders);
            }
        }
    }
}

/// All rounds of all contenders, in turn, each beginning with another one.
fn measure(contenders: &[(Kind, Contender, f64)], draws: &[u32], threads: usize, rounds: usize) -> Vec<Times> {
    let mut times: Vec<Times> =
        contenders.iter().map(|&(kind, ..)| Times { kind, nanos: Vec::new(), admitted: 0.0 }).collect();
    for round in 0..rounds {
        eprint!("\r{threads} threads, round {} of {rounds} ", round + 1);
        for turn in 0..contenders.len() {
            let index = (round + turn) % contenders.len();
            let (nanos, admitted) = run(&contenders[index].1, draws, threads);
            times[index].nanos.push(nanos);
            times[index].admitted += admitted / rounds as f64;
        }
    }
    eprint!("\r{:40}\r", "");
    times
}

/// Every thread decides all of `draws`, each from another place on; nanoseconds per decision, and the share admitted.
///
/// What counts is the time that a thread had a processor: on an idle machine that is the time that passed, and on a busy one the
/// neighbours' work is left out.
fn run(contender: &Contender, draws: &[u32], threads: usize) -> (f64, f64) {
    let decide = |thread: usize| {
        let (tail, head) = draws.split_at(draws.len() * thread / threads);
        let start = cpu_nanos();
        let admitted = black_box(contender.decide_all(head.iter().chain(tail).copied()));
        (cpu_nanos() - start, admitted)
    };
    let done: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || decide(thread))).collect();
        handles.into_iter().map(|handle| handle.join().expect("the limiter does not panic")).collect()
    });
    let decisions = (draws.len() * threads) as f64;
    let sum = |figure: fn(&(u64, u64)) -> u64| done.iter().map(figure).sum::<u64>() as f64;
    (sum(|done| done.0) / decisions, sum(|done| done.1) / decisions)
}

/// How long this thread has had a processor.
fn cpu_nanos() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn report(keys: [u32; 2], draw: Draw, threads: usize, times: &[Times], contenders: &[(Kind, Contender, f64)]) {
    let governor = times.iter().find(|times| times.kind == Kind::Governor).expect("governor takes part");
    for (times, (_, _, bytes)) in times.iter().zip(contenders) {
        let ratios = times.nanos.iter().zip(&governor.nanos).map(|(ours, theirs)| theirs / ours).collect();
        println!(
            "| {} M | {} M | {} | {threads} | {} | {} | {} | {:.0} % | {bytes:.1} |",
            keys[0] / 1_000_000,
            keys[1] / 1_000_000,
            draw.name(),
            times.kind.name(),
            spread(times.nanos.clone(), 0),
            spread(ratios, 2),
            times.admitted * 100.0,
        );
    }
}

/// The median, and from where to where.
fn spread(mut figures: Vec<f64>, digits: usize) -> String {
    figures.sort_by(f64::total_cmp);
    let (first, median, last) = (figures[0], figures[figures.len() / 2], figures[figures.len() - 1]);
    format!("**{median:.digits$}** ({first:.digits$}..{last:.digits$})")
}

/// What it ran on.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let processor = read("/proc/cpuinfo")
        .lines()
        .find_map(|line| {
            line.strip_prefix("model name").map(|name| name.trim_start_matches([' ', '\t', ':']).to_string())
        })
        .unwrap_or_else(|| "unknown processor".into());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    let pages = read("/sys/kernel/mm/transparent_hugepage/enabled");
    format!("{processor}, {cores} cores, Linux {}, huge pages {}", kernel.trim(), pages.trim())
}
