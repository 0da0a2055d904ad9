"""The op table and its vocabulary."""

from octavo.ops.rule import (
    Act,
    Bias,
    Form,
    Kind,
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
from octavo.ops.table import BLOCK_PRODUCT, MATMUL_TO_FLOAT, RULES, rule_of

__all__ = [
    "BLOCK_PRODUCT",
    "MATMUL_TO_FLOAT",
    "RULES",
    "Act",
    "Bias",
    "Form",
    "Kind",
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
