"""A small site: each page takes some CPU time, and names the client that it was told of."""

import http.server


class App(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        pages = sum(number * number for number in range(20000))
        body = f"Hello {self.headers.get('X-Forwarded-For')}, page {pages}\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


http.server.ThreadingHTTPServer(("", 8000), App).serve_forever()
