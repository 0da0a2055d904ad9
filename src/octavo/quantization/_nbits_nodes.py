"""Weight-only quantization of one node at a time, and of arrays, under the stock names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, NodeProto, TensorProto

from octavo.algorithms.weights import hqq, rtn
from octavo.algorithms.weights.hqq import Hqq
from octavo.algorithms.weights.rtn import Furthest
from octavo.core import kernels
from octavo.core.blocks import BlockScheme
from octavo.quantization._types import QuantFormat
from octavo.quantization._weight_only import NBits, quantize_in_stack, stored_parts
from octavo.quantization._weight_only_configs import DefaultWeightOnlyQuantConfig, HQQWeightOnlyQuantConfig

Array = npt.NDArray[Any]


def is_divisible(val1: int, val2: int) -> bool:
    """Whether the second number divides the first."""
    return val1 % val2 == 0


def get_initializer(
    name: str, graph_path: Sequence[GraphProto]
) -> tuple[TensorProto, GraphProto] | tuple[None, None]:
    """Return the initializer of this name in the innermost graph that has one, and that graph."""
    for graph in reversed(graph_path):
        for tensor in graph.initializer:
            if tensor.name == name:
                return tensor, graph
    return None, None


def transpose_packed_int4_matrix(packed: Array, rows: int, cols: int) -> Array:
    """Return the transpose of a matrix of packed 4-bit values, packed."""
    values = kernels.unpack(np.asarray(packed), 4, rows * cols)
    return kernels.pack_flat(np.ascontiguousarray(values.reshape(rows, cols).T), 4)


class DefaultWeightOnlyQuantizer:
    """Quantizes nodes and arrays as ONNX Runtime's own kernels do."""

    def __init__(self, config: DefaultWeightOnlyQuantConfig) -> None:
        self.config = config

    def _request(self) -> NBits:
        config = self.config
        return NBits(
            algorithm=Furthest(),
            scheme=BlockScheme(config.bits, config.block_size, config.is_symmetric),
            ops=("MatMul", "Gather"),
            qdq=config.quant_format == QuantFormat.QDQ,
            per_channel=config.channel_wised_quantize,
            accuracy_level=config.accuracy_level,
            gather_axis=config.quant_axes.get("Gather", 1),
        )

    def qbits_block_quant(self, fp32weight: npt.ArrayLike) -> tuple[Array, Array, Array]:
        """Packed integers, scales and zero points of a weight [K, N], in the configured format."""
        return stored_parts(np.asarray(fp32weight), self._request())

    def quantize(self, node: NodeProto, graph_stack: list[GraphProto]) -> list[NodeProto]:
        """Return the nodes that stand for one; the constants go to its weight's graph. Others stay."""
        return quantize_in_stack(node, graph_stack, self._request())

    quantize_matmul = quantize_gather = quantize

    @staticmethod
    def quant_slice_symmetric(data: Array) -> tuple[Array, Array]:
        """Signed 4-bit integers and scale of each run along the last axis."""
        scheme = BlockScheme(4, data.shape[-1], symmetric=True)
        integers, scale, _ = rtn.furthest(np.moveaxis(data, -1, 0), scheme, data.dtype)
        return rtn.centred(np.moveaxis(integers, 0, -1), scheme), scale[..., None]

    @staticmethod
    def quant_slice_asymmetric(data: Array) -> tuple[Array, Array, Array]:
        """Unsigned 4-bit integers, scale and zero point of each run along the last axis."""
        scheme = BlockScheme(4, data.shape[-1])
        integers, scale, zero = rtn.furthest(np.moveaxis(data, -1, 0), scheme, data.dtype)
        return np.moveaxis(integers, 0, -1), scale[..., None], np.asarray(zero)[..., None]

    @staticmethod
    def pack_int8_to_int4(data: Array) -> Array:
        """Two 4-bit values a byte, over all of the array."""
        return kernels.pack_flat(np.asarray(data), 4)

    @staticmethod
    def quantize_ndarray(
        data: Array, quantize_axis: int, block_size: int, is_symmetric: bool
    ) -> tuple[Array, Array, Array | None]:
        """Packed 4-bit integers, scales and packed zero points of an array in blocks along an axis."""
        want = NBits(scheme=BlockScheme(4, block_size, is_symmetric), gather_axis=quantize_axis)
        integers, scale, zero = stored_parts(np.asarray(data), want, table=True)
        return integers, scale, None if is_symmetric else zero


class HQQWeightOnlyQuantizer:
    """Quantizes nodes and arrays with refined zero points; arrays are numpy's."""

    def __init__(self, config: HQQWeightOnlyQuantConfig) -> None:
        self.config = config

    @staticmethod
    def optimize_weights(
        tensor: Array,
        scale: Array,
        zero: Array,
        min_max: list[int],
        axis: int = 0,
        opt_params: dict[str, float] | None = None,
        verbose: bool = False,
    ) -> tuple[Array, Array]:
        """Refine zero points of ``round(tensor * scale + zero)``; the scale is handed back as it is."""
        return scale, hqq.refined(tensor, scale, zero, min_max, axis, opt_params or {})

    @staticmethod
    def pack_on_row_fast_248bit(pack_tensor: Array, ori_int_tensor: Array, bits: int) -> None:
        """Fill ``pack_tensor`` with the integers, packed along the axis on which it is shorter."""
        along = int(pack_tensor.shape[0] == ori_int_tensor.shape[0])
        turned = np.moveaxis(np.asarray(ori_int_tensor).astype(np.uint8), along, -1)
        pack_tensor[...] = np.moveaxis(kernels.pack(turned, bits), -1, along)

    @staticmethod
    def quantize_internal(
        tensor: Array,
        bits: int = 4,
        channel_wise: bool = True,
        group_size: int = 64,
        optimize: bool = True,
        round_zero: bool = True,
        axis: int = 1,
    ) -> tuple[Array, Array, Array]:
        """Integers, scales and zero points of groups along an axis."""
        size = group_size if channel_wise else tensor.size
        return hqq.grouped(np.asarray(tensor), bits, size, axis, optimize=optimize, whole=round_zero)

    def quantize(self, node: NodeProto, graph_stack: list[GraphProto]) -> list[NodeProto]:
        """Return the nodes that stand for a MatMul; others stay."""
        config = self.config
        want = NBits(
            algorithm=Hqq(),
            scheme=BlockScheme(config.bits, config.block_size, whole_zero=False),
            ops=("MatMul",),
            qdq=config.quant_format == QuantFormat.QDQ,
        )
        return quantize_in_stack(node, graph_stack, want)
