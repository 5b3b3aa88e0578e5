"""Speed against ART and against the machine's limit: `python -m benchmarks.speed [--quick] [--out docs]`.

Every figure is taken in this run, ours and the peer's in turn. The peer (adversarial-robustness-toolbox 1.20.1)
evaluates `pool_factor * batch_size` distinct points per target; we evaluate as many, and time is compared per distinct
point, with the peer's tail fit replaced by nothing. What a run pays once for all its points (faster forms of the
network made and checked, the chunk size probed) is a column of its own. The limit is (1 + targets) forward passes of
floating-point operations per point at the rate that matrix multiplication reaches on the same threads.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

import cleverscore as cs
from benchmarks.networks import NETWORKS, Measured
from cleverscore.estimators.settings import Settings
from cleverscore.inputs.examples import Example, prepare
from cleverscore.threads import default_workers

BLOCK = 1024


def classifier_of(network: Measured) -> cs.Classifier:
    torch.manual_seed(0)
    return cs.Classifier(network.build().eval(), bounds=(0.0, 1.0), input_shape=network.shape)


def subjects_of(classifier: cs.Classifier, network: Measured, targets: str, inputs: int = 1) -> list[Example]:
    x = torch.rand(inputs, *network.shape, generator=torch.Generator().manual_seed(1))
    return prepare(classifier, x, targets=targets)


def settings_of(p: float, targets: str, points: int, block: int = BLOCK) -> Settings:
    block = min(block, points)
    return Settings(p=p, targets=targets, blocks=points // block, block_size=block)


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def gemm_rate(workers: int) -> float:
    """Floating-point operations per second of float32 matrix products, one thread per worker."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)

    def products(_: int) -> None:
        torch.set_num_threads(1)
        out = torch.empty(1024, 1024)
        for _ in range(20):
            torch.mm(a, b, out=out)

    # What is sustained, not the best burst: clocks of a shared machine move by a quarter within seconds.
    with ThreadPoolExecutor(workers) as pool:
        usual = median(seconds(lambda: list(pool.map(products, range(workers)))) for _ in range(5))
    torch.set_num_threads(default_workers(cs.Classifier(torch.nn.Identity())))
    return workers * 20 * 2 * 1024**3 / usual


def forward_flops(classifier: cs.Classifier, x: torch.Tensor) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        classifier.logits(x[None])
    return int(counter.get_total_flops())


def peer(network: Measured, classifier: cs.Classifier) -> Any:
    """ART's classifier around the same module, and its metric without the tail fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import art.metrics.metrics as metrics
        from art.estimators.classification import PyTorchClassifier

    metrics.weibull_min = type("NoFit", (), {"fit": staticmethod(lambda *_, **__: (1.0, -1.0, 1.0))})
    with torch.no_grad():
        classes = classifier.logits(torch.zeros(1, *network.shape)).shape[1]
    torch.manual_seed(0)
    wrapped = PyTorchClassifier(
        network.build().eval(),
        torch.nn.CrossEntropyLoss(),
        network.shape,
        classes,
        clip_values=(0.0, 1.0),
        device_type="cpu",
    )
    return metrics, wrapped


def run_peer(
    metrics: Any, wrapped: Any, network: Measured, x: np.ndarray, p: float, targets: list[int], points: int
) -> None:
    torch.set_num_threads(default_workers(cs.Classifier(torch.nn.Identity())))
    predicted = int(wrapped.predict(x[None]).argmax())
    for target in targets:
        if target != predicted:
            metrics.clever_t(
                wrapped, x, target, 1, max(1, points // network.peer_batch), 5.0, p, pool_factor=network.peer_batch
            )


def compare(name: str, p: float, targets: str, repeats: int, with_peer: bool, peer_share: float) -> dict[str, Any]:
    """One row: seconds per point, ours and the peer's in turn, and our share of the limit measured beside them."""
    network = NETWORKS[name]
    classifier = classifier_of(network)
    points = network.points if targets == "runner_up" else network.untargeted_points
    examples = subjects_of(classifier, network, targets)
    settings = settings_of(p, targets, points)
    count = len(examples[0].targets)
    peer_points = max(network.peer_batch, int(points * peer_share) // network.peer_batch * network.peer_batch)
    metrics, wrapped = peer(network, classifier) if with_peer else (None, None)
    x = examples[0].x.numpy()
    workers = default_workers(classifier.device)
    flops = forward_flops(classifier, examples[0].x) * (1 + count)
    preparing = time.perf_counter()
    ready = settings.estimator.prepare(classifier, examples, settings)
    preparing = time.perf_counter() - preparing
    dict(ready.measure(examples))  # warm up
    ours, theirs, rates = [], [], []
    for _ in range(repeats):
        rates.append(gemm_rate(workers))
        ours.append(seconds(lambda: dict(ready.measure(examples))) / points)
        rates.append(gemm_rate(workers))
        if with_peer:
            peer_targets = list(examples[0].targets)
            theirs.append(
                seconds(lambda: run_peer(metrics, wrapped, network, x, p, peer_targets, peer_points)) / peer_points  # noqa: B023
            )
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)] if with_peer else []
    return {
        "network": name,
        "targets": "one" if targets == "runner_up" else f"all {count}",
        "norm": "inf" if math.isinf(p) else f"{p:g}",
        "microseconds": 1e6 * median(ours),
        "peer_microseconds": 1e6 * median(theirs) if theirs else None,
        "ratio": median(ratios) if ratios else None,
        "ratios": ratios,
        "share_of_limit": flops / median(rates) / median(ours),
        "chunk_size": ready.chunk_size,
        "preparing_seconds": preparing,
    }


class NetworkClock:
    """CPU time spent inside the network: forward passes and vector-Jacobian products."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        forward, backward = cs.Classifier.logits, torch.autograd.grad
        cs.Classifier.logits, torch.autograd.grad = self._timed(forward), self._timed(backward)  # type: ignore
        try:
            yield
        finally:
            cs.Classifier.logits, torch.autograd.grad = forward, backward  # type: ignore[method-assign]

    def _timed(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            began = time.thread_time()
            result = work(*args, **options)
            self.seconds += time.thread_time() - began
            return result

        return timed


def statistics(targets: int) -> None:
    """What is computed from 500 block maxima per target."""
    maxima = np.random.default_rng(0).normal(size=(targets, 500))
    fits = cs.tails.fit(maxima)
    cs.tails.interval(maxima, fits)
    cs.tails.kolmogorov_smirnov(maxima, fits)


def overhead(name: str, targets: str) -> dict[str, Any]:
    """Share of the CPU time of a paper-size run of one input that is spent outside the network, in one thread.

    Network and whole are timed in the same runs, the middle one of three counts; statistics are those of 500 blocks.
    """
    network = NETWORKS[name]
    classifier = classifier_of(network)
    examples = subjects_of(classifier, network, targets)
    statistics(1)  # what is imported where it is used
    points = 4 * (network.points if targets == "runner_up" else network.untargeted_points)
    began = time.process_time()
    settings = settings_of(2.0, targets, points)
    ready = settings.estimator.prepare(classifier, examples, settings, workers=1)
    once = time.process_time() - began
    runs = []
    for _ in range(4):
        clock = NetworkClock()
        began = time.process_time()
        with clock.running():
            dict(ready.measure(examples))
        runs.append(((time.process_time() - began) / points, clock.seconds / points))
    whole, inside = sorted(runs[1:], key=lambda run: run[1] / run[0])[1]  # the first one warms up
    began = time.process_time()
    statistics(len(examples[0].targets))
    once += time.process_time() - began
    return {
        "network": name,
        "targets": "one" if targets == "runner_up" else "all 9",
        "share_outside_network": 1 - inside * 500 * 1024 / (whole * 500 * 1024 + once),
    }


def outside() -> list[dict[str, Any]]:
    return [overhead(n, t) for n in ("MLP 784-1024-10", "MNIST CNN") for t in ("runner_up", "untargeted")]


def growth(repeats: int) -> list[dict[str, Any]]:
    """How time grows when one size doubles: 2 is linear."""
    network = NETWORKS["MLP 784-1024-10"]
    classifier = classifier_of(network)

    def timed(blocks: int, size: int, targets: int, inputs: int) -> float:
        x = torch.rand(inputs, *network.shape, generator=torch.Generator().manual_seed(1))
        predicted = classifier(x).argmax(1).tolist()
        given = [[j for j in range(10) if j != c][:targets] for c in predicted]
        examples = prepare(classifier, x, targets=given)
        settings = Settings(p=2.0, targets=given, blocks=blocks, block_size=size)
        return seconds(lambda: dict(settings.estimator.prepare(classifier, examples, settings).measure(examples)))

    base = {"blocks": 32, "size": 128, "targets": 2, "inputs": 2}
    rows = []
    for name in base:
        ratios = [timed(**{**base, name: 2 * base[name]}) / timed(**base) for _ in range(repeats)]
        rows.append({"doubled": {"size": "block size"}.get(name, name), "time_ratio": median(ratios)})
    return rows


def memory(name: str, blocks: int, size: int) -> dict[str, Any]:
    """Peak resident memory of a run of its own process, MB."""
    code = f"from benchmarks.speed import memory_child; memory_child({name!r}, {blocks}, {size})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {"network": name, "blocks": blocks, "block_size": size, "peak_mb": float(done.stdout.split()[-1])}


def memory_child(name: str, blocks: int, size: int) -> None:
    network = NETWORKS[name]
    classifier = classifier_of(network)
    targets = "runner_up" if network.untargeted_points == 0 else "untargeted"
    x = torch.rand(1, *network.shape, generator=torch.Generator().manual_seed(1))
    cs.clever(classifier, x, targets=targets, blocks=blocks, block_size=size)
    # getrusage would tell the peak of the process that started this one, too.
    status = Path("/proc/self/status").read_text()
    print(int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024)  # type: ignore[index]


def markdown(result: dict[str, Any]) -> str:
    lines = [
        "<!-- written by: python -m benchmarks.speed -->",
        f"Measured on {result['machine']} with torch {result['torch']}, {result['workers']} threads; "
        f"matrix products reach {result['gemm_gflops']:.0f} GFLOP/s. Medians of {result['repeats']} repeats in turn.",
        "",
        "| network | targets | norm | ours, µs per point | ART, µs per point | ART / ours "
        "| share of limit | chunk | once, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["speed"]:
        theirs = "-" if row["ratio"] is None else f"{row['peer_microseconds']:.0f}"
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.1f}"
        lines.append(
            f"| {row['network']} | {row['targets']} | {row['norm']} | {row['microseconds']:.0f} | {theirs} | {ratio} "
            f"| {row['share_of_limit']:.0%} | {row['chunk_size']} | {row['preparing_seconds']:.2f} |"
        )
    lines += ["", "| doubled | time grows by |", "|---|---|"]
    lines += [f"| {row['doubled']} | {row['time_ratio']:.2f} |" for row in result["growth"]]
    lines += ["", "| network | targets | time outside the network |", "|---|---|---|"]
    lines += [f"| {r['network']} | {r['targets']} | {r['share_outside_network']:.1%} |" for r in result["overhead"]]
    lines += ["", "| network | blocks | block size | peak memory, MB |", "|---|---|---|---|"]
    lines += [f"| {r['network']} | {r['blocks']} | {r['block_size']} | {r['peak_mb']:.0f} |" for r in result["memory"]]
    return "\n".join(lines) + "\n"


def write(result: dict[str, Any], folder: Path) -> None:
    text = markdown(result)
    print(text)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "_speed_benchmark.md").write_text(text)
    (folder / "_speed_benchmark.json").write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small networks, one repeat")
    parser.add_argument("--only", help="networks whose name contains this")
    parser.add_argument("--overhead", action="store_true", help="only the time outside the network; the rest is kept")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="where _speed_benchmark.md and .json go")
    arguments = parser.parse_args()
    if arguments.overhead:
        kept = json.loads((arguments.out / "_speed_benchmark.json").read_text())
        write({**kept, "overhead": outside()}, arguments.out)
        return
    try:
        import art  # noqa: F401

        with_peer = True
    except ImportError:
        with_peer = False
        print("ART is not installed: no comparison. pip install adversarial-robustness-toolbox==1.20.1 packaging")
    repeats = 1 if arguments.quick else 3
    names = [n for n in NETWORKS if not arguments.quick or NETWORKS[n].untargeted_points]
    names = [n for n in names if arguments.only is None or arguments.only.lower() in n.lower()]
    workers = default_workers(cs.Classifier(torch.nn.Identity()))
    rows = []
    for name in names:
        small = NETWORKS[name].untargeted_points > 0
        cases = [(2.0, "runner_up", 1.0)]
        if small:
            cases += [(1.0, "runner_up", 1.0), (math.inf, "runner_up", 1.0), (2.0, "untargeted", 0.25)]
        for p, targets, share in cases:
            row = compare(name, p, targets, repeats, with_peer, share)
            rows.append(row)
            ratio = (
                "no peer"
                if row["ratio"] is None
                else f"ART/ours {row['ratio']:.1f} {[round(r, 1) for r in row['ratios']]}"
            )
            print(
                f"{name:16s} {row['targets']:6s} l{row['norm']:4s} {row['microseconds']:9.0f} us/point, {ratio}, "
                f"{row['share_of_limit']:.0%} of the limit",
                flush=True,
            )
    result = {
        "machine": f"{platform.machine()}, {workers} cores",
        "torch": torch.__version__,
        "workers": workers,
        "gemm_gflops": gemm_rate(workers) / 1e9,
        "repeats": repeats,
        "speed": rows,
        "growth": [] if arguments.only else growth(repeats),
        "overhead": [] if arguments.only else outside(),
        "memory": [] if arguments.only else [
            memory(n, b, s)
            for n in names
            for b, s in (((4, 64), (2, 2048)) if NETWORKS[n].untargeted_points else ((2, 16),))
        ],
    }  # fmt: skip
    if arguments.only:
        print(markdown(result))
    else:
        write(result, arguments.out)


if __name__ == "__main__":
    main()
