"""cleverscore: how far an input must be moved before a neural network changes its mind, without attacking it.

Names are loaded when they are first used, so `cleverscore.tails` never needs torch and the command line starts fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from cleverscore import tails as tails
    from cleverscore import transforms as transforms
    from cleverscore.attacks.attack import Attacked as Attacked
    from cleverscore.attacks.attack import attack as attack
    from cleverscore.attacks.best_attack import best_attack as best_attack
    from cleverscore.attacks.criterion import Criterion as Criterion
    from cleverscore.balls import LpBall as LpBall
    from cleverscore.bounds.bracket import Bracket as Bracket
    from cleverscore.bounds.bracket import bracket as bracket
    from cleverscore.bounds.certified import Certificates as Certificates
    from cleverscore.bounds.certified import certify as certify
    from cleverscore.bounds.masking import Sign as Sign
    from cleverscore.bounds.masking import masking_signs as masking_signs
    from cleverscore.bounds.second_order import second_order_clever as second_order_clever
    from cleverscore.classifier import Classifier as Classifier
    from cleverscore.cost import Estimate as Estimate
    from cleverscore.cost import estimate as estimate
    from cleverscore.deciding import Decision as Decision
    from cleverscore.deciding import assert_robust as assert_robust
    from cleverscore.deciding import decide as decide
    from cleverscore.errors import CleverError as CleverError
    from cleverscore.errors import CleverWarning as CleverWarning
    from cleverscore.load.data import load_data as load_data
    from cleverscore.load.models import load_model as load_model
    from cleverscore.score import Score as Score
    from cleverscore.score import Scores as Scores
    from cleverscore.scoring import clever as clever
    from cleverscore.settings import Method as Method
    from cleverscore.show import interop as interop
    from cleverscore.show import plots as plots
    from cleverscore.tails import FitOutcome as FitOutcome

_HOMES = {
    "Attacked": "attacks.attack",
    "Bracket": "bounds.bracket",
    "Certificates": "bounds.certified",
    "Classifier": "classifier",
    "CleverError": "errors",
    "CleverWarning": "errors",
    "Criterion": "attacks.criterion",
    "Decision": "deciding",
    "Estimate": "cost",
    "FitOutcome": "tails",
    "LpBall": "balls",
    "Method": "settings",
    "Score": "score",
    "Scores": "score",
    "Sign": "bounds.masking",
    "assert_robust": "deciding",
    "attack": "attacks.attack",
    "best_attack": "attacks.best_attack",
    "bracket": "bounds.bracket",
    "certify": "bounds.certified",
    "clever": "scoring",
    "decide": "deciding",
    "estimate": "cost",
    "load_data": "load.data",
    "load_model": "load.models",
    "masking_signs": "bounds.masking",
    "second_order_clever": "bounds.second_order",
}
_MODULES = {"interop": "show.interop", "plots": "show.plots", "tails": "tails", "transforms": "transforms"}

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
