"""The schema of rows of SWE-bench and similar data sets."""

import json
import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from rollcall.schemas.errors import Refused

COMMIT = re.compile(r"[0-9a-f]{7,64}")
INSTANCE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
REPOSITORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]*")


def _listed(value: object) -> object:
    """Parse lists, which older data sets store as JSON text."""
    if isinstance(value, str):
        try:
            return json.loads(value) if value.strip() else []
        except ValueError as error:
            msg = f"is text, and no JSON list: {error}"
            raise ValueError(msg) from error
    return [] if value is None else value


def _object(value: object) -> object:
    return json.loads(value) if isinstance(value, str) and value.strip() else value or {}


Tests = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class InstallConfig(BaseModel):
    """The test command of a row and its requirements; other keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    test_cmd: str | list[str] = ""
    log_parser: str = ""
    python: str = ""
    pre_install: str | list[str] | None = None
    pip_packages: list[str] | None = None
    install: str | list[str] | None = None


class SweRow(BaseModel):
    """The used keys of a row; others are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    instance_id: Annotated[str, Field(pattern=f"^{INSTANCE.pattern}$")]
    repo: Annotated[str, Field(pattern=f"^{REPOSITORY.pattern}$")]
    base_commit: Annotated[str, Field(pattern=f"^{COMMIT.pattern}$")]
    patch: str
    test_patch: str
    problem_statement: str
    fail_to_pass: Annotated[Tests, Field(alias="FAIL_TO_PASS")]
    pass_to_pass: Annotated[Tests, Field(alias="PASS_TO_PASS")] = ()
    install_config: Annotated[InstallConfig, BeforeValidator(_object)] = InstallConfig()
    image_name: Annotated[str, Field(pattern=f"^({IMAGE.pattern})?$")] | None = None
    docker_image: Annotated[str, Field(pattern=f"^({IMAGE.pattern})?$")] | None = None

    @property
    def image(self) -> str:
        return self.docker_image or self.image_name or ""


def row_of(line: bytes) -> SweRow:
    """Parse a row. Raises Refused, naming the wrong key."""
    try:
        row = SweRow.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "it"
        said = first["msg"].removeprefix("Value error, ")
        msg = f"{place}: {said}, found {str(first['input'])[:80]!r}"
        raise Refused(msg) from error
    if not row.fail_to_pass:
        msg = "FAIL_TO_PASS is empty: there is nothing to mend, and an empty patch would resolve it"
        raise Refused(msg)
    return row


def as_lines(commands: str | Sequence[str] | None) -> list[str]:
    """Return one command or several as a list."""
    if not commands:
        return []
    return [commands] if isinstance(commands, str) else [each for each in commands if each]
