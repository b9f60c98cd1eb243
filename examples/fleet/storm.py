"""Asks three gates at once, as one caller, as fast as they answer; and as another, twice a second. Says what each got."""

import http.client
import sys
import threading
import time

seconds, what = float(sys.argv[1]), sys.argv[2]
end = time.monotonic() + seconds
counts = {"greedy": [0, 0], "modest": [0, 0]}
lock = threading.Lock()


def ask(port, key, pause):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    while time.monotonic() < end:
        connection.request("GET", "/fleet.toml", headers={"x-key": key})
        answer = connection.getresponse()
        answer.read()
        with lock:
            counts[key][answer.status != 200] += 1
        time.sleep(pause)


callers = [(18881, "greedy", 0.005), (18882, "greedy", 0.005), (18883, "greedy", 0.005), (18881, "modest", 0.5)]
threads = [threading.Thread(target=ask, args=caller) for caller in callers]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(f"{what}:")
for key, (served, refused) in counts.items():
    print(f"   {key}: {served / seconds:5.1f} a second served, {refused / seconds:6.1f} refused")
