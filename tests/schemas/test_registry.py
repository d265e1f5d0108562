"""Each answer, refusal or silence of the registry raises the error that names the remedy."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rollcall.schemas.avro_schemas import schema_text
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import Refused, TopicsDiffer, Unavailable, Unfit, UnknownSchema
from rollcall.schemas.messages import Control
from rollcall.schemas.registry import TIMEOUT_S, HttpRegistry, subject_of

TOPIC = "rl.control"
TEXT = schema_text(Control)
LOOKUP = ("POST", "/subjects/rl.control-value")
BY_ID = ("GET", "/schemas/ids/7")
REGISTER = ("POST", "/subjects/rl.control-value/versions")
SET_LEVEL = ("PUT", "/config/rl.control-value")
GET_LEVEL = ("GET", "/config/rl.control-value")
QUICK = {"max.retries": "0"}
"""Settings come as text, from a file or a variable."""
NO_SUBJECT = (404, {"error_code": 40401, "message": "Subject not found"})
NO_SCHEMA = (404, {"error_code": 40403, "message": "Schema not found"})


class FakeRegistry:
    """Gives configured answers, records requests, and is silent if configured so."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}
        self.silent = False
        self.asked: list[tuple[str, str, Any]] = []
        self.over = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))

    def handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(length)) if length else None
                path = self.path.partition("?")[0]
                fake.asked.append((self.command, path, body))
                if fake.silent:
                    fake.over.wait(30)
                    return
                status, answer = fake.answers.get((self.command, path), NO_SUBJECT)
                content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = answer

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def __enter__(self) -> "FakeRegistry":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry() as fake:
        yield fake


@pytest.fixture
def registry(fake: FakeRegistry) -> HttpRegistry:
    return HttpRegistry(fake.url, QUICK)


def ask_everything(registry: HttpRegistry) -> list[Any]:
    return [
        lambda: registry.writer_id(TOPIC, TEXT),
        lambda: registry.schema_of(7),
        lambda: registry.compatibility(TOPIC),
        lambda: registry.register(TOPIC, TEXT, "FULL_TRANSITIVE"),
    ]


EACH_CALL = pytest.mark.parametrize("call", range(4), ids=["look up", "fetch", "level", "register"])


def test_subjects_are_called_as_kcat_and_connect_expect() -> None:
    assert subject_of("rl.model.calls.policy") == "rl.model.calls.policy-value"


def test_looking_up_a_schema_returns_its_id_and_registers_nothing(
    fake: FakeRegistry, registry: HttpRegistry
) -> None:
    fake.answers[LOOKUP] = (
        200,
        {"subject": "rl.control-value", "id": 7, "version": 1, "schema": TEXT},
    )

    assert registry.writer_id(TOPIC, TEXT) == 7

    ((method, path, body),) = fake.asked
    assert (method, path) == LOOKUP
    assert body["schema"] == TEXT


@pytest.mark.parametrize("answer", [NO_SUBJECT, NO_SCHEMA], ids=["40401", "40403"])
def test_a_missing_schema_is_reported_with_subject_and_remedy(
    fake: FakeRegistry, registry: HttpRegistry, answer: tuple[int, Any]
) -> None:
    fake.answers[LOOKUP] = answer

    with pytest.raises(TopicsDiffer, match=r"'rl\.control-value'.*run `rollcall topics apply`"):
        registry.writer_id(TOPIC, TEXT)


def test_a_schema_is_fetched_by_its_id(fake: FakeRegistry, registry: HttpRegistry) -> None:
    fake.answers[BY_ID] = (200, {"schema": TEXT})

    assert registry.schema_of(7) == TEXT


def test_an_unregistered_id_is_reported_as_unknown(
    fake: FakeRegistry, registry: HttpRegistry
) -> None:
    fake.answers[BY_ID] = NO_SCHEMA

    with pytest.raises(UnknownSchema, match=f"{fake.url} .* 7"):
        registry.schema_of(7)


def test_registering_sets_the_compatibility_level_first(
    fake: FakeRegistry, registry: HttpRegistry
) -> None:
    fake.answers[SET_LEVEL] = (200, {"compatibility": "FULL_TRANSITIVE"})
    fake.answers[REGISTER] = (200, {"id": 7})

    assert registry.register(TOPIC, TEXT, "FULL_TRANSITIVE") == 7

    (level, schema) = fake.asked
    assert level == (*SET_LEVEL, {"compatibility": "FULL_TRANSITIVE"})
    assert (schema[:2], schema[2]["schema"]) == (REGISTER, TEXT)


def test_an_incompatible_schema_is_refused_with_the_registrys_reason(
    fake: FakeRegistry, registry: HttpRegistry
) -> None:
    fake.answers[SET_LEVEL] = (200, {"compatibility": "FULL_TRANSITIVE"})
    fake.answers[REGISTER] = (409, {"error_code": 409, "message": "field 'kind' has no default"})

    with pytest.raises(TopicsDiffer, match=r"'rl\.control-value' .* 'kind'"):
        registry.register(TOPIC, TEXT, "FULL_TRANSITIVE")


def test_registering_at_a_url_without_subjects_questions_the_url(registry: HttpRegistry) -> None:
    with pytest.raises(Unavailable, match="is the URL right"):
        registry.register(TOPIC, TEXT, "FULL_TRANSITIVE")


def test_the_compatibility_of_a_subject_is_unset_by_default(
    fake: FakeRegistry, registry: HttpRegistry
) -> None:
    assert registry.compatibility(TOPIC) is None

    fake.answers[GET_LEVEL] = (200, {"compatibilityLevel": "BACKWARD_TRANSITIVE"})

    assert registry.compatibility(TOPIC) == "BACKWARD_TRANSITIVE"


@EACH_CALL
@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_a_failing_registry_is_unavailable(
    fake: FakeRegistry, registry: HttpRegistry, status: int, call: int
) -> None:
    answer = (status, {"error_code": status, "message": "not now"})
    fake.answers = dict.fromkeys((LOOKUP, BY_ID, REGISTER, SET_LEVEL, GET_LEVEL), answer)

    with pytest.raises(Unavailable, match=f"{fake.url} fails: not now"):
        ask_everything(registry)[call]()


@EACH_CALL
def test_an_unauthorised_client_ends_the_process_naming_the_setting(
    fake: FakeRegistry, registry: HttpRegistry, call: int
) -> None:
    answer = (401, {"error_code": 401, "message": "who are you"})
    fake.answers = dict.fromkeys((LOOKUP, BY_ID, REGISTER, SET_LEVEL, GET_LEVEL), answer)

    with pytest.raises(Unfit, match=r"HTTP 401.*who are you.*registry\.client"):
        ask_everything(registry)[call]()


@EACH_CALL
@pytest.mark.parametrize(
    "page",
    [b"default backend - 404", b"", b'{"detail": "no such resource", "status": 404}'],
    ids=["text", "nothing", "json"],
)
def test_a_foreign_404_does_not_count_as_a_denial(
    fake: FakeRegistry, registry: HttpRegistry, page: bytes, call: int
) -> None:
    fake.answers = dict.fromkeys((LOOKUP, BY_ID, REGISTER, SET_LEVEL, GET_LEVEL), (404, page))

    with pytest.raises(Unavailable, match=f"{fake.url} .* 404 "):
        ask_everything(registry)[call]()


@EACH_CALL
def test_a_request_refused_by_the_registry_is_reported_with_its_reason(
    fake: FakeRegistry, registry: HttpRegistry, call: int
) -> None:
    answer = (422, {"error_code": 42201, "message": "Invalid schema"})
    fake.answers = dict.fromkeys((LOOKUP, BY_ID, REGISTER, SET_LEVEL, GET_LEVEL), answer)

    with pytest.raises(TopicsDiffer, match="Invalid schema"):
        ask_everything(registry)[call]()


def test_a_refused_connection_is_reported_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as once:
        registry = HttpRegistry(f"http://127.0.0.1:{once.getsockname()[1]}")
    began = time.monotonic()

    with pytest.raises(Unavailable, match="does not answer"):
        registry.schema_of(7)

    assert time.monotonic() - began < 1.0


@EACH_CALL
@pytest.mark.parametrize("page", [b"<html>sign in</html>", b"", b"[]", b'"hello"'])
def test_a_web_server_that_is_not_a_registry_is_recognised(
    fake: FakeRegistry, registry: HttpRegistry, page: bytes, call: int
) -> None:
    fake.answers = dict.fromkeys((LOOKUP, BY_ID, REGISTER, SET_LEVEL, GET_LEVEL), (200, page))

    with pytest.raises(Unavailable, match="is the URL right"):
        ask_everything(registry)[call]()


@EACH_CALL
def test_an_unreachable_registry_is_unavailable(call: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as once:
        url = f"http://127.0.0.1:{once.getsockname()[1]}"

    with pytest.raises(Unavailable, match=f"{url} does not answer"):
        ask_everything(HttpRegistry(url, QUICK))[call]()


@EACH_CALL
def test_a_registry_that_never_answers_is_unavailable_after_the_timeout(
    fake: FakeRegistry, call: int
) -> None:
    fake.silent = True
    began = time.monotonic()

    with pytest.raises(Unavailable, match="does not answer"):
        ask_everything(HttpRegistry(fake.url, {**QUICK, "timeout": "0.2"}))[call]()

    assert time.monotonic() - began < TIMEOUT_S


def test_a_failed_request_is_retried(fake: FakeRegistry) -> None:
    fake.answers[BY_ID] = (503, {"error_code": 503, "message": "not now"})

    with pytest.raises(Unavailable):
        HttpRegistry(fake.url, {"max.retries": "2", "retries.wait.ms": "1"}).schema_of(7)

    assert len(fake.asked) == 3


def test_known_schemas_are_not_requested_again(fake: FakeRegistry, registry: HttpRegistry) -> None:
    fake.answers[BY_ID] = (200, {"schema": TEXT})
    fake.answers[LOOKUP] = (
        200,
        {"subject": "rl.control-value", "id": 7, "version": 1, "schema": TEXT},
    )
    codec = Codec(registry)

    for _ in range(3):
        value = codec.encode(TOPIC, Control("pause"))
        assert codec.decode(value, Control) == Control("pause")

    assert [path for _, path, _ in fake.asked] == [LOOKUP[1], BY_ID[1]]


@pytest.mark.parametrize(
    ("url", "settings", "says"),
    [
        ("localhost:8081", {}, "localhost:8081"),
        ("http://localhost:8081", {"max.retires": "1"}, "max.retires"),
        ("http://localhost:8081", {"timeout": "soon"}, "soon"),
        ("http://localhost:8081", {"basic.auth.user.info": "nobody"}, "username"),
    ],
)
def test_invalid_client_settings_are_refused(url: str, settings: dict[str, str], says: str) -> None:
    with pytest.raises(Refused, match=says):
        HttpRegistry(url, settings)


SHAPES = [
    b"null", b"[]", b"[[]]", b'"text"', b"7", b"{}", b"\xff", b"[" * 50_000, b'{"a":' * 50_000,
    json.dumps({"id": "9" * 5000, "schema": 7, "compatibility": 1}).encode(),
    b'{"id": 1e400, "schema": null, "compatibilityLevel": [1], "compatibility": {}}',
    b'{"id": -1, "schema": ["x"], "schemaType": 5, "references": 3, "compatibilityLevel": null}',
    b'{"id": 4294967296, "schema": {}, "references": [1], "ruleSet": 7, "metadata": "m"}',
    b'{"id": true, "schema": "", "references": [{}], "compatibility": "FULL"}',
    b'{"id": {"a": 1}, "schemaType": null, "guid": 3, "version": "x", "subject": []}',
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=[shape[:20].decode("latin-1") for shape in SHAPES])
def test_a_malformed_answer_raises_a_registry_error_only(
    shape: bytes, fake: FakeRegistry, registry: HttpRegistry
) -> None:
    for at in (LOOKUP, BY_ID, REGISTER, SET_LEVEL, GET_LEVEL):
        fake.answers[at] = 200, shape

    for call in ask_everything(registry):
        try:
            said = call()
        except (Unavailable, UnknownSchema, TopicsDiffer):
            continue
        assert isinstance(said, str) or 0 <= said < 2**32
