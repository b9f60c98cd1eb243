"""A bad network in user space, for kernels without netem: forwards packets between pairs of tun devices with delay and loss.

Arguments: names of devices, two for each pair. Prints "made" when they are there; whoever started it moves them into their namespaces.
Lines in: delay and jitter in milliseconds, and loss in percent, each way.
"""

import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

TUNSETIFF, TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
PACKETS_MAX = 10_000


def device(name):
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH", name.encode(), TUN_WITHOUT_HEADER))
    return file


names = sys.argv[1:]
files = [device(name) for name in names]
other = {file: files[place ^ 1] for place, file in enumerate(files)}
delay, jitter, loss = 0.0, 0.0, 0.0
late = []
count = 0
print("made", flush=True)
while True:
    pause = max(0.0, late[0][0] - time.monotonic()) if late else 1.0
    for ready in select.select(files + [sys.stdin], [], [], pause)[0]:
        if ready is sys.stdin:
            line = sys.stdin.readline()
            if not line:
                sys.exit()
            delay, jitter, loss = (float(word) for word in line.split())
            continue
        try:
            packet = os.read(ready, 65536)
        except OSError:
            continue
        if random.random() * 100 >= loss and len(late) < PACKETS_MAX:
            count += 1
            due = time.monotonic() + (delay + random.uniform(-jitter, jitter)) / 1000
            heapq.heappush(late, (due, count, other[ready], packet))
    while late and late[0][0] <= time.monotonic():
        _, _, file, packet = heapq.heappop(late)
        try:
            os.write(file, packet)
        except OSError:
            pass
