"""`rollcall quota`: the workers read the published quotas."""

import json
from pathlib import Path

import pytest

from rollcall.schemas.errors import Refused, TopicsDiffer
from rollcall.schemas.messages import Quota
from tests.support.command_line import call, refused, rollcall
from tests.support.memory_cluster import MemoryCluster


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


def test_quota_is_listed_until_it_is_unset(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    call(cluster, "quota", "set", "ann", "--running", "8", "--calls-per-s", "0.5")
    call(cluster, "quota", "set", "bob", "--calls-per-s", "500")
    capsys.readouterr()
    call(cluster, "quota", "list", "--json")
    listed = json.loads(capsys.readouterr().out)
    call(cluster, "quota", "unset", "bob")
    call(cluster, "quota", "list")
    shown = capsys.readouterr().out

    assert listed["users"] == {
        "ann": {"running": 8, "calls_per_s": 0.5},
        "bob": {"running": 0, "calls_per_s": 500.0},
    }
    assert "ann" in shown
    assert "bob may have as much as there is, as in the settings" in shown
    assert shown.count("bob") == 1


def test_setting_a_quota_again_replaces_all_of_it(cluster: MemoryCluster) -> None:
    call(cluster, "quota", "set", "ann", "--running", "8")
    call(cluster, "quota", "set", "ann", "--calls-per-s", "9")

    records = cluster.read(cluster.topics.quotas, Quota)
    assert records == [Quota("ann", running=8), Quota("ann", calls_per_s=9.0)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["set", "ann"], "no limit is given"),
        (["set", "ann", "--running", "0"], "--running must be above 0"),
        (["set", "ann", "--running", "-1"], "running must be from 0"),
        (["set", "ann", "--running", "99999999999"], "running must be from 0"),
        (["set", "ann", "--calls-per-s", "nan"], "calls_per_s must be from 0.001"),
        (["set", "ann", "--calls-per-s", "inf"], "calls_per_s must be from 0.001"),
        (["set", "ann", "--calls-per-s", "0"], "--calls-per-s must be above 0"),
        (["set", "", "--running", "1"], "user is empty"),
        (["unset", ""], "has no quota"),
        (["unset", "bob"], "no user has one"),
    ],
)
def test_invalid_quota_is_refused_and_not_published(
    cluster: MemoryCluster, words: list[str], said: str
) -> None:
    with pytest.raises(Refused, match=said):
        call(cluster, "quota", *words)

    assert cluster.log.all(cluster.topics.quotas) == []


def test_user_without_quota_is_refused_with_the_nearest_known_user(
    cluster: MemoryCluster,
) -> None:
    call(cluster, "quota", "set", "annemarie", "--running", "1")

    with pytest.raises(Refused, match="did you mean 'annemarie'"):
        call(cluster, "quota", "unset", "annemari")


@pytest.mark.parametrize("words", [["list"], ["set", "ann", "--running", "1"], ["unset", "ann"]])
def test_missing_quota_topic_is_refused_by_name(cluster: MemoryCluster, words: list[str]) -> None:
    cluster.log.delete(cluster.topics.quotas)

    with pytest.raises((Refused, TopicsDiffer), match="quotas"):
        call(cluster, "quota", *words)


def test_invalid_limit_is_refused_with_one_line_and_exit_code_2(tmp_path: Path) -> None:
    said = refused(rollcall("quota", "set", "ann", "--running", "0", cwd=tmp_path))

    assert "--running must be above 0" in said
