"""The same inputs from every kind of file; rows, labels and class names."""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import cleverscore as cs
from cleverscore.inputs.image_preprocessing import ImagePreprocessing
from cleverscore.loading.dataset import open_data
from cleverscore.loading.image_folder import preprocessed
from cleverscore.loading.row_selection import correct_rows, rows_of
from cleverscore.loading.zoo import cifar10, mnist
from tests.loading import nets

X = nets.inputs(5)
Y = np.array([3, 0, 1, 1, 2])
BYTES = np.rint(X * 255).astype(np.uint8)


def npz(folder: Path) -> object:
    np.savez_compressed(folder / "d.npz", x=X, y=Y)
    return folder / "d.npz"


def big_endian(folder: Path) -> object:
    np.savez(folder / "d.npz", x=np.asfortranarray(X.astype(">f4")), y=Y.astype(np.uint8))
    return folder / "d.npz"


def safetensors(folder: Path) -> object:
    save_file({"x": torch.from_numpy(X), "y": torch.from_numpy(Y)}, folder / "d.safetensors")
    return folder / "d.safetensors"


def csv(folder: Path) -> object:
    columns = [f"pixel{i}" for i in range(64)]
    rows = [",".join([*map(repr, map(float, x.flatten())), str(y)]) for x, y in zip(X, Y, strict=True)]
    (folder / "d.csv").write_text("\n".join([",".join([*columns, "class"]), *rows]))
    return f"{folder / 'd.csv'}?label=class"


def pictures(folder: Path) -> object:
    for row, (x, y) in enumerate(zip(BYTES, Y, strict=True)):
        (folder / "pictures" / f"{y:02d}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[0]).save(folder / "pictures" / f"{y:02d}" / f"{row}.png")
    return folder / "pictures"


def data_set(folder: Path) -> object:
    from datasets import Array3D, ClassLabel, Dataset, Features, disable_progress_bars

    disable_progress_bars()
    features = Features({"inputs": Array3D((1, 8, 8), "float32"), "label": ClassLabel(names=list("abcd"))})
    Dataset.from_dict({"inputs": list(X), "label": Y.tolist()}, features).save_to_disk(str(folder / "set"))
    return folder / "set"


def picture_data_set(folder: Path) -> object:
    from datasets import ClassLabel, Dataset, DatasetDict, Features, disable_progress_bars
    from datasets import Image as ImageFeature

    disable_progress_bars()
    features = Features({"image": ImageFeature(), "label": ClassLabel(names=list("abcd"))})
    made = Dataset.from_dict({"image": [Image.fromarray(x[0]) for x in BYTES], "label": Y.tolist()}, features)
    DatasetDict({"train": made.select([0]), "test": made}).save_to_disk(str(folder / "set"))
    return folder / "set"


SORTED = np.argsort(Y, kind="stable")  # class folders come in the order of their names
KINDS = {
    "npz": (npz, slice(None)), "npz, big-endian": (big_endian, slice(None)), "safetensors": (safetensors, slice(None)),
    "csv": (csv, slice(None)), "pictures": (pictures, SORTED), "data set": (data_set, slice(None)),
    "data set of pictures": (picture_data_set, slice(None)),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_gives_the_same_inputs(kind: str, tmp_path: Path) -> None:
    write, order = KINDS[kind]
    classifier = cs.Classifier(nets.conv_net(), input_shape=nets.SHAPE, preparation=ImagePreprocessing.like(nets.SHAPE))
    name = write(tmp_path)
    images, labels = cs.load_data(name, classifier)
    assert images.dtype == np.float32 and np.array_equal(images, X[order])
    assert labels is not None and labels.tolist() == Y[order].tolist()
    source = open_data(name, classifier)
    assert np.array_equal(source.read([4, 1]), X[order][[4, 1]])
    assert source.fingerprint() == open_data(name, classifier).fingerprint()


def test_arrays_without_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", X)
    images, labels = cs.load_data(tmp_path / "d.npy")
    assert np.array_equal(images, X) and labels is None
    np.save(tmp_path / "b.npy", BYTES)
    with pytest.warns(cs.CleverWarning, match="divided by 255"):
        images, _ = cs.load_data(tmp_path / "b.npy")
    assert np.allclose(images, X, atol=1e-7)


def test_a_flat_folder_has_no_labels_and_keeps_its_own_size(tmp_path: Path) -> None:
    for row in range(3):
        Image.fromarray(BYTES[row, 0]).save(tmp_path / f"{row}.png")
    (tmp_path / "notes.txt").write_text("not a picture")
    images, labels = cs.load_data(tmp_path)
    assert np.array_equal(images, X[:3]) and labels is None
    (tmp_path / "class").mkdir()
    Image.fromarray(BYTES[3, 0]).save(tmp_path / "class" / "3.png")
    with pytest.raises(cs.CleverError, match="beside them"):
        cs.load_data(tmp_path)


def test_pictures_are_framed_as_the_usual_recipe_does() -> None:
    # The recipe, written out once more: shorter side to size / 0.875, then the centre.
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3)).astype(np.uint8)
    picture = Image.fromarray(pixels)
    frame = ImagePreprocessing.like((3, 224, 224))
    assert frame is not None
    ratio = 256 / 300
    resized = picture.resize((round(400 * ratio), 256), Image.Resampling.BILINEAR)
    left = (resized.width - 224) // 2
    expected = np.asarray(resized.crop((left, 16, left + 224, 240)), np.float32).transpose(2, 0, 1) / 255
    assert np.array_equal(preprocessed(picture, frame), expected)
    last = ImagePreprocessing.like((224, 224, 3))
    assert last is not None and np.array_equal(preprocessed(picture, last), expected.transpose(1, 2, 0))
    grey = ImagePreprocessing.like((1, 28, 28))
    assert grey is not None and preprocessed(picture, grey).shape == (1, 28, 28) and grey.resize == 28
    assert ImagePreprocessing.like((10,)) is None and ImagePreprocessing.like((5, 8, 8)) is None


def test_resize_is_an_option_of_a_folder(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((40, 50), np.uint8)).save(tmp_path / "0.png")
    classifier = cs.Classifier(nets.conv_net(), input_shape=nets.SHAPE, preparation=ImagePreprocessing.like(nets.SHAPE))
    assert cs.load_data(f"{tmp_path}?resize=10", classifier)[0].shape == (1, *nets.SHAPE)
    for name, words in ((f"{tmp_path}?resize=a", "shorter side"), (f"{tmp_path}?colour=1", "not an option")):
        with pytest.raises(cs.CleverError, match=words):
            cs.load_data(name, classifier)


def test_class_names_of_the_model_number_the_folders(tmp_path: Path) -> None:
    for name in ("owl", "cat"):
        (tmp_path / name).mkdir()
        Image.fromarray(BYTES[0, 0]).save(tmp_path / name / "0.png")
    assert cs.load_data(tmp_path)[1].tolist() == [0, 1]  # sorted names, without a model to ask
    classifier = cs.Classifier(nets.conv_net(), class_names=["dog", "owl", "cow", "cat"])
    assert cs.load_data(tmp_path, classifier)[1].tolist() == [3, 1]
    stranger = cs.Classifier(nets.conv_net(), class_names=["dog", "owl"])
    with pytest.raises(cs.CleverError, match="class 'cat', which the model does not know"):
        cs.load_data(tmp_path, stranger)


def test_a_table_names_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a;b;kind\n1;2.5;setosa\n3;4;virginica\n")
    images, labels = cs.load_data(f"{path}?label=kind")
    assert images.tolist() == [[1, 2.5], [3, 4]] and labels.tolist() == [0, 1]
    assert cs.load_data(f"{path}?label=kind&drop=a")[0].shape == (2, 1)
    with pytest.raises(cs.CleverError, match=r"row 0 of the column 'kind' .* 'setosa', not a number; .*label=kind"):
        cs.load_data(path)
    with pytest.raises(cs.CleverError, match="no column 'sort'"):
        cs.load_data(f"{path}?label=sort")


def test_canonical_files_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idx = {
        "t10k-images-idx3-ubyte.gz": gzip.compress(
            struct.pack(">4i", 2051, 2, 28, 28) + bytes(range(256)) * 6 + bytes(32)
        ),
        "t10k-labels-idx1-ubyte.gz": gzip.compress(struct.pack(">2i", 2049, 2) + bytes([3, 9])),
    }
    record = np.random.default_rng(0).integers(0, 10, (4, cifar10.RECORD)).astype(np.uint8)
    for name, content in {**idx, "test_batch.bin": record.tobytes()}.items():
        (tmp_path / name).write_bytes(content)
    for scheme in ("mnist", "cifar10"):
        with pytest.raises(cs.CleverError, match="MD5 differs"):
            cs.load_data(f"{scheme}:{tmp_path}")
        with pytest.raises(cs.CleverError, match="does not exist"):
            cs.load_data(f"{scheme}:{tmp_path}/absent")
        with pytest.raises(cs.CleverError, match="choose one of test, train"):
            cs.load_data(f"{scheme}:{tmp_path}?split=all")
    monkeypatch.setattr(mnist, "MD5", {name: hashlib.md5(content).hexdigest() for name, content in idx.items()})
    monkeypatch.setitem(cifar10.MD5, "test_batch.bin", hashlib.md5(record.tobytes()).hexdigest())
    images, labels = cs.load_data(f"mnist:{tmp_path}")
    assert images.shape == (2, 1, 28, 28) and images.max() == 1.0 and labels.tolist() == [3, 9]
    images, labels = cs.load_data(f"cifar10:{tmp_path}")
    assert images.shape == (4, 3, 32, 32) and labels.tolist() == record[:, 0].tolist()
    assert images[1, 2, 0, 3] == np.float32(record[1, 1 + 2 * 1024 + 3]) / np.float32(255)


def test_rows() -> None:
    assert rows_of("3,1-2, 3", 5) == [3, 1, 2] and rows_of(None, 3) == [0, 1, 2]
    for text in ("5", "a", "1-", "-1", "3-2", "", "1-99999999999999"):
        with pytest.raises(cs.CleverError, match="--index"):
            rows_of(text, 5)


def test_correct_only_takes_the_first_correct_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = cs.Classifier(nets.conv_net())
    x = nets.inputs(200)
    y = classifier(x).argmax(1).numpy()
    wrong = np.arange(200) % 3 == 0
    np.savez(tmp_path / "d.npz", x=x, y=np.where(wrong, (y + 1) % 4, y))
    source = open_data(tmp_path / "d.npz")
    right = [row for row in range(200) if row % 3]
    assert correct_rows(source, classifier, list(range(200)), 5) == right[:5]
    assert correct_rows(source, classifier, list(range(200)), None) == right
    assert correct_rows(source, classifier, [9, 7, 8], 2) == [7, 8]
    with pytest.raises(cs.CleverError, match="none of 2 inputs"):
        correct_rows(source, classifier, [0, 3], 2)
    np.save(tmp_path / "d.npy", x)
    with pytest.raises(cs.CleverError, match="no labels"):
        correct_rows(open_data(tmp_path / "d.npy"), classifier, [0], 1)
