//! The master: hears from gates what they let through, and tells them whom to delay.
//!
//! One thread does it all. What a report changes is a few words of memory, so a second thread would spend its time waiting for the first
//! one's locks; and one order of events makes the books easy to trust. Connections are tasks of that thread: those on the accounting
//! address read reports straight into the [`Books`], those on the control address send out what the books have to say.

mod accounting;
mod books;
mod clock;
mod control;
mod figures;
mod listener;
pub(crate) mod operator;
mod page;
mod redis_books;
mod state_file;
mod statsd;

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tollgate_core::fleet::Domain;
use tollgate_gatekeeper::shared::FencedPages;
use tollgate_wire::zmtp::Identity;

use books::Books;
use clock::Clock;
pub(crate) use figures::Figures;
use redis_books::RedisBooks;
use state_file::StateFile;
use statsd::Statsd;

/// What the books are shared as among the tasks of one thread. Nobody keeps a borrow across an await.
type Shared = Rc<RefCell<Books>>;

/// What a master needs to know.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Where gates report.
    pub(crate) accounting: SocketAddr,
    /// Where gates listen.
    pub(crate) control: SocketAddr,
    /// What the books are kept of.
    pub(crate) domains: Vec<Domain>,
    /// Where the books survive a restart.
    pub(crate) state_dir: Option<PathBuf>,
    /// Where on Redis another master finds them.
    pub(crate) books: Option<FencedPages>,
    /// Where figures go for statsd.
    pub(crate) statsd: Option<SocketAddr>,
    /// Who this master is, and whom it lets in, where links are authenticated.
    pub(crate) identity: Option<Identity>,
}

/// How often the books are written to their file: what a crash loses is what gates tell again anyway.
const SAVE_EVERY: Duration = Duration::from_secs(5);

/// Serves gates until `stop` resolves, and calls `ready` when they can come. Belongs on a thread of its own, inside a [`tokio::task::LocalSet`].
pub(crate) async fn run(
    settings: Settings,
    figures: Figures,
    reloads: impl AsyncFnMut() -> Vec<Domain>,
    ready: impl FnOnce(),
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let accounting = bind(settings.accounting).await?;
    let control = bind(settings.control).await?;
    let clock = Clock::start();
    let statsd = settings.statsd.map(Statsd::to).transpose()?;
    let mut on_redis = settings.books.map(|shelf| RedisBooks::new(shelf, figures.books().clone()));
    let books: Shared = Rc::new(RefCell::new(Books::new(settings.domains, clock, figures, statsd)));
    let operators = settings.state_dir.as_deref().map(operator::open).transpose()?;
    let file = settings.state_dir.map(StateFile::in_directory);
    if let Some(file) = &file {
        file.restore(&books)?;
    }
    if let Some(on_redis) = &mut on_redis {
        on_redis.restore_soon(&books).await;
    }
    tracing::info!(accounting = %accounting.local_addr()?, control = %control.local_addr()?, "the master is ready");
    ready();
    let save = async {
        loop {
            tokio::time::sleep(SAVE_EVERY).await;
            if let Some(file) = &file {
                file.save_or_say(&books).await;
            }
        }
    };
    tokio::select! {
        () = accounting::serve(accounting, books.clone(), settings.identity.clone()) => {}
        () = control::serve(control, books.clone(), settings.identity.clone()) => {}
        () = books::beat(&books) => {}
        () = save => {}
        () = keep(on_redis.as_mut(), &books) => {}
        () = serve_operators(operators, &books) => {}
        () = reload(reloads, &books) => {}
        () = stop => {}
    }
    if let Some(file) = &file {
        file.save_or_say(&books).await;
    }
    if let Some(on_redis) = &mut on_redis {
        on_redis.finish(&books).await;
    }
    Ok(())
}

async fn keep(on_redis: Option<&mut RedisBooks>, books: &Shared) {
    match on_redis {
        Some(on_redis) => on_redis.keep(books).await,
        None => std::future::pending().await,
    }
}

async fn serve_operators(listener: Option<UnixListener>, books: &Shared) {
    match listener {
        Some(listener) => operator::serve(listener, books.clone()).await,
        None => std::future::pending().await,
    }
}

/// Puts other rules into force whenever there are some.
async fn reload(mut reloads: impl AsyncFnMut() -> Vec<Domain>, books: &Shared) {
    loop {
        let domains = reloads().await;
        books.borrow_mut().reload(domains);
    }
}

async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| io::Error::new(error.kind(), format!("cannot listen for gates on {address}: {error}")))
}
