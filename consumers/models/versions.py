"""The announced versions of a policy, and the choice of the one that a server serves.

A record that cannot be served stops no server: it is refused once, with the reason, and the next
lower version is taken. Weights that cannot be read now may appear later, so they are only passed
over.

A wrong canary shows that record and engine do not fit, but not which of them is wrong. A server
with weights in service keeps them, loads the version again, and stops after three wrong canaries in
a row. A starting server has just loaded everything, so it refuses the record. So a bad record costs
each server one restart, and a bad engine does not serve old weights forever.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import structlog

from rollcall.consumers.log.protocols import Reader, Record
from rollcall.consumers.loop.clock import Clock
from rollcall.consumers.loop.dead_letters import SkippedRecords
from rollcall.consumers.loop.decode_in_order import DecodeInOrder
from rollcall.consumers.models.adoption_turns import AdoptionTurn
from rollcall.consumers.models.pinned_engines import Staging
from rollcall.inference.engine import Engine
from rollcall.schemas.bounds import VERSIONS_END
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import (
    CanaryMismatch,
    FailureCode,
    Unavailable,
    WeightsDiffer,
    WireError,
    WorkFailed,
)
from rollcall.schemas.messages import PolicyVersion

RETRY_S = 1.0
AWAY_TRIES = 15
"""Tries after which a server that has served nothing yet takes the best readable version."""
PASSED_RETRY_S = 30.0
CANARIES = 3
"""The number of wrong canaries in a row after which a server stops."""
KEEP_ANNOUNCED = 64
"""The number of versions that may still be asked for by number."""
REMEDY = "mend what wrote this record; a higher version that can be served is adopted as usual"

log = structlog.get_logger()


@dataclass(slots=True)
class _Away:
    """A version whose weights could not be read."""

    tries: int = 0
    due: float = 0.0


class Versions:
    """The announcements on `policy.versions` for the policy of one engine."""

    def __init__(
        self,
        engine: Engine,
        codec: Codec,
        reader: Reader,
        wall: Clock,
        bury: Callable[[Record, WireError], None],
        thread: Executor,
        turn: AdoptionTurn | None = None,
        skipped: SkippedRecords | None = None,
    ) -> None:
        self.engine = engine
        self.staging = Staging(engine, thread)
        self.turn = turn
        """Set if only some servers may adopt a version at once."""
        self.reader = reader
        self.wall = wall
        self.bury = bury
        self.known: dict[int, PolicyVersion] = {}
        """The last announcement of each version, without refused ones."""
        self.current = False
        """True once the engine has served the newest version that was available at the start."""
        self.refused = 0
        self._key = engine.policy_id.encode()
        self._away: dict[int, _Away] = {}
        self._served = -1
        self._canaries_off = 0
        self._due = 0.0
        self._unread = DecodeInOrder(codec, PolicyVersion, skipped=skipped, clock=wall)
        """Announcements that wait for the registry or a schema; later ones wait behind them."""

    def newest(self) -> int:
        """Return the highest announced version; -1 if there is none."""
        return max(self.known, default=-1)

    def follow(self) -> None:
        """Read announcements, and adopt the best version."""
        read = self.reader.poll(0.0)
        self._unread.add(record for record in read if record.key == self._key and record.value)
        if self._unread and self.wall() >= self._due:
            self._take()
        self._adopt_best()
        # The table is bounded, but keeps the version that was served last.
        for number in sorted(self.known.keys() - {self._served})[:-KEEP_ANNOUNCED]:
            self._forget(number)
        if not self.current:
            self.current = self._is_current()

    def _take(self) -> None:
        for record, version in self._unread.ready():
            if isinstance(version, PolicyVersion):
                self._announced(record, version)
            else:
                self.bury(record, version)
        self._due = self.wall() + (RETRY_S if self._unread else 0)

    def _announced(self, record: Record, version: PolicyVersion) -> None:
        number = version.version
        if not 0 <= number < VERSIONS_END:
            place = f"{record.topic} {record.partition}@{record.offset}"
            self._refuse(version, f"{place} claims a number that no version has")
        elif number not in self.known or number in self._away:
            self.known[number] = version
            self._away.pop(number, None)
        elif self.known[number].weights_digest != version.weights_digest:
            self._refuse(version, f"version {number} was announced before with other weights")
        else:  # the same weights, perhaps at another place
            self.known[number] = version

    def _refuse(self, version: PolicyVersion, reason: str) -> None:
        self.refused += 1
        log.warning(
            "version_refused",
            policy_id=version.policy_id,
            version=version.version,
            run_id=version.run_id,
            error=reason,
            remedy=REMEDY,
        )

    def _forget(self, number: int) -> None:
        del self.known[number]
        self._away.pop(number, None)

    # Adopting

    def _adopt_best(self) -> None:
        """Adopt the highest version that can be read, or wait for one that may still come.

        The staging of a version is completed, even if a newer one is known by now.
        """
        if not self._adopt_staged():
            return
        for number in sorted(self.known, reverse=True):
            if number <= self.engine.version:
                return
            away = self._away.get(number)
            if away is None or away.due <= self.wall():
                if not self._is_its_turn():
                    return
                self.staging.stage_version(self.known[number])
                if not self._adopt_staged():
                    return
            if number == self.engine.version or self._hoped_for(number):
                return

    def _is_its_turn(self) -> bool:
        """Return True if this server may adopt; one that serves nothing yet does not wait."""
        return self.turn is None or self.engine.version < 0 or self.turn.request_place()

    def _hoped_for(self, number: int) -> bool:
        """Return True while a starting server should wait for this version."""
        away = self._away.get(number)
        return not self.current and away is not None and away.tries < AWAY_TRIES

    def _adopt_staged(self) -> bool:
        """Adopt the staged version, if there is one; return False while it is being staged."""
        version = self.staging.version
        if version is None:
            return True
        if not self.staging.ready():
            return False
        try:
            self.staging.adopt()
        except (Unavailable, WeightsDiffer) as error:
            # A damaged file is like a missing one: its trainer writes it again when it resumes.
            self._note_away(version, error)
        except (WorkFailed, WireError) as error:
            if isinstance(error, WorkFailed) and error.code == FailureCode.CANARY:
                self._note_canary(version, error)
            else:
                self._pass_for_good(version, error)
        else:
            self._note_served(version)
        finally:
            if self.turn is not None:
                self.turn.end()
        return True

    def _note_served(self, version: PolicyVersion) -> None:
        number = version.version
        self._canaries_off = 0
        self._away.pop(number, None)
        if self.engine.version == number:
            self._served = number
            log.info("version_adopted", policy_id=version.policy_id, version=number)
        else:  # below the version of this engine, which never goes back
            self._away[number] = _Away(AWAY_TRIES, self.wall() + PASSED_RETRY_S)

    def _pass_for_good(self, version: PolicyVersion, error: Exception) -> None:
        self.known.pop(version.version, None)
        self._away.pop(version.version, None)
        self._refuse(version, str(error))

    def _note_canary(self, version: PolicyVersion, error: WorkFailed) -> None:
        """Retry a wrong canary if other weights are in service meanwhile. Raises CanaryMismatch."""
        self._canaries_off += 1
        if self.engine.version < 0:
            self._pass_for_good(version, error)
            return
        number = version.version
        if self._canaries_off >= CANARIES:
            msg = (
                f"{CANARIES} canaries in a row are off, so this server leaves while it serves "
                f"version {self.engine.version} of {version.policy_id!r}; the last: {error}"
            )
            raise CanaryMismatch(msg)
        self._away[number] = _Away(self._canaries_off, self.wall() + RETRY_S)
        log.warning(
            "canary_mismatch",
            policy_id=version.policy_id,
            version=number,
            serving=self.engine.version,
            error=str(error),
            remedy=f"it is loaded anew; after {CANARIES} in a row this server leaves",
        )

    def _note_away(self, version: PolicyVersion, error: Exception) -> None:
        away = self._away.setdefault(version.version, _Away())
        away.tries += 1
        skipped = away.tries >= AWAY_TRIES
        away.due = self.wall() + (PASSED_RETRY_S if skipped else RETRY_S)
        if away.tries in (1, AWAY_TRIES):
            log.warning(
                "version_skipped" if skipped else "weights_unavailable",
                policy_id=version.policy_id,
                version=version.version,
                error=str(error),
                remedy=f"put the file there; it is tried again every {PASSED_RETRY_S:g} s"
                if skipped
                else "it is tried again every second",
            )

    def _is_current(self) -> bool:
        """Return True if the engine serves the best available version of all that are announced."""
        if self._unread or not self.reader.caught_up() or self.engine.version < 0:
            return False
        above = [number for number in self.known if number > self.engine.version]
        return all(number in self._away and not self._hoped_for(number) for number in above)
