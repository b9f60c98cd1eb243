"""Clients that keep sending while the gate restarts, and a site for them.

A request fails if it gets anything but the site's response. A client may retry on a new connection only if the old one had served a request before and was closed without a byte
of response: RFC 9112 expects that of clients that keep connections open."""

import http.client
import http.server
import socket
import threading
import time


class Site(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        time.sleep(0.005)
        body = f"app on port {self.server.server_port}, for {self.headers.get('X-Forwarded-For')}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def serve(address):
    server = http.server.ThreadingHTTPServer(address, Site)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()


def serve_names(address):
    """A DNS server that knows every name as 127.0.0.1."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, 53))

    def answer():
        while True:
            query, peer = server.recvfrom(512)
            question = query[12 : query.index(b"\0", 12) + 5]
            is_ipv4 = question[-4:-2] == b"\0\1"
            record = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\x7f\0\0\1" if is_ipv4 else b""
            server.sendto(query[:2] + b"\x81\x80\0\1\0" + bytes([is_ipv4]) + b"\0\0\0\0" + question + record, peer)

    threading.Thread(target=answer, daemon=True).start()


class Load:
    """Eight clients: half of them open a connection for each request, half keep theirs."""

    def __init__(self, host, port):
        self.host, self.port = host, port
        self.answered, self.failures, self.longest = 0, [], 0.0
        self.is_over, self.lock = threading.Event(), threading.Lock()
        self.threads = [threading.Thread(target=self.client, args=(index % 2 == 0,)) for index in range(8)]
        for thread in self.threads:
            thread.start()

    def client(self, keeps_connection):
        connection, served = None, 0
        while not self.is_over.is_set():
            started = time.monotonic()
            if connection is None:
                connection, served = http.client.HTTPConnection(self.host, self.port, timeout=60), 0
            try:
                connection.request("GET", "/")
                response = connection.getresponse()
                body = response.read()
                if response.status != 200 or not body.startswith(b"app on port"):
                    self.note(f"{response.status} {body[:80]!r}", started)
                else:
                    self.note(None, started)
                served += 1
                if not keeps_connection or response.will_close:
                    connection.close()
                    connection = None
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
                if not served:
                    self.note(repr(error), started)
                connection.close()
                connection = None
            except OSError as error:
                self.note(repr(error), started)
                connection.close()
                connection = None
            time.sleep(0.002)

    def note(self, failure, started):
        with self.lock:
            self.longest = max(self.longest, time.monotonic() - started)
            if failure:
                self.failures.append(failure)
            else:
                self.answered += 1

    def end(self):
        self.is_over.set()
        for thread in self.threads:
            thread.join()
        return self.answered, self.failures
