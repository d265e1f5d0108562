"""One contract for all shipped environments, and their lookup by name."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import pytest

from rollcall.sandbox.environment import (
    Environment,
    EnvironmentKind,
    Observation,
    WaitingEnvironment,
    check_environment,
    is_replayable,
    kind_of,
    make_environment,
    make_plain,
)
from rollcall.schemas.errors import Refused, WorkFailed
from tests.support.driven import Driven
from tests.support.lake import LAKE_ANY_START
from tests.support.patient_environment import Nowhere

WAITING = "tests.support.patient_environment"
MINE = "tests.support.counting_environment:Counting"
GARBAGE = ("", " ", "\n", "\0", "☃", "9" * 5000, "-1", "nan", "1e999", '{"', "L" * 100, "<answer>")

FAMILIES: dict[str, tuple[str, dict[str, object], str]] = {
    "lake": (LAKE_ANY_START.environment, json.loads(LAKE_ANY_START.config_json), "R"),
    "slippery lake": ("gymnasium", {"id": "FrozenLake-v1"}, "2"),
    "cliff": ("gymnasium", {"id": "CliffWalking-v1", "max_turns": 20}, "0"),
    "taxi": ("gymnasium", {"id": "Taxi-v4", "actions": list("SNEWPD")}, "S"),
    "blackjack": ("gymnasium", {"id": "Blackjack-v1", "actions": ["stick", "hit"]}, "hit"),
    "cart pole": ("gymnasium", {"id": "CartPole-v1", "number": ".2f"}, "1"),
    "pendulum": ("gymnasium", {"id": "Pendulum-v1", "number": ".3f"}, "-0.5"),
    "sums": ("reasoning_gym", {"dataset": "chain_sum"}, "12"),
    "syllogisms": ("reasoning_gym", {"dataset": "syllogism"}, "Yes"),
    "no answer kept": ("reasoning_gym", {"dataset": "propositional_logic"}, "P"),
    "raising scorer": ("reasoning_gym", {"dataset": "prime_factorization"}, "2 x 3"),
    "mine": (MINE, {}, "left"),
    "shell": ("shell", {"box": "local", "files": {"a/b": "c"}, "max_steps": 9}, "cat a/b; pwd"),
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make(family: str) -> Iterator[Callable[[], Environment]]:
    made: list[Environment] = []
    name, config, _ = FAMILIES[family]
    with asyncio.Runner() as runner:

        def make() -> Environment:
            if kind_of(name).waits:
                waiting = cast(WaitingEnvironment, make_environment(name, json.dumps(config)))
                made.append(Driven(waiting, runner))
            else:
                made.append(make_plain(name, json.dumps(config)))
            return made[-1]

        yield make
        for environment in made:
            environment.close()


def episode(environment: Environment, seed: int, actions: list[str]) -> list[Observation]:
    """All observations until the end, infos as JSON would show them."""
    seen = [environment.open(seed)]
    for action in actions:
        if seen[-1].terminated or seen[-1].truncated:
            break
        seen.append(environment.step(action))
    return seen


def shown(seen: list[Observation]) -> list[tuple[str, float, bool, bool, str]]:
    return [(s.text, s.reward, s.terminated, s.truncated, repr(s.info)) for s in seen]


def test_same_seed_gives_the_same_first_observation(make: Callable[[], Environment]) -> None:
    assert shown([make().open(7)]) == shown([make().open(7)])


def test_seeds_give_different_starts_if_there_are_several(
    make: Callable[[], Environment], family: str
) -> None:
    starts = {make().open(seed).text for seed in range(8)}

    assert (len(starts) == 1) == (family in ("cliff", "slippery lake", "shell"))


def test_environment_may_be_closed_twice_opened_or_not(
    make: Callable[[], Environment],
) -> None:
    opened, unopened = make(), make()
    opened.open(1)

    # The only visible effect of a second close is that it raises nothing.
    for environment in (opened, unopened):
        environment.close()
        environment.close()


@pytest.mark.parametrize("action", GARBAGE, ids=repr)
def test_any_text_is_accepted_as_an_action(make: Callable[[], Environment], action: str) -> None:
    environment = make()
    environment.open(3)

    seen = environment.step(action)

    assert isinstance(seen, Observation)
    assert isinstance(seen.text, str)
    assert isinstance(seen.reward, float)


def test_replayable_environment_repeats_its_observations(
    make: Callable[[], Environment], family: str
) -> None:
    word = FAMILIES[family][2]
    actions = [word, "garbage ☃", word, word, "", word]

    first, again = make(), make()

    assert first.replayable
    assert shown(episode(first, 11, actions)) == shown(episode(again, 11, actions))
    assert shown(episode(first, 11, actions)) == shown(episode(again, 11, actions))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gymnasum", "did you mean 'gymnasium'"),
        ("reasoning-gym", "did you mean 'reasoning_gym'"),
        ("xyzzy", "known are gymnasium, hosted, openenv, reasoning_gym, shell"),
        ("no.such.module:make", "no module 'no.such.module'"),
        ("tests.support.counting_environment:", "not of the form"),
    ],
)
def test_unknown_environment_name_is_refused_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(Refused, match=hint):
        check_environment(name)
    with pytest.raises(WorkFailed, match=hint) as failed:
        make_environment(name, "{}")

    assert (failed.value.code, failed.value.retriable) == ("unknown_environment", False)


def test_missing_factory_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(WorkFailed, match="did you mean 'Counting'") as failed:
        make_plain("tests.support.counting_environment:Countin", "{}")

    assert failed.value.code == "unknown_environment"


@pytest.mark.parametrize(
    ("name", "config", "found"),
    [
        ("gymnasium", "{", "not JSON"),
        ("gymnasium", "[]", "must be a JSON object"),
        ("gymnasium", "{}", "missing a required argument: 'id'"),
        ("gymnasium", '{"id": "FrozenLake-v1", "desk": 1}', "'desk'.*it takes id, kwargs"),
        ("gymnasium", '{"id": "FrozenLak-v1"}', "did you mean 'FrozenLake-v1'"),
        ("gymnasium", '{"id": "FrozenLake-v1", "kwargs": {"nosuch": 1}}', "nosuch"),
        ("gymnasium", '{"id": "FrozenLake-v1", "actions": ["L"]}', "must be 4 different words"),
        ("gymnasium", '{"id": "Pendulum-v1", "actions": ["L"]}', "only Discrete has words"),
        ("gymnasium", '{"id": "FrozenLake-v1", "observation": "{state}"}', "cannot be filled"),
        ("reasoning_gym", '{"dataset": "chain_sums"}', "did you mean 'chain_sum'"),
        ("reasoning_gym", '{"dataset": "chain_sum", "config": {"terms": 1}}', "terms"),
        ("reasoning_gym", '{"dataset": "chain_sum", "config": {"min_terms": 0}}', "refuses"),
        ("reasoning_gym", '{"dataset": "chain_sum", "config": {"seed": 0}}', "leave .'seed'. out"),
        ("tests.support.counting_environment:nothing", "{}", "makes a NoneType"),
    ],
)
def test_invalid_environment_config_fails_without_retry_and_says_why(
    name: str, config: str, found: str
) -> None:
    with pytest.raises(WorkFailed, match=found) as failed:
        make_environment(name, config)

    assert (failed.value.code, failed.value.retriable) == ("bad_config", False)


def test_checking_a_name_imports_neither_gymnasium_nor_reasoning_gym() -> None:
    code = (
        "import sys; from rollcall.sandbox.environment import check_environment as c; "
        "from rollcall.sandbox.scorers import check_scorer as s; "
        "c('gymnasium'); c('reasoning_gym'); s('reasoning_gym'); "
        "sys.exit(bool({'gymnasium', 'reasoning_gym', 'numpy'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def lake() -> Environment:
    return make_plain(LAKE_ANY_START.environment, LAKE_ANY_START.config_json)


def test_invalid_action_costs_a_turn_and_leaves_the_lake_unchanged() -> None:
    environment = lake()
    start = environment.open(7).text

    seen = [environment.step("jump"), environment.step("jump")]

    assert start.startswith("s")
    assert [(s.text, s.reward, s.truncated) for s in seen] == [(f"no {start}", -0.05, False)] * 2


def test_invalid_actions_count_toward_the_turn_limit() -> None:
    environment = lake()
    environment.open(7)

    ends = [environment.step("jump").truncated for _ in range(8)]

    assert ends == [False] * 7 + [True]


def test_lake_can_be_crossed_from_each_of_its_eleven_starts() -> None:
    way = {
        0: "D",
        1: "R",
        2: "D",
        3: "L",
        4: "D",
        6: "D",
        8: "R",
        9: "R",
        10: "D",
        13: "R",
        14: "R",
    }
    environment, starts = lake(), set()

    for seed in range(64):
        seen = environment.open(seed)
        starts.add(seen.text)
        total = 0.0
        while not (seen.terminated or seen.truncated):
            seen = environment.step(way[int(seen.text[1:])])
            total += seen.reward
        assert (seen.text, total, seen.terminated) == ("s15", 1.0, True)

    assert starts == {f"s{cell}" for cell in way}


def test_observations_can_be_words_or_formatted_numbers() -> None:
    words = [f"cell-{cell}" for cell in range(16)]
    named = make_plain("gymnasium", json.dumps({"id": "FrozenLake-v1", "observation": words}))
    pole = make_environment(
        "gymnasium",
        json.dumps({"id": "CartPole-v1", "number": "+.1f", "observation": "<{observation}>"}),
    )

    assert named.open(0).text == "cell-0"
    assert pole.open(0).text == "<+0.0 -0.0 -0.0 -0.0>"


def test_numbers_are_actions_only_if_the_action_space_contains_them() -> None:
    environment = make_plain("gymnasium", '{"id": "Pendulum-v1"}')
    environment.open(0)

    read = [
        "invalid" not in environment.step(text).info
        for text in ("1.5", " -2 ", "1,", "2.5", "1 1", "nan", "1e400", "one")
    ]

    assert read == [True, True, True, False, False, False, False, False]


def test_right_answer_scores_one_and_ends_the_episode() -> None:
    environment = make_plain("reasoning_gym", '{"dataset": "chain_sum"}')
    answer = partial(episode, environment, 5)
    expected = answer(["?"])[-1].info["expected"]

    for said in (
        f"{expected}",
        f" {expected}\n",
        f"hm <answer>1</answer> <answer>{expected}</answer>",
    ):
        seen = answer([said])[-1]
        assert (seen.reward, seen.terminated) == (1.0, True)
    assert answer(["no idea"])[-1].reward < 0.1


def test_dataset_scorer_that_raises_gives_zero_reward_and_a_note() -> None:
    environment = make_plain("reasoning_gym", '{"dataset": "prime_factorization"}')

    seen = episode(environment, 5, ["asdf"])[-1]

    assert (seen.reward, seen.terminated) == (0.0, True)
    assert "ValueError" in str(seen.info["note"])


def test_data_sets_that_differ_between_processes_are_not_replayable() -> None:
    # Given another process, whose strings hash differently (false alarm: 1 in 2**32)
    code = (
        "import sys; from rollcall.sandbox.environment import make_plain as make; "
        "print([make('reasoning_gym', config).open(7).text for config in sys.argv[1:]])"
    )
    names = ["isomorphic_strings", "ransom_note", "word_ladder", "polynomial_multiplication"]
    configs = [json.dumps({"dataset": name}) for name in names]
    made = [make_plain("reasoning_gym", config) for config in configs]

    there = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *configs],
        env={"PYTHONHASHSEED": "424242"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout

    assert there.strip() != str([environment.open(7).text for environment in made])
    assert not any(environment.replayable for environment in made)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"{WAITING}:Patient", EnvironmentKind(waits=True, slots=("patience",), replayable=True)),
        (f"{WAITING}:patient", EnvironmentKind(waits=True, slots=("patience",), replayable=True)),
        (f"{WAITING}:untold", EnvironmentKind()),
        (f"{WAITING}:hinted", EnvironmentKind()),
        (MINE, EnvironmentKind()),
        ("gymnasium", EnvironmentKind()),
    ],
)
def test_kind_of_environment_is_read_from_its_class(name: str, kind: EnvironmentKind) -> None:
    assert kind_of(name) == kind


@pytest.mark.parametrize("name", ["Patient", "patient"])
def test_async_environment_receives_its_host(name: str) -> None:
    made = make_environment(f"{WAITING}:{name}", '{"words": 2}', Nowhere())

    assert asyncio.run(made.open(1)).text == "nowherenowhere"  # type: ignore[arg-type]
    assert is_replayable(f"{WAITING}:{name}")


@pytest.mark.parametrize(
    ("name", "config", "found"),
    [
        ("Patient", '{"host": "a"}', "names 'host', which its worker gives"),
        ("Patient", '{"desk": 1}', "'desk'; it takes words"),
        ("Patient", "{}", "given its host by an environments worker"),
    ],
)
def test_config_cannot_set_the_host_of_an_async_environment(
    name: str, config: str, found: str
) -> None:
    host = None if config == "{}" else Nowhere()

    with pytest.raises(WorkFailed, match=found) as failed:
        make_environment(f"{WAITING}:{name}", config, host)

    assert failed.value.code == "bad_config"


def test_synchronous_environment_may_have_a_setting_named_host() -> None:
    made = make_plain(f"{WAITING}:Hosted", '{"host": "example"}')

    assert made.open(1).text == "example"


def test_undeclared_async_environment_is_refused_in_synchronous_use() -> None:
    with pytest.raises(WorkFailed, match="annotate what the function returns"):
        make_plain(f"{WAITING}:untold", '{"words": 1}')
