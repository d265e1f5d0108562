"""A registry with reassigned ids: it answers like the right one, but each id is another schema's.

It simulates a restore from an old backup, or another registry under the same address.
"""

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

HOST = "127.0.0.1"
TIMEOUT_S = 5.0
BY_ID = re.compile(r"(?<=/schemas/ids/)\d+")


def rotated_ids(ids: Sequence[int], by: int) -> dict[int, int]:
    """Map each id to the one `by` places behind it, in a circle."""
    return {each: ids[(place + by) % len(ids)] for place, each in enumerate(ids)}


class WrongRegistry:
    """An HTTP server in front of the right registry, in its own threads."""

    def __init__(self, url: str) -> None:
        """Set it up without a request; `learn` reads the ids from the right registry's `url`."""
        self._url = url
        self._given: dict[int, int] = {}
        self._meant: dict[int, int] = {}
        self.told = 0
        """The number of wrong answers."""
        wrong = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                wrong.answer(self, None)

            def do_POST(self) -> None:
                wrong.answer(self, self.rfile.read(int(self.headers["Content-Length"] or 0)))

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="ids", daemon=True).start()

    def learn(self) -> bool:
        """Reassign the ids; False if the right registry does not answer."""
        try:
            subjects = json.loads(self._ask(f"{self._url}/subjects")[1])
            latest = (f"{self._url}/subjects/{each}/versions/latest" for each in subjects)
            ids = sorted({int(json.loads(self._ask(url)[1])["id"]) for url in latest})
        except (OSError, ValueError, KeyError, TypeError):
            return False
        self._given, self._meant = rotated_ids(ids, 1), rotated_ids(ids, -1)
        return len(ids) > 1

    def answer(self, handler: BaseHTTPRequestHandler, body: bytes | None) -> None:
        """Forward a request to the right registry, and its answer with this one's ids."""
        path = BY_ID.sub(lambda found: str(self._meaning(int(found[0]))), handler.path)
        right = urlsplit(self._url)
        try:
            status, said = self._ask(f"{right.scheme}://{right.netloc}{path}", body)
        except OSError:
            handler.close_connection = True  # the right one is down, so this one is too
            return
        said = self._with_ids(said)
        handler.send_response(status)
        handler.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        handler.send_header("Content-Length", str(len(said)))
        with suppress(ConnectionError):  # the asking worker was killed meanwhile
            handler.end_headers()
            handler.wfile.write(said)

    def _meaning(self, schema_id: int) -> int:
        self.told += 1
        return self._meant.get(schema_id, schema_id)

    def _with_ids(self, said: bytes) -> bytes:
        try:
            answer = json.loads(said)
        except ValueError:
            return said
        if not isinstance(answer, dict) or answer.get("id") not in self._given:
            return said
        self.told += 1
        return json.dumps({**answer, "id": self._given[answer["id"]]}).encode()

    def _ask(self, url: str, body: bytes | None = None) -> tuple[int, bytes]:
        kind = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(url, body, kind)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as found:
                return found.status, found.read()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
