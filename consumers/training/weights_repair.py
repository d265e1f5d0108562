"""Repair of published weights that are lost: the trainer publishes its own again, in full.

A starting server has no other source, and the step that would publish the next version may be
waiting for that server. Full weights of the same digest are the same version.
"""

from dataclasses import dataclass, replace

import structlog

from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import WireError
from rollcall.schemas.messages import PolicyVersion
from rollcall.schemas.published_weights import Published
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.weights.publication import Publication

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WeightsRepair:
    """Checks that the files to which a version's record refers exist.

    Both methods return the record, encoded, if it refers to other files now, and None if there is
    nothing to announce. Both raise Unavailable.
    """

    publication: Publication
    codec: Codec
    topic: str

    def torn(self, value: bytes | None, learner: Learner) -> bytes | None:
        """Read every file of the version that a learner begins with, and replace damaged ones."""
        try:
            record = self.codec.decode(value, PolicyVersion)
        except WireError:
            record = None
        repaired = self.publication.resume(record, learner.version, learner.tensors())
        return self._again(record, repaired, learner.version)

    def lost(self, value: bytes, learner: Learner) -> bytes | None:
        """Check only names and sizes of the learner's version, and replace lost files."""
        if not self.publication.lost():
            return None
        record = self.codec.decode(value, PolicyVersion)
        repaired = self.publication.write_again(learner.tensors())
        return self._again(record, repaired, learner.version)

    def _again(
        self, record: PolicyVersion | None, repaired: Published | None, version: int
    ) -> bytes | None:
        if repaired is None:
            return None
        log.warning("weights_repaired", version=version)
        if record is None or repaired == Published(record.full, record.deltas):
            return None
        again = replace(
            record,
            weights_digest=repaired.weights_digest,
            full=repaired.full,
            deltas=repaired.deltas,
        )
        return self.codec.encode(self.topic, again)
