"""Models saved by torch: TorchScript, torch.export programs and checkpoints.

torch's own readers can execute code that a file contains: pickles, expressions, calls of any function. So a file is
inspected first, and anything but plain tensors and tensor operations is read only with `allow_pickle`.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from cleverscore.errors import LoadError
from cleverscore.loading.aten_layers import with_layers
from cleverscore.loading.batches import FixedBatch
from cleverscore.loading.safe_files import checked_zip, kind, reading

ALLOW = "if you trust its origin, allow it with --allow-pickle (allow_pickle=True)"
# Tensor operations that read or write files.
TOUCHES_FILES = re.compile(rb"\b(from_file|save|load_library|_load_for_lite_interpreter)\b\s*\(")
ARITHMETIC = "abs add and_ eq floordiv ge getitem gt index le lt mod mul ne neg not_ or_ pos pow sub truediv".replace(
    " ", "|"
)
SAFE_TARGET = re.compile(
    rf"torch\.ops\.(aten|prims|prim|higher_order)\.\w+(\.\w+)?|_operator\.({ARITHMETIC})|math\.\w+"
)
# Sizes as sympy writes them: numbers, symbols, arithmetic, and the functions that torch.export uses.
FUNCTIONS = re.compile(
    "Min|Max|Mod|FloorDiv|CleanDiv|CeilDiv|PythonMod|ModularIndexing|Where|Eq|Ne|Lt|Le|Gt|Ge|And|Or|Not|CeilToInt|"
    "FloorToInt|IntTrueDiv|FloatTrueDiv|PowByNatural|FloatPow|ToFloat|TruncToInt|RoundToInt|Identity|Symbol|Integer|"
    "Float|Rational|Add|Mul|Pow|int_oo|oo|true|false"
)
SYMBOL = re.compile(r"[a-z]\w{0,2}\d+")
ARITHMETIC_SYNTAX = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.keyword, ast.Constant, ast.Name,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
)  # fmt: skip
# If no tensor is pickled, files of these names hold plain numbers, whose first bytes may look like a pickle by chance.
RAW_TENSOR = re.compile(r"[^/]+/data/(weights|constants)/(weight|tensor)_\d+")
HOLDERS = ("state_dict", "model_state_dict", "model", "net", "weights")


def load_torchscript(path: Path) -> nn.Module:
    """Load a TorchScript module. torch interprets its code itself, so this code cannot call arbitrary Python functions.

    Raises a LoadError if the module's code contains an operation that reads or writes files (`TOUCHES_FILES`).
    """
    members = checked_zip(path, whole=True)
    with reading(path, "TorchScript"):
        with zipfile.ZipFile(path) as archive:
            for member in members:
                if "/code/" in member.filename and TOUCHES_FILES.search(archive.read(member)):
                    raise LoadError(f"'{path}' is TorchScript that reads or writes files ({member.filename}): refused")
        module: nn.Module = torch.jit.load(io.BytesIO(path.read_bytes()), map_location="cpu")  # type: ignore[no-untyped-call]
    return module


def load_export(path: Path, *, allow_pickle: bool) -> tuple[nn.Module, tuple[int, ...] | None]:
    """A torch.export program as a module, and the shape of one input, None if it is not fixed.

    Raises a LoadError for a program that contains more than tensors and tensor operations, unless `allow_pickle`.
    """
    members = checked_zip(path, whole=True)
    with reading(path, "a torch.export program"):
        if not allow_pickle:
            with zipfile.ZipFile(path) as archive:
                names = [member.filename for member in members]
                raw = not any(_pickles(json.loads(archive.read(name))) for name in names if name.endswith(".json"))
                for name in names:
                    if not (raw and RAW_TENSOR.fullmatch(name)):
                        _check_part(path, name, archive)
        program = torch.export.load(io.BytesIO(path.read_bytes()))
        return _plain(path, program.module(check_guards=False))


def _pickles(value: Any) -> bool:
    """Whether a JSON description of tensors says that one of them is pickled, or does not say that it is not."""
    if isinstance(value, list):
        return any(map(_pickles, value))
    if not isinstance(value, dict):
        return False
    pickled = ("path_name" in value or "use_pickle" in value) and value.get("use_pickle") is not False
    return pickled or any(map(_pickles, value.values()))


def _check_part(path: Path, name: str, archive: zipfile.ZipFile) -> None:
    place, content = name.partition("/")[2], archive.read(name)
    if place.startswith(("data/aotinductor", "data/constants/custom_obj", "data/constants/opaque", "data/executorch")):
        raise LoadError(f"'{path}' holds compiled code or objects ({place}); {ALLOW}")
    if name.endswith(".json"):
        _check_json(path, json.loads(content))
    elif content[:2] == b"PK" or content[:1] == b"\x80" or name.endswith((".pt", ".pkl")):
        try:
            torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        except Exception as error:
            raise LoadError(f"'{path}' holds pickled objects other than tensors ({place}); {ALLOW}") from error


def _check_json(path: Path, value: Any) -> None:
    """Raise a LoadError for a graph with other than tensor operations, or with sizes that are not plain arithmetic."""
    if isinstance(value, list):
        for part in value:
            _check_json(path, part)
    if not isinstance(value, dict):
        return
    for name, part in value.items():
        is_call = name == "as_operator" or (name == "target" and "inputs" in value)
        if is_call and not (isinstance(part, str) and _is_safe(part)):
            raise LoadError(f"'{path}' calls '{part}', which is no tensor operation; {ALLOW}")
        sizes = [part] if name == "expr_str" else list(part or ()) if name == "range_constraints" else []
        for size in sizes:
            if not (isinstance(size, str) and _is_arithmetic(size)):
                raise LoadError(f"'{path}' has a size that is no arithmetic ('{str(size)[:60]}'); {ALLOW}")
        _check_json(path, part)


def _is_safe(target: str) -> bool:
    return bool(SAFE_TARGET.fullmatch(target)) and not re.search(r"\b(from_file|save)\b", target)


def _is_arithmetic(expression: str) -> bool:
    """Whether a text is arithmetic of numbers and symbols only; sympy would execute other expressions as code."""
    try:
        parts = list(ast.walk(ast.parse(expression, mode="eval")))
    except (SyntaxError, ValueError, RecursionError):
        return False
    for part in parts:
        name = part.id if isinstance(part, ast.Name) else part.value if isinstance(part, ast.Constant) else None
        known = not isinstance(name, str) or FUNCTIONS.fullmatch(name) or SYMBOL.fullmatch(name)
        if not isinstance(part, ARITHMETIC_SYNTAX) or not known:
            return False
    return True


def _plain(path: Path, module: fx.GraphModule) -> tuple[nn.Module, tuple[int, ...] | None]:
    """The program as a module that can be copied and takes any batch size, and the shape of one input, if fixed."""
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    if len(places) != 1:
        raise LoadError(f"'{path}' takes {len(places)} inputs; a classifier takes one")
    shape = getattr(places[0].meta.get("val"), "shape", None)
    plain: nn.Module = with_layers(module)
    if shape is None or len(shape) < 2:
        return plain, None
    sides = tuple(int(side) for side in shape[1:]) if all(isinstance(side, int) for side in shape[1:]) else None
    return FixedBatch(plain, shape[0]) if isinstance(shape[0], int) else plain, sides


def load_checkpoint(path: Path, *, allow_pickle: bool) -> Any:
    """The content of a file of `torch.save`: tensors or, with `allow_pickle`, any object; else a LoadError."""
    if kind(path) == "checkpoint":
        checked_zip(path, whole=True)
    with reading(path, "a torch checkpoint"):
        try:
            return torch.load(io.BytesIO(path.read_bytes()), weights_only=True, map_location="cpu")
        except Exception as error:
            if not allow_pickle:
                raise LoadError(
                    f"'{path}' is a pickle that holds more than tensors, and loading it can run any code; {ALLOW}, or "
                    "save the weights alone: torch.save(model.state_dict(), file)"
                ) from error
        return torch.load(path, weights_only=False, map_location="cpu")


def state_of(stored: Any, path: Path) -> dict[str, torch.Tensor]:
    """The weights by name in a checkpoint: a module, the weights themselves, or a dictionary that holds them.

    In a dictionary they are searched for under the usual keys, such as "state_dict".
    """
    if isinstance(stored, nn.Module):
        return stored.state_dict()
    for name in HOLDERS:
        if isinstance(stored, dict) and isinstance(stored.get(name), dict):
            stored = stored[name]
            break
    if not isinstance(stored, dict) or not stored or not all(isinstance(v, torch.Tensor) for v in stored.values()):
        raise LoadError(f"'{path}' holds no weights by name (a {type(stored).__name__})")
    if all(name.startswith("module.") for name in stored):  # as torch.nn.DataParallel names them
        stored = {name.removeprefix("module."): value for name, value in stored.items()}
    return dict(stored)
