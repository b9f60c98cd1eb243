"""Waits until the gates whose addresses for operators have these ports hear the master."""

import sys
import time
import urllib.request

end = time.monotonic() + 30
for port in sys.argv[1:]:
    heard = False
    while not heard:
        if time.monotonic() > end:
            sys.exit(f"the gate with its metrics on port {port} does not hear the master")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
            heard = any(line.startswith("tollgate_master_heard{") and line.endswith(" 1") for line in lines)
        except OSError:
            pass
        time.sleep(0.05)
