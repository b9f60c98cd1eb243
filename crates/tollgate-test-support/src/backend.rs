//! Backends with a thread per connection, whose responses the test defines.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::PATIENCE;
use super::client::{Fields, read_chunks, read_fields};

/// A request as the backend received it.
#[derive(Clone, Debug)]
pub struct Request {
    /// The request line.
    pub line: String,
    /// Names as received.
    pub fields: Fields,
    pub body: Vec<u8>,
    /// Trailers, as text.
    pub trailers: String,
}

impl Request {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|field| field.0.eq_ignore_ascii_case(name)).map(|field| field.1.as_str())
    }

    pub fn path(&self) -> &str {
        self.line.split(' ').nth(1).unwrap()
    }
}

/// A backend that runs until the test process ends.
pub struct Backend {
    pub address: SocketAddr,
    /// The requests so far, unless the test reads them itself ([`Backend::connecting`]).
    requests: Arc<Mutex<Vec<Request>>>,
    /// The number of connections so far.
    connections: Arc<AtomicUsize>,
}

impl Backend {
    /// Calls `answer` for each request, which writes the response.
    pub fn answering(answer: impl Fn(&Request, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        Self::raw(requests, move |stream| {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut stream = stream;
            while let Some(request) = read_request(&mut reader) {
                seen.lock().unwrap().push(request.clone());
                if answer(&request, &mut stream).is_err() {
                    return;
                }
            }
        })
    }

    /// Answers each request with 200 and this text.
    pub fn saying(text: &'static str) -> Self {
        Self::answering(move |_, stream| respond(stream, text))
    }

    /// Calls `serve` for each connection, which reads the requests. They are not recorded.
    pub fn connecting(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        Self::raw(Arc::default(), serve)
    }

    /// Calls `serve` for each connection, on its own thread.
    fn raw(requests: Arc<Mutex<Vec<Request>>>, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let (serve, counted) = (Arc::new(serve), connections.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                counted.fetch_add(1, Ordering::Relaxed);
                stream.set_nodelay(true).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let serve = serve.clone();
                std::thread::spawn(move || serve(stream));
            }
        });
        Self { address, requests, connections }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// Number of requests so far.
    pub fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    /// Number of connections so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

/// Sends a response with 200 and this text.
pub fn respond(stream: &mut TcpStream, text: &str) -> std::io::Result<()> {
    stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len()).as_bytes())
}

/// Reads a request with its body; `None` if the connection ended.
pub fn read_request(reader: &mut impl BufRead) -> Option<Request> {
    let mut request = read_head(reader)?;
    if request.field("transfer-encoding").is_some() {
        assert_eq!(request.field("content-length"), None, "an ambiguous request");
        let (body, trailers) = read_chunks(reader, read_line)?;
        request.body = body;
        request.trailers = trailers.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
    } else if let Some(length) = request.field("content-length") {
        let mut body = vec![0; length.parse().unwrap()];
        reader.read_exact(&mut body).ok()?;
        request.body = body;
    }
    Some(request)
}

/// Reads the head of a request.
pub fn read_head(reader: &mut impl BufRead) -> Option<Request> {
    let line = read_line(reader)?;
    let fields = read_fields(reader, read_line)?;
    Some(Request { line, fields, body: Vec::new(), trailers: String::new() })
}

fn read_line(reader: &mut impl BufRead) -> Option<String> {
    // A request may contain any bytes.
    let mut line = Vec::new();
    match reader.read_until(b'\n', &mut line) {
        Ok(1..) => Some(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned()),
        _ => None,
    }
}
