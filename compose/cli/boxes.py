"""`rollcall boxes`."""

from functools import partial
from typing import Annotated

import typer

from compose.cli.connection import cluster

Json = Annotated[bool, typer.Option("--json", help="All of it, as one object.")]


def boxes(json: Json = False) -> None:
    """List boxes by owner, rollout, age and lease, and where log and host disagree.

    From the log what every worker told of its boxes and who stands in line for one; from the
    drivers of this host what is there.

    Example: rollcall boxes
    """
    import asyncio
    import time

    from compose.pages.boxes_page import print_boxes
    from compose.terminal import emit
    from consumers.environments.instance_records import host_name
    from consumers.history.box_lives import box_lives, box_rows
    from sandbox.boxes.host_boxes import on_this_host
    from sandbox.boxes.leases import Leases

    at_hand = cluster()
    leases = Leases(at_hand.settings.leases(), "rollcall-boxes")
    here = asyncio.run(on_this_host())
    now_ms = int(time.time() * 1000)
    rows = box_rows(box_lives(at_hand), here, leases, host_name(), now_ms)
    show = partial(print_boxes, rows, here.silent)
    emit({"boxes": rows, "silent": here.silent}, show, json=json)
