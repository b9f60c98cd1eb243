#!/usr/bin/env python3
"""Runs conformance suites of other projects against a gate.

    reliability/suites.py BINARY [DIRECTORY [SUITE...]]      `./test suites` builds the binary and calls this

From PyPI: Autobahn (WebSocket, on Python 2.7), http_sf (structured fields) and schemathesis (through the tests of the admin address). From
Debian: slowhttptest. Suites that no registry has are taken from DIRECTORY: checkouts of `h1spec`, `http-garden` and `structured-field-tests`,
and the program `h2spec`. Any folder with the name `payloads` has further request streams, one per file. A suite that is missing is reported
as not run. Nothing is installed outside of target/suites.
"""

import glob
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as xml

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
CACHE = os.path.abspath(os.path.join(ROOT, "target", "suites"))


class Missing(Exception):
    """Why a suite cannot run here."""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def wait_for_port(port):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
    raise Missing(f"nothing listens on port {port}")


# The lines of a well-formed request: whoever reads the backend's bytes in another way than the gate must find nothing to interpret.
REQUEST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [\x21-\x7e\x80-\xff]+ HTTP/1\.1\r\n")
FIELD_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[ \t]*(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?[ \t]*\r\n")
CHUNK_LINE = re.compile(rb"[0-9a-fA-F]+\r\n")


class Echo:
    """A strict backend that returns the body of each request, or `default` if it has none. It counts requests, and keeps lines that are not
    well-formed."""

    def __init__(self, default=b""):
        self.default, self.malformed = default, []
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
                self.check(REQUEST_LINE, line)
                fields = {}
                while (field := stream.readline()) not in (b"\r\n", b""):
                    self.check(FIELD_LINE, field)
                    name, value = field.decode("latin-1").split(":", 1)
                    if name.lower() in ("content-length", "transfer-encoding", "host") and name.lower() in fields:
                        self.malformed.append(field)
                    fields[name.lower()] = value.strip()
                if "content-length" in fields and ("transfer-encoding" in fields or not fields["content-length"].isdecimal()):
                    self.malformed.append(repr(fields).encode())
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

    def check(self, form, line):
        if not form.fullmatch(line):
            self.malformed.append(line)

    def body(self, stream, fields):
        if "transfer-encoding" not in fields:
            return stream.read(int(fields.get("content-length", 0)))
        body = b""
        while size := self.chunk_size(stream):
            body += stream.read(size)
            # A client may leave in the middle of its body, and then so does the gate.
            if (end := stream.readline()) not in (b"\r\n", b""):
                self.malformed.append(end)
        while (trailer := stream.readline()) not in (b"\r\n", b""):
            self.check(FIELD_LINE, trailer)
        return body

    def chunk_size(self, stream):
        line = stream.readline()
        if line:
            self.check(CHUNK_LINE, line)
        return int(line, 16) if line else 0


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
        else:
            raise Missing("the gate does not start: see " + config)
        threading.Thread(target=lambda: [None for _ in self.child.stderr], daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()
        shutil.rmtree(self.home, ignore_errors=True)

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


def python2():
    """The command of Autobahn's testsuite, which PyPI has for Python 2.7 only."""
    interpreter = os.environ.get("PYTHON2") or shutil.which("python2.7")
    if not interpreter or subprocess.run([interpreter, "--version"], capture_output=True).returncode != 0:
        raise Missing("Autobahn's testsuite on PyPI needs Python 2.7, which Debian no longer has; PYTHON2 can name one")
    place = os.path.join(CACHE, "python2")
    if not os.path.exists(os.path.join(place, "bin", "wstest")):
        command = [interpreter, "-m", "pip", "install", "-q", "--target", place, "autobahntestsuite==25.10.1"]
        installed = subprocess.run(command, capture_output=True, text=True)
        if installed.returncode != 0:
            raise Missing("PyPI's autobahntestsuite does not install: " + installed.stderr.strip().splitlines()[-1])
    # A site directory, unlike PYTHONPATH, can have namespace packages.
    return [interpreter, "-c"], f"import site; site.addsitedir({place!r}); "


# The suite's own server with compression. Without a URL it accepts a Host with the port of the gate.
TESTEE = """
from autobahntestsuite.testee import TesteeServerFactory
from twisted.internet import reactor
import sys
reactor.listenTCP(int(sys.argv[1]), TesteeServerFactory(None), interface="127.0.0.1")
reactor.run()
"""


def autobahn(binary, _):
    """Frames pass unchanged through the gate between the client and the server of the suite."""
    python, setup = python2()
    with tempfile.TemporaryDirectory() as home:
        port, log = free_port(), open(f"{home}/log", "w")
        server = subprocess.Popen([*python, setup + TESTEE, str(port)], cwd=home, stdout=log, stderr=log)
        try:
            wait_for_port(port)
            with Gate(binary, port) as gate:
                # 9 measures throughput; 12 and 13 compress large messages for half an hour, which the gate forwards like any others.
                spec = {"outdir": home, "servers": [{"agent": "gate", "url": f"ws://127.0.0.1:{gate.port}"}], "cases": ["*"], "exclude-cases": ["9.*", "12.*", "13.*"], "exclude-agent-cases": {}}
                with open(f"{home}/spec.json", "w") as file:
                    json.dump(spec, file)
                client = [*python, setup + "from autobahntestsuite.wstest import run; run()", "-m", "fuzzingclient", "-s", f"{home}/spec.json"]
                subprocess.run(client, cwd=home, timeout=1800, stdout=log, stderr=log)
        finally:
            server.kill()
            server.wait()
        try:
            with open(f"{home}/index.json") as file:
                cases = next(iter(json.load(file).values()))
        except FileNotFoundError:
            raise Missing("Autobahn ends without a report: " + open(f"{home}/log").read().strip()[-200:]) from None
    failed = sorted(case for case, result in cases.items() if result["behavior"] not in ("OK", "NON-STRICT", "INFORMATIONAL", "UNIMPLEMENTED"))
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


def h2spec(binary, directory, *, is_tls=False):
    program = os.path.join(directory, "h2spec")
    if not (os.path.isfile(program) and os.access(program, os.X_OK)):
        program = shutil.which("h2spec")
    if program is None:
        raise Missing("DIRECTORY has no program h2spec")
    with tempfile.TemporaryDirectory() as home:
        settings, options = ("h2c = true\n", []) if not is_tls else (certificate(home), ["-t", "-k"])
        report = f"{home}/report.xml"
        with Gate(binary, Echo(b"ok").port, settings) as gate:
            subprocess.run([program, "-h", "127.0.0.1", "-p", str(gate.port), "-o", "5", "-j", report, *options], stdout=subprocess.DEVNULL, timeout=900)
        cases = list(xml.parse(report).iter("testcase"))
    if not is_tls:
        # A port without TLS also has HTTP/1.1. These bytes are a malformed request of it, which gets a 505 before the connection is closed,
        # where the case accepts frames of HTTP/2 only.
        cases = [case for case in cases if case.get("classname") != "Sends invalid connection preface"]
    failed = [f"{case.get('package')}: {case.get('classname')}" for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return len(cases), failed


def h2spec_tls(binary, directory):
    return h2spec(binary, directory, is_tls=True)


def certificate(home):
    """Settings for TLS with a new certificate."""
    names = ["-keyout", f"{home}/key.pem", "-out", f"{home}/cert.pem", "-subj", "/CN=localhost"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", *names]
    subprocess.run(command, check=True, capture_output=True)
    return f'tls = {{ cert = "{home}/cert.pem", key = "{home}/key.pem" }}\n'


def payloads(directory):
    """Request streams by name: the payloads in http-garden's list of bugs, and files in any folder with the name payloads."""
    found = {}
    for path in glob.glob(os.path.join(directory, "**", "payloads", "**", "*"), recursive=True):
        if os.path.isfile(path):
            found[os.path.basename(path)] = open(path, "rb").read()
    for path in glob.glob(os.path.join(directory, "http-garden*", "TROPHIES.md")):
        for number, text in enumerate(re.findall(r"Payload: `(.*)`", open(path).read()), 1):
            found[f"payload {number}"] = text.encode("latin-1", "backslashreplace").decode("unicode_escape").encode("latin-1")
    return found


def http_garden(binary, directory):
    """No stream makes the backend see more requests than the client gets responses, or a request that is not well-formed."""
    streams = payloads(directory)
    if not streams:
        raise Missing("DIRECTORY has no http-garden with payloads")
    backend, failed = Echo(), []
    with Gate(binary, backend.port, "h2c = true\n") as gate:
        for name, stream in streams.items():
            before = backend.requests
            response, _ = gate.exchange(stream)
            responses = len(re.findall(rb"HTTP/1\.1 [2-5]\d\d ", response))
            # Responses of HTTP/2 cannot be counted in the bytes.
            if backend.requests - before > responses and not stream.startswith(b"PRI "):
                failed.append(f"{name}: {backend.requests - before} requests, {responses} responses")
            if backend.malformed:
                failed.append(f"{name}: forwarded {backend.malformed.pop()!r}")
    return len(streams), failed


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


def structured_fields(binary, directory):
    """The rate-limit fields of the gate, parsed by another implementation of RFC 9651. The gate itself parses no structured field, so of the
    working group's tests the strings count: as names of rules, each must come back unchanged."""
    programs = python("http-sf")
    names, failed, count = ['a "quoted\\name', *strings(directory)], [], 0
    script = "import http_sf, sys; print(http_sf.parse(sys.argv[1].encode(), tltype='list')[0][0], end='')"
    for name in names:
        rule = f"[[rule]]\nname = {json.dumps(name)}\nclass = 'header:x-key'\nbucket = {{ size = 2, drip = 1, every = '1h' }}\n"
        with Gate(binary, Echo().port, rule) as gate:
            fields = []
            for _ in range(4 if name == names[0] else 1):
                response, _ = gate.exchange(b"GET / HTTP/1.1\r\nHost: a\r\nX-Key: k\r\nConnection: close\r\n\r\n", wait_s=10)
                fields += re.findall(rb"(?im)^(ratelimit(?:-policy)?): (.*)\r$", response)
            for field, value in fields:
                parsed = subprocess.run([f"{programs}/python", "-c", script, value.decode()], capture_output=True, text=True)
                if parsed.returncode != 0 or parsed.stdout != name:
                    failed.append(f"{field.decode()}: {value.decode()} for {name!r}: {(parsed.stderr.strip().splitlines() or [parsed.stdout])[-1]}")
            count += len(fields)
            if not fields:
                failed.append(f"no rate-limit fields for {name!r}")
    return count, failed


def strings(directory):
    """The valid strings of the working group's tests that can be names of rules."""
    found = []
    for path in glob.glob(os.path.join(directory, "structured-field-tests*", "string*.json")):
        for case in json.load(open(path)):
            if not case.get("must_fail") and case["header_type"] == "item" and isinstance(case["expected"][0], str):
                found.append(case["expected"][0])
    return [text for text in dict.fromkeys(found) if 0 < len(text) <= 64 and text.strip() == text]


def schemathesis(_binary, _directory):
    """The tests of `./test` that run schemathesis against the admin addresses of a gate, a gate with tokens and a master."""
    command = ["cargo", "test", "-q", "-p", "tollgate", "--test", "admin", "no_described_request"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    results = re.findall(r"test result: \w+\. (\d+) passed; (\d+) failed", run.stdout)
    passed, failed = (sum(int(result[index]) for result in results) for index in (0, 1))
    if passed + failed == 0:
        raise Missing("its tests do not run: " + (run.stderr.strip().splitlines() or ["no output"])[-1])
    names = re.findall(r"^    ([\w:]+)$", run.stdout, re.M)
    return passed + failed, sorted(set(names)) if failed else []


# What a reader of the results must know to compare them with those of others.
NOTES = {
    h2spec: " (without TLS; an invalid connection preface is left out, because it is a malformed request of HTTP/1.1 on this port)",
    h2spec_tls: " (with TLS)",
    http_garden: " (the payloads in its list of bugs: nothing malformed is forwarded, and no request without its response)",
    autobahn: " (without 9, 12 and 13: throughput and compression)",
    structured_fields: " (fields of responses, parsed by http_sf; the gate parses no structured fields)",
    schemathesis: " (tests, each with generated requests to all operations of an admin address)",
}


def main():
    binary, directory = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else CACHE
    os.makedirs(CACHE, exist_ok=True)
    lines, has_failed = [], False
    wanted = sys.argv[3:]
    for suite in [h1spec, h2spec, h2spec_tls, http_garden, autobahn, slowhttptest, structured_fields, schemathesis]:
        if wanted and suite.__name__ not in wanted:
            continue
        try:
            count, failed = suite(binary, directory)
            has_failed |= bool(failed)
            result = f"{count - len(failed)} of {count} passed" + (f"; failed: {'; '.join(failed[:20])}" if failed else "") + NOTES.get(suite, "")
        except (Missing, subprocess.SubprocessError, OSError) as reason:
            result = f"not run: {reason}"
        lines.append(f"| {suite.__name__.replace('_', '-')} | {result} |")
        print(lines[-1], flush=True)
    if "TOLLGATE_RESULT" in os.environ:
        record(os.environ["TOLLGATE_RESULT"], lines)
    sys.exit(1 if has_failed else 0)


def record(path, lines):
    """Replaces the results of the suites that ran. Those of others stay."""
    before = open(path).read().splitlines() if os.path.exists(path) else []
    rows = {line.split("|")[1].strip(): line for line in [*before, *lines] if line.startswith("| ") and not line.startswith("| suite")}
    rows = dict(sorted(rows.items()))
    with open(path, "w") as file:
        file.write("Last recorded results:\n\n| suite | result |\n|---|---|\n" + "".join(f"{row}\n" for row in rows.values()))


if __name__ == "__main__":
    main()
