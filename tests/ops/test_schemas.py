"""Every form of the op table against the schemas and CPU kernels of the installed runtime."""

from __future__ import annotations

import pytest
from runtime_schemas import schemas

from octavo.core.qtypes import INT8, UINT8
from octavo.core.recipe import Style
from octavo.model.runtime.session import Kernel, kernels
from octavo.ops import MATMUL_TO_FLOAT, RULES, Act, Kind, Lowering, Weight

FORMS = [
    pytest.param(key, style, form, id=f"{key[1]}-{style.value}-{form.op_type}")
    for key, rule in RULES.items()
    for style, form in rule.lowerings.items()
] + [
    pytest.param(("", "MatMul"), Style.QOPERATOR, MATMUL_TO_FLOAT, id="MatMul-qoperator-MatMulIntegerToFloat")
]
ELEMENTS = {"u8": "tensor(uint8)", "s8": "tensor(int8)"}


def _operands(form: Lowering) -> list[str]:
    return [token for token in form.operands.split() if token not in ("rest", "…")]


@pytest.mark.parametrize(("key", "style", "form"), FORMS)
def test_form_is_an_operator_with_a_cpu_kernel(key: tuple[str, str], style: Style, form: Lowering) -> None:
    assert (form.domain, form.op_type) in schemas()
    assert kernels()[form.domain, form.op_type]


@pytest.mark.parametrize(("key", "style", "form"), FORMS)
def test_operands_fit_the_schema(key: tuple[str, str], style: Style, form: Lowering) -> None:
    schema = schemas()[form.domain, form.op_type][-1]
    operands = _operands(form)
    assert len(operands) <= schema.max_input
    if operands and "rest" not in form.operands:
        needed = [token for token in operands if token[0] not in "f"]
        assert len(needed) >= min(schema.min_input, len(operands)) - len(operands) + len(needed)
        assert len(operands) >= schema.min_input


@pytest.mark.parametrize(("key", "style", "form"), FORMS)
def test_kept_attributes_exist(key: tuple[str, str], style: Style, form: Lowering) -> None:
    known = set(schemas()[form.domain, form.op_type][-1].attributes)
    if form.attributes is not None:
        assert set(form.attributes) <= known


def _takes(kernel: Kernel, elements: set[str]) -> bool:
    """Whether some type variable of a kernel takes each of these element types."""
    return not kernel.types or all(any(e in kinds for kinds in kernel.types.values()) for e in elements)


@pytest.mark.parametrize(("key", "style", "form"), FORMS)
def test_claimed_types_have_kernels(key: tuple[str, str], style: Style, form: Lowering) -> None:
    """That the pairs really run is shown by the matrix; here, that the runtime says so."""
    weighted = any(isinstance(role, Weight) for role in RULES[key].inputs)
    for pair in form.pairs:
        elements = {ELEMENTS[pair[:2]]} | ({ELEMENTS[pair[2:]]} if weighted else set())
        assert any(_takes(kernel, elements) for kernel in kernels()[form.domain, form.op_type]), pair


def test_pairs_are_of_8_bit_types() -> None:
    forms = [form for rule in RULES.values() for form in rule.lowerings.values()]
    assert {pair for form in forms for pair in form.pairs} <= {"u8u8", "u8s8", "s8s8", "s8u8"}
    assert RULES["", "Conv"].lowerings[Style.QOPERATOR].takes(UINT8, INT8)
    assert not RULES["", "Conv"].lowerings[Style.QOPERATOR].takes(INT8, UINT8)


def test_products_have_an_activation_and_a_weight() -> None:
    for rule in RULES.values():
        if rule.kind is Kind.LINEAR:
            assert isinstance(rule.role(0), Act)
            assert isinstance(rule.role(1), Weight)


def test_hooks_are_fewer_than_a_third_of_the_rows() -> None:
    """More would say that the templates do not fit."""
    hooked = [
        r for r in RULES.values() if r.refuse or r.blends or any(f.refuse for f in r.lowerings.values())
    ]
    assert len(hooked) * 3 < len(RULES)
