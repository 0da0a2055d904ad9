"""Qualcomm's HTP through ONNX Runtime's QNN provider: every operator between quantized tensors."""

from octavo.core.granularity import PerChannel
from octavo.core.qtypes import INT8, UINT8
from octavo.core.recipe import Placement, Recipe, Style
from octavo.core.scheme import Scheme
from octavo.targets.defaults import DEFAULT_STEPS
from octavo.targets.target import Accepts, Documentation, Kernels, OpPlacement, Target

_MIN_RANGE = 1e-4  # the least width of a range on QNN
_CHANNEL = Scheme(INT8, PerChannel(), symmetric=True)
_STATIC = Recipe(
    steps=DEFAULT_STEPS,
    weights=_CHANNEL,
    activations=Scheme(UINT8, min_range=_MIN_RANGE),
    target="qnn",
    placement=Placement.EVERYWHERE,
    quantize_embeddings=False,
)
_NO_DATA = Recipe(weights=_CHANNEL, activations=None, target="qnn", quantize_embeddings=False)
_LINEAR = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_STATES = "its states would have to be quantized too, not its weights alone"
_CONTRIB = ("Attention", "MultiHeadAttention", "EmbedLayerNormalization", "SkipLayerNormalization")

QNN = Target(
    name="qnn",
    summary="Qualcomm HTP through ONNX Runtime's QNN provider: uint8 or uint16, 8-bit weights, QDQ",
    static_recipe=_STATIC,
    dynamic_recipe=_NO_DATA,
    accepts=Accepts(
        styles=(Style.QDQ,),
        activation_types=("uint8", "uint16"),
        weight_types=("int8", "uint8", "int4"),
        channel_ops=frozenset({"Conv", "ConvTranspose"}),
        min_range=_MIN_RANGE,
        refused={
            **dict.fromkeys(("LSTM", "GRU", "RNN"), _STATES),
            **dict.fromkeys(_CONTRIB, "the QNN provider does not know operators of com.microsoft"),
        },
        contrib_ops=False,
    ),
    placement=OpPlacement(
        linear=_LINEAR,
        elementwise=frozenset(
            {
                "Add", "Sub", "Mul", "Div", "Min", "Max", "Concat", "Sigmoid", "Tanh", "Gelu", "Elu",
                "HardSwish", "LeakyRelu", "PRelu", "Softmax", "AveragePool", "GlobalAveragePool",
                "ReduceMean", "LayerNormalization", "InstanceNormalization", "BatchNormalization",
            }
        ),
        data_movement=frozenset(
            {
                "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "Gather",
                "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "MaxPool", "Resize", "ReduceMax",
                "ReduceMin", "Pad",
            }
        ),
        needs_output=_LINEAR,
    ),
    kernels=Kernels(rounds_float_weights=False, runs_patterns_whole=False, half_types=("float16",)),
    documentation=Documentation(
        limits=(
            "activations uint8 or uint16 with one scale per tensor; int8 and int16 activations are not taken",
            "weights of 8 bits; one scale per channel for Conv and ConvTranspose alone, symmetric there",
            "a range is at least 1e-4 wide",
            "shapes are fixed: no symbolic dimensions on the device",
            "16-bit tensors need opset 21, or the domain com.microsoft below it",
            "which operators take 16 bits differs between chips and releases: the device has the last word",
        ),
        placement=(
            "every operator reads and writes quantized tensors; one that does not runs on the CPU",
            "where two types meet, DequantizeLinear and QuantizeLinear convert, beside the tensor's own pair",
            "parameters shared through data movement",
            "Sigmoid, Tanh and Softmax have the range that mathematics gives them",
        ),
        preparation=(
            "batch normalization folded",
            "constants computed",
            "Gelu and LayerNormalization as one operator",
            "fixed input shapes, by the exporter",
        ),
        sources=(
            "onnxruntime's QNN execution provider documentation, with its mixed precision section",
            "Qualcomm's list of HTP operators and their types",
            "reports: microsoft/onnxruntime issues 21848, 22532, 22821, 25334",
        ),
    ),
)  # fmt: skip
