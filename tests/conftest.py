"""One broker and registry for the whole run; a prefix of its own for every test that asks."""

import gc
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from rollcall.compose.cluster import Cluster, answers
from rollcall.compose.services.embedded import Endpoints, down, up
from rollcall.compose.settings import KafkaSettings, RegistrySettings, Settings
from rollcall.producers import provision
from rollcall.schemas import redaction
from rollcall.schemas.topics import wanted
from tests.support.broker import BROKER, BrokerLog, users_cache
from tests.support.tiers import FULL, QUICK, SHARE
from tests.support.watchdog import Watchdog

PREFIXES = count()
hypothesis_settings.register_profile(  # for a machine that others use too
    FULL, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.register_profile(
    QUICK, hypothesis_settings.get_profile(FULL), max_examples=100 // SHARE
)
hypothesis_settings.load_profile(FULL)  # `--hypothesis-profile quick` chooses the other
# Whoever runs tests in the background ignores these, and so would all that they start.
for number, handler in {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: signal.SIG_DFL,
}.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Watchdog(config))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage meanwhile: nearly everything that is imported and collected stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(autouse=True)
def plain_logging() -> Iterator[None]:
    """Restore logging, so that each test begins without the logging of an earlier one."""
    structlog.configure(cache_logger_on_first_use=False)
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    """Restore signal handlers, so that each test begins without those of our processes."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def secrets_as_they_were() -> Iterator[None]:
    """Forget the secrets that a test declared."""
    before = dict(redaction._known)
    yield
    redaction._known.clear()
    redaction._known.update(before)


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """The embedded broker and registry, taken down and wiped at the end."""
    state = tmp_path_factory.mktemp("services")
    yield up(state, users_cache(), ready=answers, broker_properties=BROKER)
    down(state, wipe=True)


@pytest.fixture(scope="session")
def kafka_log(services: Endpoints) -> Iterator[BrokerLog]:
    log = BrokerLog(services.bootstrap_servers)
    yield log
    log.close()


@pytest.fixture
def make_cluster(services: Endpoints, tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Clusters with topics under a prefix of their own, on the one broker."""
    with clusters_on(services, tmp_path) as make:
        yield make


@pytest.fixture(scope="module")
def untouched(services: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests of a module that show how nothing is changed on it."""
    with clusters_on(services, tmp_path_factory.mktemp("untouched")) as make:
        yield make("p")


@contextmanager
def clusters_on(services: Endpoints, directory: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes clusters, and closes them in the end."""
    made: list[Cluster] = []

    def make(*policies: str, **given: Any) -> Cluster:
        settings = Settings(
            state_dir=directory / "state",
            prefix=given.pop("prefix", f"t{next(PREFIXES)}."),
            kafka=KafkaSettings(bootstrap_servers=services.bootstrap_servers),
            registry=RegistrySettings(url=services.registry_url),
            **given,
        )
        made.append(Cluster(services.bootstrap_servers, services.registry_url, settings))
        topics = wanted(settings.prefix, policies, partitions=4)
        provision.apply(made[-1].admin, made[-1].registry, topics)
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()
