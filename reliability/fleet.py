"""A fleet in network namespaces: three gates, two masters, a Redis Cluster and two backends, and the faults that they can have.

All of it lives in the mount and network namespaces of the calling process and disappears with it.
"""

import os
import signal
import socket
import struct
import subprocess
import time

HERE = os.path.dirname(os.path.abspath(__file__))
GATES, MASTERS, REDIS_HOSTS, BACKENDS = 3, 2, 3, 2
TOKEN = "a-token-for-the-chaos-run"
# Attackers exceed these limits many times; other clients stay below them.
RATE, BURST = 10, 10
# The limit with which the return of leases is checked: a slice is half of it.
LEASED = 40

RULES = f"""
[[rule]]
name = "fleet0"
class = "header:x-key"
when = {{ path = "/fleet0" }}
rate = {{ rate = "{RATE}/s", burst = {BURST} }}
state = "master"
hold = "0s"
[[rule]]
name = "fleet1"
class = "header:x-key"
when = {{ path = "/fleet1" }}
rate = {{ rate = "{RATE}/s", burst = {BURST} }}
state = "master"
hold = "0s"
"""

GATE_RULES = f"""
[[rule]]
name = "shared"
class = "header:x-key"
when = {{ path = "/shared" }}
rate = {{ rate = "{RATE}/s", burst = {BURST} }}
state = "redis"
hold = "0s"
[[rule]]
name = "leased"
class = "header:x-key"
when = {{ path = "/leased" }}
bucket = {{ size = {LEASED}, drip = 1, every = "1h" }}
state = "redis"
lease = 0.5
[[rule]]
name = "local"
class = "header:x-key"
when = {{ path = "/local" }}
rate = {{ rate = "{RATE}/s", burst = {BURST} }}
hold = "0s"
"""


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def address(net, host):
    """Net 98 connects clients, gates and backends; net 99 connects gates, masters and Redis."""
    return f"10.{net}.0.{host}"


class Network:
    """Namespaces on two bridges. A port of a bridge can be taken down, which is a partition."""

    def __init__(self):
        for net in (98, 99):
            run("ip", "link", "add", f"net{net}", "type", "bridge")
            run("ip", "link", "set", f"net{net}", "up")
        run("ip", "link", "set", "lo", "up")
        run("ip", "addr", "add", address(98, 1) + "/24", "dev", "net98")

    def add(self, name, host, nets):
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        for net in nets:
            port = f"{name}-{net}"
            run("ip", "link", "add", port, "type", "veth", "peer", "name", f"eth{net}", "netns", name)
            run("ip", "link", "set", port, "master", f"net{net}", "up")
            run("ip", "-n", name, "addr", "add", address(net, host) + "/24", "dev", f"eth{net}")
            run("ip", "-n", name, "link", "set", f"eth{net}", "up")

    @staticmethod
    def connect(name, is_connected):
        """Connects a namespace to net 99, or disconnects it."""
        run("ip", "link", "set", f"{name}-99", "up" if is_connected else "down")


class Process:
    """A process in a namespace that can be killed, paused and started again."""

    def __init__(self, name, namespace, command, home, environment=None):
        self.name, self.namespace, self.command, self.home = name, namespace, command, home
        self.environment = {**os.environ, **(environment or {})}
        self.log = os.path.join(home, f"{name}.log")
        self.child = None
        # (start, RSS in KiB) of this incarnation, one sample a second.
        self.started, self.samples = 0.0, []

    def start(self):
        log = open(self.log, "ab")
        command = ["ip", "netns", "exec", self.namespace, *self.command]
        self.child = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        log.close()
        self.started, self.samples = time.monotonic(), []

    def signal(self, number):
        if self.child.poll() is None:
            os.kill(self.child.pid, number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.child.wait()

    def is_alive(self):
        return self.child is not None and self.child.poll() is None

    def sample(self):
        try:
            with open(f"/proc/{self.child.pid}/statm") as statm:
                self.samples.append(int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024)
        except (OSError, IndexError):
            pass


class Tollgate(Process):
    """A gate or a master, with its own wall clock and disk."""

    def __init__(self, binary, shim, name, namespace, arguments, home):
        self.state = os.path.join(home, f"{name}.state")
        self.clock, self.synced = os.path.join(home, f"{name}.clock"), os.path.join(home, f"{name}.synced")
        self.config = os.path.join(home, f"{name}.toml")
        os.makedirs(self.state)
        run("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", self.state)
        self.step_clock(0)
        # The preloaded library must not be in `ip`, whose files are none of ours.
        preload = ["env", f"LD_PRELOAD={shim}", f"TOLLGATE_CLOCK={self.clock}", f"TOLLGATE_SYNCED={self.synced}"]
        command = [*preload, binary, *arguments, "--config", self.config]
        super().__init__(name, namespace, command, home, {"XDG_STATE_HOME": self.state})

    def configure(self, text):
        with open(self.config + ".new", "w") as file:
            file.write(text)
        os.rename(self.config + ".new", self.config)

    def step_clock(self, offset_s):
        # Written in place, because the process has the file mapped.
        file = os.open(self.clock, os.O_WRONLY | os.O_CREAT)
        os.pwrite(file, struct.pack("q", offset_s), 0)
        os.close(file)

    def fill_disk(self):
        try:
            with open(os.path.join(self.state, "ballast"), "wb", buffering=0) as file:
                while file.write(b"x" * 4096):
                    pass
        except OSError:
            pass

    def free_disk(self):
        os.remove(os.path.join(self.state, "ballast"))

    def lose_power(self):
        """Kills the process, and cuts its files to what was synced."""
        self.kill()
        durable = {}
        try:
            lines = open(self.synced, errors="replace").read().splitlines()
        except FileNotFoundError:
            lines = []
        for line in lines:
            kind, first, second = line.split(" ", 2)
            if kind == "S":
                durable[second] = int(first)
            elif kind == "T" and second in durable:
                durable[second] = min(durable[second], int(first))
            elif kind == "R":
                durable[second] = durable.pop(first, 0)
        for folder, _, files in os.walk(self.state):
            for name in files:
                path = os.path.join(folder, name)
                if name != "ballast" and os.path.getsize(path) > durable.get(path, 0):
                    os.truncate(path, durable.get(path, 0))


class Fleet:
    def __init__(self, binary, home):
        self.network = Network()
        shim = os.path.join(home, "shim.so")
        run("cc", "-shared", "-fPIC", "-O1", "-o", shim, os.path.join(HERE, "shim.c"), "-ldl")
        keys = {name: self.key(binary, home, name) for name in ["m0", "m1", "g0", "g1", "g2"]}
        token = os.path.join(home, "token")
        with open(token, "w") as file:
            file.write(TOKEN)
        self.backends = [self.backend(home, number) for number in range(BACKENDS)]
        self.redis = self.cluster(home)
        known = ", ".join(f'"{keys[f"g{gate}"]}"' for gate in range(GATES))
        self.masters = []
        for number in range(MASTERS):
            self.network.add(f"m{number}", 20 + number, [99])
            master = Tollgate(binary, shim, f"m{number}", f"m{number}", ["master"], home)
            master.configure(
                f'[master]\naccounting = "0.0.0.0:10004"\ncontrol = "0.0.0.0:10005"\nkey_file = "{home}/m{number}.key"\n'
                f'gates = [{known}]\nstate_dir = "{master.state}"\n{RULES}'
            )
            self.masters.append(master)
        self.gates = []
        for number in range(GATES):
            self.network.add(f"g{number}", 10 + number, [98, 99])
            gate = Tollgate(binary, shim, f"g{number}", f"g{number}", ["gate"], home)
            links = "".join(
                f'[[link.master]]\naccounting = "{address(99, 20 + master)}:10004"\nkey = "{keys[f"m{master}"]}"\n'
                f'domains = ["default/fleet{master}"]\n'
                for master in range(MASTERS)
            )
            backends = ", ".join(f'"http://{address(98, 50 + backend)}:8080"' for backend in range(BACKENDS))
            nodes = ",".join(f"{address(99, 30 + host)}:7000" for host in range(REDIS_HOSTS))
            gate.text = (
                f'[gate]\nlisten = "{address(98, 10 + number)}:8888"\nbackend = [{backends}]\nworkers = 1\n'
                f'[admin]\nlisten = "{address(98, 10 + number)}:8889"\ntoken_file = "{token}"\n'
                f'[watch]\nstate_dir = "{gate.state}/watch"\n[redis]\nurl = "redis+cluster://{nodes}"\n'
                f'[link]\nkey_file = "{home}/g{number}.key"\n{links}{RULES}{GATE_RULES}'
            )
            gate.configure(gate.text)
            self.gates.append(gate)

    @staticmethod
    def key(binary, home, name):
        output = subprocess.run([binary, "keys", f"{home}/{name}.key"], check=True, capture_output=True, text=True)
        return output.stdout.strip()

    def backend(self, home, number):
        self.network.add(f"b{number}", 50 + number, [98])
        return Process(f"b{number}", f"b{number}", ["python3", os.path.join(HERE, "backend.py"), address(98, 50 + number), "8080"], home)

    def cluster(self, home):
        """A master and a replica of another one on each host."""
        nodes = []
        for host in range(REDIS_HOSTS):
            self.network.add(f"r{host}", 30 + host, [99])
            for port in (7000, 7001):
                folder = os.path.join(home, f"r{host}-{port}")
                os.makedirs(folder)
                command = ["redis-server", "--port", str(port), "--bind", address(99, 30 + host), "--protected-mode", "no"]
                command += ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--save", "", "--dir", folder]
                nodes.append(Process(f"r{host}-{port}", f"r{host}", command, home))
        return nodes

    def processes(self):
        return [*self.backends, *self.redis, *self.masters, *self.gates]

    def start(self):
        for process in [*self.backends, *self.redis]:
            process.start()
        self.form_cluster()
        for process in [*self.masters, *self.gates]:
            process.start()

    def form_cluster(self):
        nodes = [f"{address(99, 30 + host)}:{port}" for port in (7000, 7001) for host in range(REDIS_HOSTS)]
        deadline = time.monotonic() + 60
        command = ["ip", "netns", "exec", "r0", "redis-cli", "--cluster", "create", *nodes, "--cluster-replicas", "1", "--cluster-yes"]
        while subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
            assert time.monotonic() < deadline, "the Redis Cluster does not form"
            time.sleep(0.5)

    def cluster_is_ok(self):
        command = ["ip", "netns", "exec", "r0", "redis-cli", "-h", address(99, 30), "-p", "7000", "cluster", "info"]
        return "cluster_state:ok" in subprocess.run(command, capture_output=True, text=True).stdout

    def stop(self):
        for process in self.processes():
            if process.is_alive():
                process.signal(signal.SIGCONT)
                process.kill()


def listens(host, port):
    try:
        socket.create_connection((host, port), timeout=1).close()
        return True
    except OSError:
        return False
