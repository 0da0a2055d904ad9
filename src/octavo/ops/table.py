"""The op table: what each operator's inputs and outputs are. One row an operator, no code per output style.

Whether quantizing an operator pays is not said here: that is a property of a target (``octavo.targets``).
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from octavo.core.recipe import Style
from octavo.ops import hooks
from octavo.ops.rule import Act, Bias, Form, Kind, OpRule, Out, Raw, RawOut, Same, Table, Weight

MS = "com.microsoft"
Q, I = Style.QOPERATOR, Style.INTEGER  # noqa: E741


def product(op: str, weight: Weight, *, bias: bool = True, **more: object) -> OpRule:
    """Sums of products of an activation with a weight."""
    inputs = (Act(), weight, Bias()) if bias else (Act(), weight)
    return OpRule(op, Kind.PRODUCT, inputs, **more)  # type: ignore[arg-type]


def unary(op: str, low: float | None = None, high: float | None = None, **more: object) -> OpRule:
    """One activation in, one out; ``low, high`` where its range is known."""
    return OpRule(op, Kind.FOLLOWER, (Act(),), (Out(low, high),), **more)  # type: ignore[arg-type]


def joined(op: str, **more: object) -> OpRule:
    """Any number of activations in, one out."""
    return OpRule(op, Kind.FOLLOWER, (Act(),), variadic=True, **more)  # type: ignore[arg-type]


def moves(op: str, operands: str = "q0 rest", **more: object) -> OpRule:
    """Values of input 0 are moved; the operator itself runs on 8-bit integers."""
    settings: dict[str, object] = {
        "outputs": (Same(),),
        "variadic": True,
        "forms": {Q: Form(op, operands)},
        **more,
    }
    return OpRule(op, Kind.MOVE, (Act(), Raw()), **settings)  # type: ignore[arg-type]


def ms(op: str, operands: str, **more: object) -> Form:
    """An integer operator of ONNX Runtime's own domain."""
    return Form(op, operands, domain=MS, **more)  # type: ignore[arg-type]


# A linear layer whose result stays float, in QOperator style: the one product that answers so.
BLOCK_PRODUCT = ms("MatMulNBits", "", float_output=True)  # weights and activations scaled block by block
MATMUL_TO_FLOAT = ms("MatMulIntegerToFloat", "q0 q1 s0 s1 z0 z1", float_output=True)

_PAIRS4 = ("u8u8", "u8s8", "s8s8", "s8u8")
_ONE_IN = "q0 s0 z0 sy zy"

_ROWS: Iterable[OpRule] = (
    # ---- products
    product("Conv", Weight(axis=0, sums=1), forms={
        Q: Form("QLinearConv", "q0 s0 z0 q1 s1 z1 sy zy b2", refuse=hooks.refuse_bias),
        I: Form("ConvInteger", "q0 q1 z0 z1", pairs=_PAIRS4, one_zero_point=True),
    }),
    product("ConvTranspose", Weight(axis=1, sums=0)),
    product("Gemm", Weight(axis=hooks.gemm_channel, sums=hooks.gemm_sum), refuse=hooks.refuse_gemm, forms={
        Q: ms("QGemm", "q0 s0 z0 q1 s1 z1 b2 sy zy", float_output=True, refuse=hooks.refuse_gemm_bias,
              attributes=("transA", "transB", "alpha")),
        I: Form("MatMulInteger", "q0 q1 z0 z1", pairs=_PAIRS4),
    }),
    product("MatMul", Weight(axis=hooks.matmul_channel, sums=hooks.matmul_sum), bias=False, forms={
        Q: Form("QLinearMatMul", "q0 s0 z0 q1 s1 z1 sy zy"),
        I: Form("MatMulInteger", "q0 q1 z0 z1", pairs=_PAIRS4),
    }),
    joined("Einsum", note="weights and activations alike have one scale"),
    OpRule("Attention", Kind.PRODUCT, (Act(), Weight(axis=1, sums=0), Raw()), (Out(), RawOut()),
           variadic=True, domain=MS, forms={
        I: ms("QAttention", "q0 q1 f2 s0 s1 f3 z0 z1 f4", pairs=("u8u8", "u8s8"), float_output=True,
              refuse=hooks.refuse_attention,
              attributes=("num_heads", "unidirectional", "scale", "mask_filter_value", "do_rotary",
                          "past_present_share_buffer")),
    }),
    OpRule("Attention", Kind.FOLLOWER, (Act(), Act(), Act(), Raw()), variadic=True,
           outputs=(Out(), RawOut()), note="queries, keys and values; the mask stays float"),
    OpRule("MultiHeadAttention", Kind.FOLLOWER, (Act(), Act(), Act(), Raw()), variadic=True, domain=MS,
           outputs=(Out(), RawOut())),
    # ---- lookups
    OpRule("Gather", Kind.LOOKUP, (Table(), Raw()), (Same(),), forms={Q: Form("Gather", "q0 rest")},
           note="a constant table is stored in 8 bits, a computed one moves"),
    OpRule("EmbedLayerNormalization", Kind.LOOKUP, (Raw(), Raw(), *([Table()] * 5), Raw()), (RawOut(),),
           domain=MS, refuse=hooks.refuse_embed, forms={
               s: ms("QEmbedLayerNormalization", "f0 f1 q2 q3 q4 q5 q6 f7 s2 s3 s4 s5 s6 z2 z3 z4 z5 z6",
                     per_channel=False, pairs=(), float_output=True, attributes=("epsilon",))
               for s in (Q, I)}),
    # ---- recurrence: weights only
    OpRule("LSTM", Kind.RECURRENT, (Raw(), Weight(axis=1), Weight(axis=1), Raw()), (RawOut(),), variadic=True,
           refuse=hooks.refuse_lstm,
           forms=dict.fromkeys(Style, ms("DynamicQuantizeLSTM", "", pairs=(), one_zero_point=True))),
    OpRule("GRU", Kind.RECURRENT, (Raw(), Weight(axis=1), Weight(axis=1), Raw()), (RawOut(),), variadic=True,
           refuse=hooks.refuse_lstm),
    OpRule("RNN", Kind.RECURRENT, (Raw(), Weight(axis=1), Weight(axis=1), Raw()), (RawOut(),), variadic=True,
           refuse=hooks.refuse_lstm),
    # ---- clamps
    OpRule("Relu", Kind.CLAMP, (Act(),)),
    OpRule("Clip", Kind.CLAMP, (Act(), Raw(), Raw())),
    # ---- element by element
    OpRule("Add", Kind.FOLLOWER, (Act(), Act()), forms={Q: ms("QLinearAdd", "q0 s0 z0 q1 s1 z1 sy zy")}),
    OpRule("Mul", Kind.FOLLOWER, (Act(), Act()), forms={Q: ms("QLinearMul", "q0 s0 z0 q1 s1 z1 sy zy")}),
    OpRule("Sub", Kind.FOLLOWER, (Act(), Act())),
    OpRule("Div", Kind.FOLLOWER, (Act(), Act())),
    joined("Min"),
    joined("Max"),
    OpRule("Where", Kind.FOLLOWER, (Raw(), Act(), Act()),
           forms={Q: ms("QLinearWhere", "f0 q1 s1 z1 q2 s2 z2 sy zy")}),
    joined("Concat", refuse=hooks.refuse_single_concat, forms={Q: ms("QLinearConcat", "sy zy q0 s0 z0 …")}),
    unary("LeakyRelu", forms={Q: ms("QLinearLeakyRelu", _ONE_IN)}),
    unary("Sigmoid", 0.0, 1.0, forms={Q: ms("QLinearSigmoid", _ONE_IN)}),
    unary("HardSigmoid", 0.0, 1.0),
    unary("HardSwish"),
    unary("Tanh", -1.0, 1.0),
    unary("Erf", -1.0, 1.0),
    unary("Gelu"),
    unary("Gelu", domain=MS),
    unary("Elu"),
    OpRule("PRelu", Kind.FOLLOWER, (Act(), Act()), note="the slope has the activation's type"),
    unary("Softmax", 0.0, 1.0, forms={Q: ms("QLinearSoftmax", _ONE_IN)}),
    # ---- pooling and reduction
    moves("MaxPool", outputs=(Same(), RawOut())),
    unary("AveragePool", forms={Q: ms("QLinearAveragePool", _ONE_IN)}),
    unary("GlobalAveragePool", forms={Q: ms("QLinearGlobalAveragePool", _ONE_IN)}),
    OpRule("ReduceMean", Kind.FOLLOWER, (Act(), Raw())),
    moves("ReduceMax"),
    moves("ReduceMin"),
    OpRule("CumSum", Kind.FOLLOWER, (Act(), Raw())),
    OpRule("ArgMax", Kind.MOVE, (Act(),), (RawOut(),), forms={Q: Form("ArgMax", "q0", float_output=True)}),
    OpRule("TopK", Kind.MOVE, (Act(), Raw()), (Same(), RawOut()), forms={Q: Form("TopK", "q0 rest")}),
    # ---- normalization: the scale is a small weight; the shift is added to normalized values, whose scale is
    # not that of input 0, so that it stays float
    OpRule("BatchNormalization", Kind.FOLLOWER, (Act(), Weight(), Raw(), Raw(), Raw()), (Out(), RawOut())),
    OpRule("InstanceNormalization", Kind.FOLLOWER, (Act(), Weight(), Raw())),
    OpRule("LayerNormalization", Kind.FOLLOWER, (Act(), Weight(), Raw()), (Out(), RawOut())),
    OpRule("GroupNormalization", Kind.FOLLOWER, (Act(), Weight(), Raw())),
    OpRule("RMSNormalization", Kind.FOLLOWER, (Act(), Weight())),
    OpRule("SkipLayerNormalization", Kind.FOLLOWER, (Act(), Act(), Raw(), Raw(), Raw()), (Out(), RawOut()),
           domain=MS),
    # ---- sampling
    moves("Resize", forms={Q: Form("Resize", "q0 rest", refuse=hooks.refuse_blending)}, blends=hooks.blends,
          note="nearest moves values; other modes blend and have a range of their own"),
    OpRule("GridSample", Kind.FOLLOWER, (Act(), Raw())),
    # ---- data movement
    *(moves(op) for op in (
        "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "Split",
        "GatherElements", "Expand", "Tile", "DepthToSpace", "SpaceToDepth",
    )),
    moves("Pad", "q0 f1 p2 f3", refuse=hooks.refuse_pad, note="integers are padded with the zero point"),
)  # fmt: skip

RULES: dict[tuple[str, str], OpRule] = {(rule.domain, rule.op_type): rule for rule in _ROWS}


def rule_of(node: ir.Node) -> OpRule | None:
    """The row of this node's operator."""
    return RULES.get((node.domain, node.op_type))
