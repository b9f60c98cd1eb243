//! `tollgate doctor`: who spends the backend's time, on a terminal.
//!
//! The table is Tempomat's, with more columns; live, it is a view that is drawn anew twice a second. What is drawn is made of values alone
//! ([`view`]); only [`terminal`] touches the terminal.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its answer is for the person at the terminal")]

mod caller;
mod columns;
mod ending;
mod help;
mod keyboard;
mod notice;
mod table;
mod terminal;
mod view;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::admin_client::{AdminClient, AdminOptions, NoAnswer, encoded, harmless};
use crate::cli::WRONG;

use caller::Caller;
use ending::Ending;
use terminal::Terminal;
use view::{Asked, View};

/// How often the view is brought up to date.
const REFRESH: Duration = Duration::from_millis(500);

/// The arguments of `tollgate doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = help::columns_text())]
pub(crate) struct Options {
    #[command(flatten)]
    admin: AdminOptions,
    /// How callers are told apart: ip/32, ip/24, ip/16, user-agent, or the class of a rule; auto is the one of ip/32, ip/24 and ip/16 where the load is
    /// concentrated
    #[arg(long, visible_alias = "bucket", default_value = view::AUTO)]
    class: String,
    /// Print the table once
    #[arg(long)]
    once: bool,
    /// Print everything once, as JSON
    #[arg(long)]
    json: bool,
    /// How many callers are shown
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    top: u16,
}

/// Shows who spends.
pub(crate) fn run(options: &Options) -> ExitCode {
    match show(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(no_answer) => {
            eprintln!("{}", harmless(&no_answer.to_string()));
            if no_answer.is_wrong { ExitCode::from(WRONG) } else { ExitCode::FAILURE }
        }
    }
}

fn show(options: &Options) -> Result<(), NoAnswer> {
    let client = AdminClient::new(&options.admin)?;
    let class = match &*options.class {
        "Slash32" => "ip/32",
        "Slash24" => "ip/24",
        "Slash16" => "ip/16",
        "UserAgent" => "user-agent",
        class => class,
    };
    if options.json {
        let (status, buckets) = (client.get("/api/v1/status")?, buckets(&client, class, options.top)?);
        println!("{}", json!({ "status": status, "class": buckets["class"], "buckets": buckets["buckets"] }));
        return Ok(());
    }
    if options.once || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let (status, answer) = (client.get("/api/v1/status")?, buckets(&client, class, options.top)?);
        if status["mode"] == "observe" {
            println!("{}", view::observed(&status["observed"]));
        }
        for notice in status["notices"].as_array().into_iter().flatten() {
            print!("{}", notice::text(notice));
        }
        let class = harmless(answer["class"].as_str().unwrap_or(class));
        print!("{}", table::print(&class, &Caller::all(&answer["buckets"])));
        return Ok(());
    }
    live(&client, class, options.top)
}

fn buckets(client: &AdminClient, class: &str, top: u16) -> Result<Value, NoAnswer> {
    let answer = client.get(&format!("/api/v1/buckets?class={}&top={top}", encoded(class)))?;
    client.with_field(answer, "buckets")
}

/// Draws until somebody has seen enough.
fn live(client: &AdminClient, class: &str, top: u16) -> Result<(), NoAnswer> {
    let mut view = View::new(client.host(), class);
    // Before the screen is taken: who cannot be asked is better said on a line.
    refresh(client, &mut view, top)?;
    let no_terminal =
        |error: std::io::Error| NoAnswer::new(format!("this terminal cannot be drawn on: {error}; try --once"));
    // Before the screen is taken as well: whoever ends this must find the terminal as it was.
    let ending = Ending::listen().map_err(no_terminal)?;
    let mut terminal = Terminal::take().map_err(no_terminal)?;
    let mut refreshed = Instant::now();
    loop {
        let (width, height) = terminal.size();
        terminal.draw(&view.lines(width, height)).map_err(no_terminal)?;
        let wait = REFRESH.saturating_sub(refreshed.elapsed());
        let mut asked = Asked::Nothing;
        for key in terminal.keys(wait, &ending).map_err(no_terminal)? {
            asked = asked.max(view.press(key));
        }
        match asked {
            Asked::Leave => return Ok(()),
            Asked::Nothing if refreshed.elapsed() < REFRESH => continue,
            Asked::Nothing | Asked::Figures => {}
        }
        if let Err(no_answer) = refresh(client, &mut view, top) {
            view.trouble(no_answer.to_string());
        }
        refreshed = Instant::now();
    }
}

fn refresh(client: &AdminClient, view: &mut View, top: u16) -> Result<(), NoAnswer> {
    let answer = buckets(client, view.class(), top)?;
    let detail = match view.opened() {
        Some(key) => Some(client.get(&format!("/api/v1/key?class={}&key={}", encoded(view.class()), encoded(key)))?),
        None => None,
    };
    view.take(&client.get("/api/v1/status")?, &client.get("/api/v1/history?step=1&last=240")?, &answer, detail);
    Ok(())
}
