"""Weight-only functions under the names they have in stock's vendored package."""

from octavo.quantization.neural_compressor.weight_only import gptq_quantize, rtn_quantize

__all__ = ["gptq_quantize", "rtn_quantize"]
