"""A models worker with the workload's policy: `python -m compose.chaos.process NAME`.

The other groups' workers are those of `rollcall worker`. This module does not import torch.
"""

import sys

from compose.chaos.workload import POLICY, UnhurriedEngine, script
from compose.cluster import cluster_of
from compose.log_setup import set_up
from compose.settings import load_settings
from compose.workers.build import Workshop
from compose.workers.readiness import patiently, wait_until_fit
from compose.workers.shutdown import Stop


def main(name: str) -> None:
    set_up("models", name)
    cluster = cluster_of(load_settings())
    wait_until_fit(cluster)
    shop = Workshop(cluster.log, cluster.codec, cluster.topics, cluster.settings)
    patiently(lambda: shop.models(name, UnhurriedEngine(POLICY, script(name)))).run(Stop())


if __name__ == "__main__":
    main(sys.argv[1])
