"""All tables and figures of the paper, and the page about them: `python -m paper [--quick | --full]`."""

from __future__ import annotations

import sys

from paper import (
    above,
    accuracy,
    blocks,
    cone,
    densities,
    gaps,
    ks,
    ks_bars,
    linf,
    per_image,
    planes,
    radius,
    readme,
    targeted,
    timing,
    untargeted,
)
from paper.command import main

PRODUCTS = (
    cone.PRODUCT,
    planes.PRODUCT,
    accuracy.PRODUCT,
    untargeted.PRODUCT,
    targeted.PRODUCT,
    ks.PRODUCT,
    above.PRODUCT,
    radius.PRODUCT,
    timing.PRODUCT,
    densities.PRODUCT,
    ks_bars.PRODUCT,
    linf.PRODUCT,
    gaps.PRODUCT,
    per_image.PRODUCT,
    blocks.PRODUCT,
    readme.PRODUCT,  # last: it shows the others
)

if __name__ == "__main__":
    sys.exit(main(PRODUCTS, __doc__))
