"""The in-memory log's reader of everything."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from consumers.log.protocols import Record, TopicPartition
from schemas.errors import Unfit

if TYPE_CHECKING:
    from consumers.log.memory_log import MemoryLog


class MemoryReader:
    """Reads every partition of some topics from given positions."""

    def __init__(
        self,
        log: "MemoryLog",
        topics: Sequence[str],
        starts: Mapping[TopicPartition, int],
        *,
        from_end: bool = False,
    ) -> None:
        self.log = log
        self.topics = list(topics)
        self.positions: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        for topic in topics:
            for number in range(log.partitions(topic)):
                partition = log.topics[topic][number]
                default = partition.end if from_end else partition.start
                start = starts.get((topic, number), default)
                if start < partition.start:
                    msg = f"{topic} {number} begins at {partition.start}; offset {start} is gone"
                    raise Unfit(msg)
                self.positions[topic, number] = start
                self._ends[topic, number] = partition.end

    def poll(self, timeout_s: float, most: int = 500) -> list[Record]:
        del timeout_s
        records: list[Record] = []
        for topic in self.topics:
            for number in range(self.log.partitions(topic)):
                # One that was added since: all that is in it came after.
                self.positions.setdefault((topic, number), self.log.topics[topic][number].start)
        for tp, position in self.positions.items():
            read, self.positions[tp] = self.log.read_on(*tp, position, most - len(records))
            records += read
        return records

    def caught_up(self) -> bool:
        return all(self.positions[tp] >= end for tp, end in self._ends.items())

    def close(self) -> None:
        self.topics.clear()
        self.positions.clear()
