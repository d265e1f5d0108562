"""The stage of a chaos run: its own broker and registry, and its workers' processes."""

import asyncio
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

from rollcall.compose.chaos import other_release, workload
from rollcall.compose.chaos.faults import BOXES
from rollcall.compose.chaos.own_engine import IMAGE, OwnEngine, refuse_no_engine
from rollcall.compose.chaos.plan import RECIPES, SERVER, ChaosPlan
from rollcall.compose.chaos.proxy import Ports, Proxy, listeners
from rollcall.compose.chaos.victims import WorkerVictim, to_registry
from rollcall.compose.chaos.wall_clock import WallClock
from rollcall.compose.cluster import Cluster, answers, complete_topics
from rollcall.compose.processes import run_in_new_process
from rollcall.compose.runs import run_folder
from rollcall.compose.runs.recipe import parse_recipe
from rollcall.compose.runs.run_folder import RunFolder
from rollcall.compose.services import embedded
from rollcall.compose.services.service_process import free_port
from rollcall.compose.settings import KafkaSettings, RegistrySettings, Settings
from rollcall.sandbox.boxes.box import driver
from rollcall.schemas.errors import Refused

SCORER = "environment_return"
SLOTS = {"hosted": 8, "box": 16}
"""The slots of one environments worker for agents' processes and boxes, on a busy machine."""
WARM = 1
"""The number of warm boxes; low, so that most killed boxes are in use."""


@dataclass(frozen=True)
class Stage:
    """A cluster whose workers reach the broker through links that can be cut."""

    plan: ChaosPlan
    cluster: Cluster
    proxy: Proxy
    run: RunFolder | None
    """The training run, if there is one."""
    releases: Sequence[str] = ("",)
    """The module folder of each release; empty for ours."""
    boxes: Sequence[Mapping[str, str]] = ()
    """The kinds of boxes for the workload's shells, as in their config."""
    engine: OwnEngine | None = None

    @property
    def logs(self) -> Path:
        return self.cluster.settings.state() / "logs"

    def workers(self) -> list[WorkerVictim]:
        """Return all worker processes, none started."""
        self.logs.mkdir(exist_ok=True)
        return [
            self._worker(role, name, number % len(self.releases))
            for role, names in self.plan.workers().items()
            for number, name in enumerate(names)
        ]

    def _worker(self, role: str, name: str, release: int) -> WorkerVictim:
        topics = self.cluster.topics
        topic = {
            "agents": topics.events,
            "models": topics.calls(workload.POLICY),
            "environments": topics.steps,
            "rewards": topics.trajectories,
        }.get(role, "")
        joined = '"version"' if role == "training" else "partition_assigned"
        ours = {key: value for key, value in os.environ.items() if not key.startswith("ROLLCALL_")}
        environment = {
            **ours,
            **self.cluster.environment(),
            "ROLLCALL_KAFKA__BOOTSTRAP_SERVERS": self.proxy.address(name),
            "ROLLCALL_REGISTRY__URL": self._registry_url(name),
            "ROLLCALL_PREFIX": self.cluster.settings.prefix,
        }
        if len(self.releases) == 1:  # another release may not have the setting
            environment["ROLLCALL_ENVIRONMENTS__SLOTS"] = json.dumps(SLOTS)
            environment["ROLLCALL_ENVIRONMENTS__WARM"] = str(WARM)
            environment["ROLLCALL_OBJECTS__ABOVE_BYTES"] = str(workload.HEAVY_BYTES)
        if self.engine is not None:
            environment["DOCKER_HOST"] = self.engine.host
        log = self.logs / f"{name}.log"
        return WorkerVictim(
            name,
            self._command(role, name),
            environment,
            log,
            self.proxy,
            topic,
            joined,
            WallClock(self.cluster.settings.state() / "clocks", name),
            self.releases,
            release,
        )

    def _registry_url(self, name: str) -> str:
        """Return the registry's URL through the worker's own link."""
        link = self.proxy.address(to_registry(name))
        return urlsplit(self.cluster.registry_url)._replace(netloc=link).geturl()

    def _command(self, role: str, name: str) -> list[str]:
        if role == "models" and name != SERVER:
            return ["rollcall.compose.chaos.process", name]
        command = ["rollcall.compose.cli", "worker", role, "--name", name]
        if role == "rewards":
            command += ["--scorer", SCORER, "--scoring-id", SCORER]
        elif self.run is not None and role in ("models", "training"):
            command += ["--run", str(self.run.directory)]
        return command


@contextmanager
def staged(plan: ChaosPlan, settings: Settings, directory: Path) -> Iterator[Stage]:
    """Start all services in the directory; stop them at the end, but keep the log."""
    with (
        _engine(plan, directory) as engine,
        _cluster(plan, settings, directory) as (cluster, proxy, releases),
    ):
        run = _training_run(cluster, plan, releases[-1]) if plan.trains else None
        boxes = _boxes(plan, engine)
        yield Stage(plan, cluster, proxy, run, releases, boxes, engine)


def refuse_no_boxes(plan: ChaosPlan) -> None:
    """Raise Refused if none of the planned victims is available on this host."""
    if plan.containers:
        refuse_no_engine()
    elif set(plan.roles) == {BOXES} and (why := no_namespaces()):
        msg = f"there are no {BOXES} to kill: {why}"
        raise Refused(msg)


@contextmanager
def _engine(plan: ChaosPlan, directory: Path) -> Iterator[OwnEngine | None]:
    """Yield the run's own engine, if containers are wanted."""
    if not plan.containers:
        yield None
        return
    engine = OwnEngine(directory / "engine.log")
    try:
        engine.start()
        yield engine
    finally:
        engine.close()


def _boxes(plan: ChaosPlan, engine: OwnEngine | None) -> list[dict[str, str]]:
    """Return namespaces, and containers if there is an engine; directories if neither works."""
    if not plan.hosts:
        return []
    boxes = [{"box": "docker", "image": IMAGE}] if engine else []
    if not no_namespaces():
        boxes.append({"box": "bubblewrap"})
    return boxes or [{"box": "local"}]


def no_namespaces() -> str:
    """Return why bubblewrap makes no box here; empty if it does."""
    return asyncio.run(driver("bubblewrap").unavailable())


@contextmanager
def _cluster(
    plan: ChaosPlan, settings: Settings, directory: Path
) -> Iterator[tuple[Cluster, Proxy, Sequence[str]]]:
    """Yield broker, registry, links, and the participating releases."""
    names = [name for names in plan.workers().values() for name in names]
    other = other_release.unpack(plan.beside, directory / "beside") if plan.beside else None
    links = _links(names)
    plain, controller = _free(links), _free(links)
    properties = listeners(plain, controller, links) | {
        "group.consumer.session.timeout.ms": f"{plan.session_s * 1000:.0f}",
        "group.consumer.heartbeat.interval.ms": f"{plan.session_s * 100:.0f}",
    }
    proxy = Proxy(links)
    try:
        endpoints = embedded.up(
            directory,
            settings.cache(),
            kafka_port=plain,
            ready=answers,
            broker_properties=properties,
        )
        own = settings.model_copy(
            update={
                "state_dir": directory,
                "kafka": KafkaSettings(),
                "registry": RegistrySettings(),
            }
        )
        cluster = Cluster(endpoints.bootstrap_servers, endpoints.registry_url, own)
        registry = urlsplit(endpoints.registry_url).port or 0
        proxy.open(_links(map(to_registry, names), links, registry))
        _provision(cluster, workload.POLICY, other)
        try:
            yield cluster, proxy, ["", str(other)] if other else [""]
        finally:
            cluster.close()
    finally:
        proxy.close()
        embedded.down(directory, wipe=False)


def _provision(cluster: Cluster, policy_id: str, other: Path | None) -> None:
    """Make the topics and schemas of the other release, then those that ours adds."""
    if other is not None:
        other_release.provision(other, cluster, [policy_id])
    complete_topics(cluster, policy_id)


def _training_run(cluster: Cluster, plan: ChaosPlan, release: str) -> RunFolder:
    """Make a run of the plan's recipe, its topics first made by this release. Raises Refused."""
    name, seed = plan.recipe, plan.seed
    shipped = files("rollcall.compose.chaos") / f"{name}.toml"
    text = (shipped if name in RECIPES else Path(name)).read_text()
    recipe = parse_recipe(text, name)
    if recipe.scoring_id != SCORER:
        msg = f"recipe {name!r}: scorers is {recipe.scorers}; the rollouts here get {SCORER!r}"
        raise Refused(msg)
    # Making a policy imports half a gigabyte of libraries.
    folder = run_in_new_process(run_folder.create, cluster.settings.state(), recipe, text, seed)
    _provision(cluster, folder.policy_id, Path(release) if release else None)
    return run_folder.begin(folder, cluster)


def _links(
    names: Iterable[str], others: Mapping[str, Ports] = {}, port: int = 0
) -> dict[str, Ports]:
    """Return free ports; each link leads to the named port, else to its own."""
    links: dict[str, Ports] = {}
    for name in names:
        entry = _free({**others, **links})
        links[name] = Ports(entry, port or _free({**others, **links}, entry))
    return links


def _free(links: Mapping[str, Ports], *taken: int) -> int:
    used = [port for link in links.values() for port in (link.entry, link.broker)]
    return free_port([*used, *taken])
