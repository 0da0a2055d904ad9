"""docs/migrate.md names what is there: functions, verbs, flags, and keys of a recipe."""

from __future__ import annotations

import argparse
import importlib
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.main import parser
from octavo.core.recipe import Listing, Recipe, WriteOptions
from octavo.core.scheme import MinMax, Scheme
from octavo.quantization.translate import OPTIONS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "migrate.md").read_text(encoding="utf-8")
CODE = re.findall(r"`([^`]+)`", PAGE.replace("```", ""))
WORDS = ("and", "of", "the", "results", "Sigmoid")
PARTS = {"activations": Scheme, "weights": Scheme, "listing": Listing, "writing": WriteOptions}


def verbs() -> dict[str, set[str]]:
    (action,) = [a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return {
        name: {o for a in made._actions for o in a.option_strings} for name, made in action.choices.items()
    }


def test_functions_exist() -> None:
    names = {found for text in CODE for found in re.findall(r"\boctavo(?:\.\w+)+", text)}
    assert "octavo.convert_qat" in names
    for name in sorted(names):
        assert exists(name), name


def exists(name: str) -> bool:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


def test_verbs_and_their_flags_exist() -> None:
    known = verbs()
    for text in CODE:
        if text.startswith("octavo "):
            _, verb, *rest = text.split()
            assert verb in known, text
            assert {word for word in rest if word.startswith("-")} <= known[verb], text


@pytest.mark.parametrize("key", [k for k, o in OPTIONS.items() if not o.equivalent.startswith("none")])
def test_an_option_is_a_key_of_a_recipe(key: str) -> None:
    text = OPTIONS[key].equivalent
    head, _, rest = text.partition(":")
    names = [
        part for part in re.findall(r"\w+", head) if part not in ("and", "of", "the", "results", "Sigmoid")
    ]
    for name in names:
        assert name in {f.name for f in fields(Recipe)}, text
    for inner in re.findall(r"(\w+):", rest):
        owners = [PARTS[name] for name in names if name in PARTS] + [MinMax]
        known = {f.name for owner in owners if is_dataclass(owner) for f in fields(owner)}
        assert inner in known | {"minmax", "percentile", "block", "smoothquant"}, text


def test_every_key_and_every_flag_is_on_the_page() -> None:
    assert [key for key in OPTIONS if f"`{key}`" not in PAGE] == []
