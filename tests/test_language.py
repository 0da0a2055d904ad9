"""Names, messages, docstrings and documentation use the field's words; constants say what they bound."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import octavo

SOURCE = Path(octavo.__file__).parent
ROOT = Path(__file__).parent.parent
MODULES = sorted(SOURCE.rglob("*.py"))
OTHERS = sorted(
    path
    for folder in ("tests", "benchmarks", "scripts", "fuzz", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if path != Path(__file__) and not {"out", "findings"} & set(path.parts)
)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Words that readers would have to learn, and what the field says.
WORDS = {
    "lens": "observing session",
    "lanes?": "run queue",
    "luggage": "job files",
    "loud(ness|er|est)?": "outlier channel, magnitude",
    "strangers?": "untrusted input",
    "workshops?": "trial runner",
    "exams?": "task check",
    "in vain": "without effect",
    "asked for": "requested",
    "made so": "actual",
    "spel(l|ls|led|lings?|t)": "lower, lowering, output format",
    "pictures?": "image",
    "kin": "similar",
    "handover": "session input",
    "wish(es)?": "request",
    "usual ranges": "averaged min/max",
    "held against": "compared with",
    "kept float": "kept in float",
    "two passes of 8 bits": "split activation",
    "guards? against fusion": "fusion barrier",
}
PRIVATE = re.compile(rf"(?<![a-z])({'|'.join(WORDS)})(?![a-z])", re.IGNORECASE)

# Where such a word has to stand: what files of earlier versions, or programs of others, call a thing.
ALLOWED = {
    "calibration/statistics/magnitude.py": {"loudness"},
    "core/requests.py": {"loudness"},
    "core/codec.py": {"spelling"},
    "docs/howto-speech.md": {"loud"},  # speech is loud, channels are not
    "tests/calibration/statistics/test_files_of_earlier_versions.py": {"loudness"},
    "tests/calibration/statistics/test_statistics.py": {"loudness"},
    "tests/calibration/tables/test_hostile.py": {"loudest"},
    "tests/core/test_plan.py": {"spelling"},
    "tests/core/test_recipe.py": {"spelling", "spellings"},
    "tests/data/audio/test_features.py": {"loudest"},
    "tests/quantization/test_calibrate.py": {"loudest"},
}

# Constants that bound something have to say what: MAX_STEPS, not MOST.
BARE = re.compile(
    r"_?(MOST|LEAST|FEW|MANY|MUCH|LITTLE|ENOUGH|LARGE|LARGEST|SMALL|SMALLEST|DEEPEST|LONGEST|WIDEST|LOWEST|HIGHEST"
    r"|LIMIT|MAX|MIN|ROOM|LOOK|SAME|CORNER|GROWTH|LAZY|CHEAP|LOUD|UNLIKE|NEAR|FAR)"
)


def words(path: Path) -> Iterator[tuple[int, str]]:
    """Names, strings and comments of a module: everything that people read."""
    readable = {tokenize.NAME, tokenize.STRING, tokenize.COMMENT}
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type in readable:
            text = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", token.string).replace("_", " ")
            for number, line in enumerate(text.splitlines()):
                yield token.start[0] + number, line


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Lines of a page outside of code."""
    is_code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        is_code ^= line.lstrip().startswith("```")
        if not is_code:
            yield number, re.sub(r"`[^`]*`", "", line)


@pytest.mark.parametrize("package", sorted({path.relative_to(SOURCE).parts[0] for path in MODULES}))
def test_modules_use_the_words_of_the_field(package: str) -> None:
    found = []
    for path in MODULES:
        name = path.relative_to(SOURCE)
        if name.parts[0] != package:
            continue
        allowed = ALLOWED.get(name.as_posix(), set())
        for number, text in words(path):
            for match in PRIVATE.finditer(text):
                if match[0].lower() not in allowed:
                    found.append(f"{name}:{number}: {match[0]!r}: {_instead(match[0])}")
    assert not found, "\n".join(found)


def test_tests_and_tools_use_the_words_of_the_field() -> None:
    found = []
    for path in OTHERS:
        name = path.relative_to(ROOT)
        for number, text in words(path):
            for match in PRIVATE.finditer(text):
                if match[0].lower() not in ALLOWED.get(name.as_posix(), set()):
                    found.append(f"{name}:{number}: {match[0]!r}: {_instead(match[0])}")
    assert not found, "\n".join(found)


def test_pages_use_the_words_of_the_field() -> None:
    found = [
        f"{page.relative_to(ROOT)}:{number}: {match[0]!r}: {_instead(match[0])}"
        for page in PAGES
        for number, text in prose(page)
        for match in PRIVATE.finditer(text)
        if match[0].lower() not in ALLOWED.get(page.relative_to(ROOT).as_posix(), ())
    ]
    assert not found, "\n".join(found)


def _instead(word: str) -> str:
    return next(better for pattern, better in WORDS.items() if re.fullmatch(pattern, word, re.IGNORECASE))


def test_constants_say_what_they_bound() -> None:
    found = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else []
            for name in (one for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)):
                if BARE.fullmatch(name.id):
                    found.append(f"{path.relative_to(SOURCE)}:{name.lineno}: {name.id}")
    assert not found, "name what is bounded, as in MAX_STEPS or MIN_SAMPLES:\n" + "\n".join(found)


def test_docstrings_are_more_than_a_word_or_two() -> None:
    found = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node)
                if text is not None and (
                    (len(text.split()) < 3 and not text.startswith("See :")) or text.startswith("Of ")
                ):
                    found.append(f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 1)}: {text}")
    assert not found, "\n".join(found)
