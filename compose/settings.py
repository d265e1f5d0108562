"""The settings of every process: command line over ROLLCALL_… variables over rollcall.toml.

No other module reads the environment. Unknown keys are refused with the most similar known name.
The defaults suit a laptop: the broker of `rollcall up`, and state in `.rollcall`.
"""

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from rollcall.sandbox.boxes import image_store
from rollcall.sandbox.boxes.box import AUTO
from rollcall.sandbox.boxes.driver_name import DriverName
from rollcall.schemas import names
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import Quota
from rollcall.schemas.redaction import (
    NAMES,
    add_secret,
    add_secrets_of_settings,
    add_secrets_of_url,
)
from rollcall.schemas.strict_table import StrictTable, unknown_key
from rollcall.schemas.untrusted_text import describe_value

PREFIX = "ROLLCALL_"
FILE = Path("rollcall.toml")
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]


class KafkaSettings(StrictTable):
    bootstrap_servers: str = ""
    """Empty: the broker of `rollcall up`."""
    client: dict[str, str] = {}
    """Passed unchanged to librdkafka, such as security.protocol."""


class RegistrySettings(StrictTable):
    url: str = ""
    """Empty: the registry of `rollcall up`."""
    client: dict[str, str] = {}
    """Passed unchanged to Confluent's registry client, such as basic.auth.user.info."""


class ObjectSettings(StrictTable):
    url: str = ""
    """The store of large records, any fsspec URL. Empty: a folder of `rollcall up`; with another
    broker there is no store then, and records too large for a topic are refused."""
    above_bytes: Annotated[int, Field(ge=65_536)] = 262_144
    """Values up to this size stay in the log."""


class AgentsSettings(StrictTable):
    max_live: Count = 4000
    """The most open rollouts of one worker; at the limit it takes no requests. 0: no limit."""
    max_running_per_user: Count = 0
    """The most rollouts of one user that run at once, over all workers; 0: no limit. This and the
    next setting apply to users without a quota of their own (`rollcall quota`)."""
    max_calls_per_user_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """The most model calls of one user per second; 0: no limit."""
    program_timeout_s: Positive = 5.0
    """The time limit of one turn of an agent program; above it, the rollout ends."""

    def quota(self) -> Quota:
        """The quota of a user without one of their own."""
        return Quota("", self.max_running_per_user, self.max_calls_per_user_s)


class EnvironmentsSettings(StrictTable):
    threads: Count = 1
    """Threads for sessions; slow sessions get further ones. 0 runs sessions on the loop's thread,
    without time limits."""
    lease_s: Annotated[float, Field(gt=0)] = 3600.0
    """The time for which a session without requests is kept; at least that of a rollout."""
    slots: dict[str, Annotated[int, Field(ge=1)]] = {"box": 32, "hosted": 64}
    """The most sessions of one worker by slot, for asynchronous environments with slots. Further
    sessions wait. An environment with an unknown slot is refused."""
    box: DriverName = AUTO
    """The default driver of boxes: `auto` is one that isolates, `local` isolates nothing."""
    warm: Count = 4
    """The number of started boxes that one worker keeps ready."""
    box_touch_s: Positive = 5.0
    """The interval at which a worker renews the leases of its boxes."""
    box_lapse_s: Positive = 30.0
    """The time after which a box's lease ends if its worker has not renewed it; any worker on the
    host may then remove the box."""
    box_reap_s: Positive = 10.0
    """The interval at which each worker looks for boxes without a lease."""
    gateway_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """The port of the gateway for agents' processes; 0: any free one, opened when needed. A set
    port is opened at the start, so only one worker of a machine can have it."""
    gateway_host: str = "127.0.0.1"
    """The gateway's address. On another address, any client with a session's key can use it."""


class OpenAISettings(StrictTable):
    """The server behind the engine `openai`."""

    base_url: str = ""
    """The base URL of the server, usually ending in /v1."""
    model: str = ""
    """The model's name on the server."""
    api_key_env: str = ""
    """The name of an environment variable with the API key; empty: no key is sent."""
    api: Literal["chat", "completions"] = "chat"
    """`completions` sends token ids, for which it needs the model's tokenizer. If the server
    returns token ids, answers can be trained on."""
    concurrency: Annotated[int, Field(ge=1)] = 64
    """The most requests in flight."""
    timeout_s: Positive = 600.0
    """The time limit of one request."""
    retries: Count = 4
    """The most retries of a request without a usable answer."""
    body: dict[str, Any] = {}
    """Added to the body of every request, such as {"reasoning_effort": "low"}."""


class ModelsSettings(StrictTable):
    engine: str = "transformers"
    """The engine: a name in `rollcall.compose.workers.engines`, or module:function."""
    python: str = ""
    """Another Python for model servers, such as that of `make vllm`; empty: the same one."""
    device: str = "cpu"
    max_batch: Annotated[int, Field(ge=1)] = 256
    threads: Annotated[int, Field(ge=1)] = 1
    openai: OpenAISettings = OpenAISettings()
    """Settings of the engine `openai`."""
    adopt_at_once: Annotated[int, Field(ge=0)] = 0
    """The most servers of a policy that load a new version at once, while the others serve the old
    one. All servers need the same value. 0: no limit."""


class TrainingSettings(StrictTable):
    device: str = "cpu"
    threads: Annotated[int, Field(ge=1)] = 1


class RewardsSettings(StrictTable):
    scoring_id: str = "default"
    scorers: list[str] = ["environment_return"]
    scorer_timeout_s: Positive = 30.0
    waiting_timeout_s: Positive = 7200.0
    """The time limit of an asynchronous scorer, such as a grading.
    The tests of SWE rows may take 1,800 s, and a grading may run them three times."""
    boxes: Annotated[int, Field(ge=1)] = 2
    """The most trajectories that one worker scores asynchronously at once, each with its box."""
    box: DriverName = AUTO
    """The driver of those boxes: `auto` is one that isolates, `local` isolates nothing."""


class Settings(BaseSettings):
    """The settings of all processes; each reads its part."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid", toml_file=FILE
    )

    state_dir: Path = Path(".rollcall")
    """The directory of the embedded broker and registry, of runs and checkpoints."""
    cache_dir: Path = Path("~/.cache/rollcall")
    """The directory of jars and agents, shared by all state directories."""
    prefix: str = "rl."
    """The prefix of every topic and group name."""
    kafka: KafkaSettings = KafkaSettings()
    registry: RegistrySettings = RegistrySettings()
    objects: ObjectSettings = ObjectSettings()
    agents: AgentsSettings = AgentsSettings()
    environments: EnvironmentsSettings = EnvironmentsSettings()
    models: ModelsSettings = ModelsSettings()
    training: TrainingSettings = TrainingSettings()
    rewards: RewardsSettings = RewardsSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @model_validator(mode="after")
    def _hide_secrets(self) -> "Settings":
        """Register secrets before any error can quote them."""
        add_secrets_of_settings(self.kafka.client)
        add_secrets_of_settings(self.registry.client)
        urls = self.registry.url, self.objects.url, self.models.openai.base_url
        for url in (*urls, self.kafka.bootstrap_servers):
            add_secrets_of_url(url)
        add_secret(os.environ.get(self.models.openai.api_key_env, ""))
        return self

    def state(self) -> Path:
        return self.state_dir.expanduser().absolute()

    def archive(self) -> Path:
        """The directory of tables, unless a command names one."""
        return self.state() / "archive"

    def cache(self) -> Path:
        return self.cache_dir.expanduser().absolute()

    def tasks(self) -> Path:
        """The folder of tasks, unless a command names one."""
        return self.state() / "tasks"

    def leases(self) -> Path:
        """The folder in which workers record the boxes of this host that they hold."""
        return self.state() / "leases"

    def installed_agents(self) -> Path:
        """The folder in which `rollcall agents install` makes an environment for each agent."""
        return self.cache() / "agents"


def load_settings(**given: Any) -> Settings:
    """Read all settings; raise Refused with a text that names every fault."""
    tables = [name for name, field in Settings.model_fields.items() if _is_table(field.annotation)]
    reject_unknown(os.environ, Settings.model_fields, tables)
    try:
        return Settings(**given)
    except ValidationError as error:
        raise Refused("; ".join(_complaint(dict(item)) for item in error.errors())) from error
    except SettingsError as error:
        msg = f"{error}; a table or list in a variable is written as JSON"
        raise Refused(msg) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        msg = f"{FILE} is not TOML: {error}"
        raise Refused(msg) from error


def reject_unknown(
    environ: Mapping[str, str], fields: Iterable[str], tables: Iterable[str]
) -> None:
    """Raise Refused for unknown top-level variables, which pydantic-settings would ignore.

    This includes nested variables of a field that is not a table. Case does not matter.
    """
    known = {f"{PREFIX}{field}".upper() for field in fields}
    open_ = {f"{PREFIX}{table}".upper() for table in tables}
    for name in environ.keys() - {image_store.DIRECTORY}:
        spelt = name.upper()
        if spelt.startswith(PREFIX) and spelt not in known and spelt.split("__")[0] not in open_:
            raise names.unknown_name("setting", spelt, known)


def _is_table(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, StrictTable)


def _complaint(error: Mapping[str, Any]) -> str:
    place = [str(part) for part in error["loc"]]
    if error["type"] == "extra_forbidden":
        return str(unknown_key(Settings, "setting", place))
    told = f"setting {'.'.join(place)}: {error['msg']}"
    # Settings of clients contain passwords, under the clients' own names.
    name = ".".join(place).partition(".client")[1:]
    secret = name[0] and (not name[1] or NAMES.search(name[1]))
    return told if secret else f"{told}, found {describe_value(error['input'])}"
