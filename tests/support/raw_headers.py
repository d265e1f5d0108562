"""Records whose header names are not UTF-8, as kcat and clients in C or Go may write them.

The Python client takes names as text, so this speaks to the librdkafka that it brings.
"""

import ctypes
from pathlib import Path

import confluent_kafka

ERROR_BYTES = 512
PRODUCER = 0
FLUSH_MS = 20_000
TOPIC, PARTITION, VALUE, KEY, HEADERS, END = 1, 3, 4, 5, 10, 0
"""The kinds of argument of `rd_kafka_producev`."""


def produce_raw(
    servers: str,
    topic: str,
    headers: list[tuple[bytes, bytes]],
    *,
    key: bytes = b"k",
    value: bytes = b"v",
    partition: int = 0,
) -> None:
    """Write one record and wait for its ack."""
    rd = _librdkafka()
    client = _producer(rd, servers)
    listed = ctypes.c_void_p(rd.rd_kafka_headers_new(len(headers)))
    for name, text in headers:
        rd.rd_kafka_header_add(
            listed, name, ctypes.c_ssize_t(len(name)), text, ctypes.c_ssize_t(len(text))
        )
    failed = rd.rd_kafka_producev(
        client,
        ctypes.c_int(TOPIC), topic.encode(),
        ctypes.c_int(PARTITION), ctypes.c_int32(partition),
        ctypes.c_int(VALUE), value, ctypes.c_size_t(len(value)),
        ctypes.c_int(KEY), key, ctypes.c_size_t(len(key)),
        ctypes.c_int(HEADERS), listed,
        ctypes.c_int(END),
    )  # fmt: skip
    assert failed == 0, f"librdkafka error {failed}"
    assert rd.rd_kafka_flush(client, FLUSH_MS) == 0
    rd.rd_kafka_destroy(client)


def _librdkafka() -> ctypes.CDLL:
    packages = Path(confluent_kafka.__file__).parent.parent
    (library,) = (packages / "confluent_kafka.libs").glob("librdkafka-*")
    rd = ctypes.CDLL(str(library))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(rd, name).restype = ctypes.c_void_p
    return rd


def _producer(rd: ctypes.CDLL, servers: str) -> ctypes.c_void_p:
    said = ctypes.create_string_buffer(ERROR_BYTES)
    size = ctypes.c_size_t(ERROR_BYTES)
    conf = ctypes.c_void_p(rd.rd_kafka_conf_new())
    rd.rd_kafka_conf_set(conf, b"bootstrap.servers", servers.encode(), said, size)
    made = rd.rd_kafka_new(ctypes.c_int(PRODUCER), conf, said, size)
    assert made, said.value
    return ctypes.c_void_p(made)
