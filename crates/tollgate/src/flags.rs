//! `tollgate flags`: lists and clears flagged accounts. A flag is a mark on an account whose requests were refused too
//! often. The running gate has the flags; this command uses the API on its admin address.

use serde_json::{Value, json};

use crate::admin_client::{AdminClient, AdminOptions, encoded};
use crate::output::CommandError;
use crate::terminal_text;

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum FlagsCommand {
    /// List flagged accounts, the latest first
    List {
        #[command(flatten)]
        admin: AdminOptions,
        /// Include flags that were cleared
        #[arg(long)]
        history: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Clear the flag of an account; only later refusals can set it again
    Clear {
        /// Account
        id: String,
        #[command(flatten)]
        admin: AdminOptions,
        /// Reason, for the next operator who looks at this account
        #[arg(long)]
        note: String,
        /// Your name [default: your login name]
        #[arg(long)]
        name: Option<String>,
    },
}

/// Runs a subcommand.
pub(crate) fn run(command: &FlagsCommand) -> Result<(), CommandError> {
    match command {
        FlagsCommand::List { admin, history, json } => list(admin, *history, *json),
        FlagsCommand::Clear { id, admin, note, name } => clear(id, admin, note, name.as_deref()),
    }
}

fn list(admin: &AdminOptions, history: bool, json: bool) -> Result<(), CommandError> {
    let client = AdminClient::new(admin)?;
    let answer = client.get(if history { "/api/v1/flags?history=1" } else { "/api/v1/flags" })?;
    let answer = client.with_field(answer, "flags")?;
    if json {
        print_line!("{answer}");
        return Ok(());
    }
    let flags = answer["flags"].as_array().cloned().unwrap_or_default();
    if flags.is_empty() {
        print_line!("no account {} flagged", if history { "is or was" } else { "is" });
    }
    for flag in &flags {
        print_line!("{}", line(flag));
    }
    if let Some(note) = left_out(flags.len() as u64, &answer) {
        print_error!("{note}");
    }
    Ok(())
}

/// Message if the gate has more matching flags than the `shown` ones of the response.
fn left_out(shown: u64, answer: &Value) -> Option<String> {
    let more = answer["matching"].as_u64()?.checked_sub(shown).filter(|more| *more > 0)?;
    Some(format!(
        "and {more} more: these are the latest {shown}; search the others in the console or with /api/v1/flags?search="
    ))
}

/// One flag of the response as a line. Names of accounts come from clients, and are escaped.
fn line(flag: &Value) -> String {
    let text = |name: &str| terminal_text::escape(flag[name].as_str().unwrap_or_default());
    let mut line = format!("{}  flagged {}  refused {}", text("account"), text("flagged_at"), flag["rejected"]);
    if flag["cleared_at"].is_string() {
        line += &format!("  cleared {} by {}: {}", text("cleared_at"), text("cleared_by"), text("note"));
    }
    line
}

fn clear(id: &str, admin: &AdminOptions, note: &str, name: Option<&str>) -> Result<(), CommandError> {
    let login = || std::env::var("USER").unwrap_or_else(|_| "operator".to_owned());
    let body = json!({ "name": name.map_or_else(login, str::to_owned), "note": note }).to_string();
    let client = AdminClient::new(admin)?;
    let answer = client.ask("DELETE", &format!("/api/v1/flags/{}", encoded(id)), &body)?;
    client.with_field(answer, "account")?;
    print_line!("cleared the flag of {}", terminal_text::escape(id));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_list_names_the_number_of_missing_flags() {
        assert_eq!(left_out(1000, &json!({ "matching": 1000 })), None);
        assert!(left_out(1000, &json!({ "matching": 1234 })).unwrap().starts_with("and 234 more"));
    }

    #[test]
    fn a_flag_is_one_line_for_any_account_name() {
        let flag = json!({ "account": "a\n\x1b[2Jb", "flagged_at": "2026-11-15T00:00:00Z", "rejected": 1000,
            "cleared_at": null, "cleared_by": null, "note": null });
        assert_eq!(line(&flag), "a\\n\\x1b[2Jb  flagged 2026-11-15T00:00:00Z  refused 1000");
    }
}
