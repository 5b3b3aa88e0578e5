"""Classifier: a torch model that gives logits, with its input box and preprocessing inside.

Scores are distances in the units of the classifier's inputs. With `mean` and `std`, the normalisation is part of the
classifier, so inputs and scores are in pixel units and not in standardised ones.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cleverscore.errors import CleverWarning, InputError, ModelError, SettingError
from cleverscore.models.array_model import ArrayModel, ArrayModule

PROBED_INPUTS = 16  # enough to tell probabilities from logits, cheap for any network
OUTPUTS = ("logits", "probabilities", "logit")
HALF = (torch.float16, torch.bfloat16)
Transform = Callable[[torch.Tensor], torch.Tensor]


class _Instead(torch.autograd.Function):
    """Returns `actual`, but passes its gradient to `surrogate`: backward-pass differentiable approximation (BPDA)."""

    @staticmethod
    def forward(ctx: Any, surrogate: torch.Tensor, actual: torch.Tensor) -> torch.Tensor:
        return actual.view_as(actual)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class _Callable(nn.Module):
    """A plain function as a module."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def _frozen(model: nn.Module) -> nn.Module:
    """A copy of `model` in evaluation mode without parameter gradients; the weights themselves are shared.

    The user's own module stays as it was: neither its mode nor its `requires_grad` flags are changed. Only a module
    that cannot be copied is changed itself, and returned.
    """
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.detach()
    try:
        with torch.no_grad():  # else autograd would record how TorchScript copies its weights
            frozen = copy.deepcopy(model, memo)
    except Exception:  # modules that hold locks, streams or compiled graphs cannot be copied
        frozen = model
    for parameter in frozen.parameters():  # one by one: TorchScript has no requires_grad_ for a whole module
        parameter.requires_grad_(False)
    return frozen.eval()


@dataclass(frozen=True)
class Probe:
    """What `Classifier.check` learned from a few forward passes: number of classes, and shape and size of an input."""

    num_classes: int
    input_shape: tuple[int, ...]
    dim: int


class _TwoLogits(nn.Module):
    """Turns the output f of a binary classifier, (n,) or (n, 1), into two logits (0, f): (n, 2)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        like = next((t for t in model.parameters() if t.is_floating_point()), torch.empty(0))
        self.both = nn.Linear(1, 2, bias=False, dtype=like.dtype, device=like.device)
        with torch.no_grad():
            self.both.weight.copy_(torch.tensor([[0.0], [1.0]]))

    def forward(self, output: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.both(output.reshape(output.shape[0], 1))
        return logits


class Classifier:
    """A classifier that can be scored: a function from inputs (n, *input_shape) to logits (n, K).

    model       a `torch.nn.Module` or a function that maps (n, *input_shape) to (n, K) logits, or an `ArrayModel` of
                another library. A module is used in evaluation mode and without parameter gradients. The object passed
                in is not changed, unless it cannot be copied; its weights are shared, not copied.
    bounds      (low, high) of valid inputs, in the units of the inputs; None means unbounded.
    mean, std   one number, or one per channel (axis 1): the model gets (x - mean) / std.
    outputs     what the model gives: "logits", "probabilities" or "logit". "probabilities" is for a model that ends in
                softmax; its logarithms are used. Since log p_c - log p_j = f_c - f_j, the score is that of the logits
                f before the softmax (up to the rounding of probabilities). "logit" is for a model with one output f,
                positive for class 1: the logits are then (0, f).
    device      on which to compute; default: the device of the model's parameters.
    input_shape  the shape of one input; inputs of another shape are refused. Default: any shape.
    name        the name in tables and reports; default: the name of the model's class.
    transform   a function that is applied to inputs before the model and has no useful gradient, such as those of
                `cs.transforms` (bit depth, JPEG). Gradients are computed as if it were the identity, or
                `transform_backward` if given.
    transform_backward  a differentiable approximation of `transform` (BPDA: Athalye, Carlini & Wagner, 2018).
    class_names, preparation, origin    the names of the classes, how pictures or texts become inputs, and the model's
                file, where known; for inspection and for loading data.

    >>> import torch
    >>> classifier = Classifier(torch.nn.Linear(2, 3), bounds=(0.0, 1.0))
    >>> classifier(torch.zeros(5, 2)).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        model: nn.Module | Callable[[torch.Tensor], Any] | ArrayModel,
        *,
        bounds: tuple[float, float] | None = None,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        outputs: str = "logits",
        device: torch.device | str | None = None,
        input_shape: Sequence[int] | None = None,
        name: str | None = None,
        transform: Transform | None = None,
        transform_backward: Transform | None = None,
        class_names: Sequence[str] | None = None,
        preparation: Any = None,
        origin: str | None = None,
    ) -> None:
        if isinstance(model, Classifier):
            raise ModelError("the model is a Classifier already; use it as it is")
        if not isinstance(model, (nn.Module, type)) and isinstance(model, ArrayModel):
            model = ArrayModule(model)
        if not isinstance(model, nn.Module):
            if not callable(model):
                raise ModelError(f"the model is a {type(model).__name__}, not a torch.nn.Module or a function")
            model = _Callable(model)
        if bounds is not None and not float(bounds[0]) < float(bounds[1]):
            raise SettingError(f"bounds={bounds}: the lower bound must be below the upper one")
        if outputs not in OUTPUTS:
            raise SettingError(f"outputs={outputs!r}: choose 'logits', 'probabilities' or, for one output, 'logit'")
        binary = outputs == "logit"
        if binary:
            model, outputs = nn.Sequential(model, _TwoLogits(model)), "logits"
        if any(module.training for module in model.modules() if isinstance(module, _MODE_DEPENDENT)):
            warnings.warn(
                "the model is in training mode; it is scored in evaluation mode (dropout off, stored batch statistics)",
                CleverWarning,
                stacklevel=2,
            )
        for given, what in ((transform, "transform"), (transform_backward, "transform_backward")):
            if given is not None and not callable(given):
                raise SettingError(
                    f"{what}={given!r}: give a function of input tensors, such as cs.transforms.bit_depth(5)"
                )
        if transform is None and transform_backward is not None:
            raise SettingError(
                "transform_backward is given without transform; a differentiable step belongs in the model"
            )
        self.transform, self.transform_backward = transform, transform_backward
        self.name = name or type(model[0] if isinstance(model, nn.Sequential) and binary else model).__name__
        self.class_names = None if class_names is None else tuple(map(str, class_names))
        self.preparation, self.origin = preparation, origin
        self.module = _frozen(model)
        if device is not None:
            self.module = self.module.to(device)
        tensors = [t for t in (*self.module.parameters(), *self.module.buffers()) if t.is_floating_point()]
        self.device = (
            torch.device(device) if device is not None else tensors[0].device if tensors else torch.device("cpu")
        )
        # A function without weights has no precision of its own: it computes in that of its inputs.
        self.dtype = tensors[0].dtype if tensors else None
        self.bounds = None if bounds is None else (float(bounds[0]), float(bounds[1]))
        self.outputs = outputs
        self.input_shape = None if input_shape is None else tuple(int(side) for side in input_shape)
        self.mean = self._constant("mean", mean)
        self.std = self._constant("std", std)
        if self.std is not None and bool((self.std <= 0).any()):
            raise SettingError(f"std={std}: every value must be positive")

    def to(self, device: torch.device | str) -> Classifier:
        """The same classifier on another device."""
        return self.with_module(copy.deepcopy(self.module).to(device), device=device)

    def with_module(
        self, module: nn.Module, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Classifier:
        """The same classifier with another module; give `dtype` and `device` where the module's are different."""
        twin = copy.copy(self)
        twin.module = module
        twin.dtype = dtype or self.dtype
        twin.device = self.device if device is None else torch.device(device)
        twin.mean, twin.std = (None if t is None else t.to(twin.device, dtype) for t in (self.mean, self.std))
        return twin

    def __repr__(self) -> str:
        box = "no box" if self.bounds is None else f"box {self.bounds[0]:g} to {self.bounds[1]:g}"
        return f"<Classifier {self.name}, {box}, {self.outputs} on {self.device}>"

    def _constant(self, name: str, values: float | Sequence[float] | None) -> torch.Tensor | None:
        if values is None:
            return None
        tensor = torch.as_tensor(values, dtype=self.dtype or torch.float64, device=self.device).reshape(-1)
        if not bool(torch.isfinite(tensor).all()):
            raise SettingError(f"{name}={values}: not finite")
        return tensor

    def _per_channel(self, name: str, values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if len(values) not in (1, x.shape[1]):
            raise InputError(
                f"{name} has {len(values)} values and the inputs have {x.shape[1]} channels (axis 1); "
                "give one value or one per channel"
            )
        return values.reshape(-1, *[1] * (x.ndim - 2)).to(x.dtype)

    def transformed(self, x: torch.Tensor) -> torch.Tensor:
        """`transform` of inputs (n, *input_shape), with the gradient of the identity or of `transform_backward`."""
        if self.transform is None:
            return x
        surrogate = x if self.transform_backward is None else self.transform_backward(x)
        with torch.no_grad():
            actual = self.transform(x.detach())
        if not isinstance(actual, torch.Tensor) or actual.shape != surrogate.shape:
            found = tuple(actual.shape) if isinstance(actual, torch.Tensor) else type(actual).__name__
            raise InputError(
                f"transform turns inputs of shape {tuple(x.shape)} into {found}, where gradients need "
                f"{tuple(surrogate.shape)}; return a tensor of the same shape, or give transform_backward"
            )
        output: torch.Tensor = _Instead.apply(surrogate, actual.to(surrogate))  # type: ignore[no-untyped-call]
        return output

    def standardised(self, x: torch.Tensor) -> torch.Tensor:
        """(x - mean) / std of the transformed inputs (n, *input_shape): what the model gets."""
        x = self.transformed(x)
        if self.mean is not None:
            x = x - self._per_channel("mean", self.mean, x)
        if self.std is not None:
            x = x / self._per_channel("std", self.std, x)
        return x

    def preprocessing(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Slope and shift, (1, *input_shape) each, in the precision of an input `x` (*input_shape).

        The model gets slope * x + shift, if the classifier has no transform.
        """
        shift = self.standardised(torch.zeros_like(x[None]))
        return self.standardised(torch.ones_like(x[None])) - shift, shift

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, K) of points that already have the right device and precision; the hot path, without checks."""
        output = self.module(self.standardised(x))
        logits: torch.Tensor = getattr(output, "logits", output)
        if self.outputs == "probabilities":
            # Probabilities below the smallest normal number are too coarse for ratios, or 0.
            logits = logits.clamp_min(torch.finfo(logits.dtype).tiny).log()
        return logits

    def __call__(self, x: Any) -> torch.Tensor:
        """Logits (n, K) of inputs (n, *input_shape), arrays or tensors."""
        return self.logits(self.inputs(x))

    def inputs(self, x: Any) -> torch.Tensor:
        """Inputs (n, *input_shape) as a tensor of the model's device and precision.

        An InputError if they are empty, not floating-point numbers or of another shape than the model's inputs.
        """
        tensor = torch.as_tensor(x)
        if tensor.ndim < 2:
            raise InputError(
                f"inputs of shape {tuple(tensor.shape)}: the first axis counts inputs, so one input needs x[None]"
            )
        if len(tensor) == 0:
            raise InputError("there are no inputs: the data is empty")
        if not tensor.is_floating_point():
            raise InputError(
                f"inputs are of type {str(tensor.dtype).removeprefix('torch.')}; convert them to floats in the units "
                "in which the score is wanted, for example x / 255"
            )
        if self.input_shape is not None and tuple(tensor.shape[1:]) != self.input_shape:
            shape = tuple(tensor.shape[1:])
            last = len(shape) == 3 and (shape[2], shape[0], shape[1]) == self.input_shape
            way_out = "; channels are last: use x.transpose(0, 3, 1, 2)" if last else ""
            raise InputError(f"inputs have shape {shape}, the model takes {self.input_shape}{way_out}")
        return tensor.to(self.device, self.dtype or tensor.dtype)

    def check(self, x: torch.Tensor) -> Probe:
        """Run the model on the first inputs, and raise an error for common mistakes.

        Such mistakes are probabilities instead of logits, outputs that vary between calls or depend on other inputs of
        the batch, inputs that are not finite or outside the bounds, and half precision.
        """
        self._check_inputs(x)
        if x.dtype in HALF:
            name = str(x.dtype).removeprefix("torch.")
            raise ModelError(f"the model computes in {name}, too coarse for margins and gradients: use model.float()")
        few = x[:PROBED_INPUTS].clone()
        with torch.no_grad():
            try:
                raw = self.module(self.standardised(few))
            except InputError:
                raise
            except Exception as error:
                reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                raise InputError(f"the model cannot take inputs of shape {tuple(x.shape[1:])}: {reason}") from error
            if not torch.equal(few, x[:PROBED_INPUTS]):
                raise ModelError(
                    "the model changes its input in place, which spoils the points that are scored: write x = x - 0.5, "
                    "not x -= 0.5, in its forward pass"
                )
            raw = getattr(raw, "logits", raw)
            self._check_output(raw, few)
            self._check_stable(few, raw)
        return Probe(num_classes=int(raw.shape[1]), input_shape=tuple(x.shape[1:]), dim=x[0].numel())

    def _check_inputs(self, x: torch.Tensor) -> None:
        finite = torch.isfinite(x).flatten(1).all(1)
        if not bool(finite.all()):
            row = int((~finite).nonzero()[0])
            raise InputError(f"input {row} holds NaN or infinite values; remove or repair it")
        if self.bounds is not None:
            low, high = self.bounds
            slack = 1e-5 * (high - low)
            outside = ((x < low - slack) | (x > high + slack)).flatten(1).any(1)
            if bool(outside.any()):
                row = int(outside.nonzero()[0])
                raise InputError(
                    f"input {row} has values from {float(x[row].min()):.4g} to {float(x[row].max()):.4g}, outside the "
                    f"bounds ({low:g}, {high:g}); give the bounds of your data or rescale it"
                )

    def _check_output(self, raw: Any, few: torch.Tensor) -> None:
        if not isinstance(raw, torch.Tensor):
            raise ModelError(
                f"the model returns a {type(raw).__name__}; it must return a tensor of logits (n, classes)"
            )
        if raw.shape in ((len(few),), (len(few), 1)):
            raise ModelError(
                "the model has one output, and CLEVER needs a margin between two classes: say outputs='logit' "
                "(--outputs logit) if it is positive for class 1 and negative for class 0, before any sigmoid"
            )
        if raw.ndim != 2 or len(raw) != len(few):
            raise ModelError(
                f"the model returns shape {tuple(raw.shape)} for {len(few)} inputs; logits must have shape (n, classes)"
            )
        finite = torch.isfinite(raw).all(1)
        if not bool(finite.all()):
            raise ModelError(f"the model's outputs for input {int((~finite).nonzero()[0])} are NaN or infinite")
        noisy = self.module(self.standardised(few + 0.1 * torch.randn(few.shape).to(few) * few.std(correction=0)))
        both = torch.cat([raw, getattr(noisy, "logits", noisy)]).double()
        tolerance = 1e-3 if raw.dtype in HALF else 1e-5
        probabilities = bool(((both >= 0) & (both <= 1)).all() and ((both.sum(1) - 1).abs() < tolerance).all())
        if probabilities and self.outputs == "logits":
            raise ModelError(
                "the model gives probabilities (rows sum to one), and CLEVER is defined on logits: remove the last "
                "softmax, or say outputs='probabilities' (--outputs probabilities) to use their logarithms, whose "
                "differences are the same"
            )
        if not probabilities and self.outputs == "probabilities":
            raise ModelError("outputs='probabilities' was said, but the model's rows do not sum to one; drop it")

    def _check_stable(self, few: torch.Tensor, raw: torch.Tensor) -> None:
        scale = float(raw.abs().amax()) + 1e-12
        tolerance = 5e-2 if raw.dtype in HALF else 1e-3
        again = self.module(self.standardised(few))
        if float((getattr(again, "logits", again) - raw).abs().amax()) > tolerance * scale:
            raise ModelError(
                "the model gives different outputs for the same input; a score of a random function means nothing: "
                "fix its noise or average it inside the model"
            )
        if len(few) > 1:
            try:
                alone = self.module(self.standardised(few[:1]))
            except Exception as error:
                raise ModelError(
                    "the model cannot take one input alone, so its outputs depend on the batch (batch normalisation "
                    f"without running statistics?): {str(error).strip()}"
                ) from error
            if float((getattr(alone, "logits", alone) - raw[:1]).abs().amax()) > tolerance * scale:
                raise ModelError(
                    "the model's output for an input depends on the other inputs of the batch (batch statistics?); "
                    "a margin of one input has no meaning then"
                )


_MODE_DEPENDENT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.modules.batchnorm._BatchNorm,
    nn.RReLU,
)


def checked_classifier(classifier: Any) -> Classifier:
    """The classifier; a model that is not wrapped in a `Classifier` raises a ModelError."""
    if not isinstance(classifier, Classifier):
        raise ModelError(
            f"the model is a {type(classifier).__name__}; wrap it first: cs.Classifier(model, bounds=(0.0, 1.0))"
        )
    return classifier
