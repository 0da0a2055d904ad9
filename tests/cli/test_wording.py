"""Messages of the library, as a command line says them."""

from __future__ import annotations

import argparse

import pytest

from octavo.cli.wording import in_flags, wrong_request

FLAGS = ("--labels", "--scale", "--size", "--min-sqnr", "--format", "--classes", "--activations")


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("give them: labels=…", "give them: --labels …"),
        ("divided by: scale=255, or scale=1.", "divided by: --scale 255, or --scale 1."),
        ("for example size=(224, 224).", "for example --size 224x224."),
        ("min_sqnr can't be combined", "--min-sqnr can't be combined"),
        ("choose style='qdq'.", "choose --format qdq."),
        ("the model's outputs (classes=…).", "the model's outputs (--classes …)."),
        ("needs none: activations='dynamic'.", "needs none: --activations dynamic."),
        ("np.savez(path, labels=…) saves", "np.savez(path, labels=…) saves"),
        ("custom=1 and other_name stay", "custom=1 and other_name stay"),
        ("the file 'min_sqnr' and a/min_sqnr", "the file 'min_sqnr' and a/min_sqnr"),
    ],
)
def test_keywords_become_flags_where_the_verb_has_them(message: str, said: str) -> None:
    assert in_flags(message, FLAGS) == said


def test_what_is_said_of_a_recipe_file_keeps_the_keys_of_the_file() -> None:
    said = "Recipe r.yaml: exclud: unknown key. Known: min_sqnr, activations."
    assert in_flags(said, FLAGS) == said


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="octavo demo", epilog="examples:\n  octavo demo m.onnx\n  octavo demo -h"
    )
    made.add_argument("model", metavar="MODEL")
    made.add_argument("-o", "--output", metavar="OUT")
    return made


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "the following arguments are required: MODEL, --data",
            "octavo demo needs MODEL, --data, for example: octavo demo m.onnx; see",
        ),
        ("argument -o/--output: expected one argument", "--output needs a value: --output OUT; see"),
        ("argument --scale: invalid float value: 'abc'", "--scale can't be 'abc': that is not a number; see"),
        (
            "argument --samples: -3 is too few; give 1 or more",
            "--samples: -3 is too few; give 1 or more; see",
        ),
        (
            "argument --effort: invalid choice: 'plane' (choose from 'plain', 'search')",
            "--effort can't be 'plane'; did you mean 'plain'? It is one of plain, search; see",
        ),
        (
            "argument --a: not allowed with argument --b",
            "--a can't be combined with --b; leave one of them out; see",
        ),
    ],
)
def test_complaints_of_argparse_become_sentences(message: str, said: str) -> None:
    assert wrong_request(message, _parser()) == f"{said} 'octavo demo --help'."
