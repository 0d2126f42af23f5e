"""The web server's worker: a thread takes a request up only once it has come.

gunicorn's threads read a request as it comes. Whoever sends a few of them slowly has all threads
wait, and nobody else is answered. Here what is short waits in the system's buffers instead, where
a connection costs no thread. What is longer is taken up when its headers are there: the pages
read it from people who are signed in, and refuse it unread to others.
"""

from __future__ import annotations

import errno
import fcntl
import re
import socket
import struct
import termios
import time
from typing import Any

from gunicorn import util  # type: ignore[import-untyped]
from gunicorn.workers.gthread import TConn, ThreadWorker  # type: ignore[import-untyped]

# Headers, and the longest form that is read from somebody who isn't signed in.
WAITING_BYTES = 80 * 1024
# Of the system's buffer, which must hold as much however it is cut into packets.
BUFFER_BYTES = 256 * 1024
PATIENCE_S = 30.0
LOOK_EVERY_S = 0.01
# What an answered request still sends is thrown away for at most this long.
LINGER_S = 0.1
DRAIN_S = 0.05
_LENGTH = re.compile(
    rb"^content-length:[ \t]*([0-9]{1,18})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE
)


def is_whole(received: bytes) -> bool:
    """Return whether ``received``, the beginning of a request, can be answered as it is.

    That is all of it; or its headers, where these say that more follows than is waited for.
    """
    head, end, body = received.partition(b"\r\n\r\n")
    if not end:
        return len(received) >= WAITING_BYTES
    said = _LENGTH.search(head)
    length = int(said[1]) if said else 0
    return len(body) >= length or len(head) + len(end) + length > WAITING_BYTES


class Connection(TConn):
    """A connection that knows whether its next request has come."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # Its request has come before a thread looks at it.
        self.data_ready = True
        self.wait_again()

    def wait_again(self) -> None:
        """Begin to wait for a request."""
        self.until = time.monotonic() + PATIENCE_S
        self._looked_at = -1

    def has_come(self) -> bool:
        """Return whether the request can be taken up, or the connection was ended."""
        if self.parser is not None and self.parser.unreader.buf.getvalue():
            return True  # read along with the one before it
        try:
            size = struct.unpack("i", fcntl.ioctl(self.sock, termios.FIONREAD, b"\0" * 4))[0]
            if size == self._looked_at:
                return False
            self._looked_at = size
            received = self.sock.recv(WAITING_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True  # a thread finds out what is wrong with it
        return not received or is_whole(received)

    def close(self, graceful: bool = False) -> None:
        """Close it at once; a thread has waited for its last bytes where it had to."""
        util.close(self.sock)


class Worker(ThreadWorker):
    """gunicorn's threads with a waiting room before them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waiting: list[Connection] = []

    def init_process(self) -> None:
        for listener in self.sockets:
            listener.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        super().init_process()

    def accept(self, listener: Any) -> None:
        try:
            sock, address = listener.accept()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ECONNABORTED, errno.EWOULDBLOCK):
                raise
            return
        self.nr_conns += 1
        self.enqueue_req(Connection(self.cfg, sock, address, listener.getsockname()))

    def enqueue_req(self, conn: Connection) -> None:
        conn.wait_again()
        if conn.has_come():
            super().enqueue_req(conn)
        else:
            self._waiting.append(conn)

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        super().wait_for_and_dispatch_events(
            min(timeout, LOOK_EVERY_S) if self._waiting else timeout
        )
        now, waiting, self._waiting = time.monotonic(), self._waiting, []
        for conn in waiting:
            if conn.has_come():
                super().enqueue_req(conn)
            elif now >= conn.until or not self.alive:
                self.nr_conns -= 1
                conn.close()
            else:
                self._waiting.append(conn)

    def _keepalive_after(self, conn: Connection, keepalive: bool) -> bool:
        """Return whether the connection may send another request; called in a thread."""
        if keepalive and conn.parser.finish_body(deadline=time.monotonic() + DRAIN_S):
            return True
        util.close_graceful(conn.sock, timeout=LINGER_S)
        return False
