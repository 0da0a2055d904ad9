"""Messages of the library, as a command line says them."""

from __future__ import annotations

import pytest

from octavo.cli.wording import in_flags

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
