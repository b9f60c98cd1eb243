//! `tollgate doctor`: shows on a terminal which clients use the backend's CPU time.
//!
//! It reads from the admin address of a running gate. Clients are shown by key, the value of a class: addresses,
//! networks or user agents, for example. The live view is redrawn twice per second. [`view`] computes its lines from
//! values alone; only [`terminal`] accesses the terminal. The table of `--once` is that of Tempomat, an earlier
//! limiter, with more columns.

mod columns;
mod help;
mod key_page;
mod key_row;
mod keyboard;
mod notice;
mod stop_signal;
mod table;
mod terminal;
mod view;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_core::network::Network;

use crate::admin_client::{AdminClient, AdminOptions, encoded};
use crate::observe_summary;
use crate::output::CommandError;
use crate::terminal_text;

use key_row::KeyRow;
use stop_signal::StopSignal;
use terminal::Terminal;
use view::{KeyEffect, View};

/// Interval of the live view.
const REFRESH: Duration = Duration::from_millis(500);

/// Arguments of `tollgate doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = help::columns_text())]
pub(crate) struct DoctorOptions {
    #[command(flatten)]
    admin: AdminOptions,
    /// Class of the keys: ip/32, ip/24, ip/16, user-agent, or the class of a rule; auto selects one of ip/32, ip/24 and
    /// ip/16, where the load is concentrated
    #[arg(long, visible_alias = "bucket", default_value = view::AUTO)]
    class: String,
    /// Print the table once
    #[arg(long)]
    once: bool,
    /// Print everything once, as JSON
    #[arg(long)]
    json: bool,
    /// Print one key: the decisions of its rules, its totals and its recent refusals. Without --class it is an address
    /// or one of the networks that the table shows
    #[arg(long, value_name = "KEY", conflicts_with = "top")]
    key: Option<String>,
    /// Number of keys to show
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    top: u16,
}

/// Runs the command.
pub(crate) fn run(options: &DoctorOptions) -> Result<(), CommandError> {
    let client = AdminClient::new(&options.admin)?;
    // Tempomat's names of classes are accepted too.
    let class = match &*options.class {
        "Slash32" => "ip/32",
        "Slash24" => "ip/24",
        "Slash16" => "ip/16",
        "UserAgent" => "user-agent",
        class => class,
    };
    if let Some(key) = &options.key {
        let class = if class == view::AUTO { class_of(key)? } else { class };
        let detail = client.get(&format!("/api/v1/key?class={}&key={}", encoded(class), encoded(key)))?;
        let detail = client.with_field(detail, "key")?;
        match options.json {
            true => print_line!("{detail}"),
            false => print_text!("{}", key_page::text(detail["key"].as_str().unwrap_or(key), class, &detail)),
        }
        return Ok(());
    }
    let is_live = std::io::stdout().is_terminal() && std::io::stdin().is_terminal() && !options.once && !options.json;
    if is_live {
        return live(&client, class, options.top);
    }
    let (status, answer) = (client.get("/api/v1/status")?, buckets(&client, class, options.top)?);
    if options.json {
        print_line!("{}", json!({ "status": status, "class": answer["class"], "buckets": answer["buckets"] }));
        return Ok(());
    }
    if status["mode"] == "observe" {
        print_line!("{}", observe_summary::text(&status["observed"]));
    }
    for notice in status["notices"].as_array().into_iter().flatten() {
        print_text!("{}", notice::text(notice));
    }
    let class = terminal_text::escape(answer["class"].as_str().unwrap_or(class));
    print_text!("{}", table::text(&class, &KeyRow::all(&answer["buckets"], &status["mode"])));
    Ok(())
}

/// The class of an address, or of a network as the table shows it. The class `ip/24` has the /24 of an IPv4 address and
/// the /56 of an IPv6 address, `ip/16` the /16 and the /48.
fn class_of(key: &str) -> Result<&'static str, CommandError> {
    let Some(network) = Network::parse(key) else {
        let key = terminal_text::escape(key);
        let advice = "add its class, such as --class user-agent";
        return Err(CommandError::failed(format!("{key} is neither an address nor a network: {advice}")));
    };
    Ok(match (network.address().is_ipv4(), network.prefix()) {
        (true, 24) | (false, 56) => "ip/24",
        (true, 16) | (false, 48) => "ip/16",
        _ => "ip/32",
    })
}

/// The keys of a class with the highest use.
fn buckets(client: &AdminClient, class: &str, top: u16) -> Result<Value, CommandError> {
    let answer = client.get(&format!("/api/v1/buckets?class={}&top={top}", encoded(class)))?;
    client.with_field(answer, "buckets")
}

/// Runs the live view until the user quits.
fn live(client: &AdminClient, class: &str, top: u16) -> Result<(), CommandError> {
    let mut view = View::new(client.host(), class);
    // Before the terminal is switched to the live view, so that an error is printed on a normal line.
    refresh(client, &mut view, top)?;
    let no_terminal =
        |error: std::io::Error| CommandError::failed(format!("cannot use this terminal: {error}; try --once"));
    // Before the terminal is switched, so that a signal always restores it.
    let stop_signal = StopSignal::listen().map_err(no_terminal)?;
    let mut terminal = Terminal::take().map_err(no_terminal)?;
    let mut refreshed = Instant::now();
    loop {
        let (width, height) = terminal.size();
        terminal.draw(&view.lines(width, height)).map_err(no_terminal)?;
        let wait = REFRESH.saturating_sub(refreshed.elapsed());
        let mut effect = KeyEffect::Nothing;
        for key in terminal.keys(wait, &stop_signal).map_err(no_terminal)? {
            effect = effect.max(view.press(key));
        }
        match effect {
            KeyEffect::Leave => return Ok(()),
            KeyEffect::Nothing if refreshed.elapsed() < REFRESH => continue,
            KeyEffect::Nothing | KeyEffect::Refresh => {}
        }
        if let Err(error) = refresh(client, &mut view, top) {
            view.trouble(error.to_string());
        }
        refreshed = Instant::now();
    }
}

/// Requests everything that the view shows.
fn refresh(client: &AdminClient, view: &mut View, top: u16) -> Result<(), CommandError> {
    let answer = buckets(client, &view.class, top)?;
    let detail = match view.opened() {
        Some(key) => Some(client.get(&format!("/api/v1/key?class={}&key={}", encoded(&view.class), encoded(key)))?),
        None => None,
    };
    view.take(&client.get("/api/v1/status")?, &client.get("/api/v1/history?step=1&last=240")?, &answer, detail);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_of_a_key_is_that_of_its_prefix() {
        let classes = [
            ("203.0.113.7", "ip/32"),
            ("203.0.113.7/32", "ip/32"),
            ("203.0.113.0/24", "ip/24"),
            ("203.0.0.0/16", "ip/16"),
            ("2001:db8::/64", "ip/32"),
            ("2001:db8::/56", "ip/24"),
            ("2001:db8::/48", "ip/16"),
        ];
        for (key, class) in classes {
            assert_eq!(class_of(key).ok(), Some(class), "{key}");
        }
        for key in ["bot/1.0", "tester", "203.0.113.7/33", ""] {
            assert!(class_of(key).is_err_and(|error| error.to_string().contains("--class")), "{key}");
        }
    }
}
