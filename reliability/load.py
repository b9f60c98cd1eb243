"""Clients of the fleet: innocents, attackers, and reporters of refusals."""

import http.client
import json
import threading
import time
from collections import namedtuple

from fleet import GATES, TOKEN, address

# `why` is the text of a response other than 200, or the error.
Outcome = namedtuple("Outcome", "gate path start end status why")
PATIENCE_S = 10
PATHS = ["/free", "/local", "/shared", "/fleet0", "/fleet1"]
ATTACKED = ["/shared", "/fleet0", "/fleet1", "/local"]


class Client:
    """A persistent connection to one gate. A request that fails has the status 0."""

    def __init__(self, gate, port=8888):
        self.gate, self.connection = gate, None
        self.where = (address(98, 10 + gate), port)

    def request(self, path, headers, method="GET", body=None):
        """The status, and the body as text."""
        try:
            if self.connection is None:
                self.connection = http.client.HTTPConnection(*self.where, timeout=PATIENCE_S)
            self.connection.request(method, path, body, headers)
            response = self.connection.getresponse()
            text = response.read().decode(errors="replace")
            if response.will_close:
                self.close()
            return response.status, text
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return 0, repr(error)

    def get(self, path, key):
        return self.request(path, {"X-Key": key})[0]

    def admin(self, method, path, value=None):
        body = None if value is None else json.dumps(value)
        return self.request(path, {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}, method, body)

    def close(self):
        if self.connection is not None:
            self.connection.close()
        self.connection = None


class Load:
    """All clients, each on its own thread, until they are stopped."""

    def __init__(self):
        self.is_over = threading.Event()
        self.outcomes, self.admitted = [], {path: [] for path in ATTACKED}
        # Latency of requests to a backend without a gate, in seconds.
        self.direct = []
        # Accounts whose reports were acknowledged, and those whose flags were cleared, by gate.
        self.flagged = [[] for _ in range(GATES)]
        self.cleared = [set() for _ in range(GATES)]
        self.threads = []
        self.spawn(self.bypass)
        for gate in range(GATES):
            self.spawn(self.innocent, gate, 0)
            self.spawn(self.innocent, gate, 1)
            self.spawn(self.report, gate)
            for path in ATTACKED:
                self.spawn(self.attack, gate, path)

    def spawn(self, work, *arguments):
        self.threads.append(threading.Thread(target=work, args=arguments, daemon=True))

    def start(self):
        for thread in self.threads:
            thread.start()

    def stop(self):
        self.is_over.set()
        for thread in self.threads:
            thread.join()

    def innocent(self, gate, number):
        """Stays below every limit, and must never be refused."""
        client, turn = Client(gate), number
        while not self.is_over.wait(0.06):
            path, turn = PATHS[turn % len(PATHS)], turn + 1
            start = time.monotonic()
            status, text = client.request(path, {"X-Key": f"innocent-{gate}-{number}"})
            why = "" if status == 200 else " ".join(text.split())
            self.outcomes.append(Outcome(gate, path, start, time.monotonic(), status, why))

    def bypass(self):
        """Measures how responsive the machine is."""
        client = Client(0)
        client.where = (address(98, 50), 8080)
        while not self.is_over.wait(0.1):
            start = time.monotonic()
            if client.get("/", "direct") == 200:
                self.direct.append(time.monotonic() - start)

    def attack(self, gate, path):
        """Sends several times its limit with one key at all gates; for the local rule, with one key at each gate."""
        client = Client(gate)
        key = f"attacker-{gate}" if path == "/local" else "attacker"
        while not self.is_over.wait(0.06):
            if client.get(path, key) == 200:
                self.admitted[path].append((gate, time.monotonic()))

    def report(self, gate):
        """Flags one account after the other, and clears every fourth flag."""
        client, number = Client(gate, 8889), 0
        while not self.is_over.wait(0.7):
            account = f"account-{gate}-{number}"
            entries = [{"class": "user", "key": account, "rejected": 5000}]
            # The same id is sent again until it is acknowledged, as a gateway does.
            while client.admin("POST", "/api/v1/rejections", {"id": account, "entries": entries})[0] != 202:
                if self.is_over.wait(0.3):
                    return
            self.flagged[gate].append(account)
            if number % 4 == 0:
                status, _ = client.admin("DELETE", f"/api/v1/flags/{account}", {"note": "chaos"})
                if status == 200:
                    self.cleared[gate].add(account)
                else:
                    # It may have been cleared, or not.
                    self.flagged[gate].remove(account)
            number += 1
