"""Announce a local model directory as a policy that model servers serve, without training."""

from contextlib import suppress
from pathlib import Path

from rollcall.compose.cluster import Cluster, complete_topics
from rollcall.consumers.log.reading import read_all
from rollcall.producers.publisher import flush_all
from rollcall.schemas.errors import Refused, WireError
from rollcall.schemas.headers import full_headers
from rollcall.schemas.messages import PolicyVersion
from rollcall.schemas.topics import checked
from rollcall.schemas.weights import write_weights

FLUSH_S = 30.0


def publish_policy(cluster: Cluster, directory: Path, policy_id: str) -> int:
    """Make the policy's topic, write its weights, announce the next version; return its number.

    Raises Refused for no model, TopicsDiffer, Unavailable, or DeliveryFailed.
    """
    checked(policy_id)
    require_model(directory)
    settings = cluster.settings
    complete_topics(cluster, policy_id)
    version = newest_version(cluster, policy_id) + 1
    folder = settings.state() / "policies" / policy_id
    record = announcement_of(directory, policy_id, version, folder)
    topic = cluster.topics.versions
    headers = full_headers("PolicyVersion", f"{policy_id}/{version}", "cli", policy_id, policy_id)
    publisher = cluster.log.publisher()
    publisher.send(topic, policy_id, cluster.codec.encode(topic, record), headers=headers)
    flush_all(publisher, FLUSH_S, "policy versions", "try again")
    return version


def announcement_of(
    directory: Path, policy_id: str, version: int, weights_folder: Path
) -> PolicyVersion:
    """Write a directory's weights to a folder; return the record that announces them."""
    from rollcall.trainer.config.learner_config import LearnerConfig
    from rollcall.trainer.learner.step import Learner

    learner = Learner(str(directory), LearnerConfig())
    weights = write_weights(str(weights_folder), version, learner.tensors())
    canary = learner.canary()
    return PolicyVersion(
        policy_id=policy_id,
        version=version,
        parent=version - 1,
        run_id="",
        step=0,
        weights_digest=weights.weights_digest,
        full=weights,
        canary_ids=canary.ids,
        canary_logprobs=canary.logprobs,
    )


def require_model(directory: Path) -> None:
    """Raise Refused unless it is a Hugging Face directory."""
    if not (directory / "config.json").is_file():
        msg = f"{directory} is no Hugging Face directory: it has no config.json"
        raise Refused(msg)


def newest_version(cluster: Cluster, policy_id: str) -> int:
    """Return the highest announced version, -1 if there is none."""
    return max(announced(cluster, policy_id), default=-1)


def announced(cluster: Cluster, policy_id: str) -> set[int]:
    """Return the recorded versions of a policy; older ones are removed over time."""
    versions = set[int]()
    for record in read_all(cluster.log, [cluster.topics.versions]):
        if record.key == policy_id.encode() and record.value is not None:
            with suppress(WireError):  # an unreadable record announces nothing
                versions.add(cluster.codec.decode(record.value, PolicyVersion).version)
    return versions
