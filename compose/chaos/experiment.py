"""The experiment in one thread: feed the workload, inject faults by the schedule, heal, drain.

The order: start, wait until every group works, inject faults while feeding, wait until every group
works again, stop feeding, wait until all is scored, stop.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field

import structlog
from rich.console import Console

from rollcall.compose.chaos import workload
from rollcall.compose.chaos.boxes import BoxVictim, EngineVictim
from rollcall.compose.chaos.cut_log import LogVictim
from rollcall.compose.chaos.faults import KILL, SERVICES, Fault
from rollcall.compose.chaos.plan import clock_of, ids_of, processes_of
from rollcall.compose.chaos.stage import Stage
from rollcall.compose.chaos.surroundings import (
    ClockVictim,
    IdsVictim,
    OpenTransactionVictim,
    StoreVictim,
)
from rollcall.compose.chaos.victims import ProcessVictim, ServiceVictim, Stack, Victim
from rollcall.compose.chaos.watch import Watch
from rollcall.compose.chaos.wrong_registry import WrongRegistry
from rollcall.compose.services.service_errors import ServicesError
from rollcall.compose.workers.supervisor import GRACE_S
from rollcall.producers.control import write_control
from rollcall.producers.publisher import flush_all
from rollcall.producers.submit import Submitter
from rollcall.sandbox.boxes.leases import Leases
from rollcall.schemas.messages import Control, RolloutRequest

OPEN = 200
"""The number of the workload's rollouts that are open at a time."""
TICK_S = 0.02
WARM_S = 120.0
SETTLE_S = 60.0
"""The most time that feeding continues after the last fault, until every group works again."""
JUDGED_S = 300.0
"""The timeout of the check of a log's cut, including a slow start of the broker."""
STUCK_S = 60.0
"""The time without progress after which a group may get the next fault."""
DRAIN_S = 180.0
FLUSH_S = 120.0
REAP_S = 60.0
"""The timeout of the removal of a dead worker's leases, which expire after half of it."""
LINE_EVERY_S = 10.0
AHEAD = 12
"""The most earlier faults that a soak's fault may overtake; otherwise a service that restarts
quickly would be killed repeatedly before all others."""

log = structlog.get_logger()


@dataclass
class Lane:
    """The sequence of faults of one victim."""

    victim: Victim
    faults: deque[Fault] = field(default_factory=deque)
    now: Fault | None = None
    began: float = 0.0
    fit_since: float | None = None

    def idle(self) -> bool:
        return self.now is None and not self.faults

    def due(self, since_s: float) -> bool:
        """Return True if the next fault could begin."""
        waits = self.now is None and bool(self.faults)
        if not waits or self.faults[0].at_s > since_s or not self.victim.fit():
            return False
        self.fit_since = since_s if self.fit_since is None else self.fit_since
        return self.fit_since + self.faults[0].after_s <= since_s

    def begin(self, since_s: float) -> None:
        self.now, self.began, self.fit_since = self.faults.popleft(), since_s, None
        self.victim.begin(self.now)

    def turn(self, since_s: float) -> None:
        self.victim.look()
        if self.now is not None and since_s - self.began < self.now.lasts_s:
            self.victim.during(self.now, since_s - self.began)
        else:
            self.end()

    def end(self) -> None:
        fault, self.now = self.now, None
        if fault is not None:
            self.victim.end(fault)


class Conductor:
    """One chaos run on its stage; `close` ends every worker."""

    def __init__(self, stage: Stage, terminal: Console, check: Callable[[], None]) -> None:
        """Set up the run; `check` is called at every turn, and raises to stop the run."""
        self.check = check
        self.stage = stage
        self.plan = stage.plan
        self.terminal = terminal
        cluster, state = stage.cluster, stage.cluster.settings
        cluster.codec.prepare(cluster.topics.requests, RolloutRequest)
        cluster.codec.prepare(cluster.topics.control, Control)
        self.workers = stage.workers()
        self.pool = ThreadPoolExecutor(max_workers=2)
        self.leases = Leases(state.leases(), "chaos")
        self.boxes = BoxVictim(self.leases, stage.engine)
        self.stranger = OpenTransactionVictim(cluster)
        self.registries = {w.name: WrongRegistry(cluster.registry_url) for w in self.workers}
        self.watch = Watch(cluster)
        self.publisher = cluster.log.publisher()
        stack = Stack(state.state(), state.cache(), self.pool)
        self.services = {name: ServiceVictim(name, stack) for name in SERVICES}
        agents = [worker for worker in self.workers if worker.group == "agents"]
        self.log = LogVictim(cluster, self.services["broker"], agents, self.watch, self.publisher)
        self.around = self._around() if self.plan.hosts else []
        self.lanes = {victim.name: Lane(victim) for victim in self._victims()}
        self.submitter = Submitter(self.publisher, cluster.codec, cluster.topics, "chaos")
        self.published = 0
        self._said = 0.0

    def _victims(self) -> Sequence[Victim]:
        engine = self.stage.engine
        return [
            *self.workers,
            *self.services.values(),
            *(
                ProcessVictim(processes_of(worker.name), worker)
                for worker in self.workers
                if worker.group == "environments"
            ),
            self.boxes,
            self.stranger,
            *self.around,
            *([EngineVictim(engine)] if engine else []),
        ]

    def _around(self) -> list[Victim]:
        """Return the victims in the surroundings of each worker, and of all."""
        objects = self.stage.cluster.settings.state() / "services" / "objects"
        return [
            *(ClockVictim(clock_of(w.name), w) for w in self.workers),
            *(IdsVictim(ids_of(w.name), w, self.registries[w.name]) for w in self.workers),
            StoreVictim(objects),
            self.log,
        ]

    def run(self) -> None:
        """Run the whole experiment; `verify` reports what did not finish in time."""
        for worker in self.workers:
            worker.start()
        self._until(self._joined, WARM_S, "joining", feed=False)
        self._until(self._works, WARM_S, "warming up")
        self._harm()
        self._until(self._healed, SETTLE_S, "settling", must=False)
        self._until(self.log.back, JUDGED_S, "waiting until the log's cut is named")
        rest = self.plan.rollouts or 0
        self._until(lambda: self.published >= rest, DRAIN_S, "publishing the rest")
        self._drain()

    def _joined(self) -> bool:
        return all(worker.fit() for worker in self.workers)

    def _works(self) -> bool:
        return bool(self.watch.scored) and (not self.plan.trains or self.watch.steps > 0)

    def _harm(self) -> None:
        for fault in self.plan.faults():
            self.lanes[fault.victim].faults.append(fault)
        began = time.monotonic()
        lanes = list(self.lanes.values())
        while not all(lane.idle() for lane in lanes):
            since_s = time.monotonic() - began
            if since_s > self.plan.seconds:
                break
            for lane in lanes:
                lane.turn(since_s)
            due = [lane for lane in lanes if lane.due(since_s)]
            for lane in sorted(due, key=lambda lane: lane.faults[0].at_s):
                if self._in_turn(lane.faults[0]) and self._may_begin(
                    lane.faults[0], lane.victim.group
                ):
                    self._begin(lane, since_s)
            self._turn("harming")
        for lane in lanes:
            lane.faults.clear()
            lane.end()

    def _in_turn(self, fault: Fault) -> bool:
        """Return True unless too many earlier faults of a soak still wait for their victims."""
        waiting = (each for lane in self.lanes.values() for each in lane.faults)
        return not self.plan.soak or sum(each.at_s < fault.at_s for each in waiting) <= AHEAD

    def _may_begin(self, fault: Fault, group: str | None) -> bool:
        """Return True if there was progress since the victim's last fault, in a soak its group's.

        Otherwise the workload would stall, and kills would hit idle processes. A victim with
        `after_s` is killed after that time, even before its first progress.
        """
        if fault.after_s > 0:
            return True
        since_ms = (time.time() - STUCK_S) * 1000
        without = [each for each in self.watch.waiting() if each.began_ms > since_ms]
        if any(each.fault.victim == fault.victim for each in without):
            return False
        return not self.plan.soak or all(each.group != group for each in without)

    def _begin(self, lane: Lane, since_s: float) -> None:
        fault = lane.faults[0]
        began_ms, number = int(time.time() * 1000), len(self.watch.progress)
        log.info("fault_begins", number=number, since_s=round(since_s, 1), **asdict(fault))
        self.watch.expect(fault, began_ms, lane.victim.group, lane.victim.partitions())
        lane.begin(since_s)

    def _healed(self) -> bool:
        return not self.watch.waiting() and all(lane.victim.back() for lane in self.lanes.values())

    def _drain(self) -> None:
        """Send no more requests, and wait until every one has been scored."""
        for worker in self.workers:
            if worker.group == "training":
                worker.ask_to_stop()
                worker.wait(time.monotonic() + GRACE_S)
        flush_all(self.publisher, FLUSH_S, "requests", f"see {self.stage.logs}")
        topic = self.stage.cluster.topics.requests
        ends = self.stage.cluster.admin.ends({topic: self.stage.cluster.log.partitions(topic)})
        self._until(
            lambda: self.watch.all_scored(ends), DRAIN_S, "draining", feed=False, must=False
        )
        self._until(self._reaped, REAP_S, "reaping", feed=False, must=False)

    def _reaped(self) -> bool:
        """Return True if every lease was renewed lately, so those of dead workers are removed."""
        told_s = 3 * self.leases.times.touch_s
        return all(lease.age_s < told_s for lease in self.leases.all())

    def _until(
        self,
        condition: Callable[[], bool],
        timeout_s: float,
        what: str,
        *,
        feed: bool = True,
        must: bool = True,
    ) -> None:
        until = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > until:
                if must:
                    msg = f"{what}: not within {timeout_s:g} s; see {self.stage.logs}"
                    raise ServicesError(msg)
                return
            for lane in self.lanes.values():
                lane.victim.look()
            self._turn(what, feed=feed)

    def _turn(self, what: str, *, feed: bool = True) -> None:
        self.check()
        if self.watch.failure is not None:
            raise self.watch.failure
        if feed:
            self._feed()
        self.publisher.poll()
        if time.monotonic() > self._said + LINE_EVERY_S:
            self._said = time.monotonic()
            self.terminal.print(self._line(what), highlight=False)
            sys.stdout.flush()
        time.sleep(TICK_S)

    def _line(self, what: str) -> str:
        watch = self.watch
        trained = f", {watch.steps:,} train steps" if self.plan.trains else ""
        return (
            f"{what}: {len(watch.progress):,} faults, {len(watch.asked):,} rollouts, "
            f"{len(watch.asked) - len(watch.scored):,} open{trained}"
        )

    def _feed(self) -> None:
        """Keep OPEN rollouts of the workload open."""
        if self.log.holds_requests_back():
            return
        most = self.plan.rollouts or sys.maxsize
        ended = self.watch.scored_of(workload.run_id(self.plan.seed))
        while self.published < most and self.published - ended < OPEN:
            seed, number = self.plan.seed, self.published
            hosts, boxes = self.plan.hosts, self.stage.boxes
            self.submitter.publish(workload.request(seed, number, hosts=hosts, boxes=boxes))
            word = workload.cancel(seed, number)
            if word is not None:
                here = self.stage.cluster
                write_control(self.publisher, here.codec, here.topics, word)
            self.published += 1

    def close(self) -> None:
        """End all faults, ask the workers to end, and wait for them."""
        self.watch.close()
        self.pool.shutdown()
        for lane in self.lanes.values():
            if lane.now is not None and lane.now.kind != KILL:
                lane.end()
        running = [worker for worker in self.workers if worker.process is not None]
        for registry in self.registries.values():
            registry.close()
        for worker in running:
            worker.ask_to_stop()
        until = time.monotonic() + GRACE_S
        for worker in running:
            worker.wait(until)

    def most_repeated(self) -> int:
        """Return the most work in flight over all faults; a rollout has at most two open asks."""
        trained = self.stage.run.recipe.max_running if self.stage.run else 0
        return 2 * (OPEN + trained) * len(self.watch.progress)
