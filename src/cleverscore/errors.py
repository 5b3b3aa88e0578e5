"""Every error that a user can cause.

    CleverError
    ├── SettingError        a value that no run could use: p = 0.5, radius <= 0, an unknown method
    ├── InputError          the inputs: empty, not finite, outside the box, of the wrong shape
    ├── ModelError          the model: probabilities instead of logits, one output, outputs that vary between calls
    ├── TargetError         the target classes: the predicted class itself, a class that does not exist
    ├── LoadError           a model or data file that cannot be read
    ├── StoreError          a run directory that cannot be used
    ├── CertificateError    a network, or a layer of it, that has no certified bound
    └── MissingExtraError   an optional dependency that is not installed

A message says in one sentence which value is wrong, why, and what to do.
"""

from __future__ import annotations


class CleverError(Exception):
    """Base of all errors that a user of this package can cause."""


class SettingError(CleverError, ValueError):
    """A setting has a value that the mathematics or the program does not allow."""


class InputError(CleverError, ValueError):
    """The inputs to be scored cannot be used."""


class ModelError(CleverError):
    """The model does not behave like a classifier that gives logits."""


class TargetError(CleverError, ValueError):
    """A target class cannot be used for an input."""


class LoadError(CleverError):
    """A model or data file cannot be read."""


class StoreError(CleverError):
    """A run directory cannot be used."""


class CertificateError(CleverError):
    """A network, or a layer of it, has no certified bound; the message names the layer."""


class MissingExtraError(CleverError, ImportError):
    """An optional dependency is missing; the message says what to install."""

    @classmethod
    def of(cls, package: str, extra: str, purpose: str) -> MissingExtraError:
        """The error for a missing `package`, which `purpose` needs; its message says to install the extra `extra`."""
        return cls(f"{purpose} needs {package}, which is not installed; run: pip install 'cleverscore[{extra}]'")


class CleverWarning(UserWarning):
    """A warning: scores can be computed, but the model, data or settings are probably not what the user intended."""
