"""The manifest guarantees the properties that the fold, the codec and operators rely on."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas import messages
from rollcall.schemas.errors import Refused
from rollcall.schemas.topics import Topics, TopicSpec, checked, manifest, wanted
from tests.schemas.release import LEVELS
from tests.support.avro_messages import FEW

EACH_TOPIC = pytest.mark.parametrize("spec", manifest(), ids=lambda spec: spec.name)
TOPICS = Topics()
NAMED = {
    TOPICS.requests: messages.RolloutRequest,
    TOPICS.events: messages.Event,
    TOPICS.steps: messages.EnvironmentStep,
    TOPICS.calls("policy"): messages.ModelCall,
    TOPICS.trajectories: messages.Trajectory,
    TOPICS.scored: messages.ScoredTrajectory,
    TOPICS.versions: messages.PolicyVersion,
    TOPICS.train_steps: messages.TrainStep,
    TOPICS.control: messages.Control,
    TOPICS.quotas: messages.Quota,
    TOPICS.stores: messages.StoreIdentity,
    TOPICS.instances: messages.Instance,
    TOPICS.dead_letters: None,
}
POLICY_IDS = st.text(alphabet="abcxyz0189-", min_size=1, max_size=12)


def of_name(name: str) -> TopicSpec:
    return next(spec for spec in manifest() if spec.name == name)


@pytest.mark.parametrize("cluster", [False, True])
def test_the_journals_topics_have_equal_partition_counts(
    cluster: bool,
) -> None:
    counts = {
        t.name: t.partitions
        for t in wanted("rl.", ["p"], cluster=cluster)
        if t.grows_with == "journal"
    }

    assert set(counts) == {TOPICS.requests, TOPICS.events, TOPICS.trajectories}
    assert len(set(counts.values())) == 1


def test_a_given_partition_count_applies_to_every_partitioned_topic() -> None:
    alone = {t.name for t in wanted("rl.", ["p"]) if t.partitions == 1}

    given_12 = {t.name: t.partitions for t in wanted("rl.", ["p"], partitions=12)}

    assert {name for name, count in given_12.items() if count == 1} == alone
    given_alone = {TOPICS.versions, TOPICS.train_steps, TOPICS.control, TOPICS.quotas}
    assert alone == {*given_alone, TOPICS.stores, TOPICS.instances}
    assert set(given_12.values()) == {1, 12}


@EACH_TOPIC
def test_exactly_the_topics_of_records_name_a_compatibility(spec: TopicSpec) -> None:
    assert (spec.compatibility in LEVELS) == (spec.record is not None)
    assert bool(spec.compatibility) == (spec.record is not None)


def test_only_journal_and_work_topics_are_backward_compatible() -> None:
    levels = {spec.name: spec.compatibility for spec in manifest() if spec.record}

    assert {name for name, level in levels.items() if level == "BACKWARD_TRANSITIVE"} == {
        "rollout.events", "model.calls", "env.steps", "control",
    }  # fmt: skip
    assert set(levels.values()) == {"BACKWARD_TRANSITIVE", "FULL_TRANSITIVE"}


@EACH_TOPIC
def test_manifest_names_use_dots_and_never_underscores(spec: TopicSpec) -> None:
    assert re.fullmatch(r"[a-z]+(\.[a-z]+)*", spec.name)


def test_names_of_topics_and_groups_use_dots_and_never_underscores() -> None:
    groups = [TOPICS.group("agents"), TOPICS.group("models", "my-policy")]

    for name in [*NAMED, *groups]:
        assert re.fullmatch(r"rl(\.[a-z0-9-]+)+", name)
    assert groups == ["rl.agents", "rl.models.my-policy"]


@EACH_TOPIC
def test_a_topic_documents_its_owner_key_and_purpose(spec: TopicSpec) -> None:
    assert spec.owner
    assert spec.key
    assert spec.about


@EACH_TOPIC
def test_topic_settings_are_text_in_kafkas_form(spec: TopicSpec) -> None:
    assert all(type(value) is str for value in spec.config.values())
    assert spec.config["cleanup.policy"] in ("delete", "compact")
    assert int(spec.config["retention.ms"]) != 0


def test_permanent_topics_are_not_deleted_by_time() -> None:
    for name in ("policy.versions", "train.steps", "quotas"):
        assert of_name(name).config["retention.ms"] == "-1"
    for name in ("policy.versions", "quotas"):
        assert of_name(name).config["cleanup.policy"] == "compact"


def test_the_journal_outlives_the_work_topics() -> None:
    def kept(name: str) -> int:
        return int(of_name(name).config["retention.ms"])

    assert kept("rollout.events") >= kept("rollout.requests") > kept("model.calls")
    assert kept("rollout.events") >= kept("env.steps")


def test_dead_letters_are_kept_as_long_as_the_journal() -> None:
    assert of_name("dead.letters").config == {
        **of_name("rollout.events").config,
        "max.message.bytes": of_name("dead.letters").config["max.message.bytes"],
    }


def test_dead_letters_accept_the_largest_record_of_any_topic() -> None:
    sizes = {spec.name: int(spec.config["max.message.bytes"]) for spec in manifest()}

    assert sizes.pop("dead.letters") > max(sizes.values())


def test_a_cluster_keeps_three_replicas_and_a_laptop_one() -> None:
    for topic in wanted("rl.", ["p"], cluster=True):
        assert (topic.replication, topic.config["min.insync.replicas"]) == (3, "2")
    for topic in wanted("rl.", ["p"]):
        assert topic.replication == 1
        assert "min.insync.replicas" not in topic.config


def test_exactly_the_topic_names_used_in_code_are_in_the_manifest() -> None:
    assert {topic.name for topic in wanted("rl.", ["policy"])} == set(NAMED)


@pytest.mark.parametrize("topic", NAMED)
def test_the_record_of_a_topic_is_known(topic: str) -> None:
    assert TOPICS.record_of(topic) is NAMED[topic]


@given(st.lists(POLICY_IDS, unique=True, max_size=3))
@FEW
def test_each_policy_has_its_own_calls_topic(policies: list[str]) -> None:
    names = [topic.name for topic in wanted("rl.", policies) if topic.record is messages.ModelCall]

    assert names == [f"rl.model.calls.{policy}" for policy in policies]
    assert names == [TOPICS.calls(policy) for policy in policies]
    assert all(TOPICS.record_of(name) is messages.ModelCall for name in names)


@pytest.mark.parametrize(
    "topic", ["rl.trajectory", "rl.model.callsx", "rl.", "", "rl.trajectories.old"]
)
def test_an_unknown_topic_is_refused_with_the_known_ones(topic: str) -> None:
    with pytest.raises(Refused, match=rf"no topic '{topic}'.*trajectories\.scored"):
        TOPICS.record_of(topic)


def test_topics_of_two_prefixes_never_overlap() -> None:
    here, there = ({t.name for t in wanted(prefix, ["p"])} for prefix in ("rl.", "test."))

    assert not here & there
    assert Topics("test.").record_of("test.control") is messages.Control


@given(POLICY_IDS)
@FEW
def test_a_policy_id_of_lowercase_letters_digits_and_dashes_is_accepted(policy_id: str) -> None:
    assert checked(policy_id) == policy_id


@pytest.mark.parametrize("policy_id", ["", "a.b", "a_b", "Policy", "a b", "ä", "a/b", "a\n", "*"])
def test_any_other_policy_id_is_refused(policy_id: str) -> None:
    with pytest.raises(Refused, match=r"policy id .* names a topic"):
        wanted("rl.", [policy_id])
