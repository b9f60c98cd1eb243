//! `tollgate flags`: the accounts that are flagged, and clearing them, on a terminal.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its answer is for the person at the terminal")]

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::admin_client::{AdminClient, AdminOptions, NoAnswer, encoded, harmless};
use crate::cli::WRONG;

/// What to do with flags.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Show the accounts that are flagged, the latest first
    List {
        #[command(flatten)]
        admin: AdminOptions,
        /// Those that were cleared, too
        #[arg(long)]
        history: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Clear the flag of an account; it returns only for refusals from now on
    Clear {
        /// The account
        id: String,
        #[command(flatten)]
        admin: AdminOptions,
        /// Why, for whoever looks at this account next
        #[arg(long)]
        note: String,
        /// Who you are [default: the name of your login]
        #[arg(long)]
        name: Option<String>,
    },
}

/// Lists or clears.
pub(crate) fn run(command: &Command) -> ExitCode {
    let outcome = match command {
        Command::List { admin, history, json } => list(admin, *history, *json),
        Command::Clear { id, admin, note, name } => clear(id, admin, note, name.as_deref()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(no_answer) => {
            eprintln!("{}", harmless(&no_answer.to_string()));
            if no_answer.is_wrong { ExitCode::from(WRONG) } else { ExitCode::FAILURE }
        }
    }
}

fn list(admin: &AdminOptions, history: bool, json: bool) -> Result<(), NoAnswer> {
    let client = AdminClient::new(admin)?;
    let answer = client.get(if history { "/api/v1/flags?history=1" } else { "/api/v1/flags" })?;
    let answer = client.with_field(answer, "flags")?;
    if json {
        println!("{answer}");
        return Ok(());
    }
    let flags = answer["flags"].as_array().cloned().unwrap_or_default();
    if flags.is_empty() {
        println!("no account is flagged");
    }
    for flag in &flags {
        println!("{}", line(flag));
    }
    if let Some(note) = left_out(flags.len() as u64, &answer) {
        eprintln!("{note}");
    }
    Ok(())
}

/// What to say when there are more flags than are told at once.
fn left_out(shown: u64, answer: &Value) -> Option<String> {
    let more = answer["matching"].as_u64()?.checked_sub(shown).filter(|more| *more > 0)?;
    Some(format!(
        "and {more} more: these are the latest {shown}; the console and /api/v1/flags?search= find the others"
    ))
}

fn line(flag: &Value) -> String {
    let text = |name: &str| harmless(flag[name].as_str().unwrap_or_default());
    let mut line = format!("{}  flagged {}  refused {}", text("account"), text("flagged_at"), flag["rejected"]);
    if flag["cleared_at"].is_string() {
        line += &format!("  cleared {} by {}: {}", text("cleared_at"), text("cleared_by"), text("note"));
    }
    line
}

fn clear(id: &str, admin: &AdminOptions, note: &str, name: Option<&str>) -> Result<(), NoAnswer> {
    let login = || std::env::var("USER").unwrap_or_else(|_| "operator".to_owned());
    let body = json!({ "name": name.map_or_else(login, str::to_owned), "note": note }).to_string();
    let client = AdminClient::new(admin)?;
    let answer = client.ask("DELETE", &format!("/api/v1/flags/{}", encoded(id)), &body)?;
    client.with_field(answer, "account")?;
    println!("{} is no longer flagged", harmless(id));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_said() {
        assert_eq!(left_out(1000, &json!({ "matching": 1000 })), None);
        assert!(left_out(1000, &json!({ "matching": 1234 })).unwrap().starts_with("and 234 more"));
    }

    #[test]
    fn a_flag_is_one_line_whatever_the_account_is_called() {
        let flag = json!({ "account": "a\n\x1b[2Jb", "flagged_at": "2026-11-15T00:00:00Z", "rejected": 1000,
            "cleared_at": null, "cleared_by": null, "note": null });
        assert_eq!(line(&flag), "a\\u{a}\\u{1b}[2Jb  flagged 2026-11-15T00:00:00Z  refused 1000");
    }
}
