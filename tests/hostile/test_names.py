"""Names out of a model, which are words and nothing else: in files, logs, terminal, HTML and JSON."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx
import pytest

import octavo
from hostile.models import WIDTH, changed, external, feeds, layer, written
from hostile.sandbox import Sandbox
from octavo.evaluation.timing.latency import Ratio
from octavo.model.files import io as models
from octavo.tuning import runner

NAMES: dict[str, str] = {
    "climbs": "../../elsewhere/secret.bin",
    "absolute": "/etc/passwd",
    "hidden-file": ".env",
    "windows": "C:\\Windows\\system32",
    "device": "CON",
    "script": "<script>alert(1)</script>",
    "script-end": "</script><script>alert(1)</script>",
    "comment": "<!--<script>",
    "attribute": '" onmouseover="alert(1)',
    "image": "<img src=x onerror=alert(1)>",
    "template": "{{7*7}}${7*7}",
    "formula": "=cmd|' /C calc'!A0",
    "escape-sequence": "\x1b]0;owned\x07\x1b[2J\x1b[31m",
    "carriage-return": "good\rbad",
    "newlines": "a\nb\n\nc",
    "control-characters": "".join(map(chr, (*range(1, 32), 127, 0x85, 0x9B))),
    "right-to-left": "\u202eevil\u2066",
    "nul": "a\0b",
    "separators": "a\u2028b\u2029c",
    "rich-markup": "[bold red]x[/]",
    "percent": "%s%n%d{}",
    "space": " ",
    "glob": "*",
    "pattern": "re:.*",
    "surrogates-of-emoji": "\U0001f4a3" * 10,
    "megabyte": "n" * (1 << 20),
    "like-ours": "w_quantized",
}
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


def _named(name: str) -> onnx.ModelProto:
    made = layer()
    made.graph.name = made.producer_name = made.doc_string = name
    made.graph.initializer[0].name = f"{name}w"
    first, last = made.graph.node[0], made.graph.node[-1]
    first.name, first.input[1], first.doc_string = name, f"{name}w", name
    first.output[0] = made.graph.node[1].input[0] = name
    last.name = f"{name}2"
    made.metadata_props.add(key=name, value=name)
    return made


class _Tags(HTMLParser):
    """The tags and the handlers of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.scripts: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "script"
        self.found += [tag, *(key for key, _ in attrs if key.startswith("on"))]

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts.append(data)
            self._inside = False


def _command(*arguments: str) -> tuple[int, str, str]:
    from octavo.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(arguments))
    return code, out.getvalue(), err.getvalue()


def _tags(page: str) -> _Tags:
    found = _Tags()
    found.feed(page)
    return found


@pytest.fixture(scope="module")
def plain_page(tmp_path_factory: pytest.TempPathFactory) -> _Tags:
    """The page of a model with plain names."""
    folder = tmp_path_factory.mktemp("plain")
    np.savez(folder / "c.npz", x=np.concatenate([one["x"] for one in feeds()]))
    model = written(_named("plain"), folder)
    data = ["--data", str(folder / "c.npz"), "--threads", "1", "--report", str(folder / "r.html")]
    code, _, err = _command("quantize", str(model), "-o", str(folder / "m.onnx"), "--plain", *data)
    assert code == 0, err
    return _tags((folder / "r.html").read_text())


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_a_name_is_a_word(sandbox: Sandbox, name: str, plain_page: _Tags) -> None:
    path = written(_named(name), sandbox.given)
    np.savez(sandbox.given / "c.npz", x=np.concatenate([one["x"] for one in feeds()]))
    out = sandbox.out

    def commands() -> list[tuple[int, str, str]]:
        data = ["--data", str(sandbox.given / "c.npz"), "--threads", "1", "--report", str(out / "r.html")]
        return [
            _command("quantize", str(path), "-o", str(out / "m.onnx"), "--plain", *data),
            _command("plan", str(path), "-o", str(out / "plan.json")),
            _command("inspect", str(out / "m.onnx")),
            _command("inspect", str(out / "m.onnx"), "--json"),
        ]

    answers = sandbox.gives(commands)
    assert [code for code, _, _ in answers] == [0, 0, 0, 0], [err[-300:] for _, _, err in answers]
    for _, printed, remarks in answers[:3]:
        assert not _OBEYED.search(printed + remarks)
    assert isinstance(json.loads(answers[3][1]), dict)
    assert not _OBEYED.search(answers[3][1].replace("\n", ""))
    assert sorted(p.name for p in out.iterdir()) == ["m.onnx", "plan.json", "r.html"]
    page = _tags((out / "r.html").read_text(encoding="utf-8"))
    assert page.found == plain_page.found
    assert len(page.scripts) == len(plain_page.scripts)


@pytest.mark.parametrize("name", ["climbs", "absolute", "hidden-file", "megabyte"])
def test_side_cars_have_our_names(sandbox: Sandbox, name: str) -> None:
    from octavo.model.files import io as files

    made = _named(NAMES[name])

    def saved() -> list[str]:
        return [
            p.name for p in files.save(files.load(made), Path(sandbox.out) / "m.onnx", external_data=True)
        ]

    assert sandbox.gives(saved) == ["m.onnx", "m.onnx.data"]
    assert WIDTH > 4


def test_names_that_become_equal_when_cleaned(sandbox: Sandbox) -> None:
    made = layer()
    twins = ["a\x1b", "a\x07", "a"]
    for item, name in zip(made.graph.node, twins, strict=True):
        item.name = name
    path = written(made, sandbox.given)
    code, _, err = sandbox.gives(lambda: _command("quantize", str(path), "-o", str(sandbox.out / "m.onnx")))
    assert code == 0, err


MORE = (
    "script",
    "image",
    "formula",
    "escape-sequence",
    "newlines",
    "right-to-left",
    "separators",
    "rich-markup",
)


@pytest.fixture
def hostile_model(sandbox: Sandbox) -> str:
    """A model whose names are all of these in one; its data lies beside it."""
    np.savez(sandbox.given / "c.npz", x=np.concatenate([one["x"] for one in feeds()]))
    return str(written(_named("".join(NAMES[name] for name in MORE)), sandbox.given))


DATA = ("--data", "c.npz", "--threads", "1")


def test_a_name_is_a_word_in_reports_of_every_kind(sandbox: Sandbox, hostile_model: str) -> None:
    out = sandbox.out

    def commands() -> list[tuple[int, str, str]]:
        quantize = ("quantize", "--plain", hostile_model, "-o", str(out / "m.onnx"), *DATA, "--report")
        kinds = [_command(*quantize, str(out / f"r.{kind}")) for kind in ("md", "txt", "json")]
        return [*kinds, _command("plan", hostile_model, "--tensors")]

    for code, printed, remarks in sandbox.gives(commands):
        assert code == 0, remarks[-300:]
        assert not _OBEYED.search(printed + remarks)
    assert sorted(p.name for p in out.iterdir()) == ["m.onnx", "r.json", "r.md", "r.txt"]
    assert isinstance(json.loads((out / "r.json").read_text(encoding="utf-8")), dict)
    for report in ("r.md", "r.txt"):
        assert not _OBEYED.search((out / report).read_text(encoding="utf-8"))
    assert not _tags((out / "r.md").read_text(encoding="utf-8")).found


CHOSEN: dict[str, str] = {
    "path-like": NAMES["climbs"],
    "markup-and-control": "".join(NAMES[name] for name in MORE),
    "megabyte": "a b\x1b[31m " * (1 << 17),
}


def _given(folder: Path, name: str) -> tuple[str, ...]:
    """A model with such names and its data, as arguments."""
    model, data = written(_named(name), folder), folder / "c.npz"
    np.savez(data, x=np.concatenate([one["x"] for one in feeds(12)]))
    return (str(model), "--data", str(data), "--threads", "1", "--engine", "serial", "--min-speed", "0",
            "--effort", "search")  # fmt: skip


def _choose(given: tuple[str, ...], out: Path, kind: str, *flags: str) -> tuple[int, str, str]:
    """The automatic choice with a report of this kind; in place of the timer all speeds are the same."""
    with pytest.MonkeyPatch.context() as patch:
        same = Ratio(1.5, 1.5, 1.5)
        patch.setattr(runner, "speeds", lambda _, models, *rest, **more: [same] * len(models))
        return _command(
            "quantize", *given, "-o", str(out / "m.onnx"), "--report", str(out / f"r.{kind}"), *flags
        )


@pytest.fixture(scope="module")
def plain_choice(tmp_path_factory: pytest.TempPathFactory) -> _Tags:
    """The page about the automatic choice for a model with plain names."""
    folder = tmp_path_factory.mktemp("choice")
    code, _, err = _choose(_given(folder, "plain"), folder, "html")
    assert code == 0, err
    return _tags((folder / "r.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CHOSEN.values(), ids=CHOSEN.keys())
def test_a_name_is_a_word_where_ways_are_tried(sandbox: Sandbox, name: str, plain_choice: _Tags) -> None:
    """Trials, weakest layers and the page with its drawing, of ``octavo quantize MODEL --data …``."""
    given = _given(sandbox.given, name)
    code, printed, remarks = sandbox.gives(lambda: _choose(given, sandbox.out, "html"))
    assert code == 0, remarks[-300:]
    assert not _OBEYED.search(printed + remarks)
    assert max(map(len, (printed + remarks).split("\n"))) < 5000
    assert "layers that lose most" in printed
    assert sorted(path.name for path in sandbox.out.iterdir()) == ["m.onnx", "r.html"]
    page = (sandbox.out / "r.html").read_text(encoding="utf-8")
    found = _tags(page)
    assert found.found == plain_choice.found
    assert "svg" in found.found
    assert len(found.scripts) == len(plain_choice.scripts)
    assert len(page) < 4 << 20


def test_a_name_is_a_word_in_data_and_text_where_ways_are_tried(sandbox: Sandbox) -> None:
    given = _given(sandbox.given, CHOSEN["markup-and-control"])
    code, printed, _ = sandbox.gives(lambda: _choose(given, sandbox.out, "json", "--json"))
    assert code == 0
    assert not _OBEYED.search(printed.replace("\n", ""))
    saved = json.loads((sandbox.out / "r.json").read_text(encoding="utf-8"))
    for data in (json.loads(printed), saved):
        assert data["tuning"]["front"]
        assert CHOSEN["markup-and-control"] in {row["node"] for row in data["tuning"]["layers"]}
    for kind in ("md", "txt"):
        code, printed, remarks = sandbox.gives(lambda kind=kind: _choose(given, sandbox.out, kind))  # type: ignore[misc]
        assert code == 0
        text = (sandbox.out / f"r.{kind}").read_text(encoding="utf-8")
        assert not _OBEYED.search(text + printed + remarks)
        assert not _tags(text).found or kind == "txt"


def test_layers_whose_names_become_equal_when_cleaned_stay_apart(sandbox: Sandbox) -> None:
    def tuned(names: tuple[str, str, str]) -> list[int]:
        made = layer()
        for item, name in zip(made.graph.node, names, strict=True):
            item.name = name
        found = octavo.tune(made, feeds(12), threads=1, engine="serial", seconds=0.05, time_limit=0)
        assert found.best is not None
        assert found.best.result is not None
        plan = found.best.result.plan
        return sorted(names.index(name) for name in {*plan.nodes, *(one.node for one in plan.skipped)})

    plain, twins = ("p", "q", "r"), ("a\x1b", "a\x07", "a")
    assert sandbox.gives(lambda: tuned(twins)) == sandbox.gives(lambda: tuned(plain))


def test_a_name_is_a_word_in_every_other_verb(sandbox: Sandbox, hostile_model: str) -> None:
    model, stats = str(sandbox.out / "m.onnx"), str(sandbox.out / "a.stats")

    def commands() -> list[tuple[int, str, str]]:
        return [
            _command("calibrate", hostile_model, "-o", stats, *DATA),
            _command("stats", "show", stats, "--tensors"),
            _command("quantize", hostile_model, "-o", model, "--stats", stats),
            _command("lint", model),
            _command("compare", hostile_model, model, *DATA),
            _command("doctor", hostile_model, *DATA),
        ]

    for code, printed, remarks in sandbox.gives(commands):
        assert code in (0, 1), remarks[-300:]
        assert not _OBEYED.search(printed + remarks)
    assert sorted(p.name for p in sandbox.out.iterdir()) == ["a.stats", "m.onnx"]


def test_ranges_of_hostile_names_in_tables_of_other_tools(sandbox: Sandbox) -> None:
    from octavo.calibration import tables
    from octavo.core.stats import Range

    ranges = {
        name: Range(0.0, 1.0 + number) for number, name in enumerate(NAMES.values()) if "\0" not in name
    }

    def saved() -> list[str]:
        tables.save_all(ranges, sandbox.out)
        return sorted(path.name for path in sandbox.out.iterdir())

    outcome = sandbox.settles(saved)
    if outcome.error is None:
        for path in sandbox.out.glob("*.json"):
            assert json.loads(path.read_text(encoding="utf-8"))
        assert all(re.fullmatch(r"calibration\.[a-z]+", name) for name in outcome.value)


FAULTS: dict[str, Callable[[str, Path], object]] = {
    "duplicate": lambda name, out: octavo.quantize(_twice(name)),
    "missing-input": lambda name, out: octavo.quantize(
        changed(lambda made: made.graph.node[0].input.__setitem__(0, name))
    ),
    "cycle": lambda name, out: octavo.quantize(_cycle(name)),
    "operator": lambda name, out: octavo.quantize(
        changed(lambda made: setattr(made.graph.node[0], "op_type", name)),
        feeds(),
        threads=1,
        effort="plain",
    ),
    "domain": lambda name, out: octavo.quantize(
        changed(lambda made: setattr(made.graph.node[2], "domain", name)),
        feeds(),
        threads=1,
        effort="plain",
    ),
    "weight": lambda name, out: octavo.quantize(_short(name)),
    "location": lambda name, out: models.load(external({"location": name}), base_dir=out),
    "key-of-external-data": lambda name, out: models.load(
        external({"location": "w", name: "1"}), base_dir=out
    ),
    "sample": lambda name, out: octavo.quantize(
        layer(), [{name: feeds()[0]["x"]}], threads=1, effort="plain"
    ),
    "data": lambda name, out: octavo.quantize(layer(), name, threads=1, effort="plain"),
    "pattern": lambda name, out: octavo.quantize(layer(), exclude=(name,)),
    "recipe": lambda name, out: octavo.quantize(layer(), recipe=name),
    "target": lambda name, out: octavo.quantize(layer(), target=name),
    "key-of-a-recipe": lambda name, out: octavo.Recipe.from_dict({name: 1}),
    "key-of-a-plan": lambda name, out: octavo.Plan.from_dict({name: 1}),
    "method": lambda name, out: octavo.quantize(
        layer(), feeds(), recipe=octavo.Recipe.from_dict({"method": name})
    ),
}


def _twice(name: str) -> onnx.ModelProto:
    made = _named(name)
    made.graph.node.add(op_type="Relu", input=["x"], output=[name], name=f"{name}3")
    return made


def _cycle(name: str) -> onnx.ModelProto:
    made = _named(name)
    made.graph.node[0].input[0] = made.graph.node[1].output[0] = f"{name}a"
    made.graph.node[2].input[0] = f"{name}a"
    return made


def _short(name: str) -> onnx.ModelProto:
    made = _named(name)
    made.graph.initializer[0].raw_data = made.graph.initializer[0].raw_data[:-1]
    return made


@pytest.mark.parametrize("name", ["megabyte", "escape-sequence"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_an_error_in_python_stays_short_and_inert(
    sandbox: Sandbox, fault: Callable[[str, Path], object], name: str
) -> None:
    outcome = sandbox.settles(lambda: fault(NAMES[name], sandbox.out))
    assert outcome.error is not None, "accepted"
    assert len(outcome.message) < 9000
    assert not _OBEYED.search(outcome.message.replace("\n", ""))
