"""The graph that people see: operators, without what quantization put between them."""

from __future__ import annotations

import pytest
from builders import two_branches

import octavo
from octavo.model.files import io
from octavo.model.graph.operators import CONVERSIONS_OR_DYNAMIC
from octavo.reporting.html import operator_graph as graph
from octavo.reporting.html.details import details
from reporting.html import hostile

STYLES = ("qdq", "qoperator", "integer")


def quantized(style: str) -> octavo.Result:
    data = hostile.feeds() if style != "integer" else None
    return octavo.quantize(hostile.net(), data, style=style, verify=False)


@pytest.mark.parametrize("style", STYLES)
def test_every_style_shows_the_same_operators(style: str) -> None:
    result = quantized(style)
    found = details(result)["graph"]
    names = [node["name"] for node in found["nodes"]]
    assert names[0] == f"in {hostile.MARKUP}" and names[-1] == hostile.SCRIPT
    for node in (*result.plan.nodes, *(skipped.node for skipped in result.plan.skipped)):
        assert names.count(node) == 1
    assert not {node["op_type"] for node in found["nodes"]} & CONVERSIONS_OR_DYNAMIC
    chain = {tuple(edge) for edge in found["edges"]}
    assert all((i, i + 1) in chain for i in range(len(names) - 1))


@pytest.mark.parametrize("style", STYLES)
def test_products_are_known_to_be_quantized(style: str) -> None:
    result = quantized(style)
    found = {node["name"]: node["integer"] for node in details(result)["graph"]["nodes"]}
    assert result.plan.nodes
    assert all(found[name] for name, node in result.plan.nodes.items() if node.op_type == "MatMul")


def test_operators_inside_branches_are_shown() -> None:
    found = graph.operators(io.load(two_branches()))
    assert {"Mul", "Sub", "If", "Relu"} <= {vertex.op_type for vertex in found.vertices}
    branch = next(i for i, vertex in enumerate(found.vertices) if vertex.op_type == "If")
    assert any(target == branch for _, target in found.edges) or any(s == branch for s, _ in found.edges)


def test_names_from_the_runtime_lead_back_to_operators() -> None:
    known = {"/conv/Conv", "mm"}
    assert graph.known_name("/conv/Conv_token_19", known) == "/conv/Conv"
    assert graph.known_name("/conv/Conv_quant_nchwc", known) == "/conv/Conv"
    assert graph.known_name("mm_output_0", known) == "mm"
    assert graph.known_name("other", known) == "other"
