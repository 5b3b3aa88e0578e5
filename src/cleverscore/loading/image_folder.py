"""Pictures in a folder, with sub-folders as classes, preprocessed as the model requires."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cleverscore.errors import InputError, LoadError, MissingExtraError
from cleverscore.inputs.image_preprocessing import ImagePreprocessing
from cleverscore.loading.safe_files import reading
from cleverscore.loading.sources import Images, Source, named_labels

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
# Formats that pillow decodes itself; others start programs (EPS) or are rare and little tested.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
MOST_PIXELS = 2**26


def picture_source(folder: Path, preprocessing: ImagePreprocessing | None, class_names: Sequence[str] | None) -> Source:
    """A source of the pictures of a folder, in the order of their names; each sub-folder is a class.

    preprocessing   how pictures become inputs; None: all get the size of the first one.
    class_names     the names of the model's classes, if it has them, by which labels are numbered.
    """
    with reading(folder, "a folder of pictures"):
        children = sorted(child for child in folder.iterdir() if not child.name.startswith("."))
        classes = [child for child in children if child.is_dir()]
        loose = _pictures(children)
        files = [(file, child.name) for child in classes for file in _pictures(sorted(child.iterdir()))]
        files = files or [(file, "") for file in loose]
    if not files:
        raise LoadError(
            f"the folder '{folder}' holds no pictures ({', '.join(sorted(SUFFIXES))}), nor do its sub-folders"
        )
    if classes and loose and files[0][1]:
        raise LoadError(
            f"the folder '{folder}' has pictures in sub-folders and beside them ('{loose[0].name}'); move them"
        )
    labels, names = None, None
    if files[0][1]:
        labels, names = named_labels([name for _, name in files], class_names, f"the folder '{folder}'")
    chosen = preprocessing or _own_size(files[0][0])

    def read(rows: Sequence[int]) -> Images:
        return np.stack([preprocessed(open_picture(files[row][0]), chosen) for row in rows])

    def fingerprint() -> str:
        listed = [(str(file.relative_to(folder)), file.stat().st_size) for file, _ in files]
        return hashlib.sha256(repr((listed, chosen)).encode()).hexdigest()[:16]

    return Source(len(files), read, labels, fingerprint, names)


def _pictures(paths: Sequence[Path]) -> list[Path]:
    return [path for path in paths if path.suffix.lower() in SUFFIXES and path.is_file()]


def _own_size(path: Path) -> ImagePreprocessing:
    """The preprocessing without a model: the centre of every picture, in the size of the picture `path`."""
    picture = open_picture(path)
    width, height = picture.size
    return ImagePreprocessing((height, width), 1 if picture.mode in ("1", "L") else 3, resize=None)


def open_picture(source: Path | bytes, name: str = "a picture") -> Any:
    """A decoded picture, from a file or from the bytes of one; errors name it by its path, or as `name`.

    Raises a LoadError for a picture with too many pixels, before it is decoded.
    """
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError.of("pillow", "images", "reading pictures") from None
    where = source if isinstance(source, Path) else name
    with reading(where, "a picture"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pillow's own limit warns; ours decides
        opened = Image.open(source if isinstance(source, Path) else io.BytesIO(source), formats=FORMATS)
        with opened as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise LoadError(
                    f"'{where}' has {picture.width} x {picture.height} pixels, more than {MOST_PIXELS:,}: refused"
                )
            if picture.mode.startswith(("I", "F")):
                raise LoadError(
                    f"'{where}' has 16 or 32 bits per pixel; convert it to 8, or give arrays in an npz file"
                )
            return picture.copy()


def preprocessed(picture: Any, preprocessing: ImagePreprocessing) -> npt.NDArray[np.float32]:
    """A picture as an input with values from 0 to 1: (channels, height, width), or with the channels last."""
    from PIL import Image

    picture = picture.convert("RGB" if preprocessing.channels == 3 else "L")
    height, width = preprocessing.size
    if preprocessing.resize is not None and picture.size != (width, height):
        if isinstance(preprocessing.resize, tuple):
            size = preprocessing.resize[1], preprocessing.resize[0]
        else:
            ratio = preprocessing.resize / min(picture.size)
            size = round(picture.width * ratio), round(picture.height * ratio)
        if size[0] * size[1] > MOST_PIXELS:
            raise InputError(f"a picture of {picture.width} x {picture.height} pixels is too long and narrow to resize")
        picture = picture.resize(size, getattr(Image.Resampling, preprocessing.resample.upper()))
    if picture.width < width or picture.height < height:
        raise InputError(f"a picture has {picture.width} x {picture.height} pixels; {width} x {height} are needed")
    left, top = (picture.width - width) // 2, (picture.height - height) // 2
    picture = picture.crop((left, top, left + width, top + height))
    values = np.asarray(picture, np.float32) / np.float32(255.0)
    if preprocessing.channels == 1:
        values = values[..., None]
    return values if preprocessing.channels_last else np.ascontiguousarray(values.transpose(2, 0, 1))


def with_options(preprocessing: ImagePreprocessing | None, options: dict[str, str]) -> ImagePreprocessing | None:
    """The preprocessing with the user's `resize` in place of the model's, if `options` have it; it is removed there.

    The shorter side is resized to at least the size of the model's inputs.
    """
    text = options.pop("resize", None)
    if text is None:
        return preprocessing
    if preprocessing is None or not text.isdecimal() or not int(text):
        raise LoadError(
            f"resize={text}: give the length of the shorter side in pixels, with a model that takes pictures"
        )
    return replace(preprocessing, resize=max(int(text), *preprocessing.size))
