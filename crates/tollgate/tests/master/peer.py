"""An original gatekeeper on libzmq: sends the messages from standard input, and prints received ones.

With CURVE, the third argument is the master's public key and the fourth the file of this side's. Lines in: `accept N`, to report N accepted requests of 127.0.0.1. Lines out: one for every order, its frames in hexadecimal.
"""

import sys
import threading
import time

import zmq

accounting, control = sys.argv[1:3]
context = zmq.Context()
server, own = (sys.argv[3:5] + [None, None])[:2]


def socket(kind):
    made = context.socket(kind)
    if server is not None:
        import zmq.auth

        made.curve_serverkey = server.encode()
        made.curve_publickey, made.curve_secretkey = zmq.auth.load_certificate(own)
    return made


publisher = socket(zmq.PUB)
publisher.connect(f"tcp://{accounting}")


def hear():
    subscriber = socket(zmq.SUB)
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
