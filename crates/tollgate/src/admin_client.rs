//! Client of the HTTP API on the admin address of a running gate or master. The commands `doctor`, `flags` and `health`
//! use it. It sends one request at a time, over HTTP or HTTPS.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::runtime::Runtime;
use zeroize::Zeroizing;

use crate::http_client::{HttpAnswer, HttpClient, HttpRequest};
use crate::output::CommandError;
use crate::terminal_text;
use crate::token::is_one_word;

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Largest response, in bytes. It bounds the memory of the command if the address is not that of a Tollgate.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// Environment variable with the token, used if there is no `--token-file`.
const TOKEN_VARIABLE: &str = "TOLLGATE_TOKEN";

/// Arguments for the address and the token, shared by all commands that use this client.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AdminOptions {
    /// Admin address; with https://, the certificate is verified against those that this system trusts
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8889")]
    admin: String,
    /// File with the token, if one is required [default: the variable TOLLGATE_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// A client of one admin address.
pub(crate) struct AdminClient {
    client: HttpClient,
    runtime: Runtime,
    token: Option<Zeroizing<String>>,
}

impl AdminClient {
    /// Creates the client that the arguments describe.
    pub(crate) fn new(options: &AdminOptions) -> Result<Self, CommandError> {
        let wrong = |message: String| CommandError::wrong(terminal_text::escape(&message));
        let text = &*options.admin;
        let (is_tls, host) = match text.split_once("://") {
            None => (false, text),
            Some(("http", host)) => (false, host),
            Some(("https", host)) => (true, host),
            Some((scheme, _)) => {
                return Err(wrong(format!("{scheme} is not supported: use --admin http://HOST:PORT or https://HOST")));
            }
        };
        let host = host.strip_suffix('/').unwrap_or(host);
        if host.is_empty() || host.contains(['/', '@', ' ']) || host.contains(char::is_control) {
            return Err(wrong(format!("{text:?} is not a valid address: use --admin http://HOST:PORT")));
        }
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let port = if is_tls { 443 } else { 8889 };
        let host = if has_port { host.to_owned() } else { format!("{host}:{port}") };
        let client = HttpClient::new(is_tls, &host)
            .map_err(|error| wrong(format!("{text:?} is not a valid address: {error}")))?;
        let token = match &options.token_file {
            Some(path) => {
                let read = std::fs::read_to_string(path);
                let token = read.map_err(|error| wrong(format!("the token file {}: {error}", path.display())))?;
                Some(Zeroizing::new(Zeroizing::new(token).trim().to_owned()))
            }
            None => std::env::var(TOKEN_VARIABLE).ok().map(Zeroizing::new),
        };
        if token.as_ref().is_some_and(|token| !is_one_word(token)) {
            return Err(wrong("the token must be one word in ASCII".to_owned()));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(format!("cannot start: {error}")))?;
        Ok(Self { client, runtime, token })
    }

    /// Host and port of the address.
    pub(crate) fn host(&self) -> &str {
        &self.client.authority
    }

    /// Sends a `GET` and returns the response, which must be a JSON object.
    pub(crate) fn get(&self, path: &str) -> Result<Value, CommandError> {
        self.ask("GET", path, "")
    }

    /// Returns `answer` if it has this field, otherwise the error that the server is not a Tollgate. Another server,
    /// such as the backend, may answer 200 to any request.
    pub(crate) fn with_field(&self, answer: Value, field: &str) -> Result<Value, CommandError> {
        if answer.get(field).is_some() { Ok(answer) } else { Err(self.is_no_tollgate()) }
    }

    fn is_no_tollgate(&self) -> CommandError {
        failed(format!("{} did not respond like Tollgate: is this its admin address?", self.host()))
    }

    /// Sends a `GET`. An error if the status is not 2xx; the body may be anything.
    pub(crate) fn check(&self, path: &str) -> Result<(), CommandError> {
        self.answer("GET", path, "").map(drop)
    }

    /// Sends a request and returns the response, which must be a JSON object.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Result<Value, CommandError> {
        let answer = self.answer(method, path, body)?;
        if answer.is_object() { Ok(answer) } else { Err(self.is_no_tollgate()) }
    }

    /// Sends a request and returns the response, or null if it is not JSON. A status other than 2xx is an error.
    fn answer(&self, method: &str, path: &str, body: &str) -> Result<Value, CommandError> {
        let host = self.host();
        let HttpAnswer { status, body } = self
            .exchange(method, path, body)
            .map_err(|error| failed(format!("request to {host} failed: {error}; is a gate running there?")))?;
        let body = body.ok_or_else(|| failed(format!("the response of {host} is too large")))?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        match status {
            200..=299 => Ok(answer),
            401 => Err(failed(format!("{host} requires a token: use --token-file FILE or set {TOKEN_VARIABLE}"))),
            _ => Err(failed(answer["detail"].as_str().map_or_else(|| format!("status {status}"), str::to_owned))),
        }
    }

    fn exchange(&self, method: &str, path: &str, body: &str) -> io::Result<HttpAnswer> {
        let token = self.token.as_ref().map(|token| Zeroizing::new(format!("Bearer {}", token.as_str())));
        let mut fields = vec![("content-type", "application/json")];
        fields.extend(token.as_ref().map(|token| ("authorization", token.as_str())));
        let request = HttpRequest {
            method: method.parse::<Method>().map_err(io::Error::other)?,
            path,
            fields: &fields,
            body: body.as_bytes(),
            answer_bytes_max: ANSWER_BYTES_MAX,
            timeout: TIMEOUT,
        };
        self.runtime.block_on(self.client.send(&request))
    }
}

/// The error of a failed request. The message is escaped, because text of the server may contain control characters.
fn failed(message: String) -> CommandError {
    CommandError::failed(terminal_text::escape(&message))
}

/// Percent-encodes a text for a path or a query.
pub(crate) fn encoded(text: &str) -> String {
    const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(admin: &str) -> Result<AdminClient, CommandError> {
        AdminClient::new(&AdminOptions { admin: admin.to_owned(), token_file: None })
    }

    #[test]
    fn valid_addresses_are_parsed_and_others_rejected() {
        for (admin, host) in [
            ("http://127.0.0.1:8889", "127.0.0.1:8889"),
            ("http://gate.example/", "gate.example:8889"),
            ("[::1]:1", "[::1]:1"),
            ("https://gate.example", "gate.example:443"),
            ("https://gate.example:8889/", "gate.example:8889"),
        ] {
            assert_eq!(client(admin).unwrap().host(), host);
        }
        for admin in ["ftp://x", "http://", "https://", "http://a b", "http://a/b", "http://u@h"] {
            assert!(client(admin).is_err_and(|wrong| wrong.is_wrong), "{admin}");
        }
    }

    #[test]
    fn a_token_that_no_header_can_carry_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for (token, is_valid) in [("a-token\n", true), ("two words", false), ("a\u{1}b", false), ("t\u{f6}ken", false)]
        {
            std::fs::write(&path, token).unwrap();
            let options = AdminOptions { admin: "127.0.0.1".to_owned(), token_file: Some(path.clone()) };
            assert_eq!(AdminClient::new(&options).is_ok(), is_valid, "{token:?}");
        }
    }

    #[test]
    fn reserved_characters_are_percent_encoded() {
        assert_eq!(encoded("a/b c\u{fc}-._~"), "a%2Fb%20c%C3%BC-._~");
    }
}
