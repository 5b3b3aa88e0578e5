"""An untargeted score with 1000 classes: `python -m benchmarks.many_classes [--out docs]`.

MobileNet-v1 at 224 x 224 with random weights: what the race costs does not depend on what the network has learnt, but
on how far the margins of its classes lie apart, and random weights keep them close together.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

import torch

import cleverscore as cs
from benchmarks.networks import NETWORKS

BLOCKS, BLOCK_SIZE = 40, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    network = NETWORKS["MobileNet-v1"]
    torch.manual_seed(0)
    classifier = cs.Classifier(network.build().eval(), bounds=(0.0, 1.0))
    x = torch.rand(1, *network.shape, generator=torch.Generator().manual_seed(1))
    began = time.perf_counter()
    scores = cs.clever(classifier, x, blocks=BLOCKS, block_size=BLOCK_SIZE, tolerance=0.0)
    seconds = time.perf_counter() - began
    one = BLOCKS * BLOCK_SIZE
    rows = [row for row in scores.rows if row.target_kind == "all"]
    reasons = Counter(row.stopped for row in rows)
    lines = [
        "<!-- written by: python -m benchmarks.many_classes -->",
        f"MobileNet-v1, 1000 classes, one input, l2, {BLOCKS} blocks of {BLOCK_SIZE}: {scores[0].gradients:,} "
        f"gradients, {scores[0].gradients / one:.1f} times those of one target, in {seconds:.0f} s.",
        "",
        "| targets | sampling ended because |",
        "|---|---|",
        *(f"| {count} | {reason} |" for reason, count in reasons.most_common()),
    ]
    print(scores)
    print("\n".join(lines))
    (arguments.out / "_many_classes.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
