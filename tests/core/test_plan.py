from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.core.granularity import PerBlock, PerChannel
from octavo.core.plan import (
    Bounded,
    Constant,
    Derived,
    Dynamic,
    Fixed,
    Key,
    Measured,
    Plan,
    Quantized,
    Shared,
    Skipped,
)
from octavo.core.qtypes import FLOAT8E4M3FN, INT4, INT8, UINT8, UINT16
from octavo.core.recipe import Style
from octavo.core.scheme import MinMax, Percentile, Scheme
from octavo.errors import OctavoError, OutputError, TableError

ACTIVATION = Scheme(UINT8, method=Percentile(99.9))
WEIGHT = Scheme(INT8, PerChannel(0), symmetric=True)


def example() -> Plan:
    return Plan(
        style=Style.QDQ,
        entries={
            Key("x"): Measured(ACTIVATION),
            Key("x", "head"): Measured(Scheme(UINT16)),
            Key("w"): Constant(WEIGHT),
            Key("b"): Derived(Key("x"), Key("w")),
            Key("s"): Bounded(Scheme(UINT8), 0.0, 1.0),
            Key("flat"): Shared("x"),
            Key("flat2"): Shared("flat"),
            Key("view"): Shared("x", "head"),
            Key("given"): Fixed(WEIGHT, (0.1, 0.25), (0, 0)),
            Key("late"): Dynamic(),
        },
        nodes={
            "conv": Quantized("Conv", "QLinearConv"),
            "fc": Quantized("MatMul", "MatMul", bias_add="add"),
            "head": Quantized("MatMul", "MatMul"),
        },
        fused={"relu": "its effect is in the range"},
        skipped=(Skipped("soft → max", "Softmax", "excluded"),),
        barriers=("gelu",),
        notes=("a note", "à la main"),
    )


# Files


def test_plan_survives_plain_data_and_files(tmp_path: Path) -> None:
    plan = example()
    assert Plan.from_dict(plan.to_dict()) == plan
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert list(Plan.load(tmp_path / "plan.json").entries) == list(plan.entries)


names = st.text(st.characters(exclude_categories=("Cs",)), max_size=10)
schemes = st.sampled_from(
    [ACTIVATION, WEIGHT, Scheme(INT4, PerBlock(32, 0), min_range=1e-4, reduce_range=True)]
)
finite = st.floats(-1e9, 1e9)
keys = st.builds(Key, names, st.none() | names)
entries = st.one_of(
    st.builds(Measured, schemes),
    st.builds(Bounded, schemes, finite, finite),
    st.builds(Derived, st.tuples(names, st.none() | names), st.tuples(names, st.none() | names)),
    st.builds(Fixed, schemes, st.lists(finite).map(tuple), st.lists(st.integers(-128, 127)).map(tuple)),
    st.builds(Constant, schemes, names, st.none() | st.tuples(finite, finite)),
    st.builds(Dynamic, st.sampled_from([UINT8, INT8])),
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plan=st.builds(
        Plan,
        st.sampled_from(Style),
        st.dictionaries(keys, entries, max_size=4),
        st.dictionaries(names, st.builds(Quantized, names, names, st.none() | names), max_size=3),
        st.dictionaries(names, names, max_size=3),
        st.lists(st.builds(Skipped, names, names, names), max_size=3).map(tuple),
        barriers=st.lists(names, max_size=3).map(tuple),
        notes=st.lists(names, max_size=3).map(tuple),
    )
)
def test_any_plan_survives_a_file(tmp_path: Path, plan: Plan) -> None:
    readers = {key.consumer: Quantized("Conv", "Conv") for key in plan.entries if key.consumer is not None}
    nodes = {**plan.nodes, **readers}
    plan = replace(
        plan,
        nodes=nodes,
        fused={name: why for name, why in plan.fused.items() if name not in nodes},
        skipped=tuple(one for one in plan.skipped if one.node not in nodes),
    )
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_file_has_one_entry_a_line_and_can_be_edited(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    example().save(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[:3] == ["{", '"octavo_plan": 1,', '"style": "qdq",']
    (index,) = [i for i, line in enumerate(lines) if line.startswith('  ["late"')]
    assert lines[index] == '  ["late", null, {"kind": "Dynamic"}]'
    lines[index] = '  ["late", null, {"kind": "Dynamic", "qtype": "int8"}]'
    path.write_text("\n".join(lines), encoding="utf-8")
    edited = Plan.load(path)
    assert edited.entries[Key("late")] == Dynamic(INT8)
    assert edited != example()


def test_empty_plan_survives_a_file(tmp_path: Path) -> None:
    Plan(Style.INTEGER, {}, {}).save(tmp_path / "p.json")
    assert Plan.load(tmp_path / "p.json") == Plan(Style.INTEGER, {}, {})


def test_plan_that_can_not_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="can't be written: No such file"):
        example().save(tmp_path / "missing" / "plan.json")


# Wrong files


def changed(**changes: Any) -> dict[str, Any]:
    plain = json.loads(json.dumps(example().to_dict()))
    return {k: v for k, v in {**plain, **changes}.items() if v is not ...}


MEASURED = {"kind": "Measured", "scheme": {"qtype": "uint8"}}
BAD = [
    ([], "not a plan of version 1"),
    (None, "not a plan of version 1"),
    ({}, "not a plan of version 1"),
    (changed(octavo_plan=2), "not a plan of version 1"),
    (changed(style=...), "it has no style"),
    (changed(entries=..., nodes=...), "it has no entries and no nodes"),
    (changed(style="qqq"), "style: 'qqq' is not one of qdq"),
    (changed(style=[]), r"style: \[\] is not one of"),
    (changed(noets=[]), "noets: unknown key; did you mean 'notes'"),
    (changed(nodes=[]), "nodes: expected a mapping"),
    (changed(nodes={"a": 5}), "nodes.a: expected a mapping"),
    (
        changed(nodes={"a": {"op_type": "Conv", "from": "x"}}),
        "nodes.a.from: unknown key",
    ),
    (changed(nodes={"a": {"op_type": "Conv"}}), "nodes.a.lowering: missing"),
    (changed(entries={}), "entries: expected a list"),
    (changed(entries=[5]), r"entries\[0\]: expected a list"),
    (changed(entries=["abc"]), r"entries\[0\]: expected a list"),
    (changed(entries=[["x", MEASURED]]), r"entries\[0\]: expected 3 items"),
    (changed(entries=[[5, None, MEASURED]]), r"entries\[0\]\[0\]: expected text"),
    (changed(entries=[[["x"], None, MEASURED]]), r"entries\[0\]\[0\]: expected text"),
    (changed(entries=[["x", 5, MEASURED]]), r"entries\[0\]\[1\]: expected text"),
    (changed(entries=[["x", None, {}]]), r"entries\[0\]\[2\].kind: missing; write one of Measured"),
    (changed(entries=[["x", None, None]]), r"entries\[0\]\[2\]: expected a mapping"),
    (
        changed(entries=[["x", None, {"kind": "Mesured"}]]),
        r"entries\[0\]\[2\].kind: 'Mesured' is unknown; did you",
    ),
    (changed(entries=[["x", None, {"kind": {}}]]), r"entries\[0\]\[2\].kind: {} is unknown"),
    (changed(entries=[["x", None, {"kind": "Measured"}]]), r"entries\[0\]\[2\].scheme: missing"),
    (
        changed(entries=[["x", None, {"kind": "Measured", "scheme": {"qtyp": "int8"}}]]),
        r"entries\[0\]\[2\].scheme.qtyp: unknown key; did you mean 'qtype'",
    ),
    (
        changed(entries=[["x", None, {"kind": "Derived", "x": "x", "w": ["w", None]}]]),
        r"\[2\].x: expected a list",
    ),
    (changed(entries=[["x", None, MEASURED], ["x", None, MEASURED]]), "two entries for x; remove one"),
    (
        changed(entries=[["x", None, {"kind": "Shared", "tensor": "y"}]]),
        "gives x the parameters of y, which has no",
    ),
    (changed(entries=[["x", None, {"kind": "Shared", "tensor": "x"}]]), "in a circle"),
    (changed(fused=[]), "fused: expected a mapping"),
    (changed(fused={"a": 5}), "fused.a: expected text"),
    (changed(skipped={}), "skipped: expected a list"),
    (changed(skipped=["a"]), r"skipped\[0\]: expected a mapping"),
    (changed(notes=[5]), r"notes\[0\]: expected text"),
]


@pytest.mark.parametrize(("data", "message"), BAD, ids=[m for _, m in BAD])
def test_wrong_plan_is_an_error_with_its_place(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(TableError, match=message):
        Plan.from_dict(data)
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(TableError, match=r"plan.json"):
        Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize(
    "text", ["{", "", "[" * 200_000, '{"a": ' * 200_000, "\x00", "9" * 10_000], ids=range(6)
)
def test_file_that_is_no_plan_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(TableError, match=r"plan.json"):
        Plan.load(tmp_path / "plan.json")


def test_file_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TableError, match="is not text"):
        Plan.load(tmp_path / "plan.json")


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="does not exist"):
        Plan.load(tmp_path / "nothing.json")


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@given(
    st.sampled_from(["style", "nodes", "entries", "fused", "skipped", "barriers", "notes"]),
    anything,
)
def test_any_data_gives_a_plan_or_an_error_of_ours(key: str, data: Any) -> None:
    for value in (data, [data], [["x", None, data]], {"a": data}):
        try:
            assert isinstance(Plan.from_dict(changed(**{key: value})), Plan)
        except OctavoError as error:
            assert isinstance(error, TableError)


# Questions


def test_root_follows_sharing_to_its_end() -> None:
    plan = example()
    assert plan.root(Key("flat2")) == Key("x")
    assert plan.root(Key("view")) == Key("x", "head")
    assert plan.root(Key("x")) == Key("x")
    assert plan.root(Key("nowhere")) == Key("nowhere")


@pytest.mark.parametrize("length", [1, 2, 5])
def test_sharing_in_a_circle_is_an_error(length: int) -> None:
    circle = {Key(f"t{i}"): Shared(f"t{(i + 1) % length}") for i in range(length)}
    plan = Plan(Style.QDQ, {Key("start"): Shared("t0"), **circle}, {})
    with pytest.raises(TableError, match="in a circle; remove one"):
        plan.root(Key("start"))
    with pytest.raises(TableError, match="in a circle"):
        Plan.from_dict(plan.to_dict())


def test_long_chain_of_sharing_has_one_root() -> None:
    chain = {Key(f"t{i}"): Shared(f"t{i - 1}") for i in range(1, 5000)}
    plan = Plan(Style.QDQ, {Key("t0"): Dynamic(), **chain}, {})
    assert plan.root(Key("t4999")) == Key("t0")
    assert Plan.from_dict(plan.to_dict()) == plan


def test_reader_sees_its_own_entry_before_that_of_the_tensor() -> None:
    plan = example()
    assert plan.lookup("x", "head") == Key("x", "head")
    assert plan.lookup("x", "other") == Key("x")
    assert plan.lookup("float", "other") is None


def test_needs_are_the_measured_tensors() -> None:
    plan = Plan(
        Style.QDQ, {Key("x"): Measured(ACTIVATION), Key("y"): Dynamic(), Key("z", "n"): Measured(WEIGHT)}, {}
    )
    assert plan.needs() == {"x": Percentile(99.9), "z": MinMax()}


@pytest.mark.parametrize("turned", [False, True])
def test_needs_of_readers_that_differ_are_those_that_ask_for_more(turned: bool) -> None:
    entries = {Key("x"): Measured(ACTIVATION), Key("x", "n"): Measured(Scheme(UINT8))}
    if turned:
        entries = dict(reversed(entries.items()))
    assert Plan(Style.QDQ, entries, {}).needs() == {"x": Percentile(99.9)}


def test_edges_are_the_entries_of_one_reader() -> None:
    assert dict(example().edges()) == {Key("x", "head"): Measured(Scheme(UINT16))}


def test_counts_are_by_op_type() -> None:
    assert example().counts() == {"Conv": 1, "MatMul": 2}


def test_key_prints_as_tensor_and_reader() -> None:
    assert str(Key("x")) == "x"
    assert str(Key("x", "node")) == "x → node"


# Values


def test_plans_are_equal_by_content_and_not_hashable() -> None:
    assert example() == example()
    assert Plan(Style.QDQ, {}, {}) != Plan(Style.INTEGER, {}, {})
    with pytest.raises(TypeError, match="unhashable"):
        hash(example())


def test_entries_and_keys_are_hashable() -> None:
    plan = example()
    assert len(set(plan.entries.values())) == len(plan.entries)
    assert hash(Key("x")) == hash(Key("x", None))


def test_shared_names_the_key_it_shares() -> None:
    assert Shared("x", "head").key == Key("x", "head")


@pytest.mark.parametrize(
    ("scheme", "opset"),
    [
        (Scheme(UINT8), 13),
        (Scheme(INT8, PerChannel(0)), 13),
        (Scheme(UINT16), 21),
        (Scheme(INT8, PerBlock(32, 0)), 21),
        (Scheme(FLOAT8E4M3FN), 21),
    ],
    ids=str,
)
def test_the_opset_follows_from_the_types_and_blocks_of_the_entries(scheme: Scheme, opset: int) -> None:
    for entry in (Measured(scheme), Constant(scheme), Bounded(scheme, 0.0, 1.0), Fixed(scheme, (1.0,), (0,))):
        assert Plan(Style.QDQ, {Key("x"): Dynamic(), Key("t"): entry}, {}).opset == opset


def test_plans_that_earlier_versions_wrote_can_be_read() -> None:
    former = {
        "octavo_plan": 1,
        "style": "qdq",
        "nodes": {"conv": {"op_type": "Conv", "form": "Conv"}},
        "entries": [
            ["x", "conv", MEASURED],
            ["y", None, {"kind": "Shared", "tensor": "x", "reader": "conv"}],
        ],
        "absorbed": {"relu": "its range starts at zero"},
        "guards": ["gelu"],
        "spelling": {"dedicated": True},
        "stored": {"w": {"scheme": {"qtype": "int8"}, "saves": 9}},
    }
    plan = Plan.from_dict(former)
    assert plan.nodes["conv"].lowering == "Conv"
    assert plan.entries[Key("y")] == Shared("x", "conv")
    assert (list(plan.fused), plan.barriers, list(plan.compressed)) == (["relu"], ("gelu",), ["w"])
    assert plan.writing.dedicated
    assert plan.to_dict().keys().isdisjoint({"absorbed", "guards", "spelling", "stored"})


def test_former_and_present_name_together_are_an_error() -> None:
    twice = changed(nodes={"a": {"op_type": "Conv", "form": "Conv", "lowering": "Conv"}})
    with pytest.raises(TableError, match=r"nodes\.a\.form: .*former name of 'lowering'"):
        Plan.from_dict(twice)


def test_a_name_that_is_given_twice_in_a_plan_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text('{"octavo_plan": 1, "nodes": {"head": {}, "head": {}}}')
    with pytest.raises(TableError, match=r"plan\.json: 'head' is given twice; remove one"):
        Plan.load(file)
