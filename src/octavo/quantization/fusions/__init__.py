"""Fusions under their stock names: compositions of nodes written as one operator."""

from octavo.quantization.fusions.fusion import Fusion
from octavo.quantization.fusions.fusion_gelu import FusionGelu
from octavo.quantization.fusions.fusion_layernorm import FusionLayerNormalization
from octavo.quantization.fusions.replace_upsample_with_resize import ReplaceUpsampleWithResize

__all__ = ["Fusion", "FusionGelu", "FusionLayerNormalization", "ReplaceUpsampleWithResize"]
