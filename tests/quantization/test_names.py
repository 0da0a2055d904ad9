"""Every name that stock's modules export can be imported here, and works or says why not when it is used."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from octavo.quantization.operators.conv import QDQConv
from octavo.quantization.operators.gemm import get_beta, is_B_transposed, set_default_beta
from octavo.quantization.operators.qdq_base_operator import QDQOperatorBase

from octavo.quantization import CalibrationMethod, TensorsData, quant_utils, quantize_static, registry
from octavo.quantization._errors import QuantizationWarning
from octavo.quantization.CalTableFlatBuffers import KeyValue, TrtTable
from octavo.quantization.cuda_quantizer import CudaQuantizer, _pack_weights_for_cuda_mixed_gemm
from octavo.quantization.neural_compressor import onnx_model, util

from .graphs import CASES, gemm
from .peer import Reader, samples

STOCK, OWN = "onnxruntime.quantization", "octavo.quantization"
TAKEN_FROM = ("onnx", "onnx.helper", "onnx.reference", "onnxruntime", "onnxruntime.capi._pybind_state")
SUBMODULES = (
    "helper",
    "numpy_helper",
    "external_data_helper",
    "shape_inference",
    "reference",
    "version_converter",
)


def exported(source: str) -> Iterator[str]:
    """The names that a module defines, or takes from its package, from ONNX or from the runtime."""
    for statement in ast.parse(source).body:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.ImportFrom(level=level, names=names) if level > 0:
                yield from (alias.asname or alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names) if module in TAKEN_FROM:
                yield from (alias.name for alias in names if not (alias.asname or alias.name in SUBMODULES))


@pytest.mark.peer
def test_every_public_name_of_stocks_modules_can_be_imported() -> None:
    package = importlib.import_module(STOCK)
    missing = []
    modules = [STOCK, *(found.name for found in pkgutil.walk_packages(package.__path__, f"{STOCK}."))]
    for module in modules:
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        own = importlib.import_module(module.replace(STOCK, OWN, 1))
        for name in exported(Path(spec.origin).read_text(encoding="utf-8")):
            if not name.startswith("_") and name != "np" and not hasattr(own, name):
                missing.append(f"{module}.{name}")
    assert len(modules) > 40
    assert missing == []


def test_domains_and_type_names() -> None:
    assert (quant_utils.ms_domain, quant_utils.onnx_domain) == ("com.microsoft", "ai.onnx")
    assert quant_utils.type_to_name[onnx.TensorProto.UINT8] == "UINT8"


def test_the_runtimes_own_kernels_are_found_where_stock_imports_them() -> None:
    from octavo.quantization.matmul_nbits_quantizer import quantize_matmul_4bits

    weight = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    packed, scales, zeros = np.zeros((4, 1, 16), np.uint8), np.zeros(4, np.float32), np.zeros(4, np.uint8)
    quantize_matmul_4bits(packed, weight, scales, zeros, 32, 4, 32, True)
    np.testing.assert_allclose(np.abs(scales), np.abs(weight).max(axis=0) / 8, rtol=1e-5)


def test_a_name_that_no_module_has_is_an_import_error() -> None:
    with pytest.raises(ImportError, match="nobody"):
        from octavo.quantization.quantize import nobody  # noqa: F401


def test_operator_classes_can_be_derived_from_and_say_why_they_do_not_quantize() -> None:
    class Own(QDQConv):  # type: ignore[misc, valid-type]
        pass

    class Quantizer:
        op_types_to_exclude_output_quantization = ("Gemm",)

    node = gemm(transB=1, beta=0.5).graph.node[0]
    made = Own(Quantizer(), node)
    assert isinstance(made, QDQOperatorBase)
    assert made.disable_qdq_for_node_output
    with pytest.raises(NotImplementedError, match="quantize_model"):
        made.quantize()
    assert (is_B_transposed(node), get_beta(node), set_default_beta(node), get_beta(node)) == (
        True,
        0.5,
        1,
        1,
    )


def test_packing_for_cuda_says_what_to_use_instead() -> None:
    for call in (_pack_weights_for_cuda_mixed_gemm, CudaQuantizer.symmetric_blockwise_quantize):
        with pytest.raises(NotImplementedError, match="MatMulNBitsQuantizer"):
            call(None, 4, 32)


def test_flatbuffers_tables_are_read_and_built_by_their_accessors(tmp_path: Path) -> None:
    from flatbuffers import Builder

    ranges = {"a": (np.float32(-2), np.float32(1)), "b": (np.float32(0), np.float32(3))}
    quant_utils.write_calibration_table(TensorsData(CalibrationMethod.MinMax, ranges), tmp_path)
    table = TrtTable.TrtTable.GetRootAsTrtTable((tmp_path / "calibration.flatbuffers").read_bytes(), 0)
    pairs = [table.Dict(index) for index in range(table.DictLength())]
    found = {pair.Key(): float(pair.Value()) for pair in pairs}  # type: ignore[union-attr, arg-type]
    assert found == {b"a": 2.0, b"b": 3.0}
    builder = Builder(64)
    key, value = builder.CreateString("t"), builder.CreateString("1.5")
    KeyValue.KeyValueStart(builder)
    KeyValue.KeyValueAddKey(builder, key)
    KeyValue.KeyValueAddValue(builder, value)
    pair = KeyValue.KeyValueEnd(builder)
    TrtTable.TrtTableStartDictVector(builder, 1)
    builder.PrependUOffsetTRelative(pair)
    vector = builder.EndVector()
    TrtTable.TrtTableStart(builder)
    TrtTable.TrtTableAddDict(builder, vector)
    builder.Finish(TrtTable.TrtTableEnd(builder))
    again = TrtTable.TrtTable.GetRootAs(builder.Output(), 0)
    assert (again.DictIsNone(), again.Dict(0).Key(), again.Dict(0).Value()) == (False, b"t", b"1.5")  # type: ignore[union-attr]


def test_the_vendored_packages_model_and_helpers(tmp_path: Path) -> None:
    proto = gemm()
    onnx.save(proto, tmp_path / "m.onnx")
    model = onnx_model.ONNXModel(tmp_path / "m.onnx")
    node = proto.graph.node[0]
    assert (model.input(), model.output()) == ([proto.graph.input[0].name], [proto.graph.output[0].name])
    assert model.model_path == str(tmp_path / "m.onnx")
    assert model.get_node(node.name) == node
    assert set(model.input_name_to_nodes) == {name for n in proto.graph.node for name in n.input if name}
    weight = proto.graph.initializer[0].name
    assert model.get_initializer_share_num(weight) == 1
    model.set_initializer(weight, np.zeros(tuple(proto.graph.initializer[0].dims)))
    model.save(tmp_path / "n.onnx")
    written = {t.name: t for t in onnx.load(tmp_path / "n.onnx").graph.initializer}
    assert not np.any(onnx.numpy_helper.to_array(written[weight]))
    with pytest.raises(NotImplementedError, match="find_split_nodes"):
        model.find_split_nodes()
    assert util.find_by_name(weight, proto.graph.initializer).name == weight
    assert util.to_numpy([1.0, 2.0]).tolist() == [1, 2]
    assert util.MAXIMUM_PROTOBUF == 2**31


def test_a_registered_class_that_has_no_effect_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Own(QDQOperatorBase):
        def quantize(self) -> None:
            self.quantizer.quantize_activation_tensor(self.node.input[0])

    made = CASES["Tanh"]()
    monkeypatch.setitem(registry.QDQRegistry, "Tanh", Own)
    with pytest.warns(QuantizationWarning, match="Own has no effect on how Tanh is quantized"):
        quantize_static(made, tmp_path / "out.onnx", Reader(samples(made)), op_types_to_quantize=["Tanh"])
