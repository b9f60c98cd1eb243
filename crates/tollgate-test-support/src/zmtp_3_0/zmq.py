"""The part of pyzmq that the peers of the tests use, on an old libzmq with the protocol version ZMTP 3.0.

Wheels of pyzmq with such a libzmq need an old Python, but the library in them can be loaded by any Python. With this
directory on its path, a peer imports this module instead of pyzmq. The environment variable TOLLGATE_TEST_LIBZMQ has
the path of the library.
"""

import ctypes
import glob
import os

PUB, SUB, XPUB, XSUB = 1, 2, 9, 10
SUBSCRIBE, RCVMORE = 6, 13
SNDMORE = 2
BYTES_MAX = 65536

# libzmq needs libsodium, which is in the same directory, where the loader does not search.
for sodium in glob.glob(os.path.join(os.path.dirname(os.environ["TOLLGATE_TEST_LIBZMQ"]), "libsodium*")):
    ctypes.CDLL(sodium, ctypes.RTLD_GLOBAL)
library = ctypes.CDLL(os.environ["TOLLGATE_TEST_LIBZMQ"], use_errno=True)
library.zmq_ctx_new.restype = library.zmq_socket.restype = ctypes.c_void_p
library.zmq_strerror.restype = ctypes.c_char_p


def done(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), library.zmq_strerror(ctypes.get_errno()).decode())
    return result


def version():
    parts = [ctypes.c_int() for _ in range(3)]
    library.zmq_version(*map(ctypes.byref, parts))
    return tuple(part.value for part in parts)


# Later versions use ZMTP 3.1.
assert version() < (4, 3, 3), version()


class Context:
    def __init__(self):
        self.context = ctypes.c_void_p(library.zmq_ctx_new())

    def socket(self, kind):
        return Socket(self.context, kind)


class Socket:
    def __init__(self, context, kind):
        self.socket = ctypes.c_void_p(library.zmq_socket(context, kind))
        self.buffer = ctypes.create_string_buffer(BYTES_MAX)

    def connect(self, endpoint):
        done(library.zmq_connect(self.socket, endpoint.encode()))

    def bind(self, endpoint):
        done(library.zmq_bind(self.socket, endpoint.encode()))

    def setsockopt(self, option, value):
        done(library.zmq_setsockopt(self.socket, option, value, ctypes.c_size_t(len(value))))

    def send_multipart(self, frames):
        for place, frame in enumerate(frames):
            flags = SNDMORE if place + 1 < len(frames) else 0
            done(library.zmq_send(self.socket, frame, ctypes.c_size_t(len(frame)), flags))

    def recv_multipart(self):
        frames = []
        more = ctypes.c_int(1)
        while more.value:
            length = done(library.zmq_recv(self.socket, self.buffer, ctypes.c_size_t(BYTES_MAX), 0))
            frames.append(self.buffer.raw[:length])
            size = ctypes.c_size_t(ctypes.sizeof(more))
            done(library.zmq_getsockopt(self.socket, RCVMORE, ctypes.byref(more), ctypes.byref(size)))
        return frames
