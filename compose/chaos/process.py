"""A models worker with the workload's policy: `python -m rollcall.compose.chaos.process NAME`.

The other groups' workers are those of `rollcall worker`. This module does not import torch.
"""

import sys

from rollcall.compose.chaos.workload import POLICY, UnhurriedEngine, script
from rollcall.compose.cluster import cluster_of
from rollcall.compose.log_setup import set_up
from rollcall.compose.settings import load_settings
from rollcall.compose.workers.readiness import patiently, wait_until_fit
from rollcall.compose.workers.shutdown import Stop
from rollcall.compose.workers.worker_factory import WorkerFactory


def main(name: str) -> None:
    set_up("models", name)
    cluster = cluster_of(load_settings())
    wait_until_fit(cluster)
    factory = WorkerFactory(cluster.log, cluster.codec, cluster.topics, cluster.settings)
    patiently(lambda: factory.models(name, UnhurriedEngine(POLICY, script(name)))).run(Stop())


if __name__ == "__main__":
    main(sys.argv[1])
