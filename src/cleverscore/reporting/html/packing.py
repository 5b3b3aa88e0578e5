"""The data of a page, numbers and names, as one compressed block of text inside the page.

The text is base64, so no name of a class, a file or a model can end the HTML element that contains it.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

KINDS = {"<f4": "f4", "<u2": "u2", "|u1": "u1", "<i4": "i4"}
ALIGNMENT = 8  # typed arrays of a browser start at multiples of their item's size


def pack(header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """A header (a dictionary for JSON) and arrays by name as one text: packed, compressed, then in base64.

    Arrays are float32, uint16, uint8 or int32; their shapes are not kept. Layout before compression: the length of the
    header (uint32) and the header, together padded to a multiple of 8 bytes; then each array, padded likewise. The
    header gets a table of the arrays, "arrays": by name, the type, the offset and the number of values.
    """
    table: dict[str, list[Any]] = {}
    parts: list[bytes] = []
    offset = 0
    for name, array in arrays.items():
        flat = np.ascontiguousarray(array)
        kind = KINDS[flat.dtype.newbyteorder("<").str]
        content = flat.astype(flat.dtype.newbyteorder("<")).tobytes()
        table[name] = [kind, offset, flat.size]
        parts.append(_padded(content))
        offset += len(parts[-1])
    text = json.dumps({**header, "arrays": table}, allow_nan=False).encode()
    head = _padded(struct.pack("<I", len(text)) + text)
    return base64.b64encode(zlib.compress(head + b"".join(parts), 9)).decode("ascii")


def unpack(text: str) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """The header and the arrays that were given to `pack`; arrays are flat, (values,)."""
    content = zlib.decompress(base64.b64decode(text))
    (length,) = struct.unpack_from("<I", content)
    header = json.loads(content[4 : 4 + length])
    start = -(-(4 + length) // ALIGNMENT) * ALIGNMENT
    kinds = {short: long for long, short in KINDS.items()}
    table = header.pop("arrays")
    arrays = {
        name: np.frombuffer(content, kinds[kind], size, start + offset) for name, (kind, offset, size) in table.items()
    }
    return header, arrays


def packed_size(content: bytes) -> int:
    """The approximate number of characters that these bytes take in a page."""
    return len(zlib.compress(content, 6)) * 4 // 3


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % ALIGNMENT)
