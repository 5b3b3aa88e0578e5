"""cleverscore: how far an input must be moved before a neural network changes its class.

Names are imported when they are first used, so `cleverscore.tails` needs no torch and the command line starts fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from cleverscore import tails as tails
    from cleverscore.attacks.attack import Attacked as Attacked
    from cleverscore.attacks.attack import attack as attack
    from cleverscore.attacks.best_attack import best_attack as best_attack
    from cleverscore.attacks.criterion import Criterion as Criterion
    from cleverscore.brackets.bracket import Bracket as Bracket
    from cleverscore.brackets.bracket import bracket as bracket
    from cleverscore.brackets.evaluate import evaluate as evaluate
    from cleverscore.brackets.masking import Sign as Sign
    from cleverscore.brackets.masking import masking_signs as masking_signs
    from cleverscore.certificates.certify import Certificates as Certificates
    from cleverscore.certificates.certify import certify as certify
    from cleverscore.errors import CleverError as CleverError
    from cleverscore.errors import CleverWarning as CleverWarning
    from cleverscore.estimators.ascent.radial_profile import RadialProfile as RadialProfile
    from cleverscore.estimators.estimator import Estimator as Estimator
    from cleverscore.estimators.measurements import Measurements as Measurements
    from cleverscore.estimators.sampling.method import Method as Method
    from cleverscore.estimators.stop_reason import StopReason as StopReason
    from cleverscore.inputs.balls import LpBall as LpBall
    from cleverscore.loading.dataset import load_data as load_data
    from cleverscore.loading.models import load_model as load_model
    from cleverscore.models import transforms as transforms
    from cleverscore.models.classifier import Classifier as Classifier
    from cleverscore.reporting import interop as interop
    from cleverscore.reporting import plots as plots
    from cleverscore.scores.clever import clever as clever
    from cleverscore.scores.clever import second_order_clever as second_order_clever
    from cleverscore.scores.cost import Estimate as Estimate
    from cleverscore.scores.cost import estimate as estimate
    from cleverscore.scores.decide import Decision as Decision
    from cleverscore.scores.decide import assert_robust as assert_robust
    from cleverscore.scores.decide import decide as decide
    from cleverscore.scores.score import Score as Score
    from cleverscore.scores.score import Scores as Scores
    from cleverscore.tails import FitOutcome as FitOutcome

_HOMES = {  # the module of each public name, relative to the package
    "Attacked": "attacks.attack",
    "Bracket": "brackets.bracket",
    "Certificates": "certificates.certify",
    "Classifier": "models.classifier",
    "CleverError": "errors",
    "CleverWarning": "errors",
    "Criterion": "attacks.criterion",
    "Decision": "scores.decide",
    "Estimate": "scores.cost",
    "Estimator": "estimators.estimator",
    "FitOutcome": "tails",
    "LpBall": "inputs.balls",
    "Measurements": "estimators.measurements",
    "Method": "estimators.sampling.method",
    "RadialProfile": "estimators.ascent.radial_profile",
    "Score": "scores.score",
    "Scores": "scores.score",
    "Sign": "brackets.masking",
    "StopReason": "estimators.stop_reason",
    "assert_robust": "scores.decide",
    "attack": "attacks.attack",
    "best_attack": "attacks.best_attack",
    "bracket": "brackets.bracket",
    "certify": "certificates.certify",
    "clever": "scores.clever",
    "decide": "scores.decide",
    "estimate": "scores.cost",
    "evaluate": "brackets.evaluate",
    "load_data": "loading.dataset",
    "load_model": "loading.models",
    "masking_signs": "brackets.masking",
    "second_order_clever": "scores.clever",
}
_MODULES = {
    "interop": "reporting.interop",
    "plots": "reporting.plots",
    "tails": "tails",
    "transforms": "models.transforms",
}

__all__ = [*_HOMES, *_MODULES, "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"{__name__}.{_MODULES[name]}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
