"""Any error of the library at any call of a store means that the store is unavailable."""

import http.client
import json
import ssl
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aiohttp
import botocore.exceptions
import pytest

from rollcall.schemas import weights_store
from rollcall.schemas.errors import (
    ObjectLost,
    RollcallError,
    StoreUnavailable,
    Unavailable,
    WeightsMissing,
)
from rollcall.schemas.objects import ObjectStore
from rollcall.schemas.store_urls import as_store_unavailable
from tests.support.faulty_files import Faults, faulty_files
from tests.support.s3_store import s3_server

VALUE = b"heavy" * 1000


class OfNobodysTree(Exception):
    """An error class of an unknown library."""


class SaysNothing(Exception):
    def __str__(self) -> str:
        raise ValueError


ERRORS: list[Exception] = [
    OSError("no route"), PermissionError("denied"), TimeoutError("late"), IsADirectoryError("dir"),
    ConnectionResetError("reset"), ssl.SSLError("wrong version"), EOFError("end"),
    ValueError("no JSON"), KeyError("ETag"), IndexError("none"), AttributeError("no session"),
    TypeError("none"), RuntimeError("Session is closed"), NotImplementedError("not here"),
    MemoryError("no room"), RecursionError("deep"), StopIteration("over"), AssertionError("odd"),
    ArithmeticError("odd"), BufferError("odd"), struct.error("short"), zlib.error("torn"),
    json.JSONDecodeError("no JSON", "", 0), UnicodeDecodeError("utf-8", b"", 0, 1, "bad"),
    http.client.IncompleteRead(b"half"), http.client.BadStatusLine("?"),
    aiohttp.ClientError("gone"), aiohttp.ServerDisconnectedError("gone"),
    botocore.exceptions.EndpointConnectionError(endpoint_url="http://s3/"),
    botocore.exceptions.NoCredentialsError(),
    botocore.exceptions.ClientError({"Error": {"Code": "503"}}, "GetObject"),
    botocore.exceptions.ParamValidationError(report="bucket"),
    OfNobodysTree("odd"), SaysNothing(),
]  # fmt: skip


def objects() -> ObjectStore:
    return ObjectStore("faulty://objects")


CALLS: dict[str, Callable[[], Any]] = {
    "put": lambda: objects().put(VALUE),
    "get": lambda: objects().get(KEPT.claim),
    "kept": lambda: list(objects().kept()),
    "remove": lambda: [objects().remove(each) for each in KEPT.objects],
    "bear": lambda: objects().bear("another"),
    "bears": lambda: objects().bears("identity"),
    "put weights": lambda: weights_store.put("faulty://weights", [VALUE], lambda: "w"),
    "read weights": lambda: weights_store.content("faulty://weights/v1"),
    "list weights": lambda: weights_store.listed("faulty://weights"),
    "remove weights": lambda: weights_store.remove("faulty://weights", "v1"),
}


class Kept:
    """The contents of the stores before each call."""

    claim: Any
    objects: Any

    def fill(self) -> None:
        store = objects()
        self.claim = store.put(VALUE)
        store.bear("identity")
        self.objects = list(store.kept())
        weights_store.put("faulty://weights", [VALUE], lambda: "v1")


KEPT = Kept()


@pytest.fixture
def faults() -> Faults:
    faults = faulty_files()
    KEPT.fill()
    faults.calls = 0
    return faults


@pytest.mark.parametrize("name", CALLS)
def test_any_error_at_any_store_call_means_unavailable(name: str, faults: Faults) -> None:
    CALLS[name]()
    calls = faults.calls
    assert calls > 0

    for error in ERRORS:
        for at in range(1, calls + 1):
            KEPT.fill()
            faults.calls, faults.at, faults.error = 0, at, error
            with pytest.raises(StoreUnavailable) as raised:
                CALLS[name]()
            assert type(raised.value) is StoreUnavailable, (error, at)
            faults.at = None
    KEPT.fill()
    CALLS[name]()  # and when it is back all is as before


@pytest.mark.parametrize("name", CALLS)
def test_a_missing_file_at_any_call_is_unavailable_or_missing(name: str, faults: Faults) -> None:
    CALLS[name]()
    calls = faults.calls

    for at in range(1, calls + 1):
        KEPT.fill()
        faults.calls, faults.at, faults.error = 0, at, FileNotFoundError("gone")
        with suppress(Unavailable, WeightsMissing, ObjectLost):
            CALLS[name]()
        faults.at = None


def test_own_errors_and_interrupts_are_not_wrapped() -> None:
    for error in (RollcallError("ours"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as raised, as_store_unavailable("the store is away"):
            raise error
        assert raised.value is error


def test_a_bucket_of_a_stopped_server_is_unavailable() -> None:
    store = ObjectStore("s3://bucket/objects")
    with s3_server() as server:
        claim = store.put(VALUE)
        assert store.get(claim) == VALUE
        server.stop()
        for call in (lambda: store.get(claim), lambda: store.put(VALUE), lambda: [*store.kept()]):
            with pytest.raises(Unavailable):
                call()
