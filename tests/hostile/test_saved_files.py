"""Statistics, checkpoints, plans, recipes and tables that somebody else wrote."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo
from hostile.models import feeds, layer, quantized
from hostile.sandbox import Sandbox
from octavo.calibration import saved, tables
from octavo.calibration.tables import stock_cache
from octavo.core.plan import Plan
from octavo.core.recipe import Override
from octavo.core.stats import Range
from octavo.errors import OctavoError, RecipeError, TableError

ORIGIN = {"model": "m", "prepare": "p", "needs": {}, "spans": [[0, 1]], "data": "0", "source": ""}


def signed(body: bytes) -> bytes:
    """A statistics file with the digest that fits: damage is no excuse for what is in it."""
    content = b"OCTSTAT\x02" + body
    return content + hashlib.blake2b(content, digest_size=16).digest()


def block(content: bytes) -> bytes:
    """A length and so many bytes."""
    return struct.pack("<I", len(content)) + content


def stats(about: Any, *records: tuple[bytes, bytes, bytes], count: int | None = None) -> bytes:
    """A statistics file of a header and records."""
    header = about if isinstance(about, bytes) else json.dumps(about).encode()
    number = struct.pack("<I", len(records) if count is None else count)
    return signed(block(header) + number + b"".join(block(part) for record in records for part in record))


PLAIN = {"samples": 1, "origin": None}


def _origin(**changes: Any) -> dict[str, Any]:
    return {"samples": 1, "origin": {**ORIGIN, **changes}}


def _record(kind: bytes, content: bytes) -> bytes:
    return stats(PLAIN, (b"x", kind, content))


STATS: dict[str, bytes] = {
    "empty": b"",
    "no-digest": b"OCTSTAT\x02" + bytes(40),
    "other-version": b"OCTSTAT\x09" + bytes(40),
    "only-a-digest": signed(b""),
    "header-deep": stats(b"[" * 100_000),
    "header-no-json": stats(b"\xff"),
    "header-a-list": stats([]),
    "header-nothing": stats({}),
    "samples-infinite": stats(b'{"samples": 1e999, "origin": null}'),
    "samples-text": stats({"samples": "many", "origin": None}),
    "origin-a-number": stats({"samples": 1, "origin": 3}),
    "origin-needs-a-list": stats(_origin(needs=[])),
    "origin-spans-text": stats(_origin(spans="ab")),
    "origin-spans-backwards": stats(_origin(spans=[[5, 1]])),
    "origin-spans-overlap": stats(_origin(spans=[[0, 5], [3, 9]])),
    "origin-spans-infinite": stats(b'{"samples": 1, "origin": {"spans": [[0, 1e999]], "needs": {}}}'),
    "origin-data-no-number": stats(_origin(data="zz")),
    "origin-data-huge": stats(_origin(data="f" * 5000)),
    "records-announced": stats(PLAIN, count=2**32 - 1),
    "record-cut": signed(block(json.dumps(PLAIN).encode()) + struct.pack("<I", 1) + block(b"x")),
    "field-beyond": signed(block(json.dumps(PLAIN).encode()) + struct.pack("<II", 1, 2**31)),
    "kind-unknown": _record(b"evil", b""),
    "kind-no-text": _record(b"\xff", b""),
    "name-no-text": stats(PLAIN, (b"\xff", b"minmax", b"")),
    "extremes-empty": _record(b"extremes", b""),
    "extremes-nan": _record(b"extremes", b"\x01" + struct.pack("<2d", np.nan, np.nan)),
    "minmax-short": _record(b"minmax", b"\x01"),
    "histogram-empty": _record(b"histogram", b""),
    "histogram-garbage": _record(b"histogram", b"\xff" * 200),
    "many-garbage": _record(b"many", b"\x01" + b"\xff" * 100),
    "many-of-nothing": _record(b"many", b"\x01\x00"),
}


@pytest.mark.parametrize("content", STATS.values(), ids=STATS.keys())
def test_hostile_statistics(sandbox: Sandbox, content: bytes) -> None:
    path = sandbox.given / "a.stats"
    path.write_bytes(content)
    sandbox.refuses(lambda: octavo.load_stats(path), TableError)


@pytest.mark.parametrize("kind", ["folder", "device", "missing"])
def test_statistics_that_are_no_file(sandbox: Sandbox, kind: str) -> None:
    path = Path("/dev/zero") if kind == "device" else sandbox.given / "a.stats"
    if kind == "folder":
        path.mkdir()
    sandbox.refuses(lambda: octavo.load_stats(path), TableError)


def _calibrated(folder: Path) -> tuple[Plan, bytes]:
    plan = octavo.plan(layer())
    stats = octavo.calibrate(layer(), plan, feeds(), threads=1)
    return plan, stats.to_bytes()


def _mutated(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(max(1, len(changed) - 1))
        match chance.randrange(3):
            case 0:
                changed[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del changed[at : at + chance.randrange(9)]
            case _:
                changed[at:at] = bytes(chance.randrange(256) for _ in range(chance.randrange(6)))
    return bytes(changed)


def _read_stats(content: bytes) -> object:
    from octavo.calibration.statistics import KINDS
    from octavo.core.stats import Stats

    body = content[8:-16]
    return [(s.low, s.high, s.count) for s in Stats.from_bytes(signed(body), KINDS).values()]


READERS: dict[str, Callable[[bytes], object]] = {
    "statistics": _read_stats,
    "plan": lambda content: Plan.from_dict(json.loads(content.decode("utf-8", "replace"))),
    "recipe": lambda content: octavo.Recipe.from_dict(json.loads(content.decode("utf-8", "replace"))),
    "flatbuffers": tables.FORMATS["flatbuffers"].parse,
    "json-table": tables.FORMATS["json"].parse,
    "text-table": tables.FORMATS["text"].parse,
    "stock-cache": stock_cache.parse,
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("seed", range(2))
def test_files_changed_at_random(sandbox: Sandbox, kind: str, seed: int) -> None:
    """Two hundred changed files: a typed error, or something that could have been written."""
    plan, statistics = _calibrated(sandbox.given)
    ranges = {"x": Range(-1.0, 2.0), "a/b": Range(0.0, 3.5)}
    whole = {
        "statistics": statistics,
        "plan": json.dumps(plan.to_dict()).encode(),
        "recipe": json.dumps(octavo.W8A8.to_dict()).encode(),
        "flatbuffers": tables.FORMATS["flatbuffers"].dump(ranges),
        "json-table": tables.FORMATS["json"].dump(ranges),
        "text-table": tables.FORMATS["text"].dump(ranges),
        "stock-cache": stock_cache.dump(stock_cache.from_ranges(ranges)),
    }[kind]

    def all_of_them() -> int:
        chance = random.Random(seed)
        for _ in range(200):
            content = _mutated(whole, chance)
            try:
                READERS[kind](content)
            except OctavoError:
                continue
            except json.JSONDecodeError:
                assert kind in ("plan", "recipe")  # here the file is parsed by the test
        return 200

    assert sandbox.gives(all_of_them) == 200


def test_a_hostile_checkpoint_is_not_taken_for_this_run(sandbox: Sandbox) -> None:
    output = sandbox.out / "a.stats"
    saved.checkpoint_of(output).write_bytes(stats(_origin()))
    plan = octavo.plan(layer())
    sandbox.refuses(
        lambda: octavo.calibrate(layer(), plan, feeds(), output=output, threads=1), TableError, "checkpoint"
    )


PLANS: dict[str, str] = {
    "empty": "",
    "no-json": "{",
    "deep": "[" * 100_000,
    "a-list": "[]",
    "other-version": '{"octavo_plan": 2}',
    "number-of-10000-digits": '{"octavo_plan": ' + "9" * 10_000 + "}",
    "unknown-key": '{"octavo_plan": 1, "style": "qdq", "nodes": {}, "entries": [], "exec": "rm"}',
    "entries-of-nothing": '{"octavo_plan": 1, "style": "qdq", "nodes": {}, "entries": [[]]}',
    "kind-unknown": '{"octavo_plan": 1, "style": "qdq", "nodes": {}, "entries": '
    '[["x", null, {"kind": "os"}]]}',
    "kind-dunder": '{"octavo_plan": 1, "style": "qdq", "nodes": {}, "entries": '
    '[["x", null, {"kind": "__class__"}]]}',
    "shares-itself": '{"octavo_plan": 1, "style": "qdq", "nodes": {}, "entries": '
    '[["x", null, {"kind": "Shared", "key": ["x", null]}]]}',
    "style-unknown": '{"octavo_plan": 1, "style": "evil", "nodes": {}, "entries": []}',
    "nan": '{"octavo_plan": NaN}',
    "surrogate": '{"octavo_plan": 1, "style": "\\ud800", "nodes": {}, "entries": []}',
}


@pytest.mark.parametrize("text", PLANS.values(), ids=PLANS.keys())
def test_a_hostile_plan(sandbox: Sandbox, text: str) -> None:
    path = sandbox.given / "plan.json"
    path.write_text(text)
    sandbox.refuses(lambda: Plan.load(path), TableError)


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)
RECIPES: dict[str, tuple[str, str]] = {
    "python-object": ("r.yaml", "!!python/object/apply:os.system ['touch /tmp/octavo-was-here']"),
    "python-name": ("r.yaml", "steps: !!python/name:os.system"),
    "billion-laughs": ("r.yaml", LAUGHS),
    "billion-laughs-in-a-list": ("r.yaml", LAUGHS.replace("a11:", "exclude:")),
    "refers-to-itself": ("r.yaml", "exclude: &a [*a]"),
    "merges-without-end": (
        "r.yaml",
        "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 40)),
    ),
    "merges-a-thousand": ("r.yaml", f"a: &a {{x: 1}}\nweights: {{<<: [{', '.join(['*a'] * 1000)}]}}"),
    "merges-itself": ("r.yaml", "weights: &a {<<: *a}"),
    "deep": ("r.yaml", "[" * 20_000),
    "json-deep": ("r.json", "[" * 100_000),
    "too-large": ("r.yaml", "# " + "x" * (2 << 20)),
    "no-utf8": ("r.yaml", "\udcff"),
    "timestamp-wrong": ("r.yaml", "steps: 2020-99-99"),
    "number-of-10000-digits": ("r.yaml", "calibration_samples: " + "9" * 10_000),
    "number-of-5000-hex-digits": ("r.yaml", "base: W8A8\ncalibration_samples: 0x" + "f" * 5000),
    "session-option": ("r.yaml", "session_options: {optimized_model_filepath: /tmp/octavo-was-here}"),
    "custom-library": ("r.yaml", "custom_ops: [/tmp/evil.so]"),
    "provider": ("r.yaml", "providers: [Evil]"),
    "output": ("r.yaml", "output: /etc/passwd"),
    "step-is-a-module": ("r.yaml", "steps: ['os:system']"),
    "target-is-a-path": ("r.yaml", "target: ../../etc/passwd"),
    "pattern-explodes": ("r.yaml", "exclude: ['re:(((((']"),
}


@pytest.mark.parametrize(("name", "text"), RECIPES.values(), ids=RECIPES.keys())
def test_a_hostile_recipe(sandbox: Sandbox, name: str, text: str) -> None:
    path = sandbox.given / name
    path.write_bytes(text.encode("utf-8", "surrogateescape"))

    def planned() -> object:
        return octavo.plan(layer(), octavo.Recipe.load(path), target=octavo.Recipe.load(path).target)

    sandbox.refuses(planned, RecipeError)


@pytest.mark.parametrize(
    ("scale", "zero_point", "words"),
    [
        (0.1, 1 << 80, "zero point"), (0.1, -(1 << 70), "zero point"), (1e-60, 0, "float32"),
        (1e60, 0, "float32"),
    ],
)  # fmt: skip
def test_parameters_that_no_type_has(sandbox: Sandbox, scale: float, zero_point: int, words: str) -> None:
    recipe = octavo.W8A8.but(overrides=[Override("x", scale=(scale,), zero_point=(zero_point,))])
    sandbox.refuses(lambda: quantized(layer(), sandbox.out, feeds(), recipe=recipe), RecipeError, words)


def _flat(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


TABLES: dict[str, tuple[str, bytes]] = {
    "flat-empty": ("t.flatbuffers", b""),
    "flat-short": ("t.flatbuffers", b"\x04\x00"),
    "flat-points-beyond": ("t.flatbuffers", _flat(0xFFFFFF00, 0)),
    "flat-points-to-itself": ("t.flatbuffers", _flat(0, 0, 0)),
    "flat-zeros": ("t.flatbuffers", bytes(1024)),
    "flat-ones": ("t.flatbuffers", b"\xff" * 1024),
    "flat-vector-of-4-billion": ("t.flatbuffers", _flat(12, 0x00060008, 4, 8, 4, 0xFFFFFFFF)),
    "json-deep": ("t.json", b"[" * 100_000),
    "json-nan": ("t.json", b'{"x": [NaN, 1]}'),
    "json-infinite": ("t.json", b'{"x": [0, 1e999]}'),
    "json-backwards": ("t.json", b'{"x": [2, 1]}'),
    "json-twice": ("t.json", b'{"x": [0, 1], "x": [0, 2]}'),
    "json-digits": ("t.json", b'{"x": [0, ' + b"9" * 10_000 + b"]}"),
    "json-text": ("t.json", b'{"x": ["0", "1"]}'),
    "json-class": ("t.json", b'{"CLS": "TensorsData", "data": {"x": {"CLS": "os.system"}}}'),
    "json-array-deep": ("t.json", b'{"CLS": "TensorsData", "data": {"x": {"lowest": {"CLS": "numpy.array", '
                        b'"dtype": "object", "data": 1}}}, "calibration_method": "MinMax"}'),
    "json-no-name": ("t.json", b'{"": [0, 1]}'),
    "text-no-number": ("t.cache", b"x one\n"),
    "text-negative": ("t.cache", b"x -1\n"),
    "text-infinite": ("t.cache", b"x inf\n"),
    "text-no-utf8": ("t.cache", b"\xff\xfe 1\n"),
    "text-twice": ("t.cache", b"x 1\nx 2\n"),
    "unknown-ending": ("t.pickle", b"\x80\x04."),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content"), TABLES.values(), ids=TABLES.keys())
def test_a_hostile_table(sandbox: Sandbox, name: str, content: bytes) -> None:
    path = sandbox.given / name
    path.write_bytes(content)
    sandbox.refuses(lambda: tables.load(path), TableError)


@pytest.mark.parametrize("load", [tables.load, stock_cache.load])
def test_a_device_is_no_table(sandbox: Sandbox, load: Callable[[Path], object]) -> None:
    path = sandbox.given / "t.json"
    path.symlink_to("/dev/zero")
    sandbox.refuses(lambda: load(path), TableError)
