"""An untargeted score with 1000 classes: `python -m benchmarks.many_classes --data FOLDER [--out docs]`.

MobileNet-v1 with trained weights and one of ImageNet's pictures, from the folder that `make paper` reads. Random
weights would not do: their classes lie so close together that no sampling can tell them apart.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

import torch

import cleverscore as cs
from paper.networks import classifier_of, correct_images_of, missing

NETWORK = "mobilenet_v1"
BLOCKS, BLOCK_SIZE = 40, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with mobilenet_v1.onnx and imagenet/")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    if absent := missing(NETWORK, arguments.data):
        raise SystemExit("\n".join(absent))
    classifier = classifier_of(NETWORK, arguments.data)
    x = torch.from_numpy(correct_images_of(NETWORK, arguments.data, 1).x)
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
    (arguments.out / "_many_classes_benchmark.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
