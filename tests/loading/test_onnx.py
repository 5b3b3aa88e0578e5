"""ONNX operators against onnxruntime, exporters, opsets and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import cleverscore as cs
from cleverscore.loading.onnx.convert import load_onnx
from cleverscore.loading.onnx.layers import LAYERS
from cleverscore.loading.onnx.operators import OPERATORS
from tests.loading import nets


def build(
    path: Path,
    nodes: list[Any],
    shape: list[Any],
    output: str = "out",
    *,
    constants: dict[str, Any] | None = None,
    opset: int = 18,
) -> Path:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    versions = {11: 6, 13: 7, 17: 8}
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], producer_name="tests")
    model.ir_version = versions.get(opset, 10)
    onnx.save(model, path)
    return path


def node(operator: str, inputs: str = "x", output: str = "y", **attributes: Any) -> Any:
    return helper.make_node(operator, inputs.split(), output.split(), **attributes)


def i(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def f(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


RANDOM = np.random.default_rng(0)


def weights(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


UNARY = (
    *("Abs", "Ceil", "Celu", "Cos", "Dropout", "Elu", "Erf", "Exp", "Floor", "GlobalAveragePool", "GlobalMaxPool"),
    *("HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Mish", "Neg", "Relu", "Round", "Selu", "Sigmoid", "Sign"),
    *("Sin", "Softplus", "Softsign", "Sqrt", "Tanh", "ThresholdedRelu"),
)
REDUCTIONS = (
    *("ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceProd"),
    *("ReduceSumSquare", "ReduceSum"),
)
# operator: (nodes that turn x (n, 4, 6, 6) into y, constants, opset)
CASES: dict[str, tuple[list[Any], dict[str, Any], int]] = {
    **{name: ([node(name)], {}, 18) for name in UNARY},
    **{
        name: ([node(name, "x c")], {"c": f(0.5, 0.7, 0.2, 0.9).reshape(1, 4, 1, 1)}, 18)
        for name in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Mean", "Sum", "PRelu", "Pow")
    },
    **{name: ([node(name, "x axes", keepdims=0)], {"axes": i(-1, 2)}, 18) for name in REDUCTIONS},
    "ReduceMean 13": ([node("ReduceMean", axes=[2], keepdims=1)], {}, 13),
    "ReduceSum all": ([node("ReduceSum", "x axes", noop_with_empty_axes=1)], {"axes": i()}, 18),
    "Log": ([node("Add", "x c", "z"), node("Log", "z")], {"c": f(1.0)}, 18),
    "Reciprocal": ([node("Add", "x c", "z"), node("Reciprocal", "z")], {"c": f(1.0)}, 18),
    "Gelu": ([node("Gelu", approximate="tanh")], {}, 20),
    "Clip 6": ([node("Clip", "x low high")], {"low": np.float32(0.0), "high": np.float32(6.0)}, 18),
    "Clip": ([node("Clip", "x low high")], {"low": np.float32(0.2), "high": np.float32(0.6)}, 18),
    "Softmax": ([node("Softmax", axis=1)], {}, 18),
    "Softmax 11": ([node("Softmax", axis=1)], {}, 11),
    "LogSoftmax": ([node("LogSoftmax")], {}, 18),
    "Conv": (
        [node("Conv", "x w b", pads=[1, 0, 2, 1], strides=[2, 1], group=2)],
        {"w": weights(6, 2, 3, 3), "b": weights(6)},
        18,
    ),
    "Conv same": ([node("Conv", "x w", auto_pad="SAME_UPPER", strides=[2, 2])], {"w": weights(6, 4, 3, 3)}, 18),
    "Conv lower": ([node("Conv", "x w", auto_pad="SAME_LOWER")], {"w": weights(6, 4, 2, 2)}, 18),
    "ConvTranspose": (
        [node("ConvTranspose", "x w", strides=[2, 2], pads=[1, 1, 1, 1])],
        {"w": weights(4, 3, 3, 3)},
        18,
    ),
    "BatchNormalization": (
        [node("BatchNormalization", "x a b c d")],
        {"a": weights(4), "b": weights(4), "c": weights(4), "d": np.abs(weights(4))},
        18,
    ),
    "InstanceNormalization": ([node("InstanceNormalization", "x a b")], {"a": weights(4), "b": weights(4)}, 18),
    "LayerNormalization": (
        [node("LayerNormalization", "x a b", axis=-2)],
        {"a": weights(6, 6), "b": weights(6, 6)},
        18,
    ),
    "LayerNormalization wide": ([node("LayerNormalization", "x a", axis=-2)], {"a": weights(6)}, 18),
    "GroupNormalization": ([node("GroupNormalization", "x a b", num_groups=2)], {"a": weights(4), "b": weights(4)}, 21),
    "LRN": ([node("LRN", size=3)], {}, 18),
    "LpNormalization": ([node("LpNormalization", axis=1)], {}, 18),
    "MaxPool": ([node("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])], {}, 18),
    "MaxPool ceil": ([node("MaxPool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)], {}, 18),
    "AveragePool": ([node("AveragePool", kernel_shape=[3, 3], pads=[0, 0, 1, 1])], {}, 18),
    "AveragePool counted": ([node("AveragePool", kernel_shape=[3, 3], pads=[0, 1, 1, 0], count_include_pad=1)], {}, 18),
    "AveragePool even": ([node("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1])], {}, 18),
    "Transpose": ([node("Transpose", perm=[0, 2, 3, 1])], {}, 18),
    "Reshape": ([node("Reshape", "x s")], {"s": i(0, -1, 3)}, 18),
    "Squeeze": ([node("ReduceMean", "x a", "z"), node("Squeeze", "z a")], {"a": i(2)}, 18),
    "Unsqueeze": ([node("Unsqueeze", "x a")], {"a": i(1, -1)}, 18),
    "Concat": ([node("Concat", "x x x", axis=1)], {}, 18),
    "Split": ([node("Split", "x s", "z y", axis=1)], {"s": i(1, 3)}, 18),
    "Split even": ([node("Split", "x", "z y", axis=1, num_outputs=2)], {}, 18),
    "Split, last unused": ([node("Split", "x", "y z", axis=1, num_outputs=2)], {}, 18),
    "Slice": ([node("Slice", "x s e a t")], {"s": i(1, -3), "e": i(4, 2**62), "a": i(1, 3), "t": i(2, 1)}, 18),
    "Slice back": ([node("Slice", "x s e a t")], {"s": i(-1), "e": i(-(2**62)), "a": i(3), "t": i(-1)}, 18),
    "Gather": ([node("Gather", "x p", axis=2)], {"p": i(-1, 0, 2)}, 18),
    "Gather one": ([node("Gather", "x p", axis=1)], {"p": np.int64(2)}, 18),
    "Gather square": ([node("Gather", "x p", axis=1)], {"p": i(0, 1, 2, 3).reshape(2, 2)}, 18),
    "Expand": ([node("Unsqueeze", "x a", "z"), node("Expand", "z s")], {"a": i(1), "s": i(3, 1, 6, 6)}, 18),
    "Tile": ([node("Tile", "x r")], {"r": i(1, 2, 1, 3)}, 18),
    "Pad": ([node("Pad", "x p v")], {"p": i(0, 0, 1, 2, 0, 0, 0, 1), "v": np.float32(0.5)}, 18),
    "Pad reflect": ([node("Pad", "x p", mode="reflect")], {"p": i(0, 0, 1, 2, 0, 0, 0, 1)}, 18),
    "Pad edge": ([node("Pad", "x p", mode="edge")], {"p": i(0, 0, 1, 2, 0, 0, 0, 1)}, 18),
    "Where": (
        [
            node(
                "Greater",
                "x c",
                "b",
            ),
            node("Where", "b x c"),
        ],
        {"c": f(0.5)},
        18,
    ),
    "Comparisons": (
        [
            node("Less", "x c", "a"),
            node("GreaterOrEqual", "x d", "b"),
            node("Or", "a b", "e"),
            node("Not", "e", "g"),
            node("And", "g a", "h"),
            node("LessOrEqual", "x d", "k"),
            node("Xor", "h k", "m"),
            node("Cast", "m", to=1),
        ],
        {"c": f(0.3), "d": f(0.6)},
        18,
    ),
    "IsNaN": ([node("IsNaN", "x", "b"), node("Cast", "b", to=1)], {}, 18),
    "ArgMax": ([node("ArgMax", "x", "b", axis=1), node("Cast", "b", to=1)], {}, 18),
    "TopK": ([node("TopK", "x k", "y p", axis=1)], {"k": i(2)}, 18),
    "CumSum": ([node("CumSum", "x a")], {"a": np.int64(2)}, 18),
    "Trilu": ([node("Trilu", "x k", upper=0)], {"k": np.int64(1)}, 18),
    "Einsum": ([node("Einsum", "x w", equation="nchw,ck->nkhw")], {"w": weights(4, 3)}, 18),
    "DepthToSpace": ([node("DepthToSpace", blocksize=2)], {}, 18),
    "DepthToSpace CRD": ([node("DepthToSpace", blocksize=2, mode="CRD")], {}, 18),
    "SpaceToDepth": ([node("SpaceToDepth", blocksize=2)], {}, 18),
    "MatMul": ([node("MatMul", "x w")], {"w": weights(6, 3)}, 18),
    "MatMul left": ([node("MatMul", "w x")], {"w": weights(3, 6)}, 18),
    "Gemm": (
        [node("Flatten", "x", "z"), node("Gemm", "z w b", alpha=0.5, beta=2.0)],
        {"w": weights(144, 5), "b": weights(5)},
        18,
    ),
    "Gemm plain": (
        [node("Flatten", "x", "z"), node("Gemm", "z w b", transB=1)],
        {"w": weights(5, 144), "b": weights(5)},
        18,
    ),
    "Resize": ([node("Resize", "x e s", mode="linear")], {"e": f(), "s": f(1, 1, 2, 1.5)}, 18),
    "Resize nearest": (
        [node("Resize", "x e s", mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")],
        {"e": f(), "s": f(1, 1, 2, 2)},
        18,
    ),
    "Dequantize": (
        [node("DequantizeLinear", "q s z", "w", axis=0), node("MatMul", "x w")],
        {
            "q": np.arange(18, dtype=np.int8).reshape(6, 3),
            "s": f(0.1, 0.2, 0.3, 0.1, 0.2, 0.3),
            "z": np.zeros(6, np.int8),
        },
        18,
    ),
    "Quantize": (
        [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z")],
        {"s": np.float32(0.03), "z": np.uint8(5)},
        18,
    ),
    "Shape": (
        [
            node("Shape", "x", "s"),
            node("Gather", "s zero", "n"),
            node("Unsqueeze", "n first", "m"),
            node("Concat", "m rest", "t", axis=0),
            node("Reshape", "x t"),
        ],
        {"zero": np.int64(0), "first": i(0), "rest": i(-1)},
        18,
    ),
    "ConstantOfShape": (
        [
            node("ConstantOfShape", "s", "c", value=helper.make_tensor("v", TensorProto.FLOAT, [1], [2.0])),
            node("Mul", "x c"),
        ],
        {"s": i(1, 4, 1, 1)},
        18,
    ),
    "Range": (
        [node("Range", "a b c", "r"), node("Mul", "x r")],
        {"a": np.float32(0), "b": np.float32(6), "c": np.float32(1)},
        18,
    ),
    "Size": ([node("Size", "c", "s"), node("CastLike", "s x", "t"), node("Mul", "x t")], {"c": f(1, 2, 3)}, 18),
    "Mod": ([node("Mod", "a b", "c"), node("Cast", "c", "d", to=1), node("Mul", "x d")], {"a": i(7), "b": i(4)}, 18),
    "Equal": (
        [node("Equal", "a b", "c"), node("Where", "c x zero")],
        {"a": i(1, 2, 3, 4, 5, 6), "b": i(4), "zero": f(0.0)},
        18,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_operators_agree_with_onnxruntime(name: str, tmp_path: Path) -> None:
    nodes, constants, opset = CASES[name]
    # The batch's axis stays first; all others become one, as logits are.
    shape = "flat_13" if opset >= 13 else "flat"
    nodes = [*nodes, helper.make_node("Flatten", ["y"], ["out"], name=shape)]
    path = build(tmp_path / "one.onnx", nodes, ["n", 4, 6, 6], constants=constants, opset=opset)
    module = load_onnx(path).module  # compared with onnxruntime inside, for two inputs
    x = torch.rand(3, 4, 6, 6, generator=torch.Generator().manual_seed(5))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": x.numpy()})[0]
    assert module(x).detach().numpy() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_about_sixty_operators_and_more_are_known() -> None:
    tested = {one.op_type for nodes, _, _ in CASES.values() for one in nodes} | {"Flatten"}
    assert set(OPERATORS) | set(LAYERS) <= tested | {"ArgMin", "Constant", "GatherElements", "IsInf", "ReduceSum"}
    assert len(set(OPERATORS) | set(LAYERS)) > 90


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches, self.norm = nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8)
        self.word = nn.Parameter(torch.randn(1, 1, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.patches(x)).flatten(2).transpose(1, 2)
        h = torch.cat([self.word.expand(x.shape[0], -1, -1), h], 1)
        return self.head(self.layer(h)[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dynamo", "batch", "opset"),
    [(True, None, 21), (True, 1, None), (False, None, 14), (False, 1, 17)],
)
def test_a_transformer_from_both_exporters(dynamo: bool, batch: int | None, opset: int | None, tmp_path: Path) -> None:
    model = Transformer().eval()
    more = {} if opset is None else {"opset_version": opset}
    path = nets.export_onnx(model, tmp_path / "t.onnx", dynamo=dynamo, batch=batch, shape=(3, 8, 8), **more)
    found = load_onnx(path)
    x = torch.rand(5, 3, 8, 8)
    with torch.no_grad():
        assert torch.allclose(found.module(x), model(x), atol=1e-5)
    assert found.input_shape == (3, 8, 8) and "pytorch" in found.origin


@pytest.mark.parametrize("opset", [11, 13, 16])
def test_older_opsets(opset: int, tmp_path: Path) -> None:
    model = nets.conv_net()
    path = nets.export_onnx(model, tmp_path / "t.onnx", dynamo=False, opset_version=opset)
    x = torch.from_numpy(nets.inputs())
    with torch.no_grad():
        assert torch.allclose(load_onnx(path).module(x), model(x), atol=1e-5)


FLAT = [node("Flatten", "x", "out")]


def test_refusals_name_the_cause(tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"

    def refused(words: str) -> None:
        with pytest.raises(cs.CleverError, match=words) as caught:
            cs.load_model(path)
        assert "\n" not in str(caught.value)

    build(path, [helper.make_node("NonZero", ["x"], ["out"], name="the_node")], ["n", 4])
    refused("NonZero .node 'the_node'.")
    build(path, [helper.make_node("Foo", ["x"], ["out"], domain="com.me")], ["n", 4])
    refused("com.me.Foo")
    build(path, FLAT, ["n", 4, "side"])
    refused("every axis but the batch must be fixed")
    build(path, FLAT, ["n", 4], opset=18)
    model = onnx.load(path)
    model.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 4]))
    onnx.save(model, path)
    refused("2 inputs .x, z.")
    model.graph.input.pop()
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    onnx.save(model, path)
    refused("whole numbers")
    build(
        path, [node("ConstantOfShape", "s", "c"), node("Add", "x c", "out")], ["n", 4], constants={"s": i(10**9, 10**9)}
    )
    refused("too large")
    build(path, [node("Conv", "x w", "out", pads=[2**40] * 4)], ["n", 1, 4, 4], constants={"w": weights(1, 1, 3, 3)})
    refused("out of range")
    build(path, FLAT, ["n", 4], opset=18)
    model = onnx.load(path)
    model.opset_import[0].version = 6
    onnx.save(model, path)
    refused("opset 6")


def test_external_data_stays_inside_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    path = build(folder / "m.onnx", [node("MatMul", "x w", "out")], ["n", 40], constants={"w": weights(40, 3)})
    model = onnx.load(path)
    onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert cs.load_model(path)(torch.rand(2, 40)).shape == (2, 3)
    (folder / "weights.bin").rename(tmp_path / "weights.bin")
    with pytest.raises(cs.CleverError, match="does not exist beside it"):
        cs.load_model(path)
    for place in ("../weights.bin", str(tmp_path / "weights.bin"), "link.bin"):
        model = onnx.load(path, load_external_data=False)
        next(e for e in model.graph.initializer[0].external_data if e.key == "location").value = place
        path.write_bytes(model.SerializeToString())
        if place == "link.bin":
            (folder / place).symlink_to(tmp_path / "weights.bin")
        with pytest.raises(cs.CleverError, match="outside its own folder"):
            cs.load_model(path)
    (folder / "link.bin").unlink()
    (folder / "link.bin").write_bytes(b"short")
    with pytest.raises(cs.CleverError, match="cut short"):
        cs.load_model(path)


def test_a_graph_that_means_something_else_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATORS, "Abs", lambda node, x: x * 1.1)
    build(tmp_path / "m.onnx", [node("Abs", "x", "out")], ["n", 4])
    with pytest.raises(cs.CleverError, match="differ from onnxruntime"):
        cs.load_model(tmp_path / "m.onnx")


@pytest.mark.parametrize("opset", [7, 8, 9, 10])
def test_networks_of_old_opsets_load(opset: int, tmp_path: Path) -> None:
    """Like the ACAS Xu networks: opset 8, batch size 1, five inputs, layers as matrix products and sums."""
    random = np.random.default_rng(0)
    sizes = [(5, 50), (50, 50), (50, 5)]
    constants = {"mean": random.normal(size=(1, 1, 1, 5)).astype(np.float32)}
    nodes = [helper.make_node("Sub", ["x", "mean"], ["moved"]), helper.make_node("Flatten", ["moved"], ["r"], axis=1)]
    last = "r"
    for i, size in enumerate(sizes):
        constants |= {
            f"w{i}": random.normal(size=size).astype(np.float32),
            f"b{i}": random.normal(size=size[1]).astype(np.float32),
        }
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Add", [f"m{i}", f"b{i}"], [f"a{i}"]))
        last = f"a{i}"
        if i < 2:
            nodes.append(helper.make_node("Relu", [last], [f"r{i}"]))
            last = f"r{i}"
    kept = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    # Before IR version 4, weights are listed among the inputs.
    inputs = [helper.make_tensor_value_info("x", 1, [1, 1, 1, 5])]
    inputs += [helper.make_tensor_value_info(tensor.name, 1, list(tensor.dims)) for tensor in kept]
    graph = helper.make_graph(nodes, "old", inputs, [helper.make_tensor_value_info(last, 1, [1, 5])], kept)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 3
    onnx.save(model, tmp_path / "old.onnx")
    classifier = cs.load_model(tmp_path / "old.onnx")
    assert f"opset {opset}" in str(classifier.origin)
    x = random.normal(size=(3, 1, 1, 5)).astype(np.float32)
    expected = (x - constants["mean"]).reshape(3, 5)
    for i in range(3):
        expected = expected @ constants[f"w{i}"] + constants[f"b{i}"]
        expected = np.maximum(expected, 0.0) if i < 2 else expected
    assert classifier(torch.from_numpy(x)).detach().numpy() == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert len(cs.clever(classifier, x, blocks=12, block_size=8)) == 3
