"""A study on two Ray nodes of which a worker, then a whole node are killed: `python -m tests.runs.lost_nodes FOLDER`.

A process of its own: Ray leaves files open that a strict test suite would report.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from cleverscore.runs.ray_executor import Ray
from cleverscore.runs.store import Store
from tests.runs.studies import run


def main(folder: Path) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        second = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        cluster.connect()
        seen = 0

        def disturb(_points: int) -> None:
            nonlocal seen
            seen += 1
            if seen == 20:
                with Store.open(folder) as store:
                    last = [worker for *_, worker in store.shards() if worker][-1]
                os.kill(int(last.split()[1]), signal.SIGKILL)
            if seen == 50:
                cluster.remove_node(second, allow_graceful=False)

        executor = Ray()
        slots = executor.slots
        run(folder, executor=executor, on_points=disturb)
    finally:
        ray.shutdown()
        cluster.shutdown()
    print(f"slots {slots} repeated {executor.repeated}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
