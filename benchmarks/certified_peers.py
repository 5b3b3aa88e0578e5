"""CROWN here against CROWN by auto_LiRPA on the shipped networks: `python -m benchmarks.certified_peers`.

Not part of the tests: the library cannot be installed beside every torch. Radii should agree to the precision of the
search where there is no maximum pooling, which the two relax differently.
"""

from __future__ import annotations

import argparse
import importlib.util

import numpy as np

import cleverscore as cs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=8)
    arguments = parser.parse_args()
    if importlib.util.find_spec("auto_LiRPA") is None:
        raise SystemExit("auto_LiRPA is not installed, so there is nothing to compare with; install it and run again.")
    images, _ = cs.load_data("zoo:mnist")
    print(f"{'network':<16}{'norm':>6}{'here':>12}{'peer':>12}{'ratio':>9}{'seconds':>9}{'peer s':>9}")
    for name in ("zoo:mnist-mlp", "zoo:mnist-cnn"):
        classifier = cs.load_model(name)
        for p in ("2", "inf"):
            here, peer = (
                cs.certify(classifier, images[: arguments.images], p=p, method=method)
                for method in ("crown", "auto-lirpa")
            )
            ratio = float(np.median(here.radius / np.maximum(peer.radius, 1e-12)))
            medians = (float(np.median(each.radius)) for each in (here, peer))
            print(
                f"{name:<16}{p:>6}{next(medians):>12.6f}{next(medians):>12.6f}{ratio:>9.4f}"
                f"{here.seconds:>9.2f}{peer.seconds:>9.2f}"
            )


if __name__ == "__main__":
    main()
