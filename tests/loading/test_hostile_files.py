"""Files that are damaged, of another kind, or meant to do harm: one sentence, and no code is run."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import shutil
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import cleverscore as cs
from cleverscore.loading.dataset import open_data
from tests.helpers import FEW, cleverscore
from tests.loading import nets
from tests.loading.test_dataset import data_set, picture_data_set

FUZZED = {"onnx": 260, "pt2": 120, "ts": 160, "pt": 260, "hf": 100, "weights": 200}
FUZZED |= {"npz": 260, "npy": 200, "safetensors": 200, "csv": 200, "pictures": 260, "set": 160, "picture set": 160}


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.marker),)


def payload(marker: Path) -> bytes:
    return pickle.dumps(Payload(marker))


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small good file of every kind: what is opened, and below it which file is damaged."""
    folder = tmp_path_factory.mktemp("samples")
    net = nets.conv_net()
    nets.export_onnx(net, folder / "net.onnx", dynamo=False)
    nets.export_pt2(net, folder / "net.pt2")
    nets.export_torchscript(net, folder / "net.ts")
    torch.save(net, folder / "net.pt")
    torch.save(net.state_dict(), folder / "state.pt")
    save_file(net.state_dict(), folder / "weights.safetensors")
    nets.save_vit(folder / "vit")
    x, y = nets.inputs(4), np.array([0, 1, 2, 3])
    np.savez_compressed(folder / "d.npz", x=x, y=y)
    np.save(folder / "d.npy", x)
    save_file({"x": torch.from_numpy(x), "y": torch.from_numpy(y)}, folder / "d.safetensors")
    rows = [",".join([*(f"{v:.4g}" for v in row.flatten()), str(k)]) for row, k in zip(x, y, strict=True)]
    (folder / "d.csv").write_text("\n".join([",".join([*(f"p{i}" for i in range(64)), "class"]), *rows]))
    for name in ("pictures/0", "pictures/1"):
        (folder / name).mkdir(parents=True)
        Image.fromarray(np.rint(x[0, 0] * 255).astype(np.uint8)).save(folder / name / "a.png")
        Image.fromarray(np.rint(x[1, 0] * 255).astype(np.uint8)).save(folder / name / "b.jpg")
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    data_set(folder / "a")
    picture_data_set(folder / "b")
    return {"folder": folder}


# kind: (what is opened, the files of it that may be damaged)
MODELS = {
    "onnx": ("net.onnx", ["net.onnx"]), "pt2": ("net.pt2", ["net.pt2"]), "ts": ("net.ts", ["net.ts"]),
    "pt": ("net.pt", ["net.pt"]),
    "hf": ("vit", ["vit/config.json", "vit/model.safetensors", "vit/preprocessor_config.json"]),
    "weights": ("tests.loading.nets:blank_net?weights=", ["weights.safetensors", "state.pt"]),
}  # fmt: skip
DATA = {
    "npz": ("d.npz", ["d.npz"]), "npy": ("d.npy", ["d.npy"]), "safetensors": ("d.safetensors", ["d.safetensors"]),
    "csv": ("d.csv?label=class", ["d.csv"]), "pictures": ("pictures", ["pictures/0/a.png", "pictures/1/b.jpg"]),
    "set": ("a/set", ["a/set/data-00000-of-00001.arrow", "a/set/state.json", "a/set/dataset_info.json"]),
    "picture set": ("b/set", ["b/set/test/data-00000-of-00001.arrow", "b/set/dataset_dict.json"]),
}  # fmt: skip
KINDS = {**MODELS, **DATA}


def opened(kind: str, folder: Path, damaged: str) -> None:
    """Use a sample as a run would: load, read everything, look at the model or the inputs."""
    name = KINDS[kind][0]
    if kind == "weights":
        cs.load_model(f"{name}{folder / damaged}")
        return
    if kind in MODELS:
        classifier = cs.load_model(folder / name)
        shape = (3, 16, 16) if kind == "hf" else nets.SHAPE
        classifier.check(classifier.inputs(torch.rand(2, *shape)))
        return
    classifier = cs.Classifier(nets.conv_net(), input_shape=nets.SHAPE, bounds=(-2.0, 2.0))
    source = open_data(f"{folder / name}", classifier)
    classifier.check(classifier.inputs(source.read(range(source.count))))


def refused(kind: str, folder: Path, damaged: str) -> bool:
    """Whether a sample is refused; any failure but a CleverError of one sentence is raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cs.CleverWarning)
        try:
            opened(kind, folder, damaged)
        except cs.CleverError as error:
            text = str(error)
            assert text and "\n" not in text and "Traceback" not in text, text
            return True
    return False


def test_the_samples_are_good(samples: dict[str, Path]) -> None:
    for kind, (_, files) in KINDS.items():
        assert refused(kind, samples["folder"], files[0]) == (kind == "pt"), kind  # a pickled module is always refused


def mutate(content: bytes, chance: random.Random) -> bytes:
    """One of the things that happen to files."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 5))):
        size = max(1, len(data))
        place, length = chance.randrange(size), chance.randrange(1, 40)
        what = chance.randrange(7)
        if what == 0:
            del data[place:]
        elif what == 1:
            data[place : place + 1] = bytes([chance.randrange(256)])
        elif what == 2 and data:
            data[place % len(data)] ^= 1 << chance.randrange(8)
        elif what == 3:
            data[place : place + length] = chance.randbytes(length)
        elif what == 4:
            del data[place : place + length]
        elif what == 5:
            data[place:place] = chance.choice(
                (bytes(length), data[:length], b"\xff" * length, b"-1", b"../", b"9" * 12)
            )
        else:
            data[place : place + 8] = struct.pack("<q", chance.choice((-1, 2**31, 2**62, 0, 10**9)))
    return bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FUZZED)
def test_damaged_files_are_refused_or_read(kind: str, samples: dict[str, Path], tmp_path: Path) -> None:
    chance = random.Random(f"{kind} 1")
    folder = tmp_path / "samples"
    shutil.copytree(samples["folder"], folder)
    files = KINDS[kind][1]
    refusals = 0
    for number in range(FUZZED[kind]):
        damaged = files[number % len(files)]
        good = (samples["folder"] / damaged).read_bytes()
        (folder / damaged).write_bytes(mutate(good, chance))
        refusals += refused(kind, folder, damaged)
        (folder / damaged).write_bytes(good)
    assert refusals > FUZZED[kind] // 5  # most damage is noticed; some of it changes a number only


def test_enough_files_are_damaged() -> None:
    assert sum(FUZZED.values()) >= 2000 and set(FUZZED) == set(KINDS)


def wide_png(path: Path) -> None:
    """A header that promises 50,000 x 50,000 pixels."""
    header = struct.pack(">2I5B", 50_000, 50_000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", len(header)) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk)


def escaping_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("../evil.npy", "x.npy", "net/data.pkl", "net/constants.pkl", "net/archive_format"):
            archive.writestr(name, b"0")


def other_format(path: Path) -> None:
    path.write_bytes(b"GIF89a" + bytes(100) if path.suffix not in (".jpg", ".png") else b"%PDF-1.7 nothing here")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "another format": other_format,
    "random bytes": lambda path: path.write_bytes(random.Random(0).randbytes(3000)),
    "a pickle with a payload": lambda path: path.write_bytes(payload(path.parent / "marker")),
    "a zip with ../": escaping_zip,
    "a huge picture": wide_png,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", KINDS)
def test_every_loader_refuses_every_bad_file(kind: str, damage: str, samples: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    shutil.copytree(samples["folder"], folder)
    for damaged in KINDS[kind][1]:
        good = (folder / damaged).read_bytes()
        DAMAGE[damage](folder / damaged)
        if not (kind == "csv" and damage == "truncated"):  # half a table is a table
            assert refused(kind, folder, damaged), damaged
        assert not (folder / damaged).with_name("marker").exists(), "code of the file was run"
        (folder / damaged).write_bytes(good)


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_line_says_one_sentence(kind: str, samples: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    shutil.copytree(samples["folder"], folder)
    name, files = KINDS[kind]
    (folder / files[0]).write_bytes(payload(tmp_path / "marker"))
    good = folder / "good.npz"
    np.savez(good, x=nets.inputs(2))
    model = "tests.loading.nets:conv_net"
    if kind == "weights":
        model = f"{name}{folder / files[0]}"
    elif kind in MODELS:
        model = folder / name
    data = good if kind in MODELS else folder / name
    for command in (["score", model, data, "--out", tmp_path / "run", *FEW], ["inspect", model, data]):
        done = cleverscore(*command)
        lines = done.stderr.strip().splitlines()
        assert done.returncode == 2 and done.stdout == "", done.stderr
        assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    assert not (tmp_path / "marker").exists() and not (tmp_path / "run").exists()


def test_a_payload_does_run_where_it_is_allowed(tmp_path: Path) -> None:
    """The test of the test: the payload works, and only permission lets it."""
    path = tmp_path / "evil.pt"
    torch.save({"x": Payload(tmp_path / "marker")}, path)
    for name in (path, f"tests.loading.nets:blank_net?weights={path}"):
        with pytest.raises(cs.CleverError, match=r"can run any code.*--allow-pickle"):
            cs.load_model(name)
    assert not (tmp_path / "marker").exists()
    with pytest.raises(cs.CleverError):
        cs.load_model(path, allow_pickle=True)
    assert (tmp_path / "marker").exists()


def rewritten(source: Path, target: Path, change: Callable[[str, bytes], bytes]) -> None:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for member in old.infolist():
            new.writestr(member.filename, change(member.filename, old.read(member)))


def test_an_exported_program_can_only_compute(samples: dict[str, Path], tmp_path: Path) -> None:
    """What torch.export.load would run: pickles, names of functions, expressions."""
    marker = tmp_path / "marker"
    stored = io.BytesIO()
    torch.save(Payload(marker), stored)
    expression = f"__import__('os').mkdir('{marker}')"

    def with_json(edit: Callable[[dict], None]) -> Callable[[str, bytes], bytes]:
        def change(name: str, content: bytes) -> bytes:
            if not name.endswith("models/model.json"):
                return content
            graph = json.loads(content)
            edit(graph)
            return json.dumps(graph).encode()

        return change

    def call(graph: dict) -> None:
        graph["graph_module"]["graph"]["nodes"][0]["target"] = "torch.os.mkdir"

    def size(graph: dict) -> None:
        text = json.dumps(graph)
        start = text.index('"expr_str": "') + len('"expr_str": "')
        graph.clear()
        graph.update(json.loads(text[:start] + expression + text[text.index('"', start) :]))

    changes = {
        "pickled objects": lambda name, content: (
            stored.getvalue() if name.endswith("sample_inputs/model.pt") else content
        ),
        "no tensor operation": with_json(call),
        "no arithmetic": with_json(size),
    }
    for words, change in changes.items():
        rewritten(samples["folder"] / "net.pt2", tmp_path / "evil.pt2", change)
        with pytest.raises(cs.CleverError, match=words):
            cs.load_model(tmp_path / "evil.pt2")
        assert not marker.exists()
    rewritten(samples["folder"] / "net.pt2", tmp_path / "same.pt2", lambda name, content: content)
    cs.load_model(tmp_path / "same.pt2")
    rewritten(samples["folder"] / "net.pt2", tmp_path / "evil.pt2", changes["pickled objects"])
    with pytest.raises(cs.CleverError):
        cs.load_model(tmp_path / "evil.pt2", allow_pickle=True)
    assert marker.exists()  # so the payload was a real one


@pytest.mark.parametrize("beginning", [b"\x80\x02", b"PK\x03\x04"])
def test_numbers_that_begin_like_a_pickle_are_numbers(
    beginning: bytes, samples: dict[str, Path], tmp_path: Path
) -> None:
    def begin(name: str, content: bytes) -> bytes:
        return beginning + content[len(beginning) :] if name.endswith("weights/weight_0") else content

    rewritten(samples["folder"] / "net.pt2", tmp_path / "net.pt2", begin)
    cs.load_model(tmp_path / "net.pt2")


@pytest.mark.parametrize("said", [b"true", b"1", b'"no"', b"null"])
def test_a_weight_that_is_pickled_is_looked_through(said: bytes, samples: dict[str, Path], tmp_path: Path) -> None:
    stored = io.BytesIO()
    torch.save(Payload(tmp_path / "marker"), stored)

    def pickled(name: str, content: bytes) -> bytes:
        if name.endswith("weights/weight_0"):
            return stored.getvalue()
        return content.replace(b'"use_pickle": false', b'"use_pickle": ' + said, 1)

    rewritten(samples["folder"] / "net.pt2", tmp_path / "evil.pt2", pickled)
    with pytest.raises(cs.CleverError, match="pickled objects"):
        cs.load_model(tmp_path / "evil.pt2")
    assert not (tmp_path / "marker").exists()


def test_torchscript_that_touches_files_is_refused(tmp_path: Path) -> None:
    class Writer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.from_file("weights.bin", shared=True, size=4).sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Writer()).save(str(tmp_path / "w.ts"))
    with pytest.raises(cs.CleverError, match="reads or writes files"):
        cs.load_model(tmp_path / "w.ts")


def test_objects_in_arrays_are_refused(tmp_path: Path) -> None:
    objects = np.array([Payload(tmp_path / "marker")], dtype=object)
    np.savez(tmp_path / "d.npz", x=objects)
    np.save(tmp_path / "d.npy", objects)
    for name in ("d.npz", "d.npy"):
        with pytest.raises(cs.CleverError, match="Python objects"):
            cs.load_data(tmp_path / name)
    assert not (tmp_path / "marker").exists()


@pytest.mark.slow
def test_bombs_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "d.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as file:
        for _ in range(1100):
            file.write(bytes(2**20))
    assert (tmp_path / "d.npz").stat().st_size < 3 * 2**20
    with pytest.raises(cs.CleverError, match="would unpack to"):
        cs.load_data(tmp_path / "d.npz")
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**6)}
    with (tmp_path / "d.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(64))
    with pytest.raises(cs.CleverError, match="the file is shorter"):
        cs.load_data(tmp_path / "d.npy")


def test_nan_pixels_and_labels_out_of_range(tmp_path: Path) -> None:
    x = nets.inputs(3)
    x[1, 0, 2, 2] = np.nan
    (tmp_path / "d.csv").write_text("a,b,class\n1,nan,0\n2,,1\n")
    np.savez(tmp_path / "nan.npz", x=x, y=[0, 1, 2])
    np.save(tmp_path / "nan.npy", x)
    save_file({"x": torch.from_numpy(x)}, tmp_path / "nan.safetensors")
    good = nets.inputs(3)
    np.savez(tmp_path / "label.npz", x=good, y=[0, 1, 4])
    np.savez(tmp_path / "below.npz", x=good, y=[0, -1, 2])
    np.savez(tmp_path / "wide.npz", x=good, y=np.array([0, 1, 2**63], np.uint64))
    np.savez(tmp_path / "real.npz", x=good, y=[0.0, 1.0, 2.5])
    save_file({"x": torch.from_numpy(good), "y": torch.tensor([0, 1, 9])}, tmp_path / "label.safetensors")
    for name, words in (
        ("nan.npz", "input 1 holds NaN"), ("nan.npy", "input 1 holds NaN"), ("nan.safetensors", "input 1 holds NaN"),
        ("label.npz", "classes 0 to 3"), ("below.npz", "count classes from 0"), ("wide.npz", "count classes from 0"),
        ("real.npz", "one whole number each"), ("label.safetensors", "classes 0 to 3"),
        ("d.csv?label=class", "column 'b'"),
    ):  # fmt: skip
        for command in ("score", "inspect"):
            more = ["--out", tmp_path / "run", *FEW] if command == "score" else []
            done = cleverscore(command, "tests.loading.nets:conv_net", tmp_path / name, *more)
            assert done.returncode == 2 and words in done.stderr, (name, done.stderr)
            assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_unreadable_permissions(
    kind: str, samples: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "samples"
    shutil.copytree(samples["folder"], folder)
    target = folder / KINDS[kind][1][0]
    target.chmod(0)
    if os.access(target, os.R_OK):  # permissions do not bind an administrator: the system's refusal is played
        real = io.open

        def refuse(file: object, *arguments: object, **more: object) -> object:
            if isinstance(file, (str, os.PathLike)) and Path(os.fspath(file)) == target:
                raise PermissionError(13, "Permission denied", str(file))
            return real(file, *arguments, **more)

        monkeypatch.setattr(io, "open", refuse)
        monkeypatch.setattr("builtins.open", refuse)
    if kind in ("hf", "set", "picture set") and os.access(target, os.R_OK):
        target.unlink()  # libraries in C open these: what they cannot open is as good as absent
    assert refused(kind, folder, KINDS[kind][1][0])
    if target.exists():
        target.chmod(0o600)


def test_folders_that_are_no_models_and_odd_names(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "config.json").write_text('{"architectures": ["X"], "auto_map": {"AutoModel": "code.X"}}')
    os.mkfifo(tmp_path / "pipe")
    for model, words in (
        (tmp_path / "empty", "no config.json"), (tmp_path / "code", "code of its own"),
        (tmp_path / "absent", "not exist"),
        (tmp_path / "pipe", "neither a file nor a folder"), ("a\0b", "no possible file name"), ("nothing", "not exist"),
    ):  # fmt: skip
        with pytest.raises(cs.CleverError, match=words):
            cs.load_model(model)
        with pytest.raises(cs.CleverError):
            cs.load_data(model)
