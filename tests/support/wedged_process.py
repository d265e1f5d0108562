"""A process whose loop never turns again."""

import threading
from collections.abc import Iterable
from typing import Any

from rollcall.consumers.log.protocols import Record
from tests.support.rig import InHand, Rig


class Hangs(InHand):
    def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
        self.hang()

    def hang(self) -> None:
        threading.Event().wait()


if __name__ == "__main__":
    rig = Rig()
    rig.order("pause")
    rig.loop(Hangs("t.control"), rig.log.publisher(), "g").run(lambda: False, wedged_s=0.1)
