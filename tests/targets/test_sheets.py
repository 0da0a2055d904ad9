"""The datasheets: complete, legal by their own rules, and obeyed by the planner."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from builders import conv_net, model, node, tensor
from quantizing import feeds_for, layers, reason, weights

import octavo
from octavo.core.plan import Constant, Derived, Measured
from octavo.core.qtypes import qtype
from octavo.ops import RULES
from octavo.targets import TARGETS, Target, target
from octavo.targets.ort_cpu import flags, sheet

SIGNED = octavo.W8A8.but(activations=octavo.Scheme(qtype("int8")))
SHEETS = pytest.mark.parametrize("one", TARGETS.values(), ids=lambda one: one.name)


def test_the_targets_are_these() -> None:
    assert set(TARGETS) == {
        "ort-cpu", "ort-cpu-vnni", "ort-cpu-avx2", "ort-cpu-arm64", "ort-cuda", "tensorrt", "qnn", "openvino",
        "web", "portable",
    }  # fmt: skip


@SHEETS
def test_a_sheet_speaks_of_known_operators_and_types(one: Target) -> None:
    known = {op for _, op in RULES}
    accepts, placed, kernels = one.accepts, one.placement, one.kernels
    named = {
        *placed.linear, *placed.dynamic_linear, *placed.elementwise, *placed.data_movement, *placed.recurrent,
        *placed.gates, *placed.needs_output, *placed.kept_in_float, *placed.dynamic_kept_in_float,
        *accepts.op_types, *accepts.refused, *(accepts.channel_ops or ()), *(accepts.block_ops or ()),
        *kernels.integer_types, *kernels.fused, *one.lowerings.sum_before,
    }  # fmt: skip
    assert named <= known
    slow = (*kernels.slow_activations, *kernels.slow_weights)
    for name in (*accepts.activation_types, *accepts.weight_types, *slow):
        assert qtype(name).name == name


@SHEETS
def test_a_sheet_says_what_it_is_based_on(one: Target) -> None:
    assert one.summary
    assert one.documentation.limits
    assert one.documentation.placement
    assert one.documentation.preparation
    assert one.documentation.sources


@SHEETS
def test_default_recipes_are_legal_and_name_their_target(one: Target) -> None:
    for recipe in (one.static_recipe, one.dynamic_recipe):
        assert recipe.target == one.name
        octavo.plan(conv_net(), recipe)


def test_every_sheet_is_printed_in_full() -> None:
    from octavo.reporting.op_tables import target_data

    for one in TARGETS.values():
        data = target_data(one)
        assert data["sources"]
        assert data["limits"]


@pytest.mark.parametrize(
    ("machine", "has", "name"),
    [
        ("x86_64", {"avx2", "avx512_vnni"}, "ort-cpu-vnni"),
        ("x86_64", {"avx2", "avx_vnni"}, "ort-cpu-vnni"),
        ("x86_64", {"avx2", "avx512f"}, "ort-cpu-avx2"),
        ("AMD64", set(), "ort-cpu-avx2"),
        ("aarch64", set(), "ort-cpu-arm64"),
        ("arm64", set(), "ort-cpu-arm64"),
    ],
)
def test_the_cpu_at_hand_chooses_the_sheet(machine: str, has: set[str], name: str) -> None:
    assert sheet(machine, frozenset(has)).name == name


def test_flags_are_read_as_linux_lists_them(tmp_path: Path) -> None:
    listed = tmp_path / "cpuinfo"
    listed.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512_vnni\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert flags(listed) == {"fpu", "avx2", "avx512_vnni"}
    assert flags(tmp_path / "none") == frozenset()


def test_with_vnni_the_default_target_is_what_it_was() -> None:
    vnni = target("ort-cpu-vnni")
    assert vnni.static_recipe.but(target="ort-cpu", steps=()) == octavo.W8A8
    assert vnni.dynamic_recipe.but(target="ort-cpu") == octavo.W8


# ---- recipe × op table × target


@pytest.mark.parametrize(
    ("recipe", "name", "offered"),
    [
        (octavo.W8A8, "tensorrt", "uint8 activations; choose int8"),
        (octavo.W8A16, "tensorrt", "uint16 activations; choose int8"),
        (octavo.W8, "tensorrt", "integer models; choose one of: qdq"),
        (SIGNED, "tensorrt", "zero point 0"),
        (SIGNED, "qnn", "int8 activations; choose uint8"),
        (octavo.W8A8.but(style=octavo.Style.QOPERATOR), "openvino", "qoperator models"),
        (octavo.W8A8.but(weights=octavo.Scheme(qtype("uint8"))), "openvino", "zero point 0"),
        (octavo.W8A8, "ort-cuda", "ort-cuda; choose activations none"),
        (octavo.FP8, "web", "float8e4m3fn weights"),
    ],
)  # fmt: skip
def test_a_request_that_clashes_with_the_target_is_an_error_with_an_offer(
    recipe: octavo.Recipe, name: str, offered: str
) -> None:
    with pytest.raises(octavo.RecipeError, match=offered):
        octavo.plan(conv_net(), recipe, target=name)


def test_an_override_that_clashes_with_the_target_is_an_error() -> None:
    recipe = target("tensorrt").static_recipe.but(overrides=(octavo.Override("x", symmetric=False),))
    with pytest.raises(octavo.RecipeError, match="takes zero point 0"):
        octavo.plan(conv_net(), recipe, target="tensorrt")


def test_granularity_that_the_target_lacks_is_an_error() -> None:
    sheet = target("ort-cpu-vnni")
    accepts = dataclasses.replace(sheet.accepts, granularities=("tensor",))
    narrow = dataclasses.replace(sheet, name="narrow", accepts=accepts)
    with pytest.raises(octavo.RecipeError, match="scale per channel; choose tensor"):
        octavo.plan(conv_net(), octavo.W8A8, target=narrow)


def test_tensorrt_quantizes_the_inputs_of_products_and_nothing_else() -> None:
    plan = octavo.plan(conv_net(), target="tensorrt")
    assert not any(isinstance(entry, Derived) for entry in plan.entries.values())
    for key, entry in plan.entries.items():
        assert key.consumer in ("Conv_0", "Gemm_0")
        assert isinstance(entry, Measured | Constant)
        assert entry.scheme.symmetric
        assert entry.scheme.qtype.name == "int8"
    assert "pay off" in reason(plan, "Pool_0")


def test_every_zero_point_for_tensorrt_is_zero() -> None:
    proto = conv_net()
    result = octavo.quantize(proto, feeds_for(proto), target="tensorrt", effort="plain")
    kinds = {params.qtype.name for params in result.params.values()}
    assert kinds == {"int8"}
    assert not any(np.any(params.zero_point) for params in result.params.values())


@pytest.mark.parametrize("placement", [octavo.Placement.TARGET, octavo.Placement.EVERYWHERE])
def test_float8_for_tensorrt_loads_here_too_and_is_clean(placement: octavo.Placement) -> None:
    proto = conv_net()
    recipe = octavo.FP8.but(target="tensorrt", placement=placement)
    result = octavo.quantize(proto, feeds_for(proto), recipe=recipe)
    assert {params.qtype.name for params in result.params.values()} == {"float8e4m3fn"}
    assert not octavo.lint(result.model, target="tensorrt").findings


def test_qnn_scales_linear_layers_by_tensor_and_widens_ranges() -> None:
    proto = layers()
    quiet = [{"x": np.zeros((2, 16), np.float32)}]
    result = octavo.quantize(proto, quiet, target="qnn", effort="plain")
    by_name = {key.tensor: params for key, params in result.params.items()}
    assert by_name["w0"].scale.shape == ()
    assert float(by_name["x"].scale) * 255 >= 1e-4 * 0.999


def test_types_that_one_operator_lacks_are_skipped_with_a_reason() -> None:
    arrays = {"w": weights(4, 4, 2, 2), "v": weights(4, 4, 1, 1)}
    nodes = [
        node("ConvTranspose", ["x", "w"], ["t"], "Up", strides=[2, 2]),
        node("Conv", ["t", "v"], ["y"], "Down"),
    ]
    proto = model(nodes, [tensor("x", [1, 4, 4, 4])], [tensor("y", [1, 4, 8, 8])], arrays)
    plan = octavo.plan(proto, octavo.FP8.but(target="tensorrt"))
    assert "takes int8 activations in it" in reason(plan, "Up")
    assert "Down" in plan.nodes


def test_blocks_stay_out_of_operators_that_lack_them() -> None:
    plan = octavo.plan(conv_net(), target="tensorrt", static=False)
    assert "matrix products" in reason(plan, "Conv_0")
    assert set(plan.nodes) == {"Gemm_0"}


def test_a_refused_operator_is_skipped_even_where_everything_is_requested() -> None:
    arrays = {"w": weights(1, 16, 4), "r": weights(1, 16, 4)}
    nodes = [node("LSTM", ["x", "w", "r"], ["y"], "Rnn", hidden_size=4), node("Relu", ["y"], ["z"], "Relu_0")]
    proto = model(nodes, [tensor("x", [3, 1, 4])], [tensor("z", [3, 1, 1, 4])], arrays)
    plan = octavo.plan(proto, octavo.W8A8.but(target="qnn", placement=octavo.Placement.EVERYWHERE))
    assert "states would have to be quantized too" in reason(plan, "Rnn")


def test_only_runtimes_that_rewrite_float_layers_get_guards() -> None:
    arrays = {f"w{i}": weights(8, 8, 3, 3, seed=i) / 8 for i in range(3)}
    nodes = [
        node("Conv", [f"t{i}", f"w{i}"], [f"t{i + 1}"], f"Conv_{i}", pads=[1, 1, 1, 1]) for i in range(3)
    ]
    proto = model(nodes, [tensor("t0", [1, 8, 6, 6])], [tensor("t3", [1, 8, 6, 6])], arrays)
    for name, barriers in (("ort-cpu-vnni", ("Conv_1",)), ("openvino", ())):
        assert octavo.plan(proto, target=name, exclude=("Conv_1",)).barriers == barriers


def test_weights_in_seven_bits_can_not_saturate() -> None:
    proto = conv_net()
    for name in ("ort-cpu-avx2", "portable", "web"):
        result = octavo.quantize(proto, feeds_for(proto), target=name, effort="plain")
        stored = [v.const_value for v in result.model.graph.initializers.values()]
        int8 = [t.numpy() for t in stored if t is not None and t.dtype is ir.DataType.INT8 and t.size > 8]
        assert int8
        assert all(255 * 2 * int(np.abs(array.astype(int)).max()) <= 32767 for array in int8)
