//! `tollgate-storm`: a benchmark for gates, limiters and load balancers under a crawler's overload.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the output is for the user")]

use std::{
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::{Args, Parser, Subcommand, ValueEnum};
use tollgate_storm::{
    client,
    counters::Reading,
    crowd::{self, CRAWLER_CONNECTIONS, NETWORKS_MAX, Origin},
    dice::Dice,
    page::{Cost, Costs},
    picture::picture,
    plan::{Phases, Plan},
    results::{Results, SiteResults, StormParameters},
    site, storm,
    tally::{PATIENCE, Tally},
    target::{Identity, Paths, Target},
};

/// Measures how well people are served while a crawler overloads a site.
#[derive(Debug, Parser)]
#[command(name = "tollgate-storm", version, about)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the site: pages that burn exact CPU time, behind a limited number of workers
    Site(SiteOptions),
    /// Play a storm against a server, and write the results
    Run(Box<RunOptions>),
}

#[derive(Debug, Args)]
struct SiteOptions {
    /// The address to serve on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Requests that are served at once; further ones wait in the order of their arrival
    #[arg(long, value_name = "N", default_value_t = 16)]
    workers: u16,
    /// The cost of an article: CPU time and sleep, in microseconds
    #[arg(long, value_name = "CPU+SLEEP", default_value = "20000+0")]
    article: Cost,
    /// The cost of an archive page, which the crawler requests
    #[arg(long, value_name = "CPU+SLEEP", default_value = "300000+0")]
    archive: Cost,
    /// The cost of an asset
    #[arg(long, value_name = "CPU+SLEEP", default_value = "500+0")]
    asset: Cost,
    /// Send the CPU time of each response in Server-Timing
    #[arg(long)]
    server_timing: bool,
}

#[derive(Debug, Args)]
struct RunOptions {
    /// The server under test, as http://HOST:PORT or https://HOST:PORT
    #[arg(long, value_name = "URL")]
    target: String,
    /// A PEM file with the certificates to trust for https, instead of those of this system
    #[arg(long, value_name = "FILE")]
    certificates: Option<PathBuf>,
    /// A name for the results
    #[arg(long, default_value = "storm")]
    name: String,
    /// The seed of all random numbers: the same seed is the same storm
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The number of /24 networks of the crawler
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(NETWORKS_MAX)))]
    networks: u16,
    /// The number of connections of the crawler
    #[arg(long, value_name = "N", default_value_t = CRAWLER_CONNECTIONS)]
    connections: u16,
    /// The pause of a crawler's connection before each request, as a network would cause it
    #[arg(long, value_name = "MS", default_value_t = 20)]
    round_trip_ms: u64,
    /// Draw networks, connections and pause from the seed instead
    #[arg(long, conflicts_with_all = ["networks", "connections", "round_trip_ms"])]
    random: bool,
    /// How the server tells clients apart
    #[arg(long, value_enum, default_value = "source")]
    identity: Identity,
    /// Seconds with people alone, before the storm
    #[arg(long, value_name = "S", default_value_t = 10)]
    calm: u64,
    /// Seconds with people and the crawler
    #[arg(long, value_name = "S", default_value_t = 60)]
    storm: u64,
    /// Seconds with people alone, after the storm
    #[arg(long, value_name = "S", default_value_t = 20)]
    recovery: u64,
    /// The site behind the server, to report its CPU time: its own address, without the server under test
    #[arg(long, value_name = "ADDRESS")]
    site: Option<SocketAddr>,
    /// The path of a page that people read, with {id}, for another site than `tollgate-storm site`
    #[arg(long, value_name = "PATH", requires_all = ["archive_path", "asset_path"])]
    article_path: Option<String>,
    /// The path of an expensive page, which the crawler requests, with {id}
    #[arg(long, value_name = "PATH", requires = "article_path")]
    archive_path: Option<String>,
    /// The path of a file that pages include, with {id}
    #[arg(long, value_name = "PATH", requires = "article_path")]
    asset_path: Option<String>,
    /// Files that a page includes
    #[arg(long, value_name = "N", default_value_t = 4)]
    assets: u8,
    /// Write the results as JSON to this file; `-` is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a picture of the results to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// The exit code for wrong arguments; that of other failures is 1.
const WRONG_ARGUMENTS: u8 = 2;

fn main() -> ExitCode {
    let outcome = match Options::parse().command {
        Command::Site(options) => serve(&options),
        Command::Run(options) => run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, message)) => {
            eprintln!("{message}");
            ExitCode::from(code)
        }
    }
}

/// Success, or an exit code and a message.
type Outcome = Result<(), (u8, String)>;

fn serve(options: &SiteOptions) -> Outcome {
    let listener = TcpListener::bind(options.listen)
        .map_err(|error| (1, format!("cannot listen on {}: {error}", options.listen)))?;
    let address = listener.local_addr().unwrap_or(options.listen);
    println!("site on http://{address}");
    let costs = Costs { article: options.article, archive: options.archive, asset: options.asset };
    let workers = usize::from(options.workers.max(1));
    site::serve(&listener, site::Settings { workers, costs, server_timing: options.server_timing })
}

fn run(options: &RunOptions) -> Outcome {
    let target = target(options)?;
    let (plan, storm) = plan(options);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| (1, format!("cannot start: {error}")))?;
    runtime.block_on(check(options, &target))?;
    let tally = Arc::new(Tally::default());
    let (crawled, readings) = runtime.block_on(play(options, plan.clone(), target, &tally));
    let mut results = Results::new(&options.name, storm, &plan, &tally, &crawled);
    if let [before, .., after] = &readings[..] {
        results.site = Some(SiteResults::between(before, after));
    }
    write(options, &results)
}

fn target(options: &RunOptions) -> Result<Target, (u8, String)> {
    let target =
        Target::of_url(&options.target, options.certificates.as_deref()).map_err(|error| (WRONG_ARGUMENTS, error))?;
    if options.identity == Identity::Source && !(target.address.ip().is_loopback() && target.address.is_ipv4()) {
        let message = "clients have their own source addresses on 127.0.0.0/8 only: use --identity x-forwarded-for, \
                       and let the server under test trust this machine";
        return Err((WRONG_ARGUMENTS, message.to_string()));
    }
    let paths = match (&options.article_path, &options.archive_path, &options.asset_path) {
        (Some(article), Some(archive), Some(asset)) => {
            let is_path = |path: &&String| path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic());
            if ![article, archive, asset].iter().all(is_path) {
                return Err((WRONG_ARGUMENTS, "a path starts with / and has no spaces".to_string()));
            }
            Some(Paths { article: article.clone(), archive: archive.clone(), asset: asset.clone() })
        }
        _ => None,
    };
    Ok(Target { identity: options.identity, paths, assets: options.assets, ..target })
}

/// Makes the random numbers for the crawler independent of those for the visits, which have the same seed.
const SALT: u64 = 0x5eed_0f57_0000_0002;

/// The plan, and its parameters for the results.
fn plan(options: &RunOptions) -> (Arc<Plan>, StormParameters) {
    let (mut networks, mut connections, mut round_trip_ms) =
        (options.networks, options.connections, options.round_trip_ms);
    if options.random {
        let mut dice = Dice::new(options.seed ^ SALT);
        // A log-uniform number: each second of the duration is one network.
        let spread = dice.log_uniform(Duration::from_secs(1), Duration::from_secs(256));
        networks = spread.as_secs() as u16;
        connections = 16 + dice.below(240) as u16;
        round_trip_ms = 1 + dice.below(100);
    }
    let seconds = Duration::from_secs;
    let phases =
        Phases { calm: seconds(options.calm), storm: seconds(options.storm), recovery: seconds(options.recovery) };
    let mut plan = Plan::new(options.seed, phases, Origin::Networks(networks));
    plan.crawler_connections = connections;
    plan.crawler_round_trip = Duration::from_millis(round_trip_ms);
    let storm = StormParameters {
        target: options.target.clone(),
        seed: options.seed,
        identity: options.identity.to_possible_value().expect("no identity is hidden").get_name().to_string(),
        networks,
        connections,
        round_trip_ms: round_trip_ms as f64,
        patience_s: PATIENCE.as_secs_f64(),
        calm_s: options.calm as f64,
        storm_s: options.storm as f64,
        recovery_s: options.recovery as f64,
    };
    (Arc::new(plan), storm)
}

/// Refuses to start if the server or the site does not answer.
async fn check(options: &RunOptions, target: &Target) -> Outcome {
    let reached = tokio::time::timeout(Duration::from_secs(5), client::reach(crowd::human(0), target)).await;
    reached
        .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
        .map_err(|error| (1, format!("cannot connect to {}: {error}", options.target)))?;
    if let Some(site) = options.site {
        site::read_counters(site)
            .map_err(|error| (1, format!("cannot read the counters of the site {site}: {error}")))?;
    }
    Ok(())
}

/// Plays the storm. Returns the crawler's totals after each second, and the site's counters at the start and at the end
/// of the storm.
async fn play(
    options: &RunOptions,
    plan: Arc<Plan>,
    target: Target,
    tally: &Arc<Tally>,
) -> (Vec<tollgate_storm::tally::Crawled>, Vec<Reading>) {
    let start = Instant::now();
    let phases = plan.phases;
    let playing = tokio::spawn(storm::play(plan, Arc::new(target), start, Arc::clone(tally)));
    let (mut crawled, mut readings) = (Vec::new(), Vec::new());
    let seconds = phases.end_at().as_secs();
    let at = |second: u64| tokio::time::Instant::from_std(start + Duration::from_secs(second));
    for second in 0..=seconds {
        tokio::time::sleep_until(at(second)).await;
        if second > 0 {
            crawled.push(tally.crawled());
        }
        if let Some(site) = options.site.filter(|_| [options.calm, options.calm + options.storm].contains(&second)) {
            readings.extend(tokio::task::spawn_blocking(move || site::read_counters(site).ok()).await.ok().flatten());
        }
        if second % 10 == 0 {
            eprintln!("{second:>4} s of {seconds} s");
        }
    }
    // An error would be a panic of a client, which the runtime has reported.
    let _ = playing.await;
    (crawled, readings)
}

fn write(options: &RunOptions, results: &Results) -> Outcome {
    let failed = |file: &PathBuf| {
        let file = file.display().to_string();
        move |error: std::io::Error| (1, format!("cannot write {file}: {error}"))
    };
    let json = serde_json::to_string_pretty(results).expect("every field of the results has a JSON form") + "\n";
    match &options.json {
        Some(file) if file.as_os_str() == "-" => print!("{json}"),
        json_file => {
            print!("{}", results.table());
            if let Some(file) = json_file {
                std::fs::write(file, json).map_err(failed(file))?;
            }
        }
    }
    if let Some(file) = &options.svg {
        std::fs::write(file, picture(results)).map_err(failed(file))?;
    }
    Ok(())
}
