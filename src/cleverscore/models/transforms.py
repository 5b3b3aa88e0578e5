"""Input transforms without a useful gradient, for `Classifier(..., transform=...)`, for inputs with values in [0, 1].

The `repr` of a transform names all its parameters. A run that is continued compares it with the stored one, to notice a
changed transform.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import torch

from cleverscore.errors import InputError, MissingExtraError, SettingError
from cleverscore.validation import is_whole


@dataclass(frozen=True)
class BitDepth:
    """Round every value to the nearest of 2^bits levels between 0 and 1."""

    bits: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Inputs rounded to 2^bits levels."""
        steps = 2**self.bits - 1
        rounded: torch.Tensor = torch.round(x * steps) / steps
        return rounded


@dataclass(frozen=True)
class Jpeg:
    """Compress every image (n, channels, height, width) to JPEG and back; 1 or 3 channels."""

    quality: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The decoded images, values outside [0, 1] clipped."""
        try:
            from PIL import Image
        except ImportError as error:
            raise MissingExtraError.of("pillow", "report", "a JPEG transform") from error
        if x.ndim != 4 or x.shape[1] not in (1, 3):
            raise InputError(f"JPEG takes images (n, 1 or 3, height, width); these have shape {tuple(x.shape)}")
        pixels = (x.detach().clamp(0.0, 1.0) * 255.0).round().to("cpu", torch.uint8).permute(0, 2, 3, 1).numpy()
        decoded = []
        for image in pixels:
            file = io.BytesIO()
            Image.fromarray(image if image.shape[2] == 3 else image[:, :, 0]).save(file, "JPEG", quality=self.quality)
            with Image.open(file) as compressed:
                decoded.append(np.asarray(compressed).reshape(image.shape))
        return torch.from_numpy(np.stack(decoded)).permute(0, 3, 1, 2).to(x) / 255.0


def bit_depth(bits: int) -> BitDepth:
    """A transform that rounds every value to the nearest of 2^bits levels between 0 and 1.

    >>> bit_depth(1)(torch.tensor([[0.2, 0.6]]))
    tensor([[0., 1.]])
    """
    if not is_whole(bits) or not 1 <= bits <= 16:
        raise SettingError(f"bits={bits}: give a whole number from 1 to 16")
    return BitDepth(int(bits))


def jpeg(quality: int = 75) -> Jpeg:
    """A transform that compresses images to JPEG of this quality and back."""
    if not is_whole(quality) or not 1 <= quality <= 100:
        raise SettingError(f"quality={quality}: give a whole number from 1 to 100")
    return Jpeg(int(quality))
