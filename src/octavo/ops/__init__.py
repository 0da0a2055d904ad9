"""The op table, its vocabulary, and what else is known of operators."""

from octavo.ops.rule import (
    REMOVED,
    Act,
    Bias,
    Kind,
    Lowering,
    OpRule,
    Out,
    Raw,
    RawOut,
    Result,
    Role,
    Same,
    Table,
    Weight,
    axis_of,
)
from octavo.ops.table import GATHER_BLOCKS, MATMUL_NBITS, MATMUL_TO_FLOAT, RULES, rule_of

__all__ = [
    "GATHER_BLOCKS",
    "MATMUL_NBITS",
    "MATMUL_TO_FLOAT",
    "REMOVED",
    "RULES",
    "Act",
    "Bias",
    "Kind",
    "Lowering",
    "OpRule",
    "Out",
    "Raw",
    "RawOut",
    "Result",
    "Role",
    "Same",
    "Table",
    "Weight",
    "axis_of",
    "rule_of",
]
