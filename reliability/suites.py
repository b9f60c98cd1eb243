#!/usr/bin/env python3
"""Runs conformance suites of other projects against a gate.

    reliability/suites.py BINARY [DIRECTORY [SUITE...]]      `./test suites` builds the binary and calls this

From PyPI: Autobahn (WebSocket) and http_sf (structured fields). From Debian: slowhttptest. Suites that no registry has are taken from
DIRECTORY, where each is a checkout of its repository: `h1spec`, `h2spec` (built with Debian's Go packages) and `http-garden` (or any folder
with the name `payloads`, one request stream per file). A suite that is missing is reported as not run. Nothing is installed outside of
target/suites.
"""

import glob
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
CACHE = os.path.abspath(os.path.join(ROOT, "target", "suites"))


class Missing(Exception):
    """Why a suite cannot run here."""


class Echo:
    """A strict backend that returns the body of each request, or `default` if it has none, and counts requests."""

    def __init__(self, default=b""):
        self.default = default
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.requests = self.listener.getsockname()[1], 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        stream = connection.makefile("rb")
        try:
            while line := stream.readline():
                fields = {}
                while (field := stream.readline()) not in (b"\r\n", b""):
                    name, value = field.decode("latin-1").split(":", 1)
                    fields[name.lower()] = value.strip()
                self.requests += 1
                if "100-continue" in fields.get("expect", ""):
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = self.body(stream, fields) or self.default
                response = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
                connection.sendall(response if line.startswith(b"HEAD ") else response + body)
        except (OSError, ValueError):
            pass
        finally:
            connection.close()

    @staticmethod
    def body(stream, fields):
        if "transfer-encoding" not in fields:
            return stream.read(int(fields.get("content-length", 0)))
        body = b""
        while size := int(stream.readline(), 16):
            body += stream.read(size)
            stream.readline()
        while stream.readline() != b"\r\n":
            pass
        return body


class Gate:
    def __init__(self, binary, backend_port, more=""):
        self.home = tempfile.mkdtemp(prefix="tollgate-suites-")
        config = os.path.join(self.home, "tollgate.toml")
        with open(config, "w") as file:
            file.write(f'[gate]\nlisten = "127.0.0.1:0"\nbackend = "http://127.0.0.1:{backend_port}"\n{more}')
        environment = {**os.environ, "XDG_STATE_HOME": self.home}
        command = [binary, "gate", "--admin", "127.0.0.1:0", "--config", config]
        self.child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        for line in self.child.stderr:
            if '"listening"' in line:
                self.port = int(re.search(r'"address":"127\.0\.0\.1:(\d+)"', line).group(1))
                break
        threading.Thread(target=lambda: [None for _ in self.child.stderr], daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()

    def exchange(self, request, wait_s=0.5):
        """Sends bytes, and returns everything that comes back until a pause."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(request)
            connection.settimeout(wait_s)
            response = b""
            try:
                while piece := connection.recv(65536):
                    response += piece
            except OSError:
                return response, False
            return response, True


def python(*packages):
    """The folder of programs of an environment with these packages of PyPI."""
    place = os.path.join(CACHE, "python")
    if not os.path.exists(os.path.join(place, "bin", "python")):
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
    installed = subprocess.run([os.path.join(place, "bin", "pip"), "install", "-q", *packages], capture_output=True, text=True)
    if installed.returncode != 0:
        raise Missing("PyPI has no usable " + " ".join(packages) + ": " + installed.stderr.strip().splitlines()[-1])
    return os.path.join(place, "bin")


def autobahn(binary, _):
    programs = python("autobahntestsuite", "setuptools<81")
    if subprocess.run([f"{programs}/wstest", "--help"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
        raise Missing("the autobahntestsuite of PyPI needs Python 2")
    with tempfile.TemporaryDirectory() as home, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        taken.close()
        server = subprocess.Popen([f"{programs}/wstest", "-m", "echoserver", "-w", f"ws://127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            time.sleep(2)
            with Gate(binary, port) as gate:
                spec = {"outdir": home, "servers": [{"url": f"ws://127.0.0.1:{gate.port}"}], "cases": ["*"], "exclude-cases": ["9.*", "12.*", "13.*"], "exclude-agent-cases": {}}
                with open(f"{home}/spec.json", "w") as file:
                    json.dump(spec, file)
                subprocess.run([f"{programs}/wstest", "-m", "fuzzingclient", "-s", f"{home}/spec.json"], cwd=home, timeout=900, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            with open(f"{home}/index.json") as file:
                cases = next(iter(json.load(file).values()))
        except FileNotFoundError as error:
            raise Missing(f"Autobahn does not run here: {error}") from error
        finally:
            server.kill()
            server.wait()
    failed = sorted(case for case, result in cases.items() if result["behavior"] not in ("OK", "NON-STRICT", "INFORMATIONAL"))
    return len(cases), failed


def h1spec(binary, directory):
    source = glob.glob(os.path.join(directory, "h1spec*", "http_test.ts"))
    if not source:
        raise Missing("DIRECTORY/h1spec is not there")
    text = open(source[0]).read()
    cases = text[text.index("= [", text.index("const testCases")) + 2 : text.index("\n];") + 2]
    cases = json.loads(subprocess.run(["node", "-e", f"console.log(JSON.stringify({cases}))"], check=True, capture_output=True, text=True).stdout)
    failed = []
    with Gate(binary, Echo().port) as gate:
        for case in cases:
            response, _ = gate.exchange(case["request"].encode())
            status = int(response[9:12]) if response.startswith(b"HTTP/1.1 ") else -1
            is_right = any(least <= status <= most for least, most in case["expectedStatus"])
            body = response.split(b"\r\n\r\n", 1)[-1].decode(errors="replace")
            if not is_right or (status == 200 and case.get("expectedBody") and body != case["expectedBody"]):
                failed.append(f"{case['description']} ({status})")
    return len(cases), failed


GO_PACKAGES = ["x-net", "x-sys", "x-text"], ["spf13-cobra", "spf13-pflag", "fatih-color", "mattn-go-colorable", "mattn-go-isatty", "inconshreveable-mousetrap"]


def h2spec_program(directory):
    built = os.path.join(CACHE, "h2spec")
    source = os.path.join(directory, "h2spec")
    if os.path.isfile(source) and os.access(source, os.X_OK):
        return source
    if not os.path.exists(built):
        if not os.path.exists(os.path.join(source, "go.mod")):
            raise Missing("DIRECTORY/h2spec is not there")
        path = os.path.join(CACHE, "go")
        os.makedirs(path, exist_ok=True)
        packages = [f"golang-golang-{name}-dev" for name in GO_PACKAGES[0]] + [f"golang-github-{name}-dev" for name in GO_PACKAGES[1]]
        subprocess.run(["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *packages], cwd=path, check=True)
        for package in glob.glob(f"{path}/*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, path], check=True)
        os.makedirs(f"{path}/gopath/src/github.com/summerwind", exist_ok=True)
        for name, target in [("github.com", f"{path}/usr/share/gocode/src/github.com"), ("golang.org", f"{path}/usr/share/gocode/src/golang.org")]:
            subprocess.run(["cp", "-r", target, f"{path}/gopath/src/"], check=True)
        subprocess.run(["cp", "-r", source, f"{path}/gopath/src/github.com/summerwind/"], check=True)
        environment = {**os.environ, "GO111MODULE": "off", "GOPATH": f"{path}/gopath"}
        result = subprocess.run(["go", "build", "-o", built, "github.com/summerwind/h2spec/cmd/h2spec"], env=environment, capture_output=True, text=True)
        if result.returncode != 0:
            raise Missing("h2spec does not build: " + result.stderr.strip()[:200])
    return built


def h2spec(binary, directory):
    program = h2spec_program(directory)
    with Gate(binary, Echo(b"ok").port, "h2c = true\n") as gate, tempfile.TemporaryDirectory() as home:
        report = f"{home}/report.xml"
        subprocess.run([program, "-h", "127.0.0.1", "-p", str(gate.port), "-o", "5", "-j", report], stdout=subprocess.DEVNULL, timeout=900)
        import xml.etree.ElementTree as xml

        cases = list(xml.parse(report).iter("testcase"))
    failed = [f"{case.get('package')}: {case.get('classname')}" for case in cases if case.find("failure") is not None or case.find("error") is not None]
    # On a port without TLS these bytes are a malformed HTTP/1.1 request, which is answered with 400 before the connection is closed.
    cases = [case for case in cases if case.get("classname") != "Sends invalid connection preface"]
    return len(cases), [name for name in failed if not name.endswith("Sends invalid connection preface")]


def http_garden(binary, directory):
    """No stream of bytes makes the backend see more requests than the client gets responses."""
    files = [path for path in glob.glob(os.path.join(directory, "**", "payloads", "**", "*"), recursive=True) if os.path.isfile(path)]
    if not files:
        raise Missing("DIRECTORY has no folder with the name payloads")
    backend, failed = Echo(), []
    with Gate(binary, backend.port) as gate:
        for path in files:
            before = backend.requests
            response, _ = gate.exchange(open(path, "rb").read())
            responses = len(re.findall(rb"(?:^|\n)?HTTP/1\.1 [2-5]\d\d ", response))
            if backend.requests - before > responses:
                failed.append(os.path.basename(path))
    return len(files), failed


def slowhttptest(binary, _):
    program = next((path for path in ["/usr/bin/slowhttptest", f"{CACHE}/debian/usr/bin/slowhttptest"] if os.path.exists(path)), None)
    if program is None:
        place = f"{CACHE}/debian"
        os.makedirs(place, exist_ok=True)
        downloaded = subprocess.run(["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", "slowhttptest"], cwd=place, capture_output=True)
        if downloaded.returncode != 0:
            raise Missing("Debian's slowhttptest cannot be downloaded")
        subprocess.run(["dpkg-deb", "-x", glob.glob(f"{place}/slowhttptest_*.deb")[0], place], check=True)
        program = f"{place}/usr/bin/slowhttptest"
    failed, attacks = [], {"slow heads": ["-H"], "slow bodies": ["-B"], "slow reads": ["-X", "-k", "3"]}
    with Gate(binary, Echo().port) as gate:
        for name, options in attacks.items():
            command = [program, *options, "-c", "200", "-r", "100", "-i", "5", "-l", "15", "-u", f"http://127.0.0.1:{gate.port}/"]
            attack = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            slowest, refused = 0.0, 0
            while attack.poll() is None:
                start = time.monotonic()
                # From another address than the attacker.
                with socket.create_connection(("127.0.0.1", gate.port), timeout=10, source_address=("127.0.0.2", 0)) as person:
                    person.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                    refused += not person.recv(100).startswith(b"HTTP/1.1 200")
                slowest = max(slowest, time.monotonic() - start)
                time.sleep(0.2)
            if refused or slowest > 2:
                failed.append(f"{name}: another client had {refused} failures and waited {slowest:.1f} s")
    return len(attacks), failed


def structured_fields(binary, _):
    """The rate-limit fields of the gate, parsed by another implementation of RFC 9651."""
    programs = python("http-sf")
    rule = "[[rule]]\nname = 'a \"quoted\\\\name'\nclass = 'header:x-key'\nbucket = { size = 2, drip = 1, every = '1h' }\n"
    failed, count = [], 0
    with Gate(binary, Echo().port, rule) as gate:
        for turn in range(4):
            response, _ = gate.exchange(b"GET / HTTP/1.1\r\nHost: a\r\nX-Key: k\r\nConnection: close\r\n\r\n")
            for name, value in re.findall(rb"(?im)^(ratelimit(?:-policy)?): (.*)\r$", response):
                count += 1
                script = "import http_sf, sys; http_sf.parse(sys.argv[1].encode(), tltype='list')"
                parsed = subprocess.run([f"{programs}/python", "-c", script, value.decode()], capture_output=True, text=True)
                if parsed.returncode != 0:
                    failed.append(f"{name.decode()}: {value.decode()}: {parsed.stderr.strip().splitlines()[-1]}")
    return count, failed if count else ["no rate-limit fields"]


def main():
    binary, directory = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else CACHE
    os.makedirs(CACHE, exist_ok=True)
    lines, has_failed = [], False
    wanted = sys.argv[3:]
    for suite in [h1spec, h2spec, http_garden, autobahn, slowhttptest, structured_fields]:
        if wanted and suite.__name__ not in wanted:
            continue
        try:
            count, failed = suite(binary, directory)
            has_failed |= bool(failed)
            result = f"{count - len(failed)} of {count} passed" + (f"; failed: {'; '.join(failed[:20])}" if failed else "")
        except (Missing, subprocess.SubprocessError, OSError) as reason:
            result = f"not run: {reason}"
        lines.append(f"| {suite.__name__.replace('_', '-')} | {result} |")
        print(lines[-1], flush=True)
    lines.append("| schemathesis | part of `./test`: `openapi` in `crates/tollgate/tests/admin` |")
    if "TOLLGATE_RESULT" in os.environ:
        with open(os.environ["TOLLGATE_RESULT"], "w") as file:
            file.write("Last recorded results:\n\n| suite | result |\n|---|---|\n" + "\n".join(lines) + "\n")
    sys.exit(1 if has_failed else 0)


main()
