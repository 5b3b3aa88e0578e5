"""How a picture of any size becomes an input of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# ImageNet networks usually take the centre of a picture, 87.5% of its shorter side long. For inputs of less than 128
# pixels, the whole shorter side is taken.
CENTRE_SHARE = 0.875
SMALLEST_CROPPED = 128
RESAMPLINGS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # at their numbers in Pillow


@dataclass(frozen=True)
class ImagePreprocessing:
    """How a picture becomes an input: resize, then crop the centre.

    size            (height, width) of the input.
    channels        3 for colours, 1 for grey.
    resize          what the picture is resized to: the length of its shorter side, or (height, width); None: crop only.
    resample        how pixels are interpolated: one of RESAMPLINGS.
    channels_last   whether inputs are (height, width, channels).
    """

    size: tuple[int, int]
    channels: int
    resize: int | tuple[int, int] | None
    resample: str = "bilinear"
    channels_last: bool = False

    def __str__(self) -> str:
        height, width = self.size
        if self.resize is None:
            first = ""
        elif isinstance(self.resize, int):
            first = f"shorter side to {self.resize} ({self.resample}), "
        else:
            first = f"to {self.resize[0]} x {self.resize[1]} ({self.resample}), "
        return f"{first}centre {height} x {width}, {'RGB' if self.channels == 3 else 'grey'} from 0 to 1"

    @classmethod
    def like(cls, shape: Sequence[int] | None) -> ImagePreprocessing | None:
        """The usual preprocessing for inputs of this shape, or None if it is not the shape of pictures.

        >>> print(ImagePreprocessing.like((3, 224, 224)))
        shorter side to 256 (bilinear), centre 224 x 224, RGB from 0 to 1
        """
        if shape is None or len(shape) != 3:
            return None
        last = shape[0] not in (1, 3)
        channels, height, width = (shape[2], shape[0], shape[1]) if last else tuple(shape)
        if channels not in (1, 3):
            return None
        shorter = min(height, width)
        resize = round(shorter / CENTRE_SHARE) if shorter >= SMALLEST_CROPPED else shorter
        return cls((height, width), channels, resize, channels_last=last)
