//! A browser's page load: all assets at once, over one HTTP/2 connection or over one connection each.

use crate::load::{SOURCE, Sample};
use bytes::Bytes;
use h2::client::SendRequest;
use http::Request;
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::TcpSocket,
    task::JoinSet,
    time::{Instant, timeout_at},
};
use tollgate_storm::{client::Client, crowd::Crowd, tally::Failure, target::Target};

/// A browser: the server that it loads from, and the connections that it keeps between two page loads.
pub(crate) struct Page {
    target: SocketAddr,
    transport: Transport,
}

enum Transport {
    /// One connection, which is opened by the first load.
    Http2(Option<SendRequest<Bytes>>),
    /// One client per asset.
    Http1(Vec<Client>),
}

impl Page {
    pub(crate) fn new(target: SocketAddr, over_http2: bool, assets: usize) -> Self {
        let server = Arc::new(Target::new(target));
        let client = |_| Client::new(Crowd::Human, SOURCE, Arc::clone(&server));
        let transport =
            if over_http2 { Transport::Http2(None) } else { Transport::Http1((0..assets).map(client).collect()) };
        Self { target, transport }
    }

    /// Requests all paths at once. A response that takes longer than `max` is a failure.
    pub(crate) async fn load(&mut self, paths: Vec<String>, max: Duration) -> io::Result<Vec<Sample>> {
        let start = Instant::now();
        let mut assets = JoinSet::new();
        match &mut self.transport {
            Transport::Http2(sender) => {
                let open = match sender.take() {
                    Some(open) => open,
                    None => connect(self.target).await?,
                };
                for path in paths {
                    let asking = ask(open.clone(), self.target, path);
                    assets.spawn(async move { (timeout_at(start + max, asking).await, start.elapsed(), None) });
                }
                *sender = Some(open);
            }
            Transport::Http1(clients) => {
                for (path, mut client) in paths.into_iter().zip(clients.drain(..)) {
                    assets.spawn(async move {
                        let outcome = timeout_at(start + max, client.ask(&path)).await;
                        (outcome, start.elapsed(), Some(client))
                    });
                }
            }
        }
        let mut samples = Vec::new();
        for (outcome, end, client) in assets.join_all().await {
            let outcome = outcome.unwrap_or(Err(Failure::Late));
            samples.push(Sample { start: Duration::ZERO, end, outcome });
            if let (Transport::Http1(clients), Some(client)) = (&mut self.transport, client) {
                clients.push(client);
            }
        }
        Ok(samples)
    }
}

async fn connect(target: SocketAddr) -> io::Result<SendRequest<Bytes>> {
    let socket = TcpSocket::new_v4()?;
    socket.set_nodelay(true)?;
    socket.bind((SOURCE, 0).into())?;
    let stream = socket.connect(target).await?;
    let (sender, connection) = h2::client::handshake(stream).await.map_err(io::Error::other)?;
    tokio::spawn(async move {
        // A connection that fails fails its streams, which are counted.
        let _ = connection.await;
    });
    Ok(sender)
}

async fn ask(sender: SendRequest<Bytes>, host: SocketAddr, path: String) -> Result<(), Failure> {
    let response = async {
        let mut sender = sender.ready().await?;
        let request =
            Request::get(format!("http://{host}{path}")).header("user-agent", "Mozilla/5.0 (X11; Linux x86_64)");
        let request = request.body(()).expect("the paths of the site are valid");
        let (head, mut body) = sender.send_request(request, true)?.0.await?.into_parts();
        while let Some(chunk) = body.data().await {
            let bytes = chunk?.len();
            body.flow_control().release_capacity(bytes)?;
        }
        Ok::<u16, h2::Error>(head.status.as_u16())
    };
    match response.await {
        Ok(200) => Ok(()),
        Ok(status) => Err(Failure::Refused(status)),
        Err(_) => Err(Failure::Broken),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Response;
    use tokio::net::TcpListener;

    /// A server that refuses every tenth request.
    async fn serve(listener: TcpListener) {
        let (stream, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let mut count = 0;
        while let Some(request) = connection.accept().await {
            let (_, mut respond) = request.unwrap();
            count += 1;
            let status = if count % 10 == 0 { 429 } else { 200 };
            let mut body = respond.send_response(Response::builder().status(status).body(()).unwrap(), false).unwrap();
            body.send_data(Bytes::from(vec![b'x'; 4096]), true).unwrap();
        }
    }

    #[tokio::test]
    async fn a_page_is_loaded_over_one_connection_and_its_refusals_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut page = Page::new(listener.local_addr().unwrap(), true, 100);
        tokio::spawn(serve(listener));
        for _ in 0..2 {
            let paths = (0..100).map(|number| format!("/article/{number}")).collect();
            let samples = page.load(paths, Duration::from_secs(10)).await.unwrap();
            let refused = samples.iter().filter(|sample| sample.outcome == Err(Failure::Refused(429))).count();
            let served = samples.iter().filter(|sample| sample.outcome.is_ok()).count();
            assert_eq!((served, refused), (90, 10));
        }
    }
}
