"""``CudaQuantizer``: weights in the layouts of CUDA kernels, which only a CUDA build of the runtime packs."""

from __future__ import annotations

from typing import Any, NoReturn

from octavo.quantization._errors import UnsupportedError
from octavo.quantization._names import elsewhere


def has_cuda_weight_prepacking() -> bool:
    """Whether weights can be packed for CUDA kernels here: never, since Octavo holds no such packer."""
    return False


def _refuse(what: str) -> NoReturn:
    raise UnsupportedError(
        f"{what} packs torch tensors by functions that only a CUDA build of onnxruntime has, and Octavo has"
        " none of its own; quantize weights with MatMulNBitsQuantizer of the module matmul_nbits_quantizer,"
        " which the CUDA provider runs as well."
    )


def _pack_weights_for_cuda_mixed_gemm(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise: the packing is a function of CUDA builds of onnxruntime."""
    _refuse("_pack_weights_for_cuda_mixed_gemm")


class CudaQuantizer:
    """The names of stock's class; each of its functions says why it can't work here."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        """Any arguments, none of which is looked at."""

    @staticmethod
    def qmoe_symmetric_per_channel_quantize(
        weights: Any, bits: int, *, unsigned_full_range: bool = True
    ) -> Any:
        """Weights of experts, one scale a channel."""
        _refuse("qmoe_symmetric_per_channel_quantize")

    @staticmethod
    def qmoe_per_channel_quantize(
        weights: Any, bits: int, prepack: bool, force_arch: int = 80, *, unsigned_full_range: bool = True
    ) -> Any:
        """Weights of experts, one scale a channel, perhaps packed."""
        _refuse("qmoe_per_channel_quantize")

    @staticmethod
    def matmulnbits_blockwise_quantize(
        weights: Any,
        bits: int,
        block_size: int,
        *,
        symmetric: bool = True,
        return_zero_points: bool = False,
        abs_scales: bool = True,
        flatten_qweight: bool = True,
        unsigned_full_range: bool = True,
    ) -> Any:
        """Weights of a MatMul in blocks."""
        _refuse("matmulnbits_blockwise_quantize")

    @staticmethod
    def matmulnbits_prepacked_blockwise_quantize(
        weights: Any,
        bits: int,
        block_size: int,
        force_arch: int = 80,
        *,
        symmetric: bool = True,
        return_zero_points: bool = False,
        abs_scales: bool = True,
        unsigned_full_range: bool = True,
    ) -> Any:
        """Weights of a MatMul in blocks, packed."""
        _refuse("matmulnbits_prepacked_blockwise_quantize")

    @staticmethod
    def qmoe_prepacked_blockwise_quantize(
        weights: Any,
        bits: int,
        block_size: int,
        force_arch: int = 80,
        *,
        symmetric: bool = True,
        return_zero_points: bool = False,
        abs_scales: bool = False,
        unsigned_full_range: bool = True,
    ) -> Any:
        """Weights of experts in blocks, packed."""
        _refuse("qmoe_prepacked_blockwise_quantize")

    @staticmethod
    def symmetric_blockwise_quantize(
        weights: Any, bits: int, block_size: int, *, unsigned_full_range: bool = True
    ) -> Any:
        """Quantize weights in symmetric blocks; refused here."""
        _refuse("symmetric_blockwise_quantize")


__all__ = ["CudaQuantizer", "has_cuda_weight_prepacking"]

__getattr__ = elsewhere(__name__)
