"""The op table: what each operator's inputs and outputs are. One row per operator, no code per output style.

Whether quantizing an operator pays is not said here: that is a property of a target (``octavo.targets``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx
import onnx_ir as ir

from octavo.core.recipe import Style
from octavo.ops import hooks
from octavo.ops.rule import Act, Bias, Kind, Lowering, OpRule, Out, Raw, RawOut, Same, Table, Weight

MS = "com.microsoft"
Q, I = Style.QOPERATOR, Style.INTEGER  # noqa: E741


def linear(op: str, weight: Weight, *, bias: bool = True, **more: object) -> OpRule:
    """Return the row of an operator that sums products of an activation with a weight."""
    inputs = (Act(), weight, Bias()) if bias else (Act(), weight)
    return OpRule(op, Kind.LINEAR, inputs, **more)  # type: ignore[arg-type]


def elementwise(op: str, *inputs: object, **more: object) -> OpRule:
    """Return the row of an operator with any inputs, and one result with a range of its own."""
    return OpRule(op, Kind.ELEMENTWISE, inputs, **more)  # type: ignore[arg-type]


def unary(op: str, low: float | None = None, high: float | None = None, **more: object) -> OpRule:
    """Return the row of an operator with one activation in and one out, of a known range if given."""
    return elementwise(op, Act(), outputs=(Out(low, high),), **more)


def binary(op: str, **more: object) -> OpRule:
    """Return the row of an operator with two activations in and one out."""
    return elementwise(op, Act(), Act(), **more)


def joined(op: str, **more: object) -> OpRule:
    """Return the row of an operator with any number of activations in and one out."""
    return elementwise(op, Act(), variadic=True, **more)


def recurrent(op: str, **more: object) -> OpRule:
    """Return the row of a recurrent layer, of which the weights alone are quantized."""
    inputs = (Raw(), Weight(axis=1), Weight(axis=1), Raw())
    return OpRule(op, Kind.RECURRENT, inputs, (RawOut(),), variadic=True, refuse=hooks.refuse_lstm, **more)  # type: ignore[arg-type]


def moves(op: str, operands: str = "q0 rest", **more: object) -> OpRule:
    """Return the row of an operator that moves the values of input 0, and runs on 8-bit integers itself."""
    settings: dict[str, object] = {
        "outputs": (Same(),),
        "variadic": True,
        "lowerings": {Q: Lowering(op, operands)},
        **more,
    }
    return OpRule(op, Kind.DATA_MOVEMENT, (Act(), Raw()), **settings)  # type: ignore[arg-type]


def ms(op: str, operands: str, **more: object) -> Lowering:
    """Return an integer operator of ONNX Runtime's own domain."""
    return Lowering(op, operands, domain=MS, **more)  # type: ignore[arg-type]


# Linear layers with a float result: by blocks of weights, which need no range of the input, and as a matrix
# product in the QOperator style.
MATMUL_NBITS = ms("MatMulNBits", "", float_output=True)
GATHER_BLOCKS = ms("GatherBlockQuantized", "", float_output=True)
QMOE = ms("QMoE", "", float_output=True)
MATMUL_TO_FLOAT = ms("MatMulIntegerToFloat", "q0 q1 s0 s1 z0 z1", float_output=True)

_PAIRS4 = ("u8u8", "u8s8", "s8s8", "s8u8")
_ONE_IN = "q0 s0 z0 sy zy"
_TWO_IN = "q0 s0 z0 q1 s1 z1 sy zy"

_ROWS: Iterable[OpRule] = (
    # ---- linear operators
    linear("Conv", Weight(axis=0, sums=1), convolves=True, lowerings={
        Q: Lowering("QLinearConv", "q0 s0 z0 q1 s1 z1 sy zy b2", refuse=hooks.refuse_bias),
        I: Lowering("ConvInteger", "q0 q1 z0 z1", pairs=_PAIRS4, one_zero_point=True),
    }),
    linear("ConvTranspose", Weight(axis=1, sums=0), convolves=True),
    linear("Gemm", Weight(axis=hooks.gemm_channel, sums=hooks.gemm_sum), refuse=hooks.refuse_gemm,
           unfused=hooks.unfused_gemm, lowerings={
        Q: ms("QGemm", "q0 s0 z0 q1 s1 z1 b2 sy zy", float_output=True, refuse=hooks.refuse_gemm_bias,
              attributes=("transA", "transB", "alpha")),
        I: Lowering("MatMulInteger", "q0 q1 z0 z1", pairs=_PAIRS4),
    }),
    linear("MatMul", Weight(axis=hooks.matmul_channel, sums=hooks.matmul_sum), bias=False,
           unfused=hooks.unfused_matmul, lowerings={
        Q: Lowering("QLinearMatMul", _TWO_IN),
        I: Lowering("MatMulInteger", "q0 q1 z0 z1", pairs=_PAIRS4),
    }),
    joined("Einsum", note="weights and activations alike have one scale"),
    OpRule("Attention", Kind.LINEAR, (Act(), Weight(axis=1, sums=0), Raw()), (Out(), RawOut()),
           variadic=True, domain=MS, lowerings={
        I: ms("QAttention", "q0 q1 f2 s0 s1 f3 z0 z1 f4", pairs=("u8u8", "u8s8"), float_output=True,
              refuse=hooks.refuse_attention,
              attributes=("num_heads", "unidirectional", "scale", "mask_filter_value", "do_rotary",
                          "past_present_share_buffer")),
    }),
    elementwise("Attention", Act(), Act(), Act(), Raw(), variadic=True, outputs=(Out(), RawOut()),
                note="queries, keys and values; the mask stays float"),
    elementwise("MultiHeadAttention", Act(), Act(), Act(), Raw(), variadic=True, outputs=(Out(), RawOut()),
                domain=MS),
    # ---- lookups
    OpRule("Gather", Kind.LOOKUP, (Table(), Raw()), (Same(),), lowerings={Q: Lowering("Gather", "q0 rest")},
           note="a constant table is stored in 8 bits, a computed one moves"),
    OpRule("EmbedLayerNormalization", Kind.LOOKUP, (Raw(), Raw(), *([Table()] * 5), Raw()), (RawOut(),),
           domain=MS, refuse=hooks.refuse_embed, lowerings={
               s: ms("QEmbedLayerNormalization", "f0 f1 q2 q3 q4 q5 q6 f7 s2 s3 s4 s5 s6 z2 z3 z4 z5 z6",
                     per_channel=False, pairs=(), float_output=True, attributes=("epsilon",))
               for s in (Q, I)}),
    # ---- recurrent layers
    recurrent("LSTM", lowerings=dict.fromkeys(
        Style, ms("DynamicQuantizeLSTM", "", pairs=(), one_zero_point=True))),
    recurrent("GRU"),
    recurrent("RNN"),
    # ---- experts: input, router, then weight and bias of two or three projections
    OpRule("MoE", Kind.EXPERTS, (Raw(), Raw(), *((Weight(axis=1, sums=2), Raw()) * 3)), (RawOut(),),
           domain=MS, refuse=hooks.refuse_experts,
           note="becomes QMoE, with weights of 2, 4 or 8 bits in blocks"),
    # ---- clamps
    OpRule("Relu", Kind.CLAMP, (Act(),)),
    OpRule("Clip", Kind.CLAMP, (Act(), Raw(), Raw())),
    # ---- element by element
    binary("Add", lowerings={Q: ms("QLinearAdd", _TWO_IN)}),
    binary("Mul", lowerings={Q: ms("QLinearMul", _TWO_IN)}),
    binary("Sub"),
    binary("Div"),
    joined("Min"),
    joined("Max"),
    elementwise("Where", Raw(), Act(), Act(),
                lowerings={Q: ms("QLinearWhere", "f0 q1 s1 z1 q2 s2 z2 sy zy")}),
    joined("Concat", refuse=hooks.refuse_single_concat,
           lowerings={Q: ms("QLinearConcat", "sy zy q0 s0 z0 …")}),
    unary("LeakyRelu", lowerings={Q: ms("QLinearLeakyRelu", _ONE_IN)}),
    unary("Sigmoid", 0.0, 1.0, lowerings={Q: ms("QLinearSigmoid", _ONE_IN)}),
    unary("HardSigmoid", 0.0, 1.0),
    unary("HardSwish"),
    unary("Tanh", -1.0, 1.0),
    unary("Erf", -1.0, 1.0),
    unary("Gelu"),
    unary("Gelu", domain=MS),
    unary("Elu"),
    binary("PRelu", note="the slope has the activation's type"),
    unary("Softmax", 0.0, 1.0, lowerings={Q: ms("QLinearSoftmax", _ONE_IN, output_scale=1 / 256)}),
    # ---- pooling and reduction
    moves("MaxPool", outputs=(Same(), RawOut())),
    unary("AveragePool", lowerings={Q: ms("QLinearAveragePool", _ONE_IN)}),
    unary("GlobalAveragePool", lowerings={Q: ms("QLinearGlobalAveragePool", _ONE_IN)}),
    elementwise("ReduceMean", Act(), Raw()),
    moves("ReduceMax"),
    moves("ReduceMin"),
    elementwise("CumSum", Act(), Raw()),
    OpRule("ArgMax", Kind.DATA_MOVEMENT, (Act(),), (RawOut(),), breaks_ties=True,
           lowerings={Q: Lowering("ArgMax", "q0", float_output=True)}),
    OpRule("TopK", Kind.DATA_MOVEMENT, (Act(), Raw()), (Same(), RawOut()), breaks_ties=True,
           lowerings={Q: Lowering("TopK", "q0 rest")}),
    # ---- normalization: the scale is a small weight; the shift is added to normalized values, whose scale is
    # not that of input 0, so that it stays float
    elementwise("BatchNormalization", Act(), Weight(), Raw(), Raw(), Raw(), outputs=(Out(), RawOut())),
    elementwise("InstanceNormalization", Act(), Weight(), Raw()),
    elementwise("LayerNormalization", Act(), Weight(), Raw(), outputs=(Out(), RawOut())),
    elementwise("GroupNormalization", Act(), Weight(), Raw()),
    elementwise("RMSNormalization", Act(), Weight()),
    elementwise("SkipLayerNormalization", Act(), Act(), Raw(), Raw(), Raw(), outputs=(Out(), RawOut()),
                domain=MS),
    # ---- sampling
    moves("Resize", blends=hooks.blends,
          lowerings={Q: Lowering("Resize", "q0 rest", refuse=hooks.refuse_blending)},
          note="nearest moves values; other modes interpolate and have a range of their own"),
    elementwise("GridSample", Act(), Raw()),
    # ---- data movement
    *(moves(op) for op in (
        "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "Split",
        "GatherElements", "Expand", "Tile", "DepthToSpace", "SpaceToDepth",
    )),
    moves("Pad", "q0 f1 p2 f3", refuse=hooks.refuse_pad, note="integers are padded with the zero point"),
)  # fmt: skip

RULES: dict[tuple[str, str], OpRule] = {(rule.domain, rule.op_type): rule for rule in _ROWS}


def rule_of(node: ir.Node | onnx.NodeProto) -> OpRule | None:
    """Return the row of this node's operator."""
    return RULES.get((node.domain, node.op_type))


def names_of(holds: Callable[[OpRule], bool]) -> frozenset[str]:
    """Return the operators of the standard domain whose row has a property."""
    return frozenset(rule.op_type for rule in RULES.values() if not rule.domain and holds(rule))


LINEAR = names_of(lambda rule: rule.is_linear)
MATRIX_PRODUCTS = names_of(lambda rule: rule.is_matrix_product)
MATRIX_FOR_EACH_GROUP = names_of(lambda rule: rule.is_matrix_for_each_group)
CONVOLUTIONS = names_of(lambda rule: rule.convolves)
CLAMPS = names_of(lambda rule: rule.is_clamp)
DATA_MOVEMENT = names_of(lambda rule: rule.moves_values)
