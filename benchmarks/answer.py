"""Seconds to an untargeted answer, ours and ART's: `python -m benchmarks.answer --folder NETWORKS [--referees DIR]`.

NETWORKS is what `python -m benchmarks.trained_networks` made, DIR the --work folder of `benchmarks.agreement`, whose
attacks say how well each score ranks inputs. Our methods score all inputs in one call, on --threads threads, and
seconds are per input. ART has no such call: it scores one input after the other, with as many threads inside torch, as
its documentation has it: clever_u(500, 1024, pool_factor=10), which takes minutes per input, so on the first
--art-inputs inputs only. The large networks are scored against the runner-up class, and compared with a quick attack on
it. What was measured is kept in --work; an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cleverscore as cs
from benchmarks.agreement_tables import correlation, read, referee
from benchmarks.referees import without_box
from benchmarks.score_methods import RADII, art
from benchmarks.trained_networks import LARGE, load

SMALL = ("zoo:mnist-mlp", "zoo:mnist-cnn", "zoo:cifar-cnn")
ART = (500, 1024, 10)  # blocks, block size, pool factor
Score = Callable[[cs.Classifier, torch.Tensor], dict[str, Any]]


def ours(threads: int, **settings: Any) -> Score:
    def score(classifier: cs.Classifier, x: torch.Tensor) -> dict[str, Any]:
        scores = cs.clever(classifier, x, p=2.0, workers=threads, progress=False, **settings)
        work = float(np.mean([head.gradients for head in scores]))
        return {"scores": [float(value) for value in scores.values], "gradients": work}

    return score


def theirs(classifier: cs.Classifier, x: torch.Tensor) -> dict[str, Any]:
    scored = art(classifier, x, 2.0, 0, {"art": ART})
    return {"scores": scored.scores, "gradients": scored.gradients[0]}


def timed(score: Score, classifier: cs.Classifier, x: torch.Tensor) -> dict[str, Any]:
    """Scores, and seconds per input."""
    began, busy = time.perf_counter(), time.process_time()
    found = score(classifier, x)
    wall, cpu = time.perf_counter() - began, time.process_time() - busy
    return {**found, "inputs": len(x), "seconds": wall / len(x), "cpu_seconds": cpu / len(x)}


def kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `path` holds; made and written if it is not there."""
    if not path.is_file():
        found = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".part").write_text(json.dumps(found) + "\n")
        path.with_suffix(".part").replace(path)
    return json.loads(path.read_text())


def small(name: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row per method."""
    classifier, images, _labels = load(name, arguments.folder, arguments.inputs)
    methods: dict[str, tuple[Score, int]] = {
        "sharp": (ours(arguments.threads, method="sharp"), len(images)),
        "paper, 500 x 128, tolerance 0": (
            ours(arguments.threads, blocks=500, block_size=128, tolerance=0), arguments.paper_inputs,
        ),
        "ART, 500 x 1024, pool 10": (theirs, arguments.art_inputs),
    }  # fmt: skip
    judge = None if arguments.referees is None else referee(read(arguments.referees), name, "2")
    rows = []
    for method, (score, count) in methods.items():
        path = arguments.work / f"{name}_{method.split(',')[0]}_{count}.json".replace(":", "-")
        row = kept(path, lambda s=score, n=count: timed(s, classifier, images[:n])) if count else None
        if row is None:
            continue
        print(f"{name}, {method}: {row['seconds']:.2f} s", flush=True)
        row |= {"network": name, "method": method, "spearman": None, "ratio": None}
        if judge is not None:
            scores = np.array(row["scores"])[: len(judge[0])]
            sizes = judge[0][: len(scores)]
            rank = correlation(scores, sizes)
            row["spearman"] = None if math.isnan(rank) else rank
            row["ratio"] = float(np.median(scores / sizes))
        rows.append(row)
    return rows


def large(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The sharp score against the runner-up, and the distance of a quick attack on the runner-up, without a box."""
    classifier, images, _labels = load(name, arguments.folder, arguments.large_inputs[LARGE.index(name)])
    free = without_box(classifier)
    score = ours(arguments.threads, method="sharp", targets="runner_up")

    def attacked(x: torch.Tensor) -> dict[str, float]:
        best = cs.best_attack(free, x, "fmn", p=2.0, targets="runner_up", preset="quick")
        return {"distance": float(best.distortion[0]), "seconds": best.seconds}

    measured, distances = [], []
    for i in range(len(images)):  # a pass of these networks takes all cores by itself
        x = images[i : i + 1]
        one = kept(arguments.work / f"{name}_{i}_sharp.json", lambda x=x: timed(score, classifier, x))
        other = kept(arguments.work / f"{name}_{i}_attack.json", lambda x=x: attacked(x))
        print(f"{name}, input {i}: {one['scores'][0]:.4f}, {one['seconds']:.1f} s; {other}", flush=True)
        measured.append(one)
        distances.append(other["distance"])
    return {
        "network": name,
        "inputs": len(measured),
        "scores": [one["scores"][0] for one in measured],
        "distances": distances,
        "ratios": [one["scores"][0] / size for one, size in zip(measured, distances, strict=True)],
        **{what: float(np.mean([one[what] for one in measured])) for what in ("seconds", "cpu_seconds", "gradients")},
    }


def markdown(result: dict[str, Any]) -> str:
    lines = [
        "<!-- written by: python -m benchmarks.answer -->",
        f"Measured on {result['machine']} with torch {result['torch']}, {result['threads']} "
        f"thread{'s' if result['threads'] > 1 else ''}: untargeted l2 scores, radius {RADII[2.0]:g}. Seconds "
        "and gradients are means per input; ratio is the median of score / smallest distance of any attack, Spearman "
        "the rank correlation with it (empty for fewer than four inputs). "
        "Ours score all inputs in one call, ART one after the other.",
        "",
        "| network | method | inputs | seconds | CPU seconds | gradients | times faster than ART | Spearman | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    peers = {row["network"]: row["seconds"] for row in result["small"] if row["method"].startswith("ART")}
    for row in result["small"]:
        slow = peers.get(row["network"])
        faster = f"{slow / row['seconds']:.1f}" if slow else ""
        spearman, ratio = ("" if row[name] is None else f"{row[name]:.2f}" for name in ("spearman", "ratio"))
        lines.append(
            f"| {row['network']} | {row['method']} | {row['inputs']} | {row['seconds']:.2f} | {row['cpu_seconds']:.2f} "
            f"| {row['gradients']:,.0f} | {faster} | {spearman} | {ratio} |"
        )
    if result["large"]:
        lines += [
            "",
            "Sharp scores against the runner-up on ImageNet pictures; ratio is score / distance of a quick attack on "
            "the runner-up, without the input box.",
            "",
            "| network | inputs | seconds | CPU seconds | gradients | smallest ratio | median | largest |",
            "|---|---|---|---|---|---|---|---|",
        ]
    for row in result["large"]:
        ratios = row["ratios"]
        lines.append(
            f"| {row['network']} | {row['inputs']} | {row['seconds']:.1f} | {row['cpu_seconds']:.1f} "
            f"| {row['gradients']:,.0f} | {min(ratios):.2f} | {np.median(ratios):.2f} | {max(ratios):.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of benchmarks.trained_networks")
    parser.add_argument("--referees", type=Path, help="--work of benchmarks.agreement")
    parser.add_argument("--work", type=Path, default=Path("runs/answer"), help="where measurements are kept")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--networks", nargs="*", choices=(*SMALL, *LARGE), default=[*SMALL, *LARGE], metavar="NAME")
    parser.add_argument("--inputs", type=int, default=16, help="of the small networks")
    parser.add_argument("--paper-inputs", type=int, default=4, help="of them, with the paper's score")
    parser.add_argument("--art-inputs", type=int, default=1, help="of them, with ART's score")
    parser.add_argument(
        "--large-inputs", type=int, nargs=len(LARGE), default=[3] * len(LARGE), metavar="N",
        help=f"of the ImageNet networks: {', '.join(LARGE)}",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    result = {
        "machine": platform.machine(),
        "torch": torch.__version__,
        "threads": arguments.threads,
        "small": [row for name in SMALL if name in arguments.networks for row in small(name, arguments)],
        "large": [large(name, arguments) for name in LARGE if name in arguments.networks],
    }
    text = markdown(result)
    print(text)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "_answer_benchmark.md").write_text(text)
    (arguments.out / "_answer_benchmark.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
