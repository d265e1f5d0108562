"""Sessions with an OpenEnv server in its own process, and their errors."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from rollcall.compose.services.service_process import free_port
from rollcall.sandbox.environment import (
    AnyEnvironment,
    EnvironmentKind,
    Observation,
    is_replayable,
    kind_of,
    make_environment,
)
from rollcall.schemas.errors import WorkFailed
from tests.support.openenv_server import Served, openenv_server

GARBAGE = ("", "\0", "☃", "nan", "[1]", '{"', '{"message": 1}', "9" * 5000)
SAY = {"message": "{text}", "times": 1}
Lived = Callable[[AnyEnvironment], Awaitable[Any]]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Served]]:
    """Gives the one server of all tests, or another one if a test has killed it."""
    words = tmp_path_factory.mktemp("openenv") / "server.log"
    with ExitStack() as stack:
        started: list[Served] = []

        def serve() -> Served:
            if not started or started[-1].process.poll() is not None:
                server = openenv_server(free_port(()), words, sessions=4)
                started.append(stack.enter_context(server))
            return started[-1]

        yield serve


@pytest.fixture
def served(servers: Callable[[], Served]) -> Served:
    return servers()


def made(url: str, **config: Any) -> AnyEnvironment:
    return make_environment("openenv", json.dumps({"url": url} | config))


def lived(environment: AnyEnvironment, *actions: str, seed: int = 3) -> list[Observation]:
    """All observations of an episode; the environment is closed twice."""

    async def live() -> list[Observation]:
        try:
            seen = [await environment.open(seed)]  # type: ignore[misc]
            for action in actions:
                seen.append(await environment.step(action))  # type: ignore[misc]
        finally:
            await environment.close()  # type: ignore[func-returns-value]
            await environment.close()  # type: ignore[func-returns-value]
        return seen

    return asyncio.run(live())


def failed(work: Callable[[], object], found: str) -> tuple[str, bool]:
    with pytest.raises(WorkFailed, match=found) as raised:
        work()
    return raised.value.code, raised.value.retriable


def test_templates_convert_text_to_actions_and_observations_to_text(served: Served) -> None:
    environment = made(served.url, action=SAY, observation="{turn}: {echo}", reset={"lap": 2})

    opened, said, ended = lived(environment, 'a "word"', "end")

    assert (opened.text, opened.reward, opened.terminated) == ("0: seed 3", 0.0, False)
    assert opened.info == {"state": {"episode_id": "3/2", "step_count": 0}}
    assert (said.text, said.reward, said.info) == ('1: a "word"', 0.5, {})
    assert (ended.terminated, ended.info) == (
        True,
        {"state": {"episode_id": "3/2", "step_count": 2}},
    )


def test_configured_words_map_to_actions_and_other_words_cost_a_penalty(served: Served) -> None:
    words = {"go": {"message": "went", "times": 2}}
    environment = made(served.url, actions=words, observation="{echo}", invalid_penalty=-0.5)

    _, went, lost = lived(environment, " go\n", "fly")

    assert went.text == "wentwent"
    assert (lost.text, lost.reward, lost.info) == ("no wentwent", -0.5, {"invalid": True})


@pytest.mark.parametrize("text", GARBAGE, ids=repr)
def test_without_template_or_words_text_is_read_as_json(served: Served, text: str) -> None:
    _, lost, said = lived(made(served.url), text, '{"message": "hi"}')

    assert (lost.text, lost.info) == ('no {"echo":"seed 3","turn":0}', {"invalid": True})
    assert said.text == '{"echo":"hi","turn":1}'


def test_server_holds_separate_concurrent_sessions(served: Served) -> None:
    async def live() -> list[str]:
        both = [made(served.url, action=SAY, observation="{turn} {echo}") for _ in range(3)]
        try:
            await asyncio.gather(*(each.open(n) for n, each in enumerate(both)))  # type: ignore[arg-type]
            seen = await asyncio.gather(*(each.step(f"w{n}") for n, each in enumerate(both)))  # type: ignore[arg-type]
            return [each.text for each in seen]
        finally:
            for each in both:
                await each.close()  # type: ignore[func-returns-value]

    assert asyncio.run(live()) == ["1 w0", "1 w1", "1 w2"]


def test_error_raised_by_server_environment_fails_without_retry(served: Served) -> None:
    environment = made(served.url, action=SAY)

    assert failed(lambda: lived(environment, "boom"), "boom") == ("raised", False)


def test_full_server_gives_a_retriable_error(served: Served) -> None:
    async def live() -> None:
        holders = [made(served.url) for _ in range(4)]
        try:
            for holder in holders:
                await holder.open(1)  # type: ignore[misc]
            await made(served.url).open(1)  # type: ignore[misc]
        finally:
            for holder in holders:
                await holder.close()  # type: ignore[func-returns-value]

    assert failed(lambda: asyncio.run(live()), served.url) == ("environment_away", True)


def test_hanging_step_can_be_cancelled_and_its_session_closed(served: Served) -> None:
    async def live() -> None:
        environment = made(served.url, action=SAY)
        await environment.open(1)  # type: ignore[misc]
        try:
            async with asyncio.timeout(0.2):
                await environment.step("hang")  # type: ignore[misc]
        finally:
            environment._client._ws.close_timeout = 0.1  # type: ignore[union-attr]
            await environment.close()  # type: ignore[func-returns-value]

    with pytest.raises(TimeoutError):
        asyncio.run(live())


def test_url_without_openenv_server_fails_without_retry(served: Served) -> None:
    elsewhere = made(f"{served.url}/elsewhere")

    assert failed(lambda: lived(elsewhere), "no OpenEnv server") == ("bad_config", False)


def test_unreachable_server_gives_a_retriable_error() -> None:
    away = made(f"http://127.0.0.1:{free_port(())}")

    assert failed(lambda: lived(away), "no OpenEnv server at") == ("environment_away", True)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"url": "nowhere"}, "not of the form"),
        ({"url": "http://"}, "not of the form"),
        ({"url": "http://a", "action": {}, "actions": {}}, "leave out"),
        ({}, "missing a required argument: 'url'"),
    ],
)
def test_invalid_config_is_refused_before_the_server_is_contacted(
    config: dict[str, Any], found: str
) -> None:
    given = json.dumps(config)

    assert failed(lambda: make_environment("openenv", given), found) == ("bad_config", False)


def test_unfillable_template_error_lists_the_available_fields(served: Served) -> None:
    environment = made(served.url, observation="{words}")

    assert failed(lambda: lived(environment), "words.*echo") == ("bad_config", False)


def test_openenv_is_async_and_replayable_only_if_its_config_says_so() -> None:
    assert kind_of("openenv") == EnvironmentKind(waits=True)
    assert not is_replayable("openenv", '{"url": "http://a"}')
    assert is_replayable("openenv", '{"url": "http://a", "replayable": true}')


def test_server_death_during_a_step_gives_a_retriable_error(
    served: Served,
) -> None:
    environment = made(served.url, action=SAY)

    code = failed(lambda: lived(environment, "a", "die"), "ended the session")
    assert code == ("environment_away", True)
    served.process.wait(10)
    assert failed(lambda: lived(environment), "no OpenEnv") == ("environment_away", True)
