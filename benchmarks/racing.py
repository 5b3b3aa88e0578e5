"""What racing saves, and what it changes: `python -m benchmarks.racing [--quick] [--work DIR] [--out docs]`.

All 500 blocks are drawn for every target of the shipped networks, the paper's way; then the race is run on the same
blocks (its points are the same by construction), so the two scores can be compared without sampling noise between them.
The blocks are drawn into runs in --work, so an interrupted benchmark goes on. Larger penalties of the tail fit are
tried on the same blocks: they make for steadier end-points, hence for other scores and easier races.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from cleverscore.run.store import Store
from cleverscore.score import Evidence, score_from
from cleverscore.settings import Method, Settings
from cleverscore.tails import PAPER_PENALTY

BLOCK_SIZES = {"mnist-mlp": 256, "mnist-cnn": 64}
SLICE = 4  # images of one run
RULES = ((PAPER_PENALTY, 0.0), (PAPER_PENALTY, 0.05), (1.0, 0.0), (3.0, 0.0))  # penalty, tolerance


def drawn(network: str, norm: str, images: int, blocks: int, work: Path) -> list[Evidence]:
    """All blocks of all targets."""
    found = []
    for first in range(0, images, SLICE):
        index = f"{first}-{first + SLICE - 1}"
        run = work / f"{network}-{norm}-{blocks}-{index}"
        options = ["--norm", norm, "--index", index, "--blocks", blocks, "--block-size", BLOCK_SIZES[network]]
        command = [sys.executable, "-m", "cleverscore", "score", f"zoo:{network}", "zoo:mnist", *options, "--out", run]
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
        with Store.open(run) as store:
            found += store.evidence(norm)
    return found


def replayed(settings: Settings, full: Evidence) -> Evidence:
    """The evidence that a race would have gathered, from blocks drawn already."""
    race = settings.race(full)
    while race.active:
        start, stop = race.drawn, race.next_look()
        race.add(np.stack([full.maxima[t][start:stop] for t in race.active]))
    return Evidence(
        full.input_id, full.label, full.predicted, full.targets, full.margins, tuple(race.maxima),
        tuple(race.block_sizes), full.seconds, tuple(race.stopped),
    )  # fmt: skip


def measure(network: str, norm: str, full: list[Evidence], blocks: int) -> list[dict[str, Any]]:
    """One row per penalty and tolerance: what a race saves, and how far its scores are from the fixed ones."""
    size = BLOCK_SIZES[network]
    rows = []
    fixed: dict[float, Any] = {}
    for penalty, tolerance in RULES:
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
                "level": float(np.median(values / fixed[PAPER_PENALTY])),
                "changes": change.round(4).tolist(),
            }
        )
        print(
            f"{network} l{norm} penalty {penalty:g}, tolerance {tolerance:g}: {rows[-1]['saving']:.2f} times fewer "
            f"gradients, largest change {change.max():.2%}, mean {change.mean():.2%}",
            flush=True,
        )
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "<!-- written by: python -m benchmarks.racing -->",
        "| network | norm | penalty | tolerance | images | blocks | block size | fewer by | largest change | changes "
        "above 5% | mean change | fixed score / that with penalty 0.1, median |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['network']} | {row['norm']} | {row['penalty']:g} | {row['tolerance']:g} | {row['images']} "
            f"| {row['blocks']} | {row['block_size']} | {row['saving']:.2f} x | {row['largest_change']:.2%} "
            f"| {sum(change > 0.05 for change in row['changes'])} | {row['mean_change']:.2%} "
            f"| {row['level']:.3f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four images, 128 blocks")
    parser.add_argument("--work", type=Path, default=Path("runs/racing"), help="folder for the runs")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    images, blocks = (4, 128) if arguments.quick else (20, 500)
    rows = []
    for network in BLOCK_SIZES:
        for norm in ("2", "inf"):
            full = drawn(network, norm, images, blocks, arguments.work)
            rows += measure(network, norm, full, blocks)
    print(markdown(rows))
    if not arguments.quick:
        (arguments.out / "_racing_benchmark.md").write_text(markdown(rows))
        (arguments.out / "_racing_benchmark.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
