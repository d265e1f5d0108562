"""An OpenEnv server in a process of its own, and what becomes of a session when that goes wrong."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from compose.services.ports import free_port
from sandbox.environment import (
    AnyEnvironment,
    Kind,
    Observation,
    is_replayable,
    kind_of,
    make_environment,
)
from schemas.errors import WorkFailed
from tests.support.openenv_server import Served, openenv_server

GARBAGE = ("", "\0", "☃", "nan", "[1]", '{"', '{"message": 1}', "9" * 5000)
SAY = {"message": "{text}", "times": 1}
Lived = Callable[[AnyEnvironment], Awaitable[Any]]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Served]]:
    """Gives the one server of all tests, or another one where a test has killed it."""
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
    """What it shows from its opening on; it is closed, and closed again."""

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


def test_a_text_becomes_an_action_by_template_and_the_observation_a_text(served: Served) -> None:
    environment = made(served.url, action=SAY, observation="{turn}: {echo}", reset={"lap": 2})

    opened, said, ended = lived(environment, 'a "word"', "end")

    assert (opened.text, opened.reward, opened.terminated) == ("0: seed 3", 0.0, False)
    assert opened.info == {"state": {"episode_id": "3/2", "step_count": 0}}
    assert (said.text, said.reward, said.info) == ('1: a "word"', 0.5, {})
    assert (ended.terminated, ended.info) == (
        True,
        {"state": {"episode_id": "3/2", "step_count": 2}},
    )


def test_words_may_stand_for_actions_and_others_cost_a_penalty(served: Served) -> None:
    words = {"go": {"message": "went", "times": 2}}
    environment = made(served.url, actions=words, observation="{echo}", invalid_penalty=-0.5)

    _, went, lost = lived(environment, " go\n", "fly")

    assert went.text == "wentwent"
    assert (lost.text, lost.reward, lost.info) == ("no wentwent", -0.5, {"invalid": True})


@pytest.mark.parametrize("text", GARBAGE, ids=repr)
def test_without_either_the_text_is_json_and_anything_is_survived(
    served: Served, text: str
) -> None:
    _, lost, said = lived(made(served.url), text, '{"message": "hi"}')

    assert (lost.text, lost.info) == ('no {"echo":"seed 3","turn":0}', {"invalid": True})
    assert said.text == '{"echo":"hi","turn":1}'


def test_sessions_are_the_servers_own_and_side_by_side(served: Served) -> None:
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


def test_what_the_servers_environment_raises_fails_for_good(served: Served) -> None:
    environment = made(served.url, action=SAY)

    assert failed(lambda: lived(environment, "boom"), "boom") == ("raised", False)


def test_a_server_that_is_full_may_be_asked_again(served: Served) -> None:
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


def test_a_step_can_be_cancelled_and_its_session_closed(served: Served) -> None:
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


def test_whoever_else_lives_there_is_named_and_nobody_asks_again(served: Served) -> None:
    elsewhere = made(f"{served.url}/elsewhere")

    assert failed(lambda: lived(elsewhere), "no OpenEnv server") == ("bad_config", False)


def test_a_server_that_is_away_may_come_back() -> None:
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
def test_a_config_that_does_not_fit_is_refused_before_anybody_is_asked(
    config: dict[str, Any], found: str
) -> None:
    given = json.dumps(config)

    assert failed(lambda: make_environment("openenv", given), found) == ("bad_config", False)


def test_a_template_that_cannot_be_filled_shows_what_there_is(served: Served) -> None:
    environment = made(served.url, observation="{words}")

    assert failed(lambda: lived(environment), "words.*echo") == ("bad_config", False)


def test_it_waits_and_whether_it_is_replayable_its_config_says() -> None:
    assert kind_of("openenv") == Kind(waits=True)
    assert not is_replayable("openenv", '{"url": "http://a"}')
    assert is_replayable("openenv", '{"url": "http://a", "replayable": true}')


def test_a_server_that_dies_in_the_middle_fails_the_step_so_that_it_can_be_tried_again(
    served: Served,
) -> None:
    environment = made(served.url, action=SAY)

    code = failed(lambda: lived(environment, "a", "die"), "ended the session")
    assert code == ("environment_away", True)
    served.process.wait(10)
    assert failed(lambda: lived(environment), "no OpenEnv") == ("environment_away", True)
