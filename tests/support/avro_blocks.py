"""Messages as other clients write them: arrays and maps in any blocks, with or without sizes."""

import struct
from random import Random
from typing import Any

from rollcall.schemas.avro_code import Types
from rollcall.schemas.avro_primitives import varint
from rollcall.schemas.avro_schemas import NAMESPACE, Avro, schema_of


def in_blocks(message: Any, rng: Random) -> bytes:
    """The bytes of a message; what lies in arrays and maps is split as it happens."""
    splitting, schema = _Splitting(rng), schema_of(type(message))
    splitting.learn(schema)
    return splitting.write(schema, message)


class _Splitting(Types):
    def __init__(self, rng: Random) -> None:
        super().__init__()
        self.rng = rng

    def learn(self, avro: Avro) -> None:
        """Know every named type, wherever it is defined."""
        if isinstance(avro, dict):
            self.named |= {avro["name"]: avro} if "name" in avro and "type" in avro else {}
        for part in avro.values() if isinstance(avro, dict) else avro:
            if isinstance(part, dict | list):
                self.learn(part)

    def write(self, avro: Avro, value: Any) -> bytes:
        kind, avro = self.kind(avro)
        match kind:
            case "record":
                fields = ((f["type"], getattr(value, f["name"])) for f in avro["fields"])
                return b"".join(self.write(*field) for field in fields)
            case "array":
                return self.blocks([self.write(avro["items"], item) for item in value])
            case "map":
                pairs = sorted(value.items())
                return self.blocks(
                    [self.write("string", k) + self.write(avro["values"], v) for k, v in pairs]
                )
            case "union":
                return self.branch(avro, value)
            case "enum":
                return varint(avro["symbols"].index(value))
        return _plain(kind, value)

    def branch(self, branches: Avro, value: Any) -> bytes:
        kinds = [self.kind(branch) for branch in branches]
        if kinds[0][0] == "null":
            return varint(0) if value is None else varint(1) + self.write(branches[1], value)
        names = [about["name"] for _, about in kinds]
        n = names.index(f"{NAMESPACE}{type(value).__name__}")
        return varint(n) + self.write(branches[n], value)

    def blocks(self, items: list[bytes]) -> bytes:
        written = b""
        while items:
            count = self.rng.randint(1, len(items))
            block, items = b"".join(items[:count]), items[count:]
            sized = self.rng.random() < 0.5
            head = varint(-count) + varint(len(block)) if sized else varint(count)
            written += head + block
        return written + varint(0)


def _plain(kind: str, value: Any) -> bytes:
    if kind == "string":
        value, kind = value.encode(), "bytes"
    if kind == "bytes":
        return varint(len(value)) + bytes(value)
    if kind == "boolean":
        return bytes([value])
    if kind in ("float", "double"):
        return struct.pack("<f" if kind == "float" else "<d", value)
    return varint(value)
