"""What operators are is said in the op table; other packages ask for properties instead of listing names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as runtime

import octavo
from octavo.model.graph import operators
from octavo.ops.integer_operators import INTEGER_OPERATORS

SOURCE = Path(octavo.__file__).parent
KNOWN = {schema.name for schema in (*onnx.defs.get_all_schemas(), *runtime.get_all_operator_schema())}

# Modules that may list names of operators, and why.
ALLOWED = {
    "comparison/factors.py": "multiplies and adds by constants: both nodes that factors can stand in",
    "comparison/lowered_operators.py": "recognizes the chains of nodes that an operator was written as",
    "comparison/match.py": "recognizes a constant that was given another shape",
    "comparison/signals.py": "recognizes nodes that write a value in another form",
    "comparison/weight_errors.py": "integer operators whose scales do not follow the rule of linear ones",
    "core/plan.py": "operators that hold 4-bit integers in bytes; this layer knows no op table",
    "model/fake_quant/chains.py": "recognizes the chains of nodes that training writes as fake quantization",
    "model/fake_quant/peel.py": "views that keep the order of values; this layer is below the op table",
    "model/graph/operators.py": "what questions about a graph have to know; this layer is below the op table",
    "model/graph/schema.py": "operators of the runtime's domain, for which onnx has no schemas",
    "model/graph/subgraph_constants.py": "what the runtime computes at load; below the op table",
    "model/prepare/adapters.py": "operators that took axes as an attribute in earlier opsets",
    "model/prepare/batch_norm.py": "recognizes batch normalization that is written out",
    "model/prepare/rewrites.py": "operators with a bias of their own; this layer is below the op table",
    "quantization/_nbits_nodes.py": "defaults of onnxruntime.quantization's functions",
    "quantization/matmul_nbits_quantizer.py": "choices of a command line of onnxruntime.quantization",
    "quantization/_weight_only_configs.py": "defaults of onnxruntime.quantization's classes",
    "quantization/execution_providers/qnn/quant_config.py": "operators that this function treats by name",
    "quantization/operators/__init__.py": "names of classes of onnxruntime.quantization",
    "reporting/inspection.py": "nodes between a constant and its layer in models of other tools",
}


def lists(tree: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """Literals that name two operators or more; tables from operators to functions are code, not lists."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            named = node.elts
        elif isinstance(node, ast.Dict) and not all(
            isinstance(value, ast.Name | ast.Attribute | ast.Lambda) for value in node.values
        ):
            named = [key for key in node.keys if key is not None]
        else:
            continue
        found = [one.value for one in named if isinstance(one, ast.Constant) and one.value in KNOWN]
        if len(found) > 1:
            yield node.lineno, [str(name) for name in found]


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(("ops/", "targets/")):
            yield name, path


def test_operators_are_listed_in_the_op_table_and_the_targets_only() -> None:
    found = {
        name: [f"{name}:{line}: {', '.join(ops)}" for line, ops in lists(ast.parse(path.read_text()))]
        for name, path in modules()
    }
    listed = [line for name, lines in found.items() if name not in ALLOWED for line in lines]
    assert not listed, "give the row in octavo/ops a property instead:\n" + "\n".join(listed)
    assert not [name for name in ALLOWED if not found.get(name)], "needs no exception any more"


def test_lists_are_found_wherever_they_stand() -> None:
    source = 'A = {"Conv", "Gemm"}\ndef f(op):\n    return op in ("Relu", "Clip")\nB = {"Add": 1, "Mul": 2}\n'
    assert [line for line, _ in lists(ast.parse(source))] == [1, 4, 3]
    assert not list(lists(ast.parse('A = {"Erf": gelu, "Tanh": gelu}\nB = ("Conv", "no operator")\n')))


def test_the_graph_knows_every_integer_operator_of_the_table() -> None:
    known = operators.INTEGER | operators.BLOCKWISE
    assert {op for op in INTEGER_OPERATORS if not op.startswith("QLinear")} <= known
