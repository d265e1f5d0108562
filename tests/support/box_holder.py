"""A process that borrows boxes, runs something in each, says their names, and stays.

`python tests/support/box_holder.py LEASES DRIVER BOXES`
"""

import asyncio
import sys
from pathlib import Path

from rollcall.consumers.environments.worker_boxes import WorkerBoxes
from rollcall.consumers.loop.event_loop_thread import EventLoopThread
from rollcall.sandbox.boxes.box import Spec
from rollcall.sandbox.boxes.leases import Leases, LeaseTimes

QUICK = LeaseTimes(touch_s=0.1, lapse_s=1.0, reap_s=0.1)


async def hold(boxes: WorkerBoxes, driver: str, count: int) -> None:
    mine = boxes.of("r", 1)
    for _ in range(count):
        box = await mine.lend(driver, Spec())
        await box.start("/bin/sh", "-c", "setsid sleep 3600 & sleep 3600")
        print("box", box.ident, flush=True)
    print("all boxes", flush=True)
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    leases = Leases(Path(sys.argv[1]), f"holder {sys.argv[2]}", QUICK)
    boxes = WorkerBoxes(EventLoopThread(threaded=False), leases, lambda instance: None, warm=1)
    asyncio.run(hold(boxes, sys.argv[2], int(sys.argv[3])))
