"""The built-in estimators by name, and the estimator of a name or of an import path like package.module:name."""

from __future__ import annotations

from cleverscore.errors import SettingError
from cleverscore.estimators.estimator import Estimator
from cleverscore.estimators.sampling.method import Method
from cleverscore.estimators.second_order import SecondOrder
from cleverscore.estimators.sharp import Sharp
from cleverscore.estimators.slope import Slope
from cleverscore.inputs.balls import ReleasedCodeBall
from cleverscore.validation import import_module_of_user

METHODS: dict[str, Estimator] = {
    method.name: method
    for method in (
        Method("paper", title="CLEVER"),
        Sharp(),
        Method("released-code", ReleasedCodeBall, 3.0, cap=False),
        Slope("slope"),
        SecondOrder("second-order"),
    )
}


def find_method(method: str | Estimator) -> Estimator:
    """The estimator of a built-in name or of "package.module:attribute"; an estimator object is returned unchanged.

    A SettingError if there is none, or if an estimator of the user has the name of a built-in one.
    """
    if isinstance(method, str) and ":" in method:
        method = _imported(method)
    if isinstance(method, str):
        if method not in METHODS:
            raise SettingError(
                f"method={method!r}: choose one of {', '.join(METHODS)}, name an estimator of your own as "
                "package.module:attribute, or give a cs.Method or another cs.Estimator"
            )
        return METHODS[method]
    if not isinstance(method, Estimator):
        raise SettingError(f"method={method!r}: give a name ({', '.join(METHODS)}), a cs.Method or a cs.Estimator")
    if method.name in METHODS and method is not METHODS[method.name] and method != METHODS[method.name]:
        raise SettingError(f"the name of the method, {method.name!r}, is that of a built-in one; give it another")
    return method


def _imported(address: str) -> Estimator:
    """The estimator that is at package.module:attribute; if a class is there, an instance of it."""
    module, _, name = address.partition(":")
    try:
        found = getattr(import_module_of_user(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(f"method={address!r} cannot be imported: {error}") from error
    if isinstance(found, type) and issubclass(found, Estimator):
        found = found()
    if not isinstance(found, Estimator):
        raise SettingError(f"method={address!r} is a {type(found).__name__}, not a cs.Estimator")
    return found
