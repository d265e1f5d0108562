"""A store of objects in this process: moto's server, and a wire to it that can be cut."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import fsspec
import pytest
from moto.server import ThreadedMotoServer

CHUNK = 16_384


@contextmanager
def s3_server(wire: "Wire | None" = None) -> Iterator[ThreadedMotoServer]:
    """One on a free port, with credentials that are nobody's, and a bucket named `bucket`."""
    made = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    made.start()
    host, port = made.get_host_and_port()
    with pytest.MonkeyPatch.context() as given:
        given.setenv("AWS_ACCESS_KEY_ID", "nobody")
        given.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        given.setenv("AWS_DEFAULT_REGION", "us-east-1")
        given.setenv("AWS_MAX_ATTEMPTS", "1")
        given.setenv("AWS_ENDPOINT_URL", wire.to(port) if wire else f"http://{host}:{port}")
        fsspec.filesystem("s3").clear_instance_cache()
        files = fsspec.filesystem("s3")
        if not files.exists("bucket"):
            files.mkdir("bucket")
        yield made
        files.clear_instance_cache()
    made.stop()
    if wire:
        wire.close()


class Wire:
    """Carries bytes between clients and a server; an answer may be cut after so many."""

    def __init__(self) -> None:
        self.cut_after: int | None = None
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))

    def to(self, port: int) -> str:
        """Begin to carry to a port here; returns where clients are to go."""
        threading.Thread(target=self._accept, args=(port,), daemon=True).start()
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._listener.close()

    def _accept(self, port: int) -> None:
        with suppress(OSError):  # it was closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", port))
                for pair in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        carried = 0
        with suppress(OSError):
            while data := source.recv(CHUNK):
                carried += len(data)
                if answers and self.cut_after is not None and carried > self.cut_after:
                    self.cuts += 1
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
