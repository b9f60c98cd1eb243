"""An original gatekeeper on libzmq: says what it is told to say on standard input, and prints what it hears.

Lines in: `accept N`, to report N accepted requests of 127.0.0.1. Lines out: one for every order, its frames in hexadecimal.
"""

import sys
import threading
import time

import zmq

accounting, control = sys.argv[1:3]
context = zmq.Context()
publisher = context.socket(zmq.PUB)
publisher.connect(f"tcp://{accounting}")


def hear():
    subscriber = context.socket(zmq.SUB)
    subscriber.setsockopt(zmq.SUBSCRIBE, b"default\0")
    subscriber.connect(f"tcp://{control}")
    while True:
        print(" ".join(frame.hex() for frame in subscriber.recv_multipart()), flush=True)


threading.Thread(target=hear, daemon=True).start()
for line in sys.stdin:
    word, count = line.split()
    assert word == "accept"
    for _ in range(int(count)):
        now = str(int(time.time() * 1000)).encode()
        publisher.send_multipart([b"default\0", b"ACCEPTED", b"127.0.0.1", now, b"", b""])
