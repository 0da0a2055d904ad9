"""Weight-only quantization of arrays and models; weights are [N, K] as data, [K, N] in a model."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from octavo.algorithms.weights import rtn
from octavo.algorithms.weights.gptq import Gptq
from octavo.algorithms.weights.k_quant import KQuant
from octavo.core.blocks import BlockScheme
from octavo.emission import nbits
from octavo.emission.nbits import GROUPED
from octavo.errors import RecipeError
from octavo.quantization._names import elsewhere
from octavo.quantization._streamed import StreamedModel, input_names, opened, source_of, tell
from octavo.quantization._weight_only import Loader, NBits, algorithm_of, is_symmetric, quantize, special
from octavo.quantization.neural_compressor.onnx_model import ONNXModel
from octavo.quantization.neural_compressor.util import simple_progress_bar
from octavo.quantization.onnx_model import ONNXModel as _ONNXModel

Array = npt.NDArray[Any]
_CPU = ("CPUExecutionProvider",)


def _groups(data: Array, group_size: int) -> Array:
    array = np.asarray(data)
    return array.reshape(-1, group_size if group_size > 0 else array.shape[-1])


def quant_tensor(
    data: Array,
    num_bits: int = 4,
    group_size: int = 32,
    scheme: str = "asym",
    dtype: str = "int",
    ratio: float = 1.0,
) -> tuple[Array, Array, Array]:
    """Integers ``[groups, size]``, scales and zero points of an array, rounded to nearest."""
    rows = _groups(data, group_size)
    how = BlockScheme(num_bits, rows.shape[1], is_symmetric(scheme))
    return rtn.described(rows, how, ratio, signed=dtype == "int")


def qdq_tensor(
    data: Array,
    num_bits: int = 4,
    group_size: int = 32,
    scheme: str = "asym",
    dtype: str = "int",
    ratio: float = 1.0,
) -> Array:
    """The array after a round trip through its integers."""
    rows = _groups(data, group_size)
    how = BlockScheme(num_bits, rows.shape[1], is_symmetric(scheme))
    return rtn.Rtn(ratio).blocks(rows, how).real().reshape(np.shape(data))


def quant_tensor_k_quant_cpu(
    data: Array, num_bits: int = 4, group_size: int = 32
) -> tuple[Array, Array, Array]:
    """Integers ``[groups, size]``, scales and zero points by weighted least squares."""
    rows = _groups(data, group_size)
    made = KQuant().blocks(rows, BlockScheme(num_bits, rows.shape[1]))
    zero = made.zero_point
    return made.integers.astype(np.float64), made.scale.astype(np.float64), np.asarray(zero)


def quant_tensor_k_quant_cuda(
    data: Array, num_bits: int = 4, group_size: int = 32
) -> tuple[Array, Array, Array]:
    """Return the same as on the CPU, where it is computed."""
    return quant_tensor_k_quant_cpu(data, num_bits, group_size)


def pad_tensor(weight: Array, group_size: int, k_blocks: int) -> Array:
    """Return a weight [K, N] filled with zeros to whole groups."""
    short = group_size * k_blocks - weight.shape[0] if group_size > 0 else 0
    return np.pad(weight, ((0, short), (0, 0))) if short > 0 else weight


def get_weight_scale(weight: Array, group_size: int) -> Array:
    """Return how large the values are beside the largest of their group, on average over the first axis."""
    return rtn.relative_magnitude(np.asarray(weight), group_size)


def make_matmul_weight_only_node(
    node: onnx.NodeProto,
    weight_shape: Sequence[int],
    num_bits: int,
    group_size: int,
    k_blocks: int,
    q_weight: Array,
    scale: Array,
    zero_point: Array | None,
    accuracy_level: int = 0,
) -> tuple[onnx.NodeProto, list[onnx.TensorProto]]:
    """MatMulNBits in the place of a MatMul whose weight is quantized already, and its constants."""
    rows, columns = (int(d) for d in weight_shape[:2])
    scheme = BlockScheme(num_bits, group_size, symmetric=zero_point is None)
    kind = scale.dtype if scale.dtype in (np.float32, np.float16) else np.dtype(np.float32)
    integers = np.asarray(q_weight).astype(np.uint8).reshape(columns, -1)[:, :rows]
    weight = node.input[1]
    parts = {
        weight + GROUPED.integers.format(bits=num_bits, size=group_size): nbits.laid_out(integers, scheme),
        weight + GROUPED.scale: scale.astype(kind).reshape(columns, k_blocks),
    }
    if zero_point is not None:
        zero = np.asarray(zero_point).astype(np.uint8).reshape(columns, k_blocks)
        parts[weight + GROUPED.zero] = nbits.zero_points(zero, scheme)
    attributes: dict[str, Any] = {**nbits.numbers(rows, columns, scheme, accuracy_level)}
    made = onnx.helper.make_node(
        "MatMulNBits",
        [node.input[0], *parts],
        node.output,
        name=f"{node.name}_Q{num_bits}",
        domain="com.microsoft",
        **attributes,
    )
    return made, [onnx.numpy_helper.from_array(array, name) for name, array in parts.items()]


def rtn_quantize(
    model: Any,
    weight_config: Mapping[str, Any] | None = None,
    num_bits: int = 4,
    group_size: int = 32,
    scheme: str = "asym",
    ratios: Mapping[str, float] | None = None,
    accuracy_level: int = 0,
    providers: Sequence[str] = _CPU,
    algorithm: str = "k_quant",
) -> StreamedModel:
    """Quantize the MatMul weights of a model; ``algorithm`` is rtn or k_quant."""
    if algorithm.lower() not in ("rtn", "k_quant"):
        raise RecipeError(f"{algorithm!r} is not an algorithm of rtn_quantize; choose rtn or k_quant.")
    how = BlockScheme(num_bits, group_size, is_symmetric(scheme))
    want = NBits(
        algorithm=algorithm_of(algorithm),
        scheme=how,
        accuracy_level=accuracy_level,
        special=special(weight_config, how),
        ratios=dict(ratios or {}),
        grouped=True,
        providers=tuple(providers) or None,
    )
    return _quantized(opened(model), want)


def _quantized(model: _ONNXModel, want: NBits, data: Loader | None = None) -> StreamedModel:
    outcome = quantize(source_of(model), want, data)
    tell(outcome.skipped)
    return StreamedModel(outcome.model)


def prepare_inputs(
    model: Any, n_samples: int, dataloader: Any, providers: Sequence[str] = _CPU
) -> tuple[list[Mapping[str, Any]], None]:
    """Return the first samples of a loader as ``{input name: array}``; stock's session options are None."""
    return list(itertools.islice(Loader(dataloader, input_names(opened(model))), n_samples)), None


def gptq(
    W: Array,  # noqa: N803
    H: Array,  # noqa: N803
    num_bits: int = 4,
    group_size: int = 32,
    scheme: str = "asym",
    blocksize: int = 128,
    percdamp: float = 0.01,
    actorder: bool = False,
    mse: bool = False,
    perchannel: bool = True,
) -> Array:
    """A weight [K, N] after a round trip through its integers; ``H`` is the sum of its inputs' products."""
    rows = np.asarray(W).T
    how = BlockScheme(num_bits, group_size if group_size > 0 else rows.shape[1], is_symmetric(scheme))
    made = Gptq(percdamp, blocksize, actorder, mse, perchannel).blocks(rows, how, np.asarray(H, np.float64))
    return np.ascontiguousarray(made.real().T.astype(rows.dtype))


def gptq_quantize(
    model: Any,
    dataloader: Any,
    weight_config: Mapping[str, Any] | None = None,
    num_bits: int = 4,
    group_size: int = 32,
    scheme: str = "asym",
    n_samples: int = 128,
    percdamp: float = 0.01,
    blocksize: int = 128,
    actorder: bool = False,
    mse: bool = False,
    perchannel: bool = True,
    accuracy_level: int = 0,
    providers: Sequence[str] = _CPU,
) -> StreamedModel:
    """Quantize the MatMul weights of a model with error feedback from its inputs."""
    how = BlockScheme(num_bits, group_size, is_symmetric(scheme))
    algorithm = Gptq(percdamp, blocksize, actorder, mse, perchannel)
    want = NBits(
        algorithm=algorithm,
        scheme=how,
        accuracy_level=accuracy_level,
        special=special(weight_config, how),
        grouped=True,
        samples=n_samples,
        providers=tuple(providers) or None,
    )
    source = opened(model)
    return _quantized(source, want, Loader(dataloader, input_names(source)))


__all__ = [
    "ONNXModel", "get_weight_scale", "gptq", "gptq_quantize", "make_matmul_weight_only_node",
    "pad_tensor", "prepare_inputs", "qdq_tensor", "quant_tensor", "quant_tensor_k_quant_cpu",
    "quant_tensor_k_quant_cuda", "rtn_quantize", "simple_progress_bar",
]  # fmt: skip

__getattr__ = elsewhere(__name__)
