"""What a study costs beside its gradients, and what a cluster would make of it: `python -m benchmarks.scaling`.

Measured here: a study against a bare loop over the same gradients; shards without work through every executor, which
tells how many a driver can serve; seconds per point of the networks. Simulated from that: the time of 50,000 ImageNet
images, 3 targets and 2 norms on 1 to 512 workers, shard by shard, with one driver that serves them one at a time.
"""

from __future__ import annotations

import argparse
import heapq
import json
import platform
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import cleverscore as cs
from benchmarks.networks import NETWORKS
from cleverscore.estimators.ascent.profile_search import most_gradients
from cleverscore.estimators.measurements import Measurements
from cleverscore.estimators.settings import Settings
from cleverscore.inputs.examples import Example, prepare
from cleverscore.runs.local_executor import InProcess, Processes
from cleverscore.runs.results import StudyConfig
from cleverscore.runs.schema import StoredBlocks
from cleverscore.runs.shards import Executor, Finished, Shard, Task, WorkerContext
from cleverscore.runs.store import Store
from cleverscore.runs.study import Study
from cleverscore.scores.cost import duration, estimate_for

IMAGES, TARGETS, NORMS = 50_000, 3, 2
POINTS = 500 * 1024
WORKERS = (1, 8, 64, 512)
SHARD_SECONDS = 20.0
SIMULATED_SHARDS = 200_000
JITTER = 0.2  # relative spread of the time of a shard, as on a shared machine


def overhead(repeats: int, inputs: int, blocks: int) -> dict[str, float]:
    """Time of a study over that of a bare loop, in turn, with shards of about ten seconds."""
    classifier = cs.load_model("zoo:mnist-cnn")
    images, _ = cs.load_data("zoo:mnist")
    config = StudyConfig("zoo:mnist-cnn", "zoo:mnist", ("2",), "runner_up", blocks=blocks, block_size=1024)
    ratios, counts = [], []
    for repeat in range(repeats):
        study = Study(config, classifier, images[:inputs], None, list(range(inputs)))
        settings = study.settings["2"]
        times = {}
        for what in ("loop", "study") if repeat % 2 else ("study", "loop"):
            with tempfile.TemporaryDirectory() as folder, study.open_store(Path(folder) / "run") as store:
                costs = study.costs(study.missing(store))  # a study that is run from the command line has these
                began = time.perf_counter()
                if what == "loop":
                    dict(settings.estimator.prepare(classifier, study.examples, settings).measure(study.examples))
                else:
                    study.run(store, costs=costs, shard_seconds=10.0)
                times[what] = time.perf_counter() - began
                counts.append(len(store.shards()))
        ratios.append(times["study"] / times["loop"])
        print(f"study / bare loop {ratios[-1]:.3f} ({times['loop']:.0f} s)", flush=True)
    return {"ratio": median(ratios), "ratios": ratios, "shards": max(counts), "seconds": times["loop"]}


class EmptyBench(WorkerContext):
    """Answers every shard at once, with results of the usual size."""

    def compute(self, shard: Shard) -> Finished:
        """Nothing but numbers that were there before."""
        parts = []
        for task in shard.tasks:
            assert task.blocks is not None
            count = len(task.example.targets)
            item = Measurements(
                task.example.input_id, None, task.example.predicted, task.example.targets, task.example.margins,
                tuple(np.zeros(len(task.blocks)) for _ in range(count)), (1024,) * count, 0.0, ("",) * count,
            )  # fmt: skip
            parts.append(StoredBlocks(shard.norm, item, task.blocks.start, whole=False))
        return Finished(shard, tuple(parts), 0.0, "nobody")


def empty_shards(executor: Executor, count: int) -> float:
    """Shards per second that one driver gives out, takes back and stores."""
    x = torch.zeros(3, 224, 224)  # an ImageNet input travels with its shard
    example = Example(x, 0, None, 0, (1, 2, 3), (1.0, 1.0, 1.0))
    settings = {"2": Settings(p=2.0, targets=[[1, 2, 3]])}
    bench = EmptyBench(cs.Classifier(torch.nn.Linear(2, 2)), settings, [example], {"2": 8}, 1)
    with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "run", {"config": {}}) as store:

        def shards() -> Iterator[Shard]:
            for i in range(count + 50):
                shard = Shard("2", (Task(replace(example, input_id=i), range(2)),))
                yield replace(shard, number=store.began("2", shard.content))

        began = 0.0
        for place, done in enumerate(executor.run(bench, shards())):
            if place == 50:  # workers are up
                began = time.perf_counter()
            store.append(done.parts, shard=done.shard.number, seconds=done.seconds, worker=done.worker)
        return count / (time.perf_counter() - began)


def seconds_per_point(name: str) -> float:
    """Core seconds of a point with three targets on one thread each."""
    network = NETWORKS[name]
    torch.manual_seed(0)
    classifier = cs.Classifier(network.build().eval(), bounds=(0.0, 1.0), input_shape=network.shape)
    x = torch.rand(1, *network.shape, generator=torch.Generator().manual_seed(1))
    examples = prepare(classifier, x, targets=[[j for j in range(5) if j != int(classifier(x).argmax())][:TARGETS]])
    settings = Settings(p=2.0, targets=[list(examples[0].targets)])
    cost = estimate_for(settings.estimator.prepare(classifier, examples, settings), examples)
    return cost.seconds * cost.workers / cost.points


@dataclass(frozen=True)
class Simulated:
    """A cluster at work: how long, and how much of the workers' time was work."""

    seconds: float
    busy: float


def simulate(work: float, workers: int, shard: float, service: float, *, seed: int = 0) -> Simulated:
    """`work` core seconds in shards of `shard` seconds on `workers`, one driver that needs `service` seconds each.

    Long studies are simulated for a while and continued at that rate.
    """
    chance = random.Random(seed)
    total = max(1, round(work / shard))
    count = min(total, SIMULATED_SHARDS)
    free = [0.0] * workers
    heapq.heapify(free)
    driver = end = spent = 0.0
    for _ in range(count):
        ready = heapq.heappop(free)
        driver = max(driver, ready) + service  # the driver takes the last result and gives out the next shard
        took = shard * max(0.1, chance.gauss(1.0, JITTER))
        spent += took
        end = max(end, driver + took)
        heapq.heappush(free, driver + took)
    rate = count / end
    return Simulated(end if count == total else total / rate, spent / (end * workers))


def markdown(result: dict[str, Any]) -> str:
    over = result["overhead"]
    lines = [
        "<!-- written by: python -m benchmarks.scaling -->",
        f"Measured on {result['machine']}.",
        "",
        f"A study of {over['shards']} shards took {over['ratio']:.3f} times a bare loop over the same gradients "
        f"(median of {len(over['ratios'])} in turn, {over['seconds']:.0f} s each).",
        "",
        "| executor | shards without work per second | milliseconds per shard |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {rate:.0f} | {1e3 / rate:.2f} |" for name, rate in result["empty"].items()]
    lines += [
        "",
        f"Simulated: {IMAGES:,} images, {TARGETS} targets, {NORMS} norms, shards of {SHARD_SECONDS:g} s, one driver.",
        "",
        "| network, method | core seconds per image | "
        + " | ".join(f"{w} workers" for w in WORKERS)
        + " | core hours |",
        "|---|---|" + "---|" * (len(WORKERS) + 1),
    ]
    for row in result["simulated"]:
        cells = " | ".join(f"{duration(s['seconds'])} ({s['busy']:.0%})" for s in row["runs"])
        lines.append(f"| {row['name']} | {row['per_image']:,.0f} | {cells} | {row['core_hours']:,.0f} |")
    lines += ["", "In brackets: the share of the workers' time that is work.", ""]
    lines += ["| workers | shards of 0.1 s | 1 s | 10 s | 20 s |", "|---|---|---|---|---|"]
    for row in result["saturation"]:
        lines.append(f"| {row['workers']:,} | " + " | ".join(f"{busy:.0%}" for busy in row["busy"]) + " |")
    lines += ["", f"Share of work at {1e3 * result['service']:.2f} ms of the driver per shard."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it works")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="where _scaling_benchmark.md and .json go")
    arguments = parser.parse_args()
    quick = arguments.quick
    count = 200 if quick else 2000
    empty = {
        "threads of one process": empty_shards(InProcess(), count),
        "2 processes": empty_shards(Processes(2), count),
    }
    try:
        from cleverscore.runs.ray_executor import Ray

        cluster = Ray(workers=2)
        empty["Ray, 2 actors on this machine"] = empty_shards(cluster, count)
        cluster.close()
    except cs.CleverError as error:
        print(error)
    print(empty, flush=True)
    over = overhead(1 if quick else 3, 2 if quick else 4, 4 if quick else 24)
    service = 1.0 / empty.get("Ray, 2 actors on this machine", empty["2 processes"])
    rows = []
    for name in ("MobileNet-v1",) if quick else ("MobileNet-v1", "ResNet-50"):
        each = seconds_per_point(name)
        dim = NETWORKS[name].shape[0] * NETWORKS[name].shape[1] * NETWORKS[name].shape[2]
        methods = {"paper": POINTS * NORMS * each, "sharp": most_gradients(dim) * TARGETS * NORMS * each / 2}
        for method, per_image in methods.items():
            runs = [simulate(IMAGES * per_image, w, SHARD_SECONDS, service) for w in WORKERS]
            rows.append(
                {
                    "name": f"{name}, {method}", "per_image": per_image, "core_hours": IMAGES * per_image / 3600,
                    "runs": [{"seconds": run.seconds, "busy": run.busy} for run in runs],
                }
            )  # fmt: skip
    saturation = [
        {
            "workers": w,
            "busy": [simulate(1e9, w, shard, service).busy for shard in (0.1, 1.0, 10.0, 20.0)],
        }
        for w in (8, 64, 512, 4096, 32768)
    ]
    result = {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} cores", "overhead": over, "empty": empty,
        "service": service, "simulated": rows, "saturation": saturation,
    }  # fmt: skip
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "_scaling_benchmark.json").write_text(json.dumps(result, indent=1) + "\n")
    (arguments.out / "_scaling_benchmark.md").write_text(markdown(result))
    print(markdown(result))


if __name__ == "__main__":
    main()
