"""Preparing and configuring models for Qualcomm's QNN provider, under the stock names."""

from octavo.quantization.execution_providers.qnn.preprocess import qnn_preprocess_model
from octavo.quantization.execution_providers.qnn.quant_config import get_qnn_qdq_config

__all__ = ["get_qnn_qdq_config", "qnn_preprocess_model"]
