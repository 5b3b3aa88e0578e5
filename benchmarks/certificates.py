"""Certified radii beside attacks on the shipped CNN: `python -m benchmarks.certificates [--images 50] [--out docs]`.

Untargeted, linf and l2. A certificate above the distortion of an attack would be a proof that one of them is wrong.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path

import numpy as np
import torch

import cleverscore as cs

PRECISION = 1e-2  # of the search for the radius, always from below


def measured(classifier: cs.Classifier, x: torch.Tensor, norm: str, workers: int | None) -> dict:
    """Certificates and best attacks of all images in one norm."""
    certificates = cs.certify(classifier, x, p=norm, precision=PRECISION, workers=workers)
    attack = cs.best_attack(classifier, x, p=norm)
    lower, upper = certificates.radius, np.asarray(attack.distortion)
    row = {
        "norm": norm,
        "images": len(x),
        "certified": float(np.median(lower)),
        "attacked": float(np.median(upper)),
        "ratio": float(np.median(lower / upper)),
        "largest_ratio": float(np.max(lower / upper)),
        "above": int((lower > upper).sum()),
        "seconds": certificates.seconds,
    }
    print(row, flush=True)
    return row


def markdown(result: dict) -> str:
    lines = [
        "<!-- written by: python -m benchmarks.certificates -->",
        f"Measured on {result['machine']} with torch {result['torch']}: `zoo:mnist-cnn`, first images of `zoo:mnist`, "
        "untargeted.",
        "",
        "| norm | images | median certificate (CROWN) | median attack | certificate / attack: median | largest "
        "| certificates above the attack | seconds for the certificates |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['norm']} | {r['images']} | {r['certified']:.4f} | {r['attacked']:.4f} | {r['ratio']:.3f} "
        f"| {r['largest_ratio']:.3f} | {r['above']} | {r['seconds']:.0f} |"
        for r in result["rows"]
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--workers", type=int, help="threads")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="where _certificates_benchmark.md and .json go")
    arguments = parser.parse_args()
    classifier = cs.load_model("zoo:mnist-cnn")
    x = torch.as_tensor(cs.load_data("zoo:mnist")[0][: arguments.images])
    rows = [measured(classifier, x, norm, arguments.workers) for norm in ("inf", "2")]
    result = {"machine": platform.machine(), "torch": torch.__version__, "rows": rows}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "_certificates_benchmark.json").write_text(json.dumps(result, indent=1) + "\n")
    (arguments.out / "_certificates_benchmark.md").write_text(markdown(result))
    print(markdown(result))


if __name__ == "__main__":
    main()
