"""Recipes in YAML and JSON, and what becomes of one that is accepted: a plan, or a sentence."""

from __future__ import annotations

import functools
import json
from random import Random
from zlib import crc32

import yaml

import octavo
from fuzzing import guard
from fuzzing import seeds as made
from fuzzing.mutations import raw, tree
from octavo.core.recipe import PRESETS, Recipe
from octavo.errors import OctavoError
from octavo.targets import target

SCOPE = ("core/recipe.py", "core/codec.py", "core/scheme.py", "core/granularity.py", "core/qtypes.py")
SECONDS = 10.0
_PLANNED = 8  # one recipe of so many

_WORDS = ("base", "W8A8", "W4A16", "FP8", "weights", "activations", "style", "qdq", "qoperator",
          "integer", "placement", "everywhere", "listed", "target", "ort-cpu", "tensorrt",
          "qnn", "steps", "smoothquant", "equalize", "exclude", "include", "re:.*", "re:(",
          "op:MatMul", "op_types", "MatMul", "qtype", "uint8", "int4", "uint16", "float8e4m3fn",
          "granularity", "channel", "channel:0", "block:16", "block:-1", "method", "percentile",
          "entropy", "kind", "Percentile", "percent", "symmetric", "overrides",
          "calibration_samples", "min_range", "gptq", "hqq")  # fmt: skip
_TOKENS = [
    b"&a ",
    b"*a",
    b"<<: *a",
    b"!!python/object/apply:os.system [x]",
    b"!!binary x",
    b"? ",
    b"- ",
    b": ",
    b"\n",
    b"%YAML 9.9\n",
    b"---\n",
    b"\t",
    b"!!set ",
    b"2020-01-01",
    b"1:2:3",
    b"0o17",
    b".inf",
    b"~",
    b"|\n ",
]


@functools.cache
def seeds() -> list[bytes]:
    """The presets in both forms, and one with everything in it."""
    plain = [recipe.to_dict() for recipe in PRESETS.values()]
    rich = { "base": "W8A8", "exclude": ["head", "re:^layer.[0-9]"], "op_types": ["MatMul",
            "Conv"], "target": "ort-cpu", "calibration_samples": 8, "steps": ["equalize"],
            "activations": {"qtype": "uint16", "method": {"kind": "Percentile",
            "percent": 99.9}}, "overrides": [{"match": "fc*", "weights": "int4/block:32"}], }  # fmt: skip
    found = [yaml.safe_dump(one, sort_keys=False).encode() for one in (*plain, rich)]
    return found + [json.dumps(one).encode() for one in (*plain, rich)]


def mutate(data: bytes, chance: Random) -> bytes:
    """A changed tree in either form, or changed text."""
    if chance.random() < 0.25:
        return raw.mutate(data, chance, _TOKENS)
    try:
        found = json.loads(data) if data[:1] == b"{" else yaml.safe_load(data)
        changed = tree.mutate(found, chance, _WORDS)
        if chance.random() < 0.5:
            return json.dumps(changed).encode("utf-8", "replace")[: raw.MOST_BYTES]
        return yaml.safe_dump(changed, sort_keys=False).encode("utf-8", "replace")[: raw.MOST_BYTES]
    except Exception:  # PyYAML and json raise many kinds for what is no tree
        return raw.mutate(data, chance, _TOKENS)


def one(data: bytes) -> None:
    """Read in both forms; what was read is written and read again as the same recipe."""
    for name in ("r.yaml", "r.json"):
        path = guard.folder() / name
        path.write_bytes(data)
        try:
            recipe = Recipe.load(path)
            target(recipe.target)
            recipe.save(path)
        except OctavoError:
            continue
        try:
            again = Recipe.load(path)
        except OctavoError as error:
            raise guard.FindingError("round trip", f"a saved recipe is refused: {error}") from error
        if again != recipe:
            raise guard.FindingError("round trip", "a saved recipe is read as another one")
        if crc32(data) % _PLANNED == 0:
            _plan(recipe)


def _plan(recipe: Recipe) -> None:
    for model in made.models()[:2]:
        try:
            octavo.plan(model, recipe, target=recipe.target)
        except OctavoError:
            continue
