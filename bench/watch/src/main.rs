//! The cost of the watch and of the console for a gate, and the time of a large report.
//!
//! The gate is the built binary, and CPU time is compared, which other processes affect little. The threads
//! that serve requests have their own names, so the cost of other threads is measured directly. The cost of
//! a change on the serving threads is the difference to another build, such as that of an earlier commit. Gates are
//! restarted for each round and take short turns; ratios are within a round.
//!
//! ```sh
//! cargo build --release -p tollgate
//! cargo run --release -p bench-watch -- --base path/to/another/tollgate
//! ```
#![expect(clippy::print_stdout, reason = "the output is a table")]

mod gate;
mod load;

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use gate::{Gate, ask};
use load::{ACCOUNTS, Load, Mix};

/// The cost of the watch and of the console for a gate, and the time of a large report.
#[derive(Parser)]
struct Options {
    /// The binary
    #[arg(long, default_value = "target/release/tollgate")]
    binary: PathBuf,
    /// The binary of another build, for comparison
    #[arg(long)]
    base: PathBuf,
    /// The number of rounds
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// The duration of a part of a round in seconds. Refusals are collected for four seconds, so use a
    /// multiple of that
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// The decision on the requests; all of them in turn by default
    #[arg(long, value_enum)]
    mix: Option<Mix>,
    /// Skips the reports
    #[arg(long)]
    no_reports: bool,
}

/// The results of a gate in one round.
#[derive(Clone, Copy)]
struct Part {
    /// Requests per second.
    rate: f64,
    /// CPU time of its workers, per request.
    serving_us: f64,
    /// CPU time of everything else, per second.
    others_ms: f64,
}

impl Part {
    /// CPU time of everything else, per request.
    fn others_us(&self) -> f64 {
        self.others_ms * 1e3 / self.rate
    }

    /// CPU time of the whole gate per request.
    fn whole_us(&self) -> f64 {
        self.serving_us + self.others_us()
    }
}

/// The warm-up time of a gate.
const WARM_UP: Duration = Duration::from_millis(1200);

/// The time for which a gate serves before the next one.
const TURN: Duration = Duration::from_millis(100);

/// One of the gates that are compared.
struct Kind<'a> {
    name: &'a str,
    binary: &'a Path,
    /// Whether a console is open.
    open: bool,
}

fn main() -> io::Result<()> {
    let options = Options::parse();
    let all = [Mix::Admitted, Mix::Half, Mix::Refused];
    for mix in options.mix.as_ref().map_or(&all[..], std::slice::from_ref) {
        path(&options, *mix)?;
    }
    if options.no_reports { Ok(()) } else { reports(&options) }
}

/// Measures and prints the cost of requests that are forwarded or refused, according to `mix`.
fn path(options: &Options, mix: Mix) -> io::Result<()> {
    let kinds = [
        Kind { name: "base", binary: &options.base, open: false },
        Kind { name: "console closed", binary: &options.binary, open: false },
        Kind { name: "console open", binary: &options.binary, open: true },
    ];
    let rounds =
        (0..options.rounds).map(|number| round(options, mix, &kinds, number)).collect::<io::Result<Vec<_>>>()?;
    println!(
        "\nRequests of {ACCOUNTS} accounts, {}; {} rounds of {} s; medians, and the smallest and largest:\n",
        mix.name(),
        options.rounds,
        options.seconds
    );
    println!(
        "| gate | requests/s | its worker, CPU per request | beside it, CPU per second | more on the worker | more \
         beside it | more in all |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (place, kind) in kinds.iter().enumerate() {
        let column = |of: &dyn Fn(&[Part]) -> f64| Spread::of(rounds.iter().map(|round| of(round)).collect());
        let more = |round: &[Part], of: &dyn Fn(&Part) -> f64| {
            (of(&round[place]) - of(&round[0])) / round[0].whole_us() * 100.0
        };
        println!(
            "| {} | {} | {} us | {} ms | {} % | {} % | {} % |",
            kind.name,
            column(&|round| round[place].rate).shown(0),
            column(&|round| round[place].serving_us).shown(2),
            column(&|round| round[place].others_ms).shown(1),
            column(&|round| more(round, &|part| part.serving_us)).shown(2),
            column(&|round| more(round, &Part::others_us)).shown(2),
            column(&|round| more(round, &Part::whole_us)).shown(2),
        );
    }
    Ok(())
}

/// A running gate.
struct Running {
    gate: Gate,
    load: Load,
    console: Option<Console>,
    /// Its requests during the turns, and the CPU time of its workers for them.
    requests: u64,
    serving_ns: u64,
}

impl Running {
    fn start(kind: &Kind<'_>, mix: Mix) -> io::Result<Self> {
        let gate = Gate::start(kind.binary)?;
        let mut load = Load::connect(gate.address, mix)?;
        load.warm_up()?;
        let console = if kind.open { Some(Console::open(gate.admin)?) } else { None };
        // The watch sees every account for the first time.
        load.run(WARM_UP)?;
        Ok(Self { gate, load, console, requests: 0, serving_ns: 0 })
    }

    /// The CPU time of its workers. Turns are short, so that changes of the machine's speed affect all gates
    /// equally.
    fn take_turn(&mut self) -> io::Result<()> {
        let before = self.gate.used()?.serving_ns;
        self.requests += self.load.run(TURN)?;
        self.serving_ns += self.gate.used()?.serving_ns - before;
        Ok(())
    }

    /// The CPU time of all other threads, which work in bursts every few seconds, so it is measured in one
    /// piece.
    fn finish(mut self, time: Duration) -> io::Result<Part> {
        let (before, began) = (self.gate.used()?.others_ns, Instant::now());
        let requests = self.load.run(time)?;
        let (after, took) = (self.gate.used()?.others_ns, began.elapsed().as_secs_f64());
        if let Some(console) = self.console {
            console.close()?;
        }
        Ok(Part {
            rate: requests as f64 / took,
            serving_us: self.serving_ns as f64 / 1e3 / self.requests as f64,
            others_ms: (after - before) as f64 / 1e6 / took,
        })
    }
}

/// All gates in one round.
fn round(options: &Options, mix: Mix, kinds: &[Kind<'_>], number: usize) -> io::Result<Vec<Part>> {
    let mut gates = kinds.iter().map(|kind| Running::start(kind, mix)).collect::<io::Result<Vec<_>>>()?;
    let time = Duration::from_secs_f64(options.seconds);
    let turns = (options.seconds / TURN.as_secs_f64()).ceil() as usize;
    for turn in 0..turns {
        // The first gate has an advantage, so the order changes.
        for place in (0..kinds.len()).map(|place| (place + turn + number) % kinds.len()) {
            gates[place].take_turn()?;
        }
    }
    gates.into_iter().map(|gate| gate.finish(time)).collect()
}

/// An open console, which reads events and polls spenders once per second.
struct Console {
    events: TcpStream,
    reading: std::thread::JoinHandle<u64>,
}

impl Console {
    fn open(admin: SocketAddr) -> io::Result<Self> {
        let mut events = TcpStream::connect(admin)?;
        write!(events, "GET /api/v1/events HTTP/1.1\r\nHost: {admin}\r\nAccept: text/event-stream\r\n\r\n")?;
        let mut stream = events.try_clone()?;
        let reading = std::thread::spawn(move || {
            let (mut bytes, mut buffer, mut asked) = (0, [0; 1 << 14], Instant::now());
            while let Ok(read @ 1..) = stream.read(&mut buffer) {
                bytes += read as u64;
                if asked.elapsed() > Duration::from_millis(900) {
                    asked = Instant::now();
                    let _ = ask(admin, "GET", "/api/v1/buckets?class=header:x-api-key&top=50", "");
                    let _ = ask(admin, "GET", "/api/v1/episodes", "");
                }
            }
            bytes
        });
        Ok(Self { events, reading })
    }

    /// Closes it, and checks that it received data.
    fn close(self) -> io::Result<()> {
        self.events.shutdown(Shutdown::Both)?;
        match self.reading.join() {
            Ok(1..) => Ok(()),
            _ => Err(io::Error::other("no events came")),
        }
    }
}

/// Sends reports through the public endpoint; they are on disk when they are acknowledged.
fn reports(options: &Options) -> io::Result<()> {
    println!("\nA report of so many keys, from its first byte to its acknowledgement:\n");
    println!("| keys | bytes | ms | us per key |\n|---|---|---|---|");
    let gate = Gate::start(&options.binary)?;
    let sizes = [1_000, 10_000, 50_000, 100_000];
    let mut times = vec![Vec::new(); sizes.len()];
    let mut bytes = vec![0; sizes.len()];
    for round in 0..options.rounds {
        for (place, keys) in sizes.into_iter().enumerate() {
            let body = report(round, keys);
            bytes[place] = body.len();
            let began = Instant::now();
            let (status, answer) = ask(gate.admin, "POST", "/api/v1/rejections", &body)?;
            times[place].push(began.elapsed().as_secs_f64() * 1e3);
            if status != 202 {
                return Err(io::Error::other(answer));
            }
        }
    }
    for ((keys, times), bytes) in sizes.into_iter().zip(times).zip(bytes) {
        let spread = Spread::of(times);
        println!("| {keys} | {bytes} | {} | {:.2} |", spread.shown(1), spread.middle * 1e3 / f64::from(keys));
    }
    Ok(())
}

fn report(round: usize, keys: u32) -> String {
    let entry = |key| {
        format!(
            "{{\"class\": \"header:x-api-key\", \"key\": \"account-{round}-{key}\", \"rejected\": {}}}",
            1 + key % 7
        )
    };
    let entries: Vec<_> = (0..keys).map(entry).collect();
    format!("{{\"id\": \"{round}-{keys}\", \"entries\": [{}]}}", entries.join(", "))
}

/// The median and the range.
struct Spread {
    least: f64,
    middle: f64,
    most: f64,
}

impl Spread {
    fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        let at = |place: usize| figures.get(place).copied().unwrap_or(0.0);
        Self { least: at(0), middle: at(figures.len() / 2), most: at(figures.len().saturating_sub(1)) }
    }

    fn shown(&self, digits: usize) -> String {
        format!("**{:.digits$}** ({:.digits$}..{:.digits$})", self.middle, self.least, self.most)
    }
}
