//! The snippets of docs/server-timing.md, each in a server of its language behind a gate.

mod axum_server;

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::{Gate, eventually};

const PAGE: &str = include_str!("../../../../../docs/server-timing.md");

/// The snippet of the page in this language.
fn snippet(language: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("\n```{language}\n")).unwrap();
    rest.split_once("\n```\n").unwrap().0
}

/// A server of another language. Ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A free port. The server of another language opens it a moment later.
fn free_port() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The costs in milliseconds that a gate charges for `/burn`, which computes for 30 ms, and for `/wait`, which waits
/// for 100 ms.
fn costs(backend: SocketAddr) -> [f64; 2] {
    eventually("the server listens", || std::net::TcpStream::connect(backend).is_ok());
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let gate = Gate::start(&format!(
        "[gate]\nbackend = \"http://{backend}\"\n[gate.access_log]\noutput = \"{}\"\nformat = \"json\"\n",
        log.display()
    ));
    for path in ["/burn", "/wait"] {
        let response = gate.get(path);
        assert_eq!(response.status, 200, "{}", response.text());
        assert!(!response.field("server-timing").unwrap_or_default().contains("cpu"), "the gate keeps it to itself");
    }
    assert_eq!(gate.metric("tollgate_toll_reports_ignored_total"), 0);
    let mut lines = Vec::new();
    eventually("two lines in the log", || {
        lines = std::fs::read_to_string(&log).unwrap_or_default().lines().map(str::to_owned).collect();
        lines.len() == 2
    });
    let cost = |line: &String| serde_json::from_str::<Value>(line).unwrap()["cost_ms"].as_f64().unwrap();
    [cost(&lines[0]), cost(&lines[1])]
}

/// A page that computes is charged for that, and one that waits is not.
fn check(backend: SocketAddr) {
    let [burn, wait] = costs(backend);
    eprintln!("with Server-Timing: {burn} ms for 30 ms of computing, {wait} ms for 100 ms of waiting");
    assert!((25.0..=60.0).contains(&burn), "{burn} ms for 30 ms of computing");
    assert!(wait < 20.0, "{wait} ms for 100 ms of waiting");
}

fn serve(folder: &Path, file: &str, code: &str, command: &[&str]) -> Server {
    std::fs::write(folder.join(file), code).unwrap();
    let mut words = Command::new(command[0]);
    words.args(&command[1..]).current_dir(folder).env("HOME", folder).env("GOCACHE", folder.join("cache"));
    let child = words.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Server(child.unwrap_or_else(|error| panic!("{} is not installed: {error}", command[0])))
}

#[test]
fn php_reports_its_cpu_time() {
    let (folder, address) = (tempfile::tempdir().unwrap(), free_port());
    std::fs::write(folder.path().join("timing.php"), snippet("php")).unwrap();
    let page = "<?php\nif ($_SERVER['REQUEST_URI'] === '/wait') { usleep(100000); } else {\n\
        $begin = cpu_ms(); while (cpu_ms() - $begin < 30) { for ($i = 0; $i < 1000; $i++) { sqrt($i); } }\n}\necho 'ok';\n";
    let prepend = format!("auto_prepend_file={}", folder.path().join("timing.php").display());
    let _server = serve(folder.path(), "index.php", page, &["php", "-d", &prepend, "-S", &address.to_string()]);
    check(address);
}

#[test]
fn a_wsgi_application_reports_its_cpu_time() {
    let (folder, address) = (tempfile::tempdir().unwrap(), free_port());
    let site = "\n\ndef site(environ, start_response):\n    if environ['PATH_INFO'] == '/wait':\n        time.sleep(0.1)\n    else:\n        \
        begin = time.thread_time()\n        while time.thread_time() - begin < 0.03: pass\n    \
        start_response('200 OK', [('Content-Type', 'text/plain')])\n    return [b'ok']\n\n\
        import sys\nfrom wsgiref.simple_server import make_server\n\
        make_server('127.0.0.1', int(sys.argv[1]), ServerTiming(site)).serve_forever()\n";
    let code = snippet("python").to_owned() + site;
    let _server = serve(folder.path(), "site.py", &code, &["python3", "site.py", &address.port().to_string()]);
    check(address);
}

/// Rack's own server. The snippet is for Rails, too, whose applications are Rack applications.
#[test]
fn a_rack_application_reports_its_cpu_time() {
    let (folder, address) = (tempfile::tempdir().unwrap(), free_port());
    let site = "\nrequire 'rack'\nrequire 'rack/handler/webrick'\n\
        site = lambda do |env|\n  if env['PATH_INFO'] == '/wait' then sleep 0.1 else\n    \
        clock = -> { Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID) }\n    \
        begin_s = clock.call\n    nil while clock.call - begin_s < 0.03\n  end\n  \
        [200, { 'content-type' => 'text/plain' }, ['ok']]\nend\n\
        Rack::Handler::WEBrick.run(ServerTiming.new(site), Host: '127.0.0.1', Port: ARGV[0].to_i)\n";
    let code = snippet("ruby").to_owned() + site;
    let _server = serve(folder.path(), "site.rb", &code, &["ruby", "site.rb", &address.port().to_string()]);
    check(address);
}

#[test]
fn node_reports_its_cpu_time() {
    let (folder, address) = (tempfile::tempdir().unwrap(), free_port());
    let site = "\nrequire('http').createServer((req, res) => serverTiming(req, res, () => {\n\
        if (req.url === '/wait') return setTimeout(() => res.end('ok'), 100);\n\
        const begin = process.cpuUsage();\n\
        while (process.cpuUsage(begin).user + process.cpuUsage(begin).system < 30000);\n\
        res.end('ok');\n})).listen(process.argv[2], '127.0.0.1');\n";
    let code = snippet("javascript").to_owned() + site;
    let _server = serve(folder.path(), "site.js", &code, &["node", "site.js", &address.port().to_string()]);
    check(address);
}

#[test]
fn go_reports_its_cpu_time() {
    let (folder, address) = (tempfile::tempdir().unwrap(), free_port());
    let head = "package main\n\nimport (\"os\"; \"time\")\n\n";
    let site = "\n\nfunc main() {\n\thttp.HandleFunc(\"/burn\", func(w http.ResponseWriter, r *http.Request) {\n\t\t\
        for begin := cpuMicros(); cpuMicros()-begin < 30000; {\n\t\t}\n\t\tfmt.Fprint(w, \"ok\")\n\t})\n\t\
        http.HandleFunc(\"/wait\", func(w http.ResponseWriter, r *http.Request) { time.Sleep(100 * time.Millisecond); fmt.Fprint(w, \"ok\") })\n\t\
        http.ListenAndServe(os.Args[1], ServerTiming(http.DefaultServeMux))\n}\n";
    let code = format!("{head}{}{site}", snippet("go"));
    std::fs::write(folder.path().join("site.go"), code).unwrap();
    let build = Command::new("go")
        .args(["build", "-o", "site", "site.go"])
        .current_dir(folder.path())
        .env("HOME", folder.path())
        .env("GOCACHE", folder.path().join("cache"))
        .env("GO111MODULE", "off")
        .output()
        .expect("go is installed");
    assert!(build.status.success(), "{}", String::from_utf8_lossy(&build.stderr));
    let site = folder.path().join("site").display().to_string();
    let _server = serve(folder.path(), "unused", "", &[&site, &address.to_string()]);
    check(address);
}

#[test]
fn axum_reports_its_cpu_time() {
    let code = include_str!("axum_server.rs");
    assert!(code.contains(snippet("rust")), "the page has the code that is run here");
    check(axum_server::start(true));
}

/// The same server without the snippet: the figures of the page.
#[test]
fn without_a_report_waiting_is_charged() {
    let [burn, wait] = costs(axum_server::start(false));
    eprintln!("without Server-Timing: {burn} ms for 30 ms of computing, {wait} ms for 100 ms of waiting");
    // An estimate from wall time, which other tests on the machine prolong.
    assert!(burn > 25.0 && wait > 50.0, "{burn} ms and {wait} ms");
}

/// How long a page waits or computes.
const WAIT: Duration = Duration::from_millis(100);
