"""Any learner setting of a file is accepted or refused in one line, without a traceback."""

from typing import Any

import pytest

from rollcall.compose.runs.recipe import SHIPPED, load_recipe
from rollcall.compose.runs.retraining import changed_learner
from rollcall.compose.runs.run_folder import RunFolder
from rollcall.schemas.errors import Refused
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.config.learner_table import FLAT, TABLES
from tests.support.tiny_run import World

KEYS = [*LearnerConfig().flat(), *TABLES]
ABSURD: list[Any] = [
    True, "x", "", [], {}, -1, 0, 2.5, 1e308, float("nan"), float("inf"), 10**30, [1], ["x"], [[]],
    [{}], [None], {"name": 3}, {"name": "x"}, {"name": []}, {"nam": 1}, b"x", None, "os:path",
    {"name": "gspo", "low": {}}, [True, False], [0.9, "x"], "a\nb", {"name": "a\nb"}, object(),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_any_value_is_accepted_or_refused_in_one_line(key: str) -> None:
    refused = []
    for value in ABSURD:
        try:
            LearnerConfig.of({key: value}).digest()
        except Refused as error:
            refused.append(str(error))

    assert len(refused) > len(ABSURD) / 2
    assert not [said for said in refused if "\n" in said or not said]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("lr", "fast", "lr is 'fast'; give a number"),
        ("steps", 2.5, "steps is 2.5; give a whole number"),
        ("steps", True, "steps is True; give a whole number"),
        ("steps", 10**30, "give a whole number"),
        (
            "filters",
            "zero_variance",
            r"filters is 'zero_variance'; give a list, such as \[\"NAME\"\]",
        ),
        ("shaping", "no_submit", "shaping is 'no_submit'; give a list"),
        ("betas", [0.9], r"betas is \[0.9\]; give a list of 2 numbers"),
        ("stream", 1, "stream is 1; give true or false"),
        ("mask_continued", "no", "mask_continued is 'no'; give true or false"),
        ("save", {"name": "async"}, "save is a table with name = 'async'; give a name"),
        ("lora", 8, "lora is 8; give a table"),
        ("advantage", ["grpo"], r"advantage is \['grpo'\]; give a name or a table with a name"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_the_fix(
    key: str, value: object, said: str
) -> None:
    with pytest.raises(Refused, match=said):
        LearnerConfig.of({key: value})


@pytest.mark.parametrize("name", FLAT)
def test_a_key_reads_the_same_with_and_without_its_table(name: str) -> None:
    table, key = FLAT[name]
    value = LearnerConfig().flat()[name]

    inside, outside = LearnerConfig.of({table: {key: value}}), LearnerConfig.of({name: value})

    assert inside == outside
    assert inside.given() == outside.given() == {name: value}
    with pytest.raises(Refused, match=f"{name} and {table}.{key} are the same; give one"):
        LearnerConfig.of({table: {key: value}, name: value})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replay": {"ratio": 1.5}}, "replay.ratio is 1.5; give a share"),
        ({"replay_ratio": 1.5}, "replay_ratio is 1.5; give a share"),
        ({"replay": {"rati": 0.5}}, "unknown key of the learner 'replay.rati'.*'replay.ratio'"),
        ({"replay_rati": 0.5}, "unknown key of the learner 'replay_rati'.*'replay_ratio'"),
        ({"replay": 3, "replay_ratio": 0.5}, "replay is 3; give a table"),
    ],
)
def test_a_refused_key_of_a_table_is_named_as_written(values: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused, match=said):
        LearnerConfig.of(values)


def test_a_rule_may_be_a_name_or_a_table_everywhere() -> None:
    config = LearnerConfig.of({"aggregate": {"name": "token_mean"}, "filters": [{"name": "none"}]})

    assert config.rules
    assert all(LearnerConfig.of(load_recipe(name)[0].learner_values(1)) for name in SHIPPED)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return World(tmp_path_factory.mktemp("run")).folder


@pytest.mark.parametrize(
    "change",
    [
        "learner.lr=x", "learner.lr=[1", "learner.lr={}", "learner.lr=",
        "learner.steps=1979-05-27", "learner.loss.low=x", "learner.loss.name=3",
        "learner.loss.name.x=3", "learner.filters=none", "learner.loss={name='gspo', low={}}",
        "learner.betas=[1,2,3]", "learner..x=1", "=", "lr=1", "learner.loss.name=[]",
        "learner.lora.rank=x", "learner.recorded.run=1", "learner.share.x=1",
        "learner.seed='a'", "learner.stream.x=1", "learner.filters.name=none",
        "learner.lr.name=1", "learner.loss.name=a\nb",
        "learner.replay.ratio=2", "learner.optimiser.lr=x", "learner.groups.x=1",
    ],
)  # fmt: skip
def test_an_absurd_what_if_value_is_refused_in_one_line(folder: RunFolder, change: str) -> None:
    with pytest.raises(Refused) as refused:
        changed_learner(folder, [change])

    assert "\n" not in str(refused.value)
