#!/usr/bin/env python3
"""Runs a fleet under load with random faults, and checks Tollgate's promises at the end.

    reliability/chaos.py BINARY [SEED [SECONDS]]      needs root; `./test chaos` builds the binary and calls this

The seed determines the faults and their times. The promises:

- Fail-permissive: no request of a client below its limits fails or is refused while its own gate and a backend are up.
- Bounded: a key gets no more than docs/decisions/fleet.md states, and memory stays constant.
- Durable: no acknowledged report and no cleared flag is lost, although each kill loses everything that was not synced.
- Leases: what a gate leased and did not use is available to other gates afterwards.
"""

import json
import os
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter, namedtuple

from fleet import BURST, GATES, LEASED, RATE, Fleet, address, listens
from load import Client, Load

# The time that a part may need to reach its peers after a fault, in seconds.
HEALED_WITHIN_S = 10
# With a longer p99 of requests without a gate, in seconds, the machine is too busy for a verdict. Exit code 75 then.
DIRECT_P99_MAX_S = 0.5
# The time before and after the fault of a gate in which requests to it may fail: the measurement of the fault is not exact.
MARGIN_S = 1.5
Fault = namedtuple("Fault", "at kind target lasts")
# What happened when: the time from the first effect until the part works again.
Episode = namedtuple("Episode", "kind target start end")

KINDS = [
    # (kind, number of targets, weight, shortest and longest duration in seconds)
    ("kill-gate", 3, 3, (0.1, 1.5)),
    ("kill-master", 2, 3, (0.1, 4)),
    ("kill-redis", 6, 3, (0.1, 5)),
    ("kill-backend", 2, 1, (0.1, 2)),
    ("pause-gate", 3, 2, (0.2, 2)),
    ("pause-master", 2, 2, (0.5, 4)),
    ("pause-redis", 6, 2, (0.2, 4)),
    ("partition-gate", 3, 3, (0.5, 6)),
    ("partition-master", 2, 2, (0.5, 6)),
    ("partition-redis", 3, 2, (0.5, 6)),
    ("clock-gate", 3, 2, (0, 0)),
    ("clock-master", 2, 2, (0, 0)),
    ("disk-gate", 3, 2, (1, 5)),
    ("disk-master", 2, 1, (1, 5)),
    ("reload-gate", 3, 2, (0, 0)),
    ("bad-reload-gate", 3, 2, (0.5, 1)),
]


def plan(seed, seconds):
    """The faults of this seed. The last seconds are calm, so that everything heals."""
    dice, at, faults, deck = random.Random(seed), 5.0, [], []
    while at < seconds - HEALED_WITHIN_S:
        if not deck:
            # Every kind occurs as often as its weight before any occurs again.
            deck = [kind for kind in KINDS for _ in range(kind[2])]
            dice.shuffle(deck)
        kind, targets, _, (shortest, longest) = deck.pop()
        faults.append(Fault(at, kind, dice.randrange(targets), dice.uniform(shortest, longest)))
        at += dice.uniform(0.5, 5)
    return faults


class Chaos:
    def __init__(self, fleet, dice):
        self.fleet, self.dice = fleet, dice
        self.pending = []  # (time, kind, target, start, undo)
        self.episodes, self.lifetimes = [], []

    def busy(self, kind, target):
        """Whether the part has a fault already that must be over first."""
        part = kind.rsplit("-", 1)[1]
        # One backend must stay up.
        return any(other.rsplit("-", 1)[1] == part and (part == "backend" or other_target == target)
                   for _, other, other_target, _, _ in self.pending)

    def process(self, kind, target):
        parts = {"gate": self.fleet.gates, "master": self.fleet.masters, "redis": self.fleet.redis, "backend": self.fleet.backends}
        return parts[kind.rsplit("-", 1)[1]][target]

    def begin(self, fault):
        action, kind, target = fault.kind.rsplit("-", 1)[0], fault.kind, fault.target
        start = time.monotonic()
        undo = None
        if action == "partition":
            space = {"partition-gate": "g", "partition-master": "m", "partition-redis": "r"}[kind] + str(target)
            self.fleet.network.connect(space, False)
            undo = lambda: self.fleet.network.connect(space, True)
        else:
            process = self.process(kind, target)
            undo = getattr(self, action.replace("-", "_"))(process)
        self.pending.append((start + fault.lasts, kind, target, start, undo))

    def kill(self, process):
        self.lifetimes.append((process.name, process.samples))
        process.lose_power() if hasattr(process, "lose_power") else process.kill()
        return process.start

    def pause(self, process):
        process.signal(signal.SIGSTOP)
        return lambda: process.signal(signal.SIGCONT)

    def clock(self, process):
        process.step_clock(self.dice.choice([-365 * 86_400, -3_600, 0, 3_600, 365 * 86_400]))

    def disk(self, process):
        process.fill_disk()
        return process.free_disk

    def reload(self, process):
        # Another value of a setting that no promise depends on.
        process.configure(process.text.replace("workers = 1\n", f"workers = 1\ntimeouts = {{ body_idle = \"{self.dice.randrange(20, 60)}s\" }}\n"))
        process.signal(signal.SIGHUP)

    def bad_reload(self, process):
        process.configure(process.text + "nonsense = [\n")
        process.signal(signal.SIGHUP)
        return lambda: self.reload(process)

    def end_due(self, now):
        for entry in [entry for entry in self.pending if entry[0] <= now]:
            self.pending.remove(entry)
            _, kind, target, start, undo = entry
            if undo:
                undo()
            if kind == "kill-gate":
                self.wait_for(address(98, 10 + target), 8888)
            elif kind == "kill-backend":
                self.wait_for(address(98, 50 + target), 8080)
            self.episodes.append(Episode(kind, target, start, time.monotonic()))

    @staticmethod
    def wait_for(host, port):
        deadline = time.monotonic() + 60
        while not listens(host, port):
            assert time.monotonic() < deadline, f"{host} does not come back"
            time.sleep(0.02)

    def run(self, faults, seconds):
        begin, sampled, faults = time.monotonic(), 0.0, list(faults)
        while (now := time.monotonic() - begin) < seconds:
            self.end_due(time.monotonic())
            if faults and faults[0].at <= now:
                fault = faults.pop(0)
                if not self.busy(fault.kind, fault.target):
                    print(f"{now:6.1f} s  {fault.kind} {fault.target} for {fault.lasts:.1f} s", flush=True)
                    self.begin(fault)
            if now - sampled >= 1:
                sampled = now
                for process in [*self.fleet.gates, *self.fleet.masters]:
                    process.sample()
                    if not process.is_alive() and not self.busy(f"kill-{'gate' if process.name[0] == 'g' else 'master'}", int(process.name[1])):
                        raise AssertionError(f"{process.name} ended by itself: see {process.log}")
            time.sleep(0.02)
        self.end_due(float("inf"))
        self.lifetimes += [(process.name, process.samples) for process in [*self.fleet.gates, *self.fleet.masters]]


def percentile(times):
    """The 99th percentile."""
    return sorted(times)[int(len(times) * 0.99)]


def fallbacks():
    """The number of decisions that gates have taken alone."""
    texts = [Client(gate, 8889).admin("GET", "/metrics")[1] for gate in range(GATES)]
    return sum(float(count) for text in texts for count in re.findall(r"^tollgate_redis_fallbacks_total\{[^}]*\} (\S+)", text, re.M))


class Verdict:
    """Collects what the run showed, and what is wrong with it."""

    def __init__(self):
        self.facts, self.failures = [], []

    def check(self, is_right, fact):
        self.facts.append(fact)
        if not is_right:
            self.failures.append(fact)
        print(("ok      " if is_right else "FAILED  ") + fact, flush=True)

    def record(self, seed, seconds, counts):
        """Replaces the row of this seed and length in the results, and the facts of the last run."""
        if "TOLLGATE_RESULT" not in os.environ:
            return
        path = os.environ["TOLLGATE_RESULT"]
        before = open(path).read().splitlines() if os.path.exists(path) else []
        kinds = f"{sum(counts.values())} of {len(counts)} kinds"
        outcome = f"failed: {'; '.join(self.failures)}" if self.failures else "all promises held"
        rows = [line for line in before if re.match(r"\| \d", line) and not line.startswith(f"| {seed} | {seconds} |")]
        rows = sorted([*rows, f"| {seed} | {seconds} | {kinds} | {outcome} |"], key=lambda row: [int(cell) for cell in row.split("|")[1:3]])
        with open(path, "w") as file:
            file.write("| seed | seconds | faults | result |\n|---|---|---|---|\n" + "".join(f"{row}\n" for row in rows))
            file.write(f"\nThe last run, with seed {seed} for {seconds} s:\n\n")
            file.writelines(f"- {fact.strip()}\n" for fact in self.facts)

    def availability(self, outcomes, episodes, direct):
        """Innocents are served, unless their own gate or a backend was down."""
        own = ("kill-gate", "pause-gate")

        def is_excused(outcome):
            for episode in episodes:
                is_near = outcome.start < episode.end + MARGIN_S and outcome.end > episode.start - MARGIN_S
                if is_near and episode.kind in own and episode.target == outcome.gate and outcome.status != 429:
                    return True
                if is_near and episode.kind == "kill-backend" and outcome.status in (502, 503, 504):
                    return True
            return False

        failed = [outcome for outcome in outcomes if outcome.status != 200 and not is_excused(outcome)]
        excused = sum(outcome.status != 200 for outcome in outcomes) - len(failed)
        kinds = dict(Counter((outcome.path, outcome.status) for outcome in failed))
        for outcome in failed[:20]:
            at = f"{outcome.start - outcomes[0].start:6.1f} s  gate {outcome.gate} {outcome.path}"
            print(f"        {at}: {outcome.status} after {outcome.end - outcome.start:.2f} s: {outcome.why}")
        self.check(not failed, f"{len(outcomes)} requests below their limits, {len(failed)} failed or refused while their gate was up {kinds or ''}"
                   f" ({excused} while it was down)")
        waits = [outcome.end - outcome.start for outcome in outcomes if not any(
            episode.kind in own and episode.target == outcome.gate and outcome.start < episode.end + MARGIN_S and outcome.end > episode.start - MARGIN_S
            for episode in episodes)]
        # A machine that is busy with something else delays requests without a gate, too.
        p99, p99_direct = percentile(waits), percentile(direct)
        self.check(p99 < 1 + 2 * p99_direct, f"p99 of their latency {p99 * 1000:.0f} ms; {p99_direct * 1000:.0f} ms without a gate")

    def bounds(self, load, episodes, seconds):
        """Every fault of a part that shares state adds what the other gates can admit alone meanwhile."""
        for path, admitted in load.admitted.items():
            parts = {"/shared": ["redis"], "/fleet0": ["master0"], "/fleet1": ["master1"], "/local": []}[path]
            most, gates = BURST + RATE * seconds, GATES
            if path == "/local":
                most *= GATES
            for episode in episodes:
                action, part = episode.kind.rsplit("-", 1)
                touches = part == "gate" or part in parts or f"{part}{episode.target}" in parts
                if action in ("kill", "pause", "partition") and touches:
                    # A local rule is forgotten by its own gate only.
                    others = 1 if path == "/local" else gates - 1
                    spent = 0 if path == "/local" else RATE * (episode.end - episode.start + HEALED_WITHIN_S)
                    most += others * (BURST + spent)
            least = 0.4 * RATE * seconds
            self.check(least <= len(admitted) <= most + gates, f"{path}: {len(admitted)} admitted, at least {least:.0f}, at most {most + gates:.0f}")

    def memory(self, lifetimes):
        """Compares the middle of a life with its end, for processes that lived long enough."""
        growth = []
        for name, samples in lifetimes:
            if len(samples) >= 40:
                middle = statistics.median(samples[len(samples) // 3 : len(samples) // 2])
                growth.append((statistics.median(samples[-10:]) - middle, name))
        peak = max((max(samples) for _, samples in lifetimes if samples), default=0)
        most, name = max(growth, default=(0, "none"))
        self.check(most < 8_192, f"memory grew by at most {most:.0f} KiB ({name}; {len(growth)} processes lived for 40 s or more); peak {peak // 1024} MiB")

    def flags(self, load):
        for gate in range(GATES):
            status, text = Client(gate, 8889).admin("GET", "/api/v1/flags?history=1&top=100000")
            known = {flag["account"]: flag["cleared_at"] is not None for flag in json.loads(text)["flags"]} if status == 200 else {}
            lost = [account for account in load.flagged[gate] if account not in known]
            returned = [account for account in load.cleared[gate] if known.get(account) is False]
            self.check(not lost and not returned, f"gate {gate}: {len(load.flagged[gate])} acknowledged flags, {len(lost)} lost {lost[:3] or ''};"
                       f" {len(load.cleared[gate])} cleared, {len(returned)} came back {returned[:3] or ''}")

    def leases(self):
        """One request at one gate leases a slice; after its life the others must get all but that request. A key that a gate decides alone,
        because Redis misses its deadline on a busy machine, shows nothing."""
        wrong, exact = [], 0
        for number in range(20):
            before = fallbacks()
            first, admitted = self.lease(f"lease-{number}", number % GATES)
            if fallbacks() == before:
                exact += 1
                if (first, admitted) != (200, LEASED - 1):
                    wrong.append((first, admitted))
            if exact == 4:
                break
        self.check(exact == 4 and not wrong, f"unused leases return: {LEASED - 1} of {LEASED} are left for other gates, with {exact} of {number + 1} keys"
                   f" {wrong or ''}")

    @staticmethod
    def lease(key, gate):
        """The status of the first request, at this gate, and the number of requests that the others admit afterwards."""
        first = Client(gate).get("/leased", key)
        others = [Client(other) for other in range(GATES) if other != gate]
        admitted = 0
        # Slices of the other gates may expire in between, and return.
        for _ in range(3):
            time.sleep(2.5)
            admitted += sum(others[turn % len(others)].get("/leased", key) == 200 for turn in range(LEASED + 5))
            if admitted >= LEASED - 1:
                break
        return first, admitted


def main():
    binary, seed, seconds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(10**6), 600
    if len(sys.argv) > 3:
        seconds = int(sys.argv[3])
    home = tempfile.mkdtemp(prefix="tollgate-chaos-")
    print(f"seed {seed}, {seconds} s, logs in {home}", flush=True)
    fleet, load, verdict = Fleet(os.path.abspath(binary), home), Load(), Verdict()
    try:
        fleet.start()
        for gate in range(GATES):
            Chaos.wait_for(address(98, 10 + gate), 8888)
        time.sleep(3)
        chaos = Chaos(fleet, random.Random(seed))
        begin = time.monotonic()
        load.start()
        chaos.run(plan(seed, seconds), seconds)
        load.stop()
        lasted = time.monotonic() - begin
        deadline = time.monotonic() + 60
        while not fleet.cluster_is_ok():
            assert time.monotonic() < deadline, "the Redis Cluster does not heal"
            time.sleep(0.5)
        time.sleep(3)
        if percentile(load.direct) > DIRECT_P99_MAX_S:
            print(f"chaos: no verdict: the machine is too busy, p99 without a gate is {percentile(load.direct) * 1000:.0f} ms")
            sys.exit(75)
        counts = Counter(episode.kind for episode in chaos.episodes)
        print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
        verdict.availability(load.outcomes, chaos.episodes, load.direct)
        verdict.bounds(load, chaos.episodes, lasted)
        verdict.memory(chaos.lifetimes)
        verdict.flags(load)
        verdict.leases()
    finally:
        fleet.stop()
    verdict.record(seed, seconds, counts)
    if verdict.failures:
        print(f"chaos: {len(verdict.failures)} promises broken with seed {seed}; logs in {home}")
        sys.exit(1)
    shutil.rmtree(home, ignore_errors=True)
    print(f"chaos: all promises held through {len(chaos.episodes)} faults in {seconds} s with seed {seed}")


def run_private():
    """Runs this program again in mount and network namespaces of its own, once, so that nothing remains of it."""
    if os.environ.get("TOLLGATE_CHAOS_PRIVATE"):
        return
    script = 'mount --make-rprivate / && mount -t tmpfs tmpfs /run && mkdir -p /run/netns && exec "$@"'
    os.environ["TOLLGATE_CHAOS_PRIVATE"] = "1"
    os.execvp("unshare", ["unshare", "--mount", "--net", "sh", "-c", script, "sh", sys.executable, *sys.argv])


if __name__ == "__main__":
    run_private()
    main()
