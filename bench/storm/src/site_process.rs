//! The site in a process of its own, on a core of its own. A benchmark starts its own program again for it, with the
//! subcommand `site`.

use clap::Args;
use std::{
    io,
    net::{SocketAddr, TcpListener},
};
use tollgate_storm::{
    child::Child,
    cpu,
    page::{Cost, Costs},
    site::{self, Settings},
};

/// Arguments of the subcommand `site`.
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteArguments {
    /// The address of the site.
    #[arg(long)]
    listen: SocketAddr,
    /// The core of the site.
    #[arg(long)]
    core: usize,
    /// Requests served at once.
    #[arg(long)]
    workers: usize,
    /// Cost of an article, as CPU+SLEEP in microseconds.
    #[arg(long)]
    article: Cost,
    /// Cost of an archive page.
    #[arg(long)]
    archive: Cost,
    /// Cost of an asset.
    #[arg(long)]
    asset: Cost,
    /// Sends the CPU time of each page in `Server-Timing`.
    #[arg(long)]
    server_timing: bool,
}

impl SiteArguments {
    const fn new(listen: SocketAddr, core: usize, settings: Settings) -> Self {
        let Settings { workers, costs: Costs { article, archive, asset }, server_timing } = settings;
        Self { listen, core, workers, article, archive, asset, server_timing }
    }

    const fn settings(&self) -> Settings {
        let costs = Costs { article: self.article, archive: self.archive, asset: self.asset };
        Settings { workers: self.workers, costs, server_timing: self.server_timing }
    }

    fn to_args(self) -> Vec<String> {
        let mut args = vec!["site".to_owned()];
        let mut option = |name: &str, value: String| args.extend([format!("--{name}"), value]);
        option("listen", self.listen.to_string());
        option("core", self.core.to_string());
        option("workers", self.workers.to_string());
        option("article", self.article.to_string());
        option("archive", self.archive.to_string());
        option("asset", self.asset.to_string());
        if self.server_timing {
            args.push("--server-timing".to_owned());
        }
        args
    }
}

/// Starts the site at `listen`, pinned to `core`.
pub fn start(listen: SocketAddr, core: usize, settings: Settings) -> io::Result<Child> {
    Child::start(&std::env::current_exe()?, SiteArguments::new(listen, core, settings).to_args(), listen)
}

/// Serves the site in this process. Returns only if it cannot start.
pub fn serve(arguments: &SiteArguments) -> io::Result<()> {
    cpu::pin(arguments.core)?;
    site::serve(&TcpListener::bind(arguments.listen)?, arguments.settings())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::time::Duration;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        site: SiteArguments,
    }

    #[test]
    fn settings_survive_the_command_line_of_the_site() {
        let costs = Costs { archive: Cost::sleep(Duration::from_millis(250)), ..Costs::default() };
        let settings = Settings { workers: 3, costs, server_timing: true };
        let arguments = SiteArguments::new(SocketAddr::from(([127, 0, 0, 1], 80)), 1, settings);
        assert_eq!(Program::try_parse_from(arguments.to_args()).unwrap().site, arguments);
        assert_eq!(arguments.settings().costs, costs);
    }
}
