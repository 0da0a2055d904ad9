"""For every row of the op table small float models in which a node named ``op`` is that operator.

Constants and feeds are random, from a seed made of the sample's name. Where a row is quantized only behind
something quantized (data movement), a LeakyRelu leads.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from builders import model, node, tensor
from onnx import TensorProto

MS = "com.microsoft"
Array = np.ndarray[Any, Any]
BATCHES = 4


@dataclass(frozen=True)
class Sample:
    """A model with a node named ``op``, and inputs for it."""

    name: str
    op_type: str
    domain: str
    model: onnx.ModelProto = field(repr=False)
    feeds: list[dict[str, Array]] = field(repr=False)
    least: float = 0.0  # decibels less than is asked of other samples: what the operator itself amplifies

    @property
    def key(self) -> tuple[str, str]:
        return self.domain, self.op_type


SAMPLES: dict[str, Sample] = {}


class _Random:
    """Arrays that are the same in every run."""

    def __init__(self, name: str) -> None:
        self.rng = np.random.default_rng(zlib.crc32(name.encode()))

    def normal(self, *shape: int, scale: float = 1.0) -> Array:
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def uniform(self, low: float, high: float, *shape: int) -> Array:
        return self.rng.uniform(low, high, shape).astype(np.float32)

    def ids(self, top: int, *shape: int) -> Array:
        return self.rng.integers(0, top, shape).astype(np.int64)


def sample(
    name: str,
    inputs: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
    *,
    reads: Sequence[str] | None = None,
    writes: Sequence[str] = ("y",),
    outputs: Mapping[str, int] | None = None,
    lead: bool = False,
    domain: str = "",
    opset: int = 17,
    feed: Mapping[str, Any] | None = None,
    least: float = 0.0,
    **attributes: Any,
) -> None:
    """Add a sample: the part of its name before a colon is the op type.

    ``inputs`` are activations with their shapes, ``constants`` arrays or shapes of random ones, ``reads`` the
    node's inputs in order (inputs, then constants, where it is left out). ``feed`` replaces the random
    numbers of an input by those of a function of the random generator.
    """
    op = name.partition(":")[0]
    random = _Random(domain + name)
    shapes = dict(inputs if inputs is not None else {"x": (2, 3, 8, 8)})
    arrays = {
        key: random.normal(*value, scale=0.5) if isinstance(value, tuple) else np.asarray(value)
        for key, value in (constants or {}).items()
    }
    order = list(reads) if reads is not None else [*shapes, *arrays]
    nodes = []
    if lead:
        nodes.append(node("LeakyRelu", [order[0]], ["lead"], "lead", alpha=0.5))
        order[0] = "lead"
    nodes.append(node(op, order, writes, "op", domain=domain or None, **attributes))
    makers = dict(feed or {})
    feeds = [
        {
            key: makers[key](random) if key in makers else random.normal(*shape)
            for key, shape in shapes.items()
        }
        for _ in range(BATCHES)
    ]
    kinds = {key: onnx.helper.np_dtype_to_tensor_dtype(value.dtype) for key, value in feeds[0].items()}
    results = outputs if outputs is not None else dict.fromkeys((w for w in writes if w), TensorProto.FLOAT)
    proto = model(
        nodes,
        [tensor(key, shape, kinds[key]) for key, shape in shapes.items()],
        [tensor(key, None, kind) for key, kind in results.items()],
        arrays,
        opset=opset,
        ir_version=8 if opset < 21 else 10 if opset < 23 else 11,
        domains={MS: 1} if domain else None,
    )
    label = f"{domain.removeprefix('com.')}.{name}" if domain else name
    SAMPLES[label] = Sample(label, op, domain, proto, feeds, least)


def _products() -> None:
    image = {"x": (2, 8, 8, 8)}
    sample("Conv", image, {"w": (6, 8, 3, 3), "b": (6,)}, pads=[1, 1, 1, 1])
    sample("Conv:no_bias", image, {"w": (6, 8, 1, 1)})
    sample("Conv:strided", image, {"w": (6, 8, 3, 3), "b": (6,)}, strides=[2, 2], dilations=[2, 2])
    sample("Conv:1d", {"x": (2, 8, 16)}, {"w": (6, 8, 3), "b": (6,)})
    sample("Conv:3d", {"x": (1, 4, 4, 4, 4)}, {"w": (3, 4, 2, 2, 2), "b": (3,)})
    sample("Conv:depthwise", image, {"w": (8, 1, 3, 3), "b": (8,)}, group=8)
    sample("Conv:grouped", image, {"w": (6, 4, 3, 3), "b": (6,)}, group=2)
    sample("Conv:computed_weight", {"x": (1, 4, 6, 6), "w": (3, 4, 3, 3)})
    sample("ConvTranspose", image, {"w": (8, 5, 2, 2), "b": (5,)}, strides=[2, 2])
    sample("ConvTranspose:no_bias", image, {"w": (8, 5, 3, 3)})
    sample("ConvTranspose:grouped", image, {"w": (8, 3, 2, 2), "b": (6,)}, group=2)
    sample("ConvTranspose:1d", {"x": (2, 8, 9)}, {"w": (8, 5, 3), "b": (5,)})
    rows = {"x": (4, 32)}
    sample("Gemm", rows, {"w": (32, 10), "b": (10,)})
    sample("Gemm:trans_b", rows, {"w": (10, 32), "b": (10,)}, transB=1)
    sample("Gemm:trans_a", {"x": (32, 4)}, {"w": (32, 10), "b": (10,)}, transA=1)
    sample("Gemm:trans_both", {"x": (32, 4)}, {"w": (10, 32)}, transA=1, transB=1)
    sample("Gemm:alpha", rows, {"w": (32, 10)}, alpha=0.5)
    sample("Gemm:alpha_bias", rows, {"w": (32, 10), "b": (10,)}, alpha=0.5)
    sample("Gemm:no_bias", rows, {"w": (32, 10)})
    sample("Gemm:bias_row", rows, {"w": (32, 10), "b": (1, 10)})
    sample("Gemm:bias_scalar", rows, {"w": (32, 10), "b": (1,)})
    sample("Gemm:bias_matrix", rows, {"w": (32, 10), "b": (4, 10)})
    sample("Gemm:computed_weight", {"x": (4, 32), "w": (32, 10)}, {"b": (10,)})
    sample("MatMul", rows, {"w": (32, 10)})
    sample("MatMul:3d", {"x": (2, 4, 32)}, {"w": (32, 10)})
    sample("MatMul:batched_weight", {"x": (2, 4, 32)}, {"w": (2, 32, 10)})
    sample("MatMul:vector_weight", {"x": (4, 32)}, {"w": (32,)})
    sample("MatMul:both_computed", {"a": (2, 3, 4, 32), "b": (2, 3, 32, 5)})
    sample("MatMul:constant_first", {"x": (32, 5)}, {"w": (6, 32)}, reads=("w", "x"))
    sample("Einsum", {"a": (2, 4, 32), "b": (2, 32, 5)}, equation="bij,bjk->bik")
    sample("Einsum:weight", {"a": (2, 4, 32)}, {"w": (32, 5)}, equation="bij,jk->bik")


def _attention() -> None:
    tokens = (2, 5, 16)
    sample("Attention", {"x": tokens}, {"w": (16, 48), "b": (48,)}, domain=MS, num_heads=4, least=5.0)
    sample(
        "Attention:mask", {"x": tokens, "m": (2, 5)}, {"w": (16, 48), "b": (48,)}, reads=("x", "w", "b", "m"),
        feed={"m": lambda _: np.int32([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]])}, domain=MS, num_heads=4,
    )  # fmt: skip
    sample(
        "Attention:bias", {"x": tokens, "m": (1, 4, 5, 5)}, {"w": (16, 48), "b": (48,)},
        reads=("x", "w", "b", "", "", "m"), domain=MS, num_heads=4,
    )  # fmt: skip
    heads = {"q": (2, 4, 5, 8), "k": (2, 4, 6, 8), "v": (2, 4, 6, 8)}
    sample("Attention", heads, opset=23)
    sample("Attention:mask", {**heads, "m": (5, 6)}, opset=23)
    flat = {"q": tokens, "k": tokens, "v": tokens}
    sample("MultiHeadAttention", flat, domain=MS, num_heads=4)
    sample("MultiHeadAttention:bias", flat, {"b": (48,)}, domain=MS, num_heads=4)
    sample(
        "MoE", {"x": (6, 16), "r": (6, 3)}, {"w": (3, 32, 16), "v": (3, 16, 32)},
        reads=("x", "r", "w", "", "v"), domain=MS, k=2,
    )  # fmt: skip


def _lookups() -> None:
    ids = {"i": (2, 5)}
    rows = {"i": lambda r: r.ids(600, 2, 5)}
    sample("Gather:table", ids, {"t": (600, 32)}, reads=("t", "i"), feed=rows)
    sample("Gather", {"x": (6, 8), "i": (3,)}, lead=True, feed={"i": lambda r: r.ids(8, 3)}, axis=1)
    words = {"ids": (2, 5), "segments": (2, 5)}
    makers = {
        "ids": lambda r: r.ids(50, 2, 5).astype(np.int32),
        "segments": lambda r: r.ids(2, 2, 5).astype(np.int32),
    }
    tables = {"word": (50, 16), "position": (8, 16), "segment": (2, 16), "gamma": (16,), "beta": (16,)}
    results = {"y": TensorProto.FLOAT}
    sample(
        "EmbedLayerNormalization",
        words,
        tables,
        domain=MS,
        feed=makers,
        writes=("y", "mask"),
        outputs=results,
    )
    one = {k: v for k, v in tables.items() if k != "segment"}
    sample(
        "EmbedLayerNormalization:one_segment", {"ids": (2, 5)}, one,
        domain=MS, feed=makers, writes=("y", "mask"),
        reads=("ids", "", "word", "position", "", "gamma", "beta"), outputs=results,
    )  # fmt: skip


def _recurrence() -> None:
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        x = {"x": (6, 2, 8)}
        weights = {"w": (1, gates * 12, 8), "r": (1, gates * 12, 12), "b": (1, gates * 24)}
        both = {"w": (2, gates * 12, 8), "r": (2, gates * 12, 12), "b": (2, gates * 24)}
        sample(op, x, weights, hidden_size=12)
        sample(f"{op}:bidirectional", x, both, hidden_size=12, direction="bidirectional")
        sample(f"{op}:no_bias_last", x, {k: weights[k] for k in "wr"}, hidden_size=12, writes=("", "y"))
    sample(
        "LSTM:states", {"x": (6, 2, 8)},
        {"w": (1, 48, 8), "r": (1, 48, 12), "b": (1, 96), "h": (1, 2, 12), "c": (1, 2, 12), "p": (1, 36)},
        reads=("x", "w", "r", "b", "", "h", "c", "p"), hidden_size=12, writes=("y", "h_last", "c_last"),
    )  # fmt: skip


def _elementwise() -> None:
    two = {"a": (2, 3, 8, 8), "b": (2, 3, 8, 8)}
    sample("Relu")
    sample("Relu:moved", lead=True)
    sample("Clip", {"x": (2, 3, 8, 8)}, {"lo": np.float32(0), "hi": np.float32(1.5)})
    sample("Clip:signed", {"x": (2, 3, 8, 8)}, {"lo": np.float32(-1), "hi": np.float32(1)}, lead=True)
    for op in ("Add", "Mul", "Sub"):
        sample(op, two)
        sample(f"{op}:constant", {"x": (2, 3, 8, 8)}, {"c": (1, 3, 1, 1)})
        sample(f"{op}:constant_first", {"x": (2, 3, 8, 8)}, {"c": (3, 1, 1)}, reads=("c", "x"))
    sample("Add:itself", {"x": (2, 8)}, reads=("x", "x"))
    sample("Div", two, feed={"b": lambda r: r.uniform(1, 3, 2, 3, 8, 8)})
    sample("Div:constant", {"x": (2, 3, 8, 8)}, {"c": np.float32([2.0])})
    for op in ("Min", "Max"):
        sample(op, two)
        sample(f"{op}:three", {**two, "c": (2, 3, 1, 1)})
    sample(
        "Where", {"m": (2, 3, 8, 8), "a": (2, 3, 8, 8), "b": (2, 3, 8, 8)},
        feed={"m": lambda r: r.normal(2, 3, 8, 8) > 0},
    )  # fmt: skip
    sample(
        "Where:constant", {"m": (2, 3, 8, 8), "a": (2, 3, 8, 8)}, {"c": np.float32(-0.5)},
        feed={"m": lambda r: r.normal(2, 3, 8, 8) > 0},
    )  # fmt: skip
    sample("Concat", {"a": (2, 3, 8), "b": (2, 4, 8)}, axis=1)
    sample("Concat:three", {"a": (2, 3, 8), "b": (2, 4, 8), "c": (2, 5, 8)}, axis=1)
    sample("Concat:constant", {"a": (2, 3, 8), "b": (2, 4, 8)}, {"c": (2, 2, 8)}, axis=1)
    for op in ("LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Erf", "Elu"):
        sample(op)
    sample("Gelu", opset=20)
    sample("Gelu", domain=MS)
    sample("PRelu", {"x": (2, 3, 8, 8)}, {"slope": (3, 1, 1)})
    sample("Softmax", {"x": (4, 10)})
    sample("Softmax:axis", {"x": (2, 10, 4)}, axis=1)


def _reduction() -> None:
    image = {"x": (2, 4, 8, 8)}
    sample("MaxPool", image, lead=True, kernel_shape=[2, 2], strides=[2, 2])
    sample(
        "MaxPool:indices", image, lead=True, kernel_shape=[2, 2], writes=("y", "i"),
        outputs={"y": TensorProto.FLOAT, "i": TensorProto.INT64},
    )  # fmt: skip
    sample("AveragePool", image, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)
    sample("GlobalAveragePool", image)
    sample("ReduceMean", image, axes=[2, 3])
    sample("ReduceMean:input", image, {"axes": np.int64([2, 3])}, opset=18)
    for op in ("ReduceMax", "ReduceMin"):
        sample(op, image, lead=True, axes=[1])
        sample(f"{op}:input", image, {"axes": np.int64([2, 3])}, lead=True, opset=18)
    sample("CumSum", {"x": (4, 10)}, {"axis": np.int64(1)})
    indices = {"i": TensorProto.INT64}
    sample("ArgMax", {"x": (8, 6)}, lead=True, axis=1, writes=("i",), outputs=indices)
    sample(
        "TopK", {"x": (4, 20)}, {"k": np.int64([3])}, lead=True, writes=("y", "i"),
        outputs={"y": TensorProto.FLOAT, **indices},
    )  # fmt: skip


def _normalization() -> None:
    image = {"x": (2, 6, 5, 5)}
    shift = {"scale": (6,), "bias": (6,)}
    ends = {"mean": (6,), "var": np.linspace(0.5, 2, 6, dtype=np.float32)}
    sample("BatchNormalization", image, {**shift, **ends})
    sample("InstanceNormalization", image, shift)
    wide = {"x": (2, 4, 16)}
    sample("LayerNormalization", wide, {"scale": (16,), "bias": (16,)})
    sample("LayerNormalization:no_bias", wide, {"scale": (16,)})
    sample("GroupNormalization", image, shift, opset=21, num_groups=2)
    sample("RMSNormalization", wide, {"scale": (16,)}, opset=23)
    sample(
        "SkipLayerNormalization",
        {"x": (2, 4, 16), "skip": (2, 4, 16)},
        {"gamma": (16,), "beta": (16,)},
        domain=MS,
    )
    sample(
        "SkipLayerNormalization:sum", {"x": (2, 4, 16), "skip": (2, 4, 16)},
        {"gamma": (16,), "beta": (16,), "bias": (16,)}, domain=MS, writes=("y", "", "", "s"),
    )  # fmt: skip


def _movement() -> None:
    image = {"x": (2, 4, 6, 6)}
    twice = {"s": np.float32([1, 1, 2, 2])}
    sample("Resize", image, twice, reads=("x", "", "s"), lead=True)
    sample("Resize:linear", image, twice, reads=("x", "", "s"), lead=True, mode="linear")
    sample(
        "GridSample",
        {"x": (2, 3, 6, 6), "grid": (2, 4, 4, 2)},
        feed={"grid": lambda r: r.uniform(-1, 1, 2, 4, 4, 2)},
    )
    sample("Reshape", image, {"s": np.int64([2, -1])}, lead=True)
    sample("Transpose", image, lead=True, perm=[0, 2, 3, 1])
    sample("Squeeze", {"x": (2, 1, 6)}, {"a": np.int64([1])}, lead=True)
    sample("Unsqueeze", {"x": (2, 6)}, {"a": np.int64([1])}, lead=True)
    sample("Flatten", image, lead=True)
    sample("Identity", image, lead=True)
    sample("Slice", image, {"from": np.int64([1]), "to": np.int64([5]), "axes": np.int64([2])}, lead=True)
    sample("Split", image, {"sizes": np.int64([1, 3])}, lead=True, writes=("y", "z"), axis=1)
    sample("GatherElements", {"x": (4, 6), "i": (4, 3)}, lead=True, feed={"i": lambda r: r.ids(4, 4, 3)})
    sample("Expand", {"x": (2, 1, 6)}, {"s": np.int64([2, 3, 6])}, lead=True)
    sample("Tile", {"x": (2, 6)}, {"n": np.int64([2, 2])}, lead=True)
    sample("DepthToSpace", image, lead=True, blocksize=2)
    sample("SpaceToDepth", image, lead=True, blocksize=2)
    pads = {"p": np.int64([0, 0, 1, 1, 0, 0, 1, 1])}
    sample("Pad", image, pads, lead=True)
    sample("Pad:zero", image, {**pads, "fill": np.float32(0)}, lead=True)
    sample("Pad:reflect", image, pads, lead=True, mode="reflect")


for _family in (
    _products, _attention, _lookups, _recurrence, _elementwise, _reduction, _normalization, _movement,
):  # fmt: skip
    _family()
