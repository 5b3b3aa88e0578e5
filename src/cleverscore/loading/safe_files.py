"""Untrusted files: recognising their format, and limits on the sizes that they may declare."""

from __future__ import annotations

import stat
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from urllib.parse import parse_qsl

from cleverscore.errors import CleverError, CleverWarning, LoadError

# An archive may unpack to 1 GiB, or to 100 times its size if that is more. Honest archives stay far below: compression
# hardly makes weights smaller, and images a few times.
UNPACKED_ANYWAY = 2**30
UNPACKED_TIMES = 100
MOST_MEMBERS = 100_000


@contextmanager
def reading(path: Path | str, what: str) -> Iterator[None]:
    """Turn any exception inside the block into a LoadError of one sentence, and suppress warnings of libraries.

    The sentence says that `path` cannot be read as `what`. Errors of cleverscore pass unchanged.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", CleverWarning)
        try:
            yield
        except CleverError:
            raise
        except MemoryError as error:
            raise LoadError(f"'{path}' does not fit into memory as {what}") from error
        except Exception as error:  # damaged files make libraries fail in every way there is
            raise LoadError(f"'{path}' cannot be read as {what}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """The message of an error, shortened to a line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."


def options_of(query: str, name: str) -> dict[str, str]:
    """The options by name in a query, the part behind "?" in file.csv?label=digit&split=test.

    >>> options_of("label=digit&split=test", "file.csv")
    {'label': 'digit', 'split': 'test'}
    """
    try:
        return dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise LoadError(f"'{query}' after '{name}' is not of the form name=value&name=value") from None


def existing(path: Path, what: str, forms: str) -> None:
    """Raise a LoadError if a path does not exist, cannot be opened, or is neither a file nor a folder.

    what    what the path should be, such as "the model", for the error.
    forms   what can be given instead, for the error.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            with path.open("rb"):
                pass
        elif stat.S_ISDIR(mode):
            next(path.iterdir(), None)
        else:
            raise LoadError(f"{what} '{path}' is neither a file nor a folder; give {forms}")
    except FileNotFoundError:
        raise LoadError(f"{what} '{path}' does not exist; give {forms}") from None
    except PermissionError:
        raise LoadError(f"{what} '{path}' may not be read: change its permissions") from None
    except OSError as error:
        raise LoadError(f"{what} '{path}' cannot be opened: {one_line(error)}") from None
    except ValueError:  # a null character in the name
        raise LoadError(f"{what} {str(path)!r} is no possible file name; give {forms}") from None


def kind(path: Path) -> str:
    """The format of a file, recognised by its content alone.

    It is one of empty, torchscript, export, checkpoint, npz, zip, npy, safetensors, pickle, hdf5, gzip, picture, text,
    other.
    """
    with reading(path, "a file"), path.open("rb") as file:
        head = file.read(4096)
    if not head:
        return "empty"
    if head.startswith(b"PK"):
        return _zip_kind(path)
    for magic, name in (
        (b"\x93NUMPY", "npy"), (b"\x80\x02", "pickle"), (b"\x80\x03", "pickle"), (b"\x80\x04", "pickle"),
        (b"\x80\x05", "pickle"), (b"\x89HDF\r\n", "hdf5"), (b"\x1f\x8b", "gzip"), (b"\x89PNG", "picture"),
        (b"\xff\xd8\xff", "picture"), (b"GIF8", "picture"), (b"BM", "picture"),
    ):  # fmt: skip
        if head.startswith(magic):
            return name
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 100 * 2**20:
        return "safetensors"
    text = all(byte >= 32 or byte in (9, 10, 13) for byte in head)
    return "text" if text else "other"


def _zip_kind(path: Path) -> str:
    names = [member.filename for member in checked_zip(path)]
    ends = {name.partition("/")[2] for name in names}
    if "archive_format" in ends or "serialized_exported_program.json" in names:
        return "export"
    if "constants.pkl" in ends:
        return "torchscript"
    if "data.pkl" in ends:
        return "checkpoint"
    return "npz" if names and all(name.endswith(".npy") for name in names) else "zip"


def checked_zip(path: Path, *, whole: bool = False) -> list[zipfile.ZipInfo]:
    """The members of an archive.

    Raises a LoadError for paths outside the archive, for too many members, for members that would unpack to far more
    than the archive, and with `whole` for members that do not match their checksum.
    """
    with reading(path, "a zip archive"), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > MOST_MEMBERS:
            raise LoadError(f"'{path}' is an archive of {len(members)} files, which is too many")
        for member in members:
            place = PurePosixPath(member.filename.replace("\\", "/"))
            if place.is_absolute() or ".." in place.parts or ":" in place.parts[0]:
                raise LoadError(
                    f"'{path}' is an archive with the file name '{member.filename}', outside of it: refused"
                )
        total, limit = sum(m.file_size for m in members), max(UNPACKED_ANYWAY, UNPACKED_TIMES * path.stat().st_size)
        if total > limit:
            raise LoadError(
                f"'{path}' would unpack to {total / 2**30:.1f} GiB from {path.stat().st_size:,} bytes: refused"
            )
        if whole:
            damaged = archive.testzip()
            if damaged is not None:
                raise LoadError(f"'{path}' is damaged: its part '{damaged}' does not match its checksum")
        return members
