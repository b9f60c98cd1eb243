"""Installs the package under systemd and uses it: every command of docs/install.md, docs/tls.md and docs/behind-a-proxy.md is run as it is written there."""

import glob
import json
import os
import pwd
import re
import stat
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
from load import Load, serve, serve_names

HERE = os.path.dirname(os.path.abspath(__file__))
SETTINGS = "/etc/tollgate/tollgate.toml"
# The pages write `sudo` before what root does, and everything here is done by root.
PRELUDE = 'set -euo pipefail\nsudo() { "$@"; }\n'


def sh(script, cwd="/", fails=False):
    """Runs a script of bash and gives its output."""
    run = subprocess.run(["bash", "-c", PRELUDE + script], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert (run.returncode != 0) == fails, f"exit code {run.returncode} of:\n{script}\n{run.stdout}\n{journal()}"
    return run.stdout


def journal():
    return subprocess.run(["journalctl", "-u", "tollgate*", "-u", "in-empty-root", "-u", "by-hand", "-u", "in-image", "-n", "40", "--no-pager", "-o", "cat"], capture_output=True, text=True).stdout


# The blocks that facts have read.
USED = set()
# Blocks that facts do not run, by their first line, each with the file that runs it.
RUN_ELSEWHERE = {
    "cargo install --locked --path crates/tollgate": "test",
    "tollgate doctor --once": "crates/tollgate/tests/gate/proxies.rs",
}
# All blocks of these languages are run here. crates/tollgate/tests/gate/proxies.rs runs the configurations of the last page, and
# crates/tollgate/tests/tidy/first_pages.rs checks that there are no blocks in other forms.
LANGUAGES = {"install.md": ["sh", "toml", "ini", "caddyfile"], "tls.md": ["sh", "toml", "ini", "caddyfile"], "behind-a-proxy.md": ["sh"]}


def without_fences(text):
    """The text with its fenced blocks blanked, so that a comment in one is no heading."""
    return re.sub(r"^```.*?^```$", lambda block: re.sub(r"[^\n]", " ", block.group(0)), text, flags=re.M | re.S)


def blocks(page, heading, language="sh"):
    """The blocks of this language in one section of a page."""
    text = open(f"{HERE}/{page}").read()
    section = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", without_fences(text), re.M | re.S)
    found = re.findall(rf"```{language}\n(.*?)```", text[section.start(1) : section.end(1)], re.S)
    assert found, f"{page} has no {language} block under {heading}"
    USED.update((page, block) for block in found)
    return found


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def edit(before, after):
    text = open(SETTINGS).read()
    assert before in text, f"{before!r} is not in the settings"
    write(SETTINGS, text.replace(before, after))


def eventually(what, is_so, seconds=20):
    for _ in range(seconds * 10):
        if is_so():
            return
        time.sleep(0.1)
    raise AssertionError(f"never came true: {what}\n{journal()}")


def get(url, *arguments):
    run = subprocess.run(["curl", "-sS", "--max-time", "20", *arguments, url], capture_output=True, text=True)
    return run.stdout or run.stderr


def main_pid():
    return int(sh("systemctl show -P MainPID tollgate"))


def installed_version():
    return sh("dpkg-query -W -f '${Version}' tollgate")


FACTS = []


def fact(function):
    FACTS.append(function)
    return function


@fact
def the_package_installs_and_serves():
    output = sh(blocks("install.md", "Debian and Ubuntu")[0], cwd=f"{HERE}/v1")
    assert "app on port 8080" in output, output
    assert sh("systemctl is-active tollgate.socket tollgate.service").split() == ["active", "active"]
    assert sh("systemctl is-enabled tollgate.socket tollgate.service").split() == ["enabled", "enabled"]
    assert "is alive" in sh("tollgate health") and "is ready" in sh("tollgate health --ready")
    assert '"level"' in sh("journalctl -u tollgate --no-pager")
    assert '"level"' in sh("journalctl -u tollgate | grep level")


@fact
def the_service_runs_as_its_own_user_with_its_own_directories():
    user = pwd.getpwnam("tollgate")
    status = open(f"/proc/{main_pid()}/status").read()
    assert re.search(r"^Uid:\t(\d+)\t", status, re.M).group(1) == str(user.pw_uid)
    # CAP_NET_BIND_SERVICE is number 10.
    assert re.search(r"^CapBnd:\t(\w+)", status, re.M).group(1) == f"{1 << 10:016x}"
    assert "Seccomp:\t2" in status and "NoNewPrivs:\t1" in status
    for path, mode in [("/var/lib/tollgate", 0o700), ("/var/log/tollgate", 0o750)]:
        found = os.stat(path)
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (user.pw_uid, mode), path


@fact
def the_units_are_right_and_hardened():
    assert sh("systemd-analyze verify tollgate.service tollgate.socket") == ""
    # From 0 (nothing is allowed) to 10. A service that listens on the network cannot be much below 1.5.
    print("   ", sh("systemd-analyze security --no-pager --threshold=20 tollgate.service").strip().splitlines()[-1])


@fact
def links_between_the_pages_lead_to_files_of_the_package():
    folder = "/usr/share/doc/tollgate"
    pages = glob.glob(f"{folder}/**/*.md", recursive=True)
    assert f"{folder}/start.md" in pages and f"{folder}/coming-from/nginx.md" in pages
    for page in pages:
        for link in re.findall(r"\]\(([^)#]+)", open(page).read()):
            target = os.path.normpath(os.path.join(os.path.dirname(page), link))
            if "://" not in link:
                assert os.path.exists(target), (page, link)


@fact
def the_package_has_manual_pages_completions_settings_and_a_bill_of_materials():
    commands = re.findall(r"^  (\w+) ", sh("tollgate --help").split("Commands:")[1].split("Options:")[0], re.M)
    for command in commands:
        if command != "help":
            assert sh(f"man -w tollgate-{command}")
    for path in ["bash-completion/completions/tollgate", "zsh/vendor-completions/_tollgate", "fish/vendor_completions.d/tollgate.fish"]:
        assert "health" in open(f"/usr/share/{path}").read(), path
    conffiles = sh("dpkg-query -W -f '${Conffiles}' tollgate")
    assert SETTINGS in conffiles and "/etc/logrotate.d/tollgate" in conffiles
    assert "CycloneDX" in open("/usr/share/doc/tollgate/tollgate.cdx.json").read()
    sh(f"tollgate check {SETTINGS}")
    # Every example in its comments can be used as it is.
    text = open(SETTINGS).read()
    everything = re.sub(r"^# (mode|listen|trusted_proxies|tls|name|when|class|rate|\[\[rule)", r"\1", text, flags=re.M)
    assert everything.count("\n#") < text.count("\n#") - 6
    write("/tmp/everything.toml", everything)
    sh("tollgate check /tmp/everything.toml")
    sh("command -v logrotate >/dev/null || exit 0; logrotate --debug /etc/logrotate.d/tollgate")


@fact
def a_reload_applies_the_settings_and_a_file_with_mistakes_changes_nothing():
    before = main_pid()
    sh(blocks("install.md", "Debian and Ubuntu")[1])
    eventually("the backend is the new one", lambda: "app on port 3000" in get("http://127.0.0.1:8888/"))
    text = open(SETTINGS).read()
    write(SETTINGS, text + "nonsense = 1\n")
    sh("systemctl reload tollgate", fails=True)
    assert "unknown key `nonsense`" in journal(), journal()
    assert "app on port 3000" in get("http://127.0.0.1:8888/")
    write(SETTINGS, text)
    sh("systemctl reload tollgate")
    assert main_pid() == before


@fact
def the_access_log_is_readable_by_its_owner_and_rotated():
    text, log = open(SETTINGS).read(), "/var/log/tollgate/access.log"
    logged = lambda path, file: os.path.exists(file) and path in open(file).read()
    write(SETTINGS, text + f'\n[gate.access_log]\noutput = "{log}"\n')
    sh("systemctl reload tollgate")
    get("http://127.0.0.1:8888/before")
    eventually("the request is logged", lambda: logged("/before", log))
    assert stat.S_IMODE(os.stat(log).st_mode) == 0o600 and pwd.getpwuid(os.stat(log).st_uid).pw_name == "tollgate"
    sh("logrotate --force /etc/logrotate.d/tollgate")
    get("http://127.0.0.1:8888/after")
    eventually("the next request is in a new file", lambda: logged("/after", log))
    assert logged("/before", f"{log}.1") and not logged("/before", log)
    write(SETTINGS, text)
    sh("systemctl reload tollgate")


@fact
def the_socket_unit_moves_the_gate_to_port_80():
    sh(blocks("install.md", "Port 80")[0])
    assert "app on port 3000" in get("http://127.0.0.1/")
    assert "app on port 3000" in get("http://[::1]/", "-g")
    assert "Failed to connect" in get("http://127.0.0.1:8888/") or "Couldn't connect" in get("http://127.0.0.1:8888/")


@fact
def mistakes_in_the_settings_do_not_close_the_socket():
    text = open(SETTINGS).read()
    write(SETTINGS, text + "nonsense = 1\n")
    sh("systemctl restart tollgate", fails=True)
    # As often as systemd starts a service within ten seconds by default, and once more.
    time.sleep(7)
    write(SETTINGS, text)
    assert "app on port 3000" in get("http://127.0.0.1/"), "it starts by itself, and the connection waits"


@fact
def an_upgrade_under_load_fails_no_request():
    before, version = main_pid(), installed_version()
    load = Load("127.0.0.1", 80)
    time.sleep(1)
    output = sh(blocks("install.md", "Upgrade")[0], cwd=f"{HERE}/v2")
    time.sleep(1)
    answered, failures = load.end()
    assert not failures, f"{len(failures)} of {answered + len(failures)} failed: {failures[:5]}\n{output}"
    assert answered > 500, answered
    assert installed_version() != version and main_pid() != before
    assert "app on port 3000" in get("http://127.0.0.1/"), "the settings and the socket are kept"
    print(f"    {answered} requests during the upgrade, the longest took {load.longest * 1000:.0f} ms")


@fact
def a_restart_under_load_fails_no_request():
    load = Load("127.0.0.1", 80)
    for _ in range(3):
        time.sleep(0.3)
        sh("systemctl restart tollgate")
    answered, failures = load.end()
    assert not failures and answered > 200, (answered, failures[:5])


@fact
def an_upgrade_with_settings_that_the_new_version_rejects_keeps_the_old_process():
    before, text = main_pid(), open(SETTINGS).read()
    write(SETTINGS, text + "nonsense = 1\n")
    output = sh(f"dpkg -i {HERE}/v2/*.deb")
    assert "not restarted" in output and "nonsense" in output, output
    assert main_pid() == before and "app on port 3000" in get("http://127.0.0.1/")
    write(SETTINGS, text)


@fact
def an_upgrade_leaves_a_service_stopped_that_was_stopped():
    sh("systemctl stop tollgate.socket tollgate.service")
    sh(f"dpkg -i {HERE}/v2/*.deb")
    sh("systemctl is-active tollgate.service", fails=True)
    sh("systemctl start tollgate.socket tollgate.service")


@fact
def a_crashed_gate_is_started_again():
    before = main_pid()
    sh(f"kill -KILL {before}")
    assert "app on port 3000" in get("http://127.0.0.1/"), "the connection waits for the next process"
    assert main_pid() != before


@fact
def without_the_socket_unit_the_gate_listens_where_its_settings_say():
    edit('# listen = "0.0.0.0:80"', 'listen = "0.0.0.0:81"')
    sh("systemctl restart tollgate")
    eventually("the log says that it has no effect", lambda: "gate.listen is not used" in journal())
    sh(blocks("install.md", "Port 80")[1])
    assert "app on port 3000" in get("http://127.0.0.1:81/")
    load = Load("127.0.0.1", 81)
    time.sleep(0.3)
    sh("systemctl restart tollgate")
    assert load.end()[1], "without the socket unit a restart refuses connections: if not, the load shows nothing"
    edit('listen = "0.0.0.0:81"', '# listen = "0.0.0.0:80"')
    sh("systemctl stop tollgate; systemctl enable --now tollgate.socket; systemctl start tollgate")
    assert "app on port 3000" in get("http://127.0.0.1/")


def serve_certificates():
    """A certificate authority that speaks ACME and checks challenges, in place of one on the internet; and settings of certbot for it."""
    os.makedirs("/opt/authority")
    write("/opt/authority/Caddyfile", """{
    skip_install_trust
    admin off
    http_port 8556
    https_port 8555
    auto_https disable_redirects
}
https://localhost {
    tls internal
    acme_server
}
""")
    sh(f"""dpkg -i {HERE}/peers/*.deb
    systemctl stop caddy
    systemd-run --quiet --unit=authority --setenv=HOME=/opt/authority caddy run --config /opt/authority/Caddyfile --adapter caddyfile
    mkdir -p /etc/letsencrypt""")
    eventually("the authority answers", lambda: "newNonce" in get("https://localhost:8555/acme/local/directory", "-k"))
    write("/etc/letsencrypt/cli.ini", """server = https://localhost:8555/acme/local/directory
no-verify-ssl = true
non-interactive = true
agree-tos = true
register-unsafely-without-email = true
""")
    write("/etc/hosts", open("/etc/hosts").read() + "\n127.0.0.1 example.com\n")


def serial_in(file):
    return int(sh(f"openssl x509 -noout -serial -in {file}").strip().split("=")[1], 16)


def serial_of():
    """The serial number of the certificate that clients are shown."""
    shown = sh("openssl s_client -connect 127.0.0.1:443 -servername example.com </dev/null 2>/dev/null | openssl x509 -noout -serial")
    return int(shown.strip().split("=")[1], 16)


@fact
def certificates_of_certbot_are_served_and_renewed():
    serve_certificates()
    sh(blocks("tls.md", "The socket on port 443")[0])
    obtain, again, apply = blocks("tls.md", "Certificates from certbot")
    sh(obtain)
    live = "/etc/letsencrypt/live/example.com/fullchain.pem"
    first = serial_in(live)
    sh(again)
    settings = blocks("tls.md", "HTTPS", "toml")[0]
    tls = next(line for line in settings.splitlines() if line.startswith("tls"))
    edit("[admin]", f"{tls}\n\n[admin]")
    root = "/opt/authority/.local/share/caddy/pki/authorities/local/root.crt"
    output = sh(apply.replace("curl ", f"sleep 1; curl --cacert {root} "))
    assert "app on port 3000" in output, output
    shown = sh(blocks("tls.md", "Renewal")[0])
    assert "notAfter=" in shown, shown
    assert serial_of() == first
    key = os.stat("/etc/tollgate/tls/privkey.pem")
    assert stat.S_IMODE(key.st_mode) == 0o640 and key.st_uid == 0
    # Away from a terminal, certbot waits for up to eight minutes before it renews, to spread the load on the authority.
    sh("certbot renew --force-renewal --no-random-sleep-on-renew")
    assert serial_in(live) != first
    eventually("the new certificate is served", lambda: serial_of() == serial_in(live))
    assert "new certificates are in force" in journal()


@fact
def certificates_of_caddy_are_served_and_renewed():
    # The same authority stands in for one on the internet.
    internet, here = "acme-v02.api.letsencrypt.org-directory", "localhost-8555-acme-local-directory"
    caddyfile = blocks("tls.md", "Certificates from Caddy", "caddyfile")[0]
    root = "/etc/caddy/root.crt"
    sh(f"cp /opt/authority/.local/share/caddy/pki/authorities/local/root.crt {root}; chmod 644 {root}")
    issuer = f"issuer acme {{\n            dir https://localhost:8555/acme/local/directory\n            trusted_roots {root}\n"
    write("/etc/caddy/Caddyfile", caddyfile.replace("issuer acme {\n", issuer))
    path, service = (unit.replace(internet, here) for unit in blocks("tls.md", "Certificates from Caddy", "ini"))
    write("/etc/systemd/system/tollgate-certificate.path", path)
    write("/etc/systemd/system/tollgate-certificate.service", service)
    commands = blocks("tls.md", "Certificates from Caddy")[0].splitlines()
    sh("\n".join(commands[:3]))
    folder = f"/var/lib/caddy/.local/share/caddy/certificates/{here}/example.com"
    chain = f"{folder}/example.com.crt"
    eventually("Caddy has a certificate", lambda: os.path.exists(chain))
    eventually("Caddy's certificate is served", lambda: serial_of() == serial_in(chain))
    assert "308" in get("http://example.com/page", "-I")
    before = serial_of()
    # Caddy obtains another one when its own is gone.
    sh(f"systemctl stop caddy; rm -r {folder}; systemctl start caddy")
    eventually("Caddy has another certificate", lambda: os.path.exists(chain) and serial_in(chain) != before)
    sh("\n".join(commands[3:]))
    eventually("it is served", lambda: serial_of() == serial_in(chain))
    sh("systemctl disable --now tollgate-certificate.path; systemctl stop caddy authority")


@fact
def the_compose_example_serves_through_nginx():
    compose = f"{HERE}/compose"
    write("/etc/hosts", open("/etc/hosts").read() + "\n127.0.1.1 app\n127.0.1.2 tollgate\n127.0.1.3 nginx\n")
    sh("systemctl stop tollgate.socket tollgate.service")
    # The service names of compose are addresses of loopback here.
    settings = open(f"{compose}/tollgate.toml").read()
    assert 'listen = "0.0.0.0:8888"' in settings
    sh(f"tollgate check {compose}/tollgate.toml")
    sh(f"""systemd-run --quiet --unit=compose-app python3 {compose}/app.py
    systemd-run --quiet --unit=compose-tollgate --property=DynamicUser=yes --property=StateDirectory=compose tollgate run --config {compose}/tollgate.toml
    mkdir -p /etc/nginx/conf.d; cp {compose}/nginx.conf /etc/nginx/nginx-compose.conf
    printf 'events {{}}\nhttp {{ include /etc/nginx/nginx-compose.conf; }}\n' >/etc/nginx/compose.conf
    nginx -t -q -c /etc/nginx/compose.conf && systemd-run --quiet --unit=compose-nginx nginx -g 'daemon off;' -c /etc/nginx/compose.conf""")
    eventually("nginx serves", lambda: "Hello" in get("http://127.0.1.3/", "--interface", "127.0.9.9"))
    told = get("http://127.0.1.3/", "--interface", "127.0.9.9")
    assert "127.0.9.9" in told, told
    assert "is alive" in sh("tollgate health"), "the health check of the container"
    sh("systemctl stop compose-nginx compose-tollgate compose-app; systemctl start tollgate.socket tollgate.service")


@fact
def an_application_behind_nginx_is_protected_as_the_page_says():
    before = open(SETTINGS).read()
    sh("systemctl stop tollgate.socket tollgate.service; rm -rf /etc/systemd/system/tollgate.socket.d; systemctl daemon-reload")
    write(SETTINGS, blocks("behind-a-proxy.md", "The gate", "toml")[0])
    sh("systemctl start tollgate.socket tollgate.service")
    # Before: nginx forwards to the application.
    site = blocks("behind-a-proxy.md", "nginx", "nginx")[0]
    write("/etc/nginx/nginx.conf", "user www-data;\npid /run/nginx.pid;\nevents {}\nhttp { include /etc/nginx/site.conf; }\n")
    write("/etc/nginx/site.conf", "server { listen 80; location / { proxy_pass http://127.0.0.1:8080; } }\n")
    sh("systemctl restart nginx")
    assert "app on port 8080" in get("http://127.0.0.1/")
    write("/etc/nginx/site.conf", site)
    load = Load("127.0.0.1", 80)
    time.sleep(0.3)
    sh("systemctl reload tollgate")
    output = sh(blocks("behind-a-proxy.md", "In short")[0])
    time.sleep(1)
    answered, failures = load.end()
    assert not failures and answered > 100, (answered, failures[:5], output)
    for client in ["127.0.8.1", "127.0.8.2"]:
        assert "app on port 8080" in get("http://127.0.0.1/", "--interface", client)
    eventually("both clients are told apart", lambda: all(client in sh(blocks("behind-a-proxy.md", "Check it")[0]) for client in ["127.0.8.1/32", "127.0.8.2/32"]))
    assert "Notice" not in sh("tollgate doctor --once")
    sh("systemctl stop nginx tollgate.socket tollgate.service")
    write(SETTINGS, before)
    # As the section on HTTPS has left it, for the facts below.
    sh(blocks("tls.md", "The socket on port 443")[0])
    sh("systemctl start tollgate.service")


@fact
def a_removed_package_leaves_settings_and_state_and_can_be_installed_again():
    remove, purge = blocks("install.md", "Remove")[0].splitlines()
    sh(remove)
    assert not os.path.exists("/usr/bin/tollgate") and os.path.exists(SETTINGS) and os.path.exists("/var/lib/tollgate")
    sh("systemctl is-active tollgate.service tollgate.socket", fails=True)
    sh(f"apt-get install {glob.glob(HERE + '/v2/*.deb')[0]}")
    assert sh("systemctl is-active tollgate.socket tollgate.service").split() == ["active", "active"]
    assert serial_of() > 0, "with the settings of before"


@fact
def a_purged_package_leaves_nothing_but_the_administrators_files():
    assert os.path.exists("/etc/tollgate/tls/privkey.pem"), "a copy that install-certificate has made"
    sh("rm -r /etc/systemd/system/tollgate.socket.d /etc/systemd/system/tollgate-certificate.*")
    remove, purge = blocks("install.md", "Remove")[0].splitlines()
    sh(purge)
    for path in [SETTINGS, "/etc/tollgate", "/var/lib/tollgate", "/var/log/tollgate", "/etc/logrotate.d/tollgate"]:
        assert not os.path.exists(path), path
    left = sh("find /etc/systemd /usr/lib/systemd /var/lib/systemd -name 'tollgate*'")
    assert left == "", left
    assert sh("systemctl list-units --all --no-legend 'tollgate*'").strip() == ""
    sh("dpkg-query -W tollgate", fails=True)


@fact
def the_static_binary_runs_anywhere_and_may_listen_on_port_80_with_a_capability():
    unpack, capability, _ = blocks("install.md", "Any Linux: the static binary")
    assert re.match(r"tollgate \d", sh(unpack, cwd=f"{HERE}/archive"))
    # Nothing but the binary and the address of a name server.
    serve_names("127.0.0.53")
    sh("mkdir -p /opt/empty/etc; cp /usr/local/bin/tollgate /opt/empty; echo nameserver 127.0.0.53 >/opt/empty/etc/resolv.conf")
    arguments = "gate --listen 127.0.0.1:90 --admin 127.0.0.1:0 --backend http://site.example:8080"
    sh(f"systemd-run --quiet --unit=in-empty-root chroot /opt/empty /tollgate {arguments}")
    eventually("it serves", lambda: "app on port 8080" in get("http://127.0.0.1:90/"))
    sh("systemctl stop in-empty-root")
    allow, run = capability.strip().splitlines()
    as_nobody = "systemd-run --quiet --unit=by-hand --property=User=nobody "
    sh(as_nobody + run.replace("tollgate gate", "/usr/local/bin/tollgate gate --admin 127.0.0.1:0"))
    eventually("it names the missing privilege", lambda: "setcap cap_net_bind_service=+ep /usr/local/bin/tollgate" in sh("journalctl -u by-hand --no-pager"))
    sh("systemctl reset-failed by-hand || true")
    sh(allow)
    # By a name, so that the resolver of the static C library is used too.
    sh(as_nobody + run.replace("tollgate gate", "/usr/local/bin/tollgate gate").replace("127.0.0.1:8080", "app:8080"))
    write("/etc/hosts", open("/etc/hosts").read() + "\n127.0.0.1 app\n")
    eventually("it serves", lambda: "app on port 8080" in get("http://127.0.0.1/"))
    sh("systemctl stop by-hand")


@fact
def the_units_of_the_archive_run_the_static_binary():
    unpack, _, service = blocks("install.md", "Any Linux: the static binary")
    # A purged package leaves its user.
    sh("if id tollgate; then userdel tollgate; fi; rm -rf /usr/local/bin/tollgate")
    sh(unpack + service, cwd=f"{HERE}/archive")
    assert "app on port 8080" in get("http://127.0.0.1:8888/")
    assert os.readlink(f"/proc/{main_pid()}/exe") == "/usr/local/bin/tollgate"
    sh("""systemctl disable --now tollgate.socket tollgate.service
    rm -r /etc/systemd/system/tollgate.* /etc/tollgate
    systemctl daemon-reload""")


@fact
def the_commands_of_the_image_serve_without_a_container():
    """With the image's entry point, environment and user, in a root with its files. A container engine would add namespaces."""
    build, run = blocks("install.md", "Containers")[0].strip().splitlines()
    assert build == "docker build -t tollgate -f contrib/docker/Dockerfile ."
    dockerfile = open(f"{HERE}/Dockerfile").read()
    line = lambda start: " ".join(json.loads(re.search(rf"^{start} (\[.*\])$", dockerfile, re.M).group(1)))
    entry, default, health = line("ENTRYPOINT"), line("CMD"), line("HEALTHCHECK .* CMD")
    environment = re.search(r"^ENV (.*)$", dockerfile, re.M).group(1)
    user = "65532:65532"
    root = "/opt/image"
    sh(f"""mkdir -p {root}/usr/bin {root}/etc/tollgate {root}/tmp {root}/var/lib; cp /usr/local/bin/tollgate {root}/usr/bin/
    install -d -m 700 -o 65532 -g 65532 {root}/var/lib/tollgate
    echo '127.0.0.1 host.docker.internal' >{root}/etc/hosts""")
    write(f"{root}/etc/tollgate/tollgate.toml", '[gate]\nlisten = "0.0.0.0:8888"\nbackend = "http://host.docker.internal:3000"\n')
    inside = f"chroot --userspec={user} {root}"
    # The words after the name of the image.
    for command, port in [(run.split(" tollgate ", 1)[1], 8080), (default, 3000)]:
        sh(f"systemd-run --quiet --unit=in-image --setenv={environment} {inside} {entry} {command}")
        eventually("it serves", lambda: f"app on port {port}" in get("http://127.0.0.1:8888/"))
        assert "is alive" in sh(f"{inside} {health}")
        sh("systemctl stop in-image")
    assert os.listdir(f"{root}/var/lib/tollgate"), "what the gate has learned is kept in the volume"


def main():
    serve(("127.0.0.1", 8080))
    serve(("127.0.0.1", 3000))
    facts = [function for function in FACTS if function.__name__ in sys.argv[1:] or not sys.argv[1:]]
    for function in facts:
        print(function.__name__.replace("_", " "), flush=True)
        function()
    if facts == FACTS:
        every_command_of_the_pages_was_run()
    print(f"{len(facts)} facts hold")


def every_command_of_the_pages_was_run():
    count = 0
    for page, languages in LANGUAGES.items():
        for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", open(f"{HERE}/{page}").read(), re.M | re.S):
            is_run = (page, block) in USED or block.splitlines()[0] in RUN_ELSEWHERE
            assert is_run or language not in languages, f"no fact runs this block of {page}:\n{block}"
            count += (page, block) in USED
    print(f"{count} blocks of the pages were run")


main()
