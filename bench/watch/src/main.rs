//! What the watch and the console cost a gate, and how long a large report takes.
//!
//! The gate is the built binary, and what is compared is CPU time, which neighbours on the machine add little to. Its threads that serve requests have names
//! of their own, so what the watch and the console use beside them can be seen. What they cost on those threads themselves is seen by
//! comparing with a gate that has no watch, where one is given: rounds take turns, and ratios are taken within a round.
//!
//! `cargo build --release -p tollgate && cargo run --release -p bench-watch [-- --without path/to/tollgate]`
#![expect(clippy::print_stdout, reason = "its answer is a table for people")]

mod gate;
mod load;

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use gate::{Gate, ask};
use load::{ACCOUNTS, Load};

/// What the watch and the console cost a gate, and how long a large report takes.
#[derive(Parser)]
struct Options {
    /// The binary
    #[arg(long, default_value = "target/release/tollgate")]
    binary: PathBuf,
    /// The same with nothing that feeds the watch, to be compared with
    #[arg(long)]
    without: Option<PathBuf>,
    /// How many rounds
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// How many seconds a part of a round takes
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// How many requests a second are made at most
    #[arg(long, default_value_t = 100_000.0)]
    rate: f64,
}

/// One part of a round.
#[derive(Clone, Copy)]
struct Part {
    rate: f64,
    /// Per request.
    serving_us: f64,
    /// Per second.
    others_ms: f64,
}

fn main() -> io::Result<()> {
    let options = Options::parse();
    path(&options)?;
    reports(&options)
}

/// The way of a request that is refused.
fn path(options: &Options) -> io::Result<()> {
    let mut gates = vec![("console closed", Gate::start(&options.binary)?, false)];
    gates.push(("console open", Gate::start(&options.binary)?, true));
    if let Some(without) = &options.without {
        gates.push(("no watch", Gate::start(without)?, false));
    }
    let mut loads = gates.iter().map(|(_, gate, _)| Load::connect(gate.address)).collect::<io::Result<Vec<_>>>()?;
    loads.iter_mut().try_for_each(Load::warm_up)?;
    let mut rounds: Vec<Vec<Part>> = Vec::new();
    for _ in 0..options.rounds {
        let parts = gates.iter().zip(&mut loads);
        rounds.push(parts.map(|((_, gate, open), load)| part(options, gate, *open, load)).collect::<io::Result<_>>()?);
    }
    println!(
        "Refused requests of {ACCOUNTS} accounts, {} rounds; medians, and the smallest and largest:\n",
        options.rounds
    );
    println!(
        "| gate | requests/s | its workers, CPU per request | beside them, CPU per second | beside them, part of all at 100,000/s | workers against a closed console |"
    );
    println!("|---|---|---|---|---|---|");
    for (place, (name, ..)) in gates.iter().enumerate() {
        let column = |of: &dyn Fn(&[Part]) -> f64| Spread::of(rounds.iter().map(|round| of(round)).collect());
        let share = |part: &Part| part.others_ms / (part.others_ms + part.serving_us * 100.0) * 100.0;
        println!(
            "| {name} | {} | {} us | {} ms | {} % | {}x |",
            column(&|round| round[place].rate).shown(0),
            column(&|round| round[place].serving_us).shown(2),
            column(&|round| round[place].others_ms).shown(1),
            column(&|round| share(&round[place])).shown(2),
            column(&|round| round[place].serving_us / round[0].serving_us).shown(3),
        );
    }
    Ok(())
}

fn part(options: &Options, gate: &Gate, open: bool, load: &mut Load) -> io::Result<Part> {
    let console = if open { Some(Console::open(gate.admin)?) } else { None };
    // What is behind it is not of this part.
    load.run(Duration::from_millis(300), options.rate)?;
    let (before, began) = (gate.used()?, Instant::now());
    let requests = load.run(Duration::from_secs_f64(options.seconds), options.rate)?;
    let (after, took) = (gate.used()?, began.elapsed().as_secs_f64());
    if let Some(console) = console {
        console.close()?;
    }
    Ok(Part {
        rate: requests as f64 / took,
        serving_us: (after.serving_ns - before.serving_ns) as f64 / 1e3 / requests as f64,
        others_ms: (after.others_ns - before.others_ns) as f64 / 1e6 / took,
    })
}

/// A console that is open: it reads events and asks once a second who spends.
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

    /// Closes it, if it has seen anything.
    fn close(self) -> io::Result<()> {
        self.events.shutdown(Shutdown::Both)?;
        match self.reading.join() {
            Ok(1..) => Ok(()),
            _ => Err(io::Error::other("no events came")),
        }
    }
}

/// Reports through the door that any gateway uses, on disk when they are acknowledged.
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

/// The middle of some figures, and the ends.
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
