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
from octavo.ops.table import RULES, rule_of

__all__ = [
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
