"""An original Smockron master on libzmq, by its shipped rule: accounting in, DELAY_UNTIL out.

Arguments: accounting and control address, interval and burst in milliseconds, and, with CURVE, the files of its keys and of the gates'.
Lines out: "ready", then one for every report, its frames in hexadecimal.
"""

import sys
import time

import zmq

accounting, control, interval, burst = sys.argv[1:5]
interval, burst = int(interval), int(burst)
context = zmq.Context()


def bound(kind, address):
    socket = context.socket(kind)
    if len(sys.argv) > 5:
        import zmq.auth

        public, secret = zmq.auth.load_certificate(sys.argv[5])
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = public, secret
    socket.bind(f"tcp://{address}")
    return socket


reports = bound(zmq.SUB, accounting)
reports.setsockopt(zmq.SUBSCRIBE, b"")
orders = bound(zmq.PUB, control)
known = {}
print("ready", flush=True)
while True:
    frames = reports.recv_multipart()
    print(" ".join(frame.hex() for frame in frames), flush=True)
    domain, status, identifier, received, delayed = frames[:5]
    if status == b"REJECTED":
        continue
    master_now = int(time.time() * 1000)
    now = max(int(delayed if status == b"DELAYED" else received), master_now)
    before = known.get((domain, identifier))
    if before is not None and before >= now - burst:
        new = before + interval
    else:
        new = now - burst + interval
    known[domain, identifier] = new
    if new > master_now:
        orders.send_multipart([domain, b"DELAY_UNTIL", identifier, str(new).encode()])
