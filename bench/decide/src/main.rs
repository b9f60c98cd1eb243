//! One keyed decision, compared with the governor crate in the same run: see `bench/README.md`.
#![deny(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the output is a table")]

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

/// One size of the measurement, with all implementations.
struct Case {
    /// The number of keys that each implementation has seen.
    keys: u32,
    /// The number of keys that our tables have room for.
    room: u32,
    /// Each with its memory in bytes per key of `room`.
    contenders: Vec<(Kind, Contender, f64)>,
}

/// The times of one implementation, one value per round: nanoseconds per decision of one thread.
#[derive(Clone, Default)]
struct Times {
    nanos: Vec<f64>,
    /// The share of admitted requests, averaged over the rounds.
    admitted: f64,
}

fn main() {
    let arguments = Arguments::parse();
    println!("{}\n", machine());
    println!(
        "| draw | threads | keys | room for | contender | ns per decision | governor / it | it / fewest keys | \
         admitted | bytes per key |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let [few, many] = arguments.keys[..] else { unreachable!("there are as many as asked for") };
    // A table is sized for its busiest day, so few keys in a large table are a separate case.
    let cases = [(few, few), (few, many), (many, many)].map(|(keys, room)| Case::new(keys, room));
    for draw in Draw::ALL {
        let (draws_of_few, draws_of_many) = (draw.draw(few, arguments.decisions), draw.draw(many, arguments.decisions));
        let draws = |case: &Case| if case.keys == few { &draws_of_few } else { &draws_of_many };
        for threads in [1, 2] {
            let times = measure(&cases, |case| draws(case), threads, arguments.rounds);
            for (case, case_times) in cases.iter().zip(&times) {
                report(case, draw, threads, case_times, &times[0]);
            }
        }
    }
}

impl Case {
    fn new(keys: u32, room: u32) -> Self {
        let contender = |kind: Kind| {
            let before = heap::bytes();
            let contender = kind.contender(keys, room);
            let bytes = heap::bytes() - before + contender.mapped_bytes();
            (kind, contender, bytes as f64 / f64::from(room))
        };
        Self { keys, room, contenders: Kind::ALL.map(contender).into() }
    }
}

/// Runs all rounds of all implementations of all cases in turn, each round starting with another one, so that
/// disturbances affect all of them equally and values of one round are comparable.
fn measure<'d>(
    cases: &[Case],
    draws: impl Fn(&Case) -> &'d Vec<u32>,
    threads: usize,
    rounds: usize,
) -> Vec<Vec<Times>> {
    let mut times = vec![vec![Times::default(); Kind::ALL.len()]; cases.len()];
    for round in 0..rounds {
        eprint!("\r{threads} threads, round {} of {rounds} ", round + 1);
        for turn in 0..Kind::ALL.len() {
            let index = (round + turn) % Kind::ALL.len();
            for (case, times) in cases.iter().zip(&mut times) {
                let (nanos, admitted) = run(&case.contenders[index].1, draws(case), threads);
                times[index].nanos.push(nanos);
                times[index].admitted += admitted / rounds as f64;
            }
        }
    }
    eprint!("\r{:40}\r", "");
    times
}

/// Every thread decides all of `draws` from a different start. Returns nanoseconds per decision, and the
/// share of admissions.
///
/// It measures CPU time of the thread: on an idle machine that equals wall time, and on a busy one it
/// excludes other processes.
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

/// The CPU time of this thread.
fn cpu_nanos() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// One row per implementation of `case`, compared with the case with the fewest keys.
fn report(case: &Case, draw: Draw, threads: usize, times: &[Times], fewest: &[Times]) {
    let governor = case.contenders.iter().position(|(kind, ..)| *kind == Kind::Governor).expect("governor takes part");
    let ratios = |of: &Times, to: &Times| of.nanos.iter().zip(&to.nanos).map(|(of, to)| of / to).collect();
    for (index, (kind, _, bytes)) in case.contenders.iter().enumerate() {
        let own = &times[index];
        println!(
            "| {} | {threads} | {} M | {} M | {} | {} | {} | {} | {:.0} % | {bytes:.1} |",
            draw.name(),
            case.keys / 1_000_000,
            case.room / 1_000_000,
            kind.name(),
            spread(own.nanos.clone(), 0),
            spread(ratios(&times[governor], own), 2),
            spread(ratios(own, &fewest[index]), 2),
            own.admitted * 100.0,
        );
    }
}

/// The median and the range.
fn spread(mut figures: Vec<f64>, digits: usize) -> String {
    figures.sort_by(f64::total_cmp);
    let (first, median, last) = (figures[0], figures[figures.len() / 2], figures[figures.len() - 1]);
    format!("**{median:.digits$}** ({first:.digits$}..{last:.digits$})")
}

/// A description of the machine.
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
