"""A ZeroMQ proxy between gates and a master, in both directions.

Arguments: the two addresses for gates, and the two of the master. Prints "ready".
"""

import sys
import threading

import zmq

accounting, control, master_accounting, master_control = (f"tcp://{address}" for address in sys.argv[1:5])
context = zmq.Context()
gates_report, master_hears = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
gates_report.bind(accounting)
master_hears.connect(master_accounting)
gates_listen, master_tells = context.socket(zmq.XPUB), context.socket(zmq.XSUB)
# Forwards every subscription, also to a known topic, so that the master sends all current delays.
gates_listen.setsockopt(zmq.XPUB_VERBOSE, 1)
gates_listen.bind(control)
master_tells.connect(master_control)
threading.Thread(target=zmq.proxy, args=(gates_report, master_hears), daemon=True).start()
print("ready", flush=True)
zmq.proxy(master_tells, gates_listen)
