"""What racing saves, and what it changes: `python -m benchmarks.racing [--quick] [--out docs]`.

All 500 blocks are drawn for every target of the shipped networks, the paper's way; then the race is run on the same
blocks (its points are the same by construction), so the two scores can be compared without sampling noise between them.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import cleverscore as cs
from cleverscore.gathering import gather
from cleverscore.score import Evidence, score_from
from cleverscore.settings import Settings
from cleverscore.subjects import Subject, prepare

BLOCK_SIZES = {"zoo:mnist-mlp": 128, "zoo:mnist-cnn": 16}


def replayed(settings: Settings, subject: Subject, full: Evidence) -> Evidence:
    """The evidence that a race would have gathered, from blocks drawn already."""
    race = settings.race(subject)
    while race.active:
        start, stop = race.drawn, race.next_look()
        race.add(np.stack([full.maxima[t][start:stop] for t in race.active]))
    return Evidence(
        full.input_id, full.label, full.predicted, full.targets, full.margins, tuple(race.maxima),
        tuple(race.block_sizes), full.seconds, tuple(race.stopped),
    )  # fmt: skip


def measure(model: str, p: float | str, images: int, blocks: int, tolerances: list[float]) -> list[dict[str, Any]]:
    classifier = cs.load_model(model)
    x, labels = cs.load_data("zoo:mnist")
    subjects = prepare(classifier, x[:images], labels=labels[:images].tolist() if labels is not None else None)
    fixed = Settings(p=p, blocks=blocks, block_size=BLOCK_SIZES[model])  # type: ignore[arg-type]
    began = time.perf_counter()
    found = dict(gather(classifier, subjects, fixed))
    full = [found[i] for i in range(len(subjects))]
    values = score_from(full, fixed.rule).values
    rows = []
    for tolerance in tolerances:
        settings = Settings(p=p, blocks=blocks, block_size=BLOCK_SIZES[model], tolerance=tolerance)  # type: ignore[arg-type]
        raced = [replayed(settings, s, e) for s, e in zip(subjects, full, strict=True)]
        scores = score_from(raced, settings.rule)
        change = np.abs(scores.values / values - 1.0)
        used = sum(score.gradients for score in scores)
        rows.append(
            {
                "network": model,
                "norm": str(p),
                "tolerance": tolerance,
                "images": images,
                "blocks": blocks,
                "block_size": BLOCK_SIZES[model],
                "saving": len(subjects) * 9 * blocks * BLOCK_SIZES[model] / used,
                "largest_change": float(change.max()),
                "mean_change": float(change.mean()),
                "left_per_image": sum(not r.lost for r in scores.rows if r.target_kind == "all") / images,
                "seconds_fixed": time.perf_counter() - began,
            }
        )
        print(
            f"{model} l{p} tolerance {tolerance:g}: {rows[-1]['saving']:.2f} times fewer gradients, largest change "
            f"{change.max():.2%}, mean {change.mean():.2%}, {rows[-1]['left_per_image']:.1f} targets left",
            flush=True,
        )
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "<!-- written by: python -m benchmarks.racing -->",
        "| network | norm | tolerance | images | blocks | block size | fewer by | largest change | mean change |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['network']} | {row['norm']} | {row['tolerance']:g} | {row['images']} | {row['blocks']} "
            f"| {row['block_size']} | {row['saving']:.2f} x | {row['largest_change']:.2%} | {row['mean_change']:.2%} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four images, 128 blocks")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    images, blocks = (4, 128) if arguments.quick else (20, 500)
    rows = []
    for model in BLOCK_SIZES:
        for p in (2, "inf"):
            rows += measure(model, p, images, blocks, [0.0, 0.05])
    print(markdown(rows))
    if not arguments.quick:
        (arguments.out / "_racing_benchmark.md").write_text(markdown(rows))
        (arguments.out / "_racing_benchmark.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
