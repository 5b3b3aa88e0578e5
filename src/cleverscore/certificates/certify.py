"""certify(): radii within which the class is proved not to change."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cleverscore.certificates.auto_lirpa import auto_lirpa_radii
from cleverscore.certificates.closed_forms import local_lipschitz_radii, norm_product_radii
from cleverscore.certificates.crown_radius import crown_radii
from cleverscore.certificates.request import CertificateRequest, Floats
from cleverscore.errors import CertificateError, MissingExtraError, SettingError
from cleverscore.inputs.examples import Example, prepare
from cleverscore.inputs.targets import TargetsLike, takes_smallest, target_kind
from cleverscore.models.classifier import Classifier
from cleverscore.models.input_box import box_of, check_region
from cleverscore.norms import parse_norm
from cleverscore.threads import checked_workers

_RADII: dict[str, Callable[[Classifier, list[Example], CertificateRequest], list[Floats]]] = {
    "crown": crown_radii,
    "local-lipschitz": local_lipschitz_radii,
    "norm-product": norm_product_radii,
    "auto-lirpa": auto_lirpa_radii,
}
METHODS = tuple(_RADII)


@dataclass(frozen=True)
class Certificates:
    """Certified radii of a batch.

    radius      (n,), for each input x0: nowhere in B_p(x0, radius) (with region="box": nowhere in its part in the box)
                is a target's logit above that of the predicted class. 0 where nothing is proved, and at most `limit`.
    targets     the target classes of each input.
    per_target  for each input, the radius for each of its targets alone. With targets "untargeted" and "top:N", "crown"
                and "auto-lirpa" search only for the smallest of these radii; for the other targets they give a radius
                that was proved during this search, and a larger one may exist.
    seconds     how long all of this took.
    """

    method: str
    p: float
    radius: npt.NDArray[np.float64]
    targets: tuple[tuple[int, ...], ...]
    per_target: tuple[npt.NDArray[np.float64], ...]
    seconds: float


def certify(
    classifier: Classifier,
    images: Any,
    *,
    p: float | str = 2.0,
    targets: TargetsLike = "untargeted",
    method: str = "crown",
    limit: float = 5.0,
    precision: float = 1e-3,
    region: str = "ball",
    labels: Sequence[int] | None = None,
    ids: Sequence[int] | None = None,
    seed: int = 0,
    workers: int | None = None,
) -> Certificates:
    """Certified lower bounds of the distance to the nearest input of another class.

    images      (n, *input_shape), in the classifier's input units.
    p           the norm: any p >= 1, or "inf".
    targets     as for `clever`: "untargeted", "top:N", "runner_up", "least_likely", "random", "all", or one list of
                classes per input.
    method      "crown": linear bounds of every layer, propagated backward. "local-lipschitz": margin / upper bound of
                the gradient norm in the ball, for networks with one hidden layer (Hein & Andriushchenko 2017).
                "norm-product": margin / product of the layers' norms (Szegedy et al. 2014). "auto-lirpa": CROWN by the
                library auto_LiRPA, if it is installed.
    limit       the largest radius that is tried; no certified radius is larger.
    precision   relative precision of the radius: a search ends when it is known to this share.
    region      "ball": every point of the ball counts, also points that are no valid inputs. "box" (p = inf, crown):
                only points within the classifier's bounds count, which gives larger radii for inputs near the bounds.
    labels, ids, seed, workers   as for `clever`.

    >>> import torch
    >>> certificates = certify(Classifier(torch.nn.Linear(4, 3)), torch.rand(2, 4), p="inf")
    >>> bool((certificates.radius > 0).all())
    True
    """
    began = time.perf_counter()
    p = parse_norm(p)
    _check(classifier, method, limit, precision, region, p)
    examples = prepare(classifier, images, targets=targets, labels=labels, ids=ids, seed=seed)
    threads = checked_workers(classifier.device, workers)
    request = CertificateRequest(
        p, float(limit), float(precision), takes_smallest(target_kind(targets)), region, threads
    )
    per_target = tuple(_RADII[method](classifier, examples, request))
    return Certificates(
        method=method,
        p=p,
        radius=np.array([float(radii.min()) for radii in per_target]),
        targets=tuple(example.targets for example in examples),
        per_target=per_target,
        seconds=time.perf_counter() - began,
    )


def certifies_box(method: str, p: float) -> bool:
    """Whether a method can certify region="box", the part of the ball inside the input box."""
    return method == "crown" and math.isinf(p)


def why_not(classifier: Classifier, x: Any, method: str) -> str | None:
    """Why a method cannot certify this classifier, from a trial on the input x (*input_shape); None if it can."""
    try:
        check_method(classifier, method)
        certify(classifier, x[None], p=2.0, targets="runner_up", method=method, limit=1e-6)
    except (CertificateError, MissingExtraError) as error:
        return str(error)
    return None


def check_method(classifier: Classifier, method: str) -> None:
    """Raise an error for an unknown method, and for a classifier with a transform, which cannot be certified."""
    if method not in METHODS:
        raise SettingError(f"method={method!r}: choose one of {', '.join(METHODS)}")
    if isinstance(classifier, Classifier) and classifier.transform is not None:
        raise CertificateError(
            "the classifier has a transform, which no certificate can follow; certify the model without it"
        )


def _check(classifier: Classifier, method: str, limit: float, precision: float, region: str, p: float) -> None:
    check_method(classifier, method)
    if not (limit > 0.0 and math.isfinite(limit)):
        raise SettingError(f"limit={limit}: the largest radius must be positive and finite")
    if not 0.0 < precision < 1.0:
        raise SettingError(f"precision={precision}: give a relative precision between 0 and 1, such as 1e-3")
    check_region(region)
    if region == "box" and not certifies_box(method, p):
        raise SettingError(
            "region='box' is for p='inf' and method='crown'; use region='ball', whose radius holds in the box as well"
        )
    if isinstance(classifier, Classifier):
        box_of(region, classifier.bounds)
