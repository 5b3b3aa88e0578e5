"""What elimination saves, and what it changes: `python -m benchmarks.elimination [--images N] [--out docs]`.

All 500 blocks are drawn for every target of the shipped networks, as in the paper, and targets are eliminated on the
same blocks: there is no sampling noise between the scores that are compared. Blocks are drawn into runs in --work, so
an interrupted benchmark goes on. Larger penalties of the tail fit are tried on the same blocks: they make for steadier
end-points, hence for other scores and an easier elimination. With --timed, some images are also timed, one after the
other, in turn with and without elimination.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from cleverscore import Classifier, clever
from cleverscore.estimators.measurements import Measurements
from cleverscore.estimators.sampling.method import Method
from cleverscore.estimators.sampling.sampler import target_elimination
from cleverscore.estimators.settings import Settings
from cleverscore.loading.zoo import shipped
from cleverscore.runs.store import Store
from cleverscore.scores.score import score_from
from cleverscore.tails import PENALTY

BLOCK_SIZES = {"mnist-mlp": 256, "mnist-cnn": 64}
SLICE = 4  # images of one run
PENALTIES = (PENALTY, 0.1, 1.0)
TOLERANCE = 0.05
TIMED = (0, 1, 2)  # images


def drawn(network: str, norm: str, images: int, blocks: int, work: Path) -> list[Measurements]:
    """All blocks of all targets."""
    found = []
    for first in range(0, images, SLICE):
        index = f"{first}-{first + SLICE - 1}"
        run = work / f"{network}-{norm}-{blocks}-{index}"
        options = [
            "--preset",
            "paper",
            "--norm",
            norm,
            "--index",
            index,
            "--blocks",
            blocks,
            "--block-size",
            BLOCK_SIZES[network],
        ]
        command = [sys.executable, "-m", "cleverscore", "score", f"zoo:{network}", "zoo:mnist", *options, "--out", run]
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
        with Store.open(run) as store:
            found += store.measurements(norm)
    return found


def replayed(settings: Settings, full: Measurements) -> Measurements:
    """What would have been measured with elimination, from blocks drawn already."""
    elimination = target_elimination(full, settings)
    while elimination.active:
        start, stop = elimination.drawn, elimination.next_checkpoint()
        elimination.add(np.stack([full.maxima[t][start:stop] for t in elimination.active]))
    return Measurements(
        full.input_id, full.label, full.predicted, full.targets, full.margins, tuple(elimination.maxima),
        tuple(elimination.block_sizes), full.seconds, tuple(elimination.stopped),
    )  # fmt: skip


def measure(network: str, norm: str, full: list[Measurements], blocks: int, *, timed: bool) -> list[dict[str, Any]]:
    """One row per penalty and tolerance: what elimination saves, and how far its scores are from the fixed ones."""
    size = BLOCK_SIZES[network]
    rows = []
    fixed: dict[float, Any] = {}
    for penalty, tolerance in ((PENALTY, TOLERANCE), *((penalty, 0.0) for penalty in PENALTIES)):
        method = Method(f"penalty {penalty:g}", penalty=penalty)
        settings = Settings(p=norm, blocks=blocks, block_size=size, method=method, tolerance=tolerance)
        if penalty not in fixed:
            fixed[penalty] = score_from(full, settings.rule).values
        values = fixed[penalty]
        scores = score_from([replayed(settings, item) for item in full], settings.rule)
        change = np.abs(scores.values / values - 1.0)
        used = sum(score.gradients for score in scores)
        rows.append(
            {
                "network": network,
                "norm": norm,
                "penalty": penalty,
                "tolerance": tolerance,
                "images": len(full),
                "blocks": blocks,
                "block_size": size,
                "saving": sum(len(item.targets) for item in full) * blocks * size / used,
                "largest_change": float(change.max()),
                "mean_change": float(change.mean()),
                "level": float(np.median(values / fixed[PENALTY])),
                "changes": change.round(4).tolist(),
                "faster": faster(network, norm, blocks, tolerance) if timed and penalty == PENALTY else None,
            }
        )
        print(
            f"{network} l{norm} penalty {penalty:g}, tolerance {tolerance:g}: {rows[-1]['saving']:.2f} times fewer "
            f"gradients, largest change {change.max():.2%}, mean {change.mean():.2%}",
            flush=True,
        )
    return rows


def faster(network: str, norm: str, blocks: int, tolerance: float) -> float:
    """How many times faster a few images are, one after the other, in turn with all their blocks."""
    x, _ = shipped.data("mnist")
    classifier = Classifier(shipped.network(network), mean=0.5, std=1.0, bounds=(0.0, 1.0))
    seconds = {None: 0.0, tolerance: 0.0}
    for index in TIMED:
        for each in seconds:
            began = time.perf_counter()
            clever(
                classifier, x[[index]], ids=[index], p=norm, blocks=blocks, block_size=BLOCK_SIZES[network],
                tolerance=each, progress=False,
            )  # fmt: skip
            seconds[each] += time.perf_counter() - began
    return seconds[None] / seconds[tolerance]


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "<!-- written by: python -m benchmarks.elimination -->",
        "| network | norm | penalty | tolerance | images | blocks | block size | fewer gradients by | faster by, "
        f"{len(TIMED)} images | largest change | changes above 5% | mean change | fixed score / that with "
        f"penalty {PENALTY:g}, median |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['network']} | {row['norm']} | {row['penalty']:g} | {row['tolerance']:g} | {row['images']} "
            f"| {row['blocks']} | {row['block_size']} | {row['saving']:.2f} x "
            f"| {'' if row['faster'] is None else '{:.1f} x'.format(row['faster'])} | {row['largest_change']:.2%} "
            f"| {sum(change > 0.05 for change in row['changes'])} | {row['mean_change']:.2%} "
            f"| {row['level']:.3f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four images, 128 blocks")
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--timed", action="store_true", help=f"also time {len(TIMED)} images, on a quiet machine")
    parser.add_argument("--work", type=Path, default=Path("runs/elimination"), help="folder for the runs")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    images, blocks = (4, 128) if arguments.quick else (arguments.images, 500)
    rows = []
    for network in BLOCK_SIZES:
        for norm in ("2", "inf"):
            full = drawn(network, norm, images, blocks, arguments.work)
            rows += measure(network, norm, full, blocks, timed=arguments.timed)
    print(markdown(rows))
    if not arguments.quick:
        (arguments.out / "_elimination_benchmark.md").write_text(markdown(rows))
        (arguments.out / "_elimination_benchmark.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
