"""Pictures of the nearest adversarial inputs for a page, of the same size as the pictures of the inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cleverscore.reporting.findings import Findings
from cleverscore.reporting.html.packing import packed_size
from cleverscore.runs.thumbnails import shrunk_picture

Arrays = dict[str, npt.NDArray[Any]]


def adversarial_pictures(found: Findings, shape: Mapping[str, Any], room: int) -> Arrays:
    """Arrays with the pictures of the nearest adversarial inputs, by name.

    For the norm at place N of `found.norms` they are:
    N.adversarial           (inputs,), the number of the input's picture; -1: none.
    N.found                 (inputs,), the class of the adversarial input; -1: none.
    N.adversarial_pixels    the pixels of all pictures, one picture after the other.

    shape   "height", "width" and "channels" of the pictures of the inputs; adversarial ones of another size are left
            out.
    room    the number of characters that the pictures may take in the page, shared equally among the norms. If not all
            fit, those of the least robust inputs are kept.
    """
    side = max(int(shape["height"]), int(shape["width"]))
    size = (int(shape["height"]), int(shape["width"]), int(shape["channels"]))
    arrays: Arrays = {}
    for place, norm in enumerate(found.norms):
        kept = {}
        for i, input_id in enumerate(found.ids):
            entry = found.adversarials.get((input_id, norm.name))
            if entry is not None and (picture := shrunk_picture(entry[2], side)).shape == size:
                kept[i] = (entry[1], picture)
        values = np.nan_to_num(norm.column("counted"), nan=np.inf)
        order = sorted(kept, key=lambda i: values[i])
        share = room // max(1, len(found.norms))
        while order and packed_size(np.stack([kept[i][1] for i in order]).tobytes()) > share:
            order = order[: int(0.8 * len(order))]
        if order:
            places, classes = np.full(len(found.ids), -1, np.int32), np.full(len(found.ids), -1, np.int32)
            places[order] = np.arange(len(order))
            classes[order] = [kept[i][0] for i in order]
            arrays[f"{place}.adversarial"] = places
            arrays[f"{place}.found"] = classes
            arrays[f"{place}.adversarial_pixels"] = np.stack([kept[i][1] for i in order]).reshape(-1)
    return arrays
