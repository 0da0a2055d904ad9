"""Integer operators, each with the float operator that it computes and what its inputs are.

Inputs are listed in the words of :mod:`.rule`. Most come from the lowerings of the op table; those that it
does not write, or writes with fewer inputs than other tools do, are listed here.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.recipe import Style
from octavo.ops.table import LINEAR, RULES

# Operators that compute what another one does, if with other layouts or a fused activation.
SAME_AS = {"Gemm": "MatMul", "FusedMatMul": "MatMul", "FusedGemm": "MatMul", "FusedConv": "Conv"}
# Float operators with the weight of a layer as input 1, also as the runtime fuses them.
WEIGHTED = LINEAR | set(SAME_AS)


@dataclass(frozen=True)
class IntegerOperator:
    """An integer operator: the float operator that it computes, and its inputs in order."""

    computes: str
    operands: str

    def slot(self, operand: str) -> int | None:
        """Return the index of the input that is ``q1``, ``s1`` and so on, or None."""
        words = self.operands.split()
        return words.index(operand) if operand in words else None

    @property
    def is_linear(self) -> bool:
        """Whether it computes a linear operator."""
        return self.computes in LINEAR


_LISTED = {
    "MatMulIntegerToFloat": IntegerOperator("MatMul", "q0 q1 s0 s1 z0 z1 f2"),
    "DynamicQuantizeMatMul": IntegerOperator("MatMul", "f0 q1 s1 z1 f2"),
    "MatMulInteger": IntegerOperator("MatMul", "q0 q1 z0 z1"),
    "ConvInteger": IntegerOperator("Conv", "q0 q1 z0 z1"),
    "DynamicQuantizeLSTM": IntegerOperator("LSTM", "f0 q1 q2 f3 f4 f5 f6 f7 s1 z1 s2 z2"),
    "MatMulNBits": IntegerOperator("MatMul", "f0 q1 s1 z1 - f2"),
    "GatherBlockQuantized": IntegerOperator("Gather", "q0 f1 s0 z0"),
    "QGemm": IntegerOperator("MatMul", "q0 s0 z0 q1 s1 z1 f2 sy zy"),
    "QLinearConv": IntegerOperator("Conv", "q0 s0 z0 q1 s1 z1 sy zy f2"),
}
GIVE_SUMS = frozenset(name for name, one in _LISTED.items() if one.operands == "q0 q1 z0 z1")


def _all() -> dict[str, IntegerOperator]:
    found = dict(_LISTED)
    for rule in RULES.values():
        for style in (Style.QOPERATOR, Style.INTEGER):
            lowering = rule.lowerings.get(style)
            if lowering is not None and lowering.op_type != rule.op_type and lowering.operands:
                computes = SAME_AS.get(rule.op_type, rule.op_type)
                operands = lowering.operands.replace("b", "f")
                found.setdefault(lowering.op_type, IntegerOperator(computes, operands))
    return found


INTEGER_OPERATORS = _all()


def weight_slots(op_type: str) -> tuple[int, int | None] | None:
    """Return where an integer operator reads its quantized weight and the scale of it; None for others."""
    known = INTEGER_OPERATORS.get(op_type)
    index = known.slot("q1") if known is not None and (known.is_linear or known.computes == "LSTM") else None
    return (index, known.slot("s1")) if known is not None and index is not None else None
