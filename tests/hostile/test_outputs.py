"""No output is a file that the run reads, nor a device, a pipe or a folder: every verb, every output."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import qat_graphs

import octavo
from hostile.models import feeds, layer, written
from octavo.cli.main import main
from octavo.core.outputs import paths_within
from octavo.errors import OutputError
from octavo.quantization import quantize_dynamic, quantize_static

OUT = "out.onnx"  # a command's output is written here in the tables below, and replaced by an input
DATA = ("--data", "calib.npz")
FILES: dict[str, str] = {  # what the run reads → the words that make it do so
    "weights.bin": "",  # of the model
    "calib.npz": "--data calib.npz",
    "folder/a.npz": "--data folder",
    "many/b.npz": "--data many/*.npz",
    "recipe.yaml": "--recipe recipe.yaml",
    "plan.json": "--plan plan.json --data calib.npz",
    "a.stats": "--stats a.stats",
    "table.json": "--table table.json",
    "labels.csv": "--data calib.npz --evaluate classification --max-drop 1% --labels labels.csv",
    "classes.txt": "--data calib.npz --evaluate classification --max-drop 1% --classes classes.txt",
    "annotations.json": "--data calib.npz --evaluate detection --max-drop 1% --annotations annotations.json",
    "tokenizer.json": "--data text.txt --tokenizer tokenizer.json",
    "words/tokenizer.json": "--data text.txt --tokenizer words",
    "score.py": "--data calib.npz --evaluate score.py:score --max-drop 1%",
    "held.npz": "--data calib.npz --evaluate classification --max-drop 1% --evaluate-data held.npz",
    "loader.py": "--data loader:samples",
}
PLACES: dict[str, str] = {  # a flag of quantize, with the file that an output replaces
    "model": "-o {path}",
    "weights": "-o {stem}",  # PATH is {stem}.data
    "best": "-o {unbest}",  # PATH is NAME.best.SUFFIX
    "report": "-o x.onnx --report {path}",
    "card": "-o x.onnx --card {path}",
    "manifest": "-o {unlisted} --manifest",
}
WAYS: dict[str, Callable[[Path, Path], None]] = {
    "link": lambda new, old: new.symlink_to(old.absolute()),
    "hard-link": lambda new, old: os.link(old, new),
}


def _ways(name: str) -> list[tuple[str, Callable[[Path, Path], None]]]:
    """How another name leads to a file; weights with a second hard link are refused as an input."""
    return [(way, link) for way, link in WAYS.items() if (name, way) != ("weights.bin", "hard-link")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with one file of every kind that a run may read, all of which have to stay as they are."""
    monkeypatch.chdir(tmp_path)
    onnx.save(layer(), "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=64)
    x = np.concatenate([one["x"] for one in feeds(4)])
    for name in ("calib.npz", "folder/a.npz", "many/b.npz", "many/c.npz", "held.npz"):
        Path(name).parent.mkdir(exist_ok=True)
        np.savez(name, x=x)
    plan = octavo.plan(layer())
    plan.save("plan.json")
    octavo.calibrate("model.onnx", plan, "calib.npz", output="a.stats", threads=1)
    octavo.W8A8.save(Path("recipe.yaml"))
    Path("words").mkdir()
    for name in ("table.json", "labels.csv", "classes.txt", "annotations.json", "tokenizer.json",
                 "words/tokenizer.json", "text.txt", "score.py", "loader.py"):  # fmt: skip
        Path(name).write_text("{}")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    yield tmp_path
    assert {path: path.read_bytes() for path in before} == before
    assert not list(tmp_path.rglob("x.onnx*"))


def _refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(words.split())
    said = capsys.readouterr().err
    assert code == 2, f"octavo {words} ended with {code}: {said}"
    assert "never overwritten" in said, f"octavo {words}: {said}"


@pytest.mark.parametrize("name", FILES)
def test_no_output_of_quantize_is_a_file_that_it_reads(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"quantize model.onnx {FILES[name]}"
    _refused(f"{words} -o {name}", capsys)
    for way, link in _ways(name):
        for place, flags in PLACES.items():
            stem = f"{way}-{place}"
            path = {
                "report": f"{stem}.html", "weights": f"{stem}.data", "best": f"{stem}.best.onnx",
                "manifest": f"{stem}.manifest.json",
            }.get(place, stem)  # fmt: skip
            link(Path(path), Path(name))
            _refused(
                f"{words} "
                + flags.format(path=path, stem=stem, unbest=f"{stem}.onnx", unlisted=stem)
                + (" --effort standard" if place == "best" and name not in ("a.stats", "plan.json") else ""),
                capsys,
            )


OTHERS = (
    "prepare model.onnx -o {0}",
    "qat model.onnx -o {0} --data calib.npz",
    "plan model.onnx -o {0}",
    "calibrate model.onnx -o {0} --data calib.npz",
    "calibrate model.onnx -o {1} --data calib.npz",  # its checkpoint is {0}
    "compare model.onnx model.onnx --data calib.npz --report {0}.html",
    "compare model.onnx model.onnx --data calib.npz --propose {0}.yaml",
    "evaluate model.onnx --data calib.npz --report {0}.html",
    "bench model.onnx --data calib.npz --report {0}.html",
    "lint model.onnx --fix {0}",
    "report model.onnx -o {0}.html",
)


@pytest.mark.parametrize("words", OTHERS, ids=lambda words: words.split()[0])
@pytest.mark.parametrize("name", ["model.onnx", "weights.bin", "calib.npz"])
def test_no_output_of_another_verb_is_a_file_that_it_reads(
    words: str, name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name in ("calib.npz",) and "calib.npz" not in words:
        pytest.skip("this verb reads no data")
    for way, link in _ways(name):
        for suffix in ("", ".html", ".yaml", ".stats.checkpoint"):
            link(Path(way + suffix), Path(name))
        _refused(words.format(way, f"{way}.stats"), capsys)


def test_statistics_are_not_merged_over_their_parts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _refused("stats merge a.stats a.stats -o a.stats", capsys)


def _saves() -> dict[str, tuple[Callable[[Path], object], tuple[str, ...]]]:
    """What can be saved in Python, with the files that it was made from."""
    recipe = ("model.onnx", "weights.bin", "recipe.yaml")
    plan = octavo.plan("model.onnx", recipe="recipe.yaml")
    stats = octavo.calibrate("model.onnx", plan, "calib.npz", threads=1)
    plain = octavo.quantize("model.onnx", "folder", recipe="recipe.yaml", threads=1)
    from_plan = octavo.quantize("model.onnx", "calib.npz", plan="plan.json", threads=1)
    from_stats = octavo.quantize("model.onnx", stats="a.stats", threads=1)
    blocks = octavo.quantize("model.onnx", "calib.npz", weights="int4", threads=1)
    tuned = octavo.tune("model.onnx", "many/*.npz", effort="standard", time_limit=1, seconds=0.1, threads=1)
    compared = octavo.compare("model.onnx", plain, "calib.npz", threads=1)
    scored = octavo.evaluate("model.onnx", "calib.npz", "agreement", against="model.onnx", threads=1)
    timed = octavo.bench("model.onnx", data="calib.npz", seconds=0.05, threads=1, profile=False, memory=False)
    onnx.save(qat_graphs.torch_cnn(), "trained.onnx")
    trained = octavo.convert_qat("trained.onnx", "held.npz")
    assert tuned.result is not None
    return {
        "result": (plain.save, ("folder/a.npz", *recipe)),
        "result of a plan": (from_plan.save, ("plan.json", "calib.npz")),
        "result of statistics": (from_stats.save, ("a.stats",)),
        "weights in blocks": (blocks.save, ("calib.npz",)),
        "emitted": (octavo.emit("model.onnx", plan, stats).save, ("calib.npz", *recipe)),
        "tuned": (tuned.result.save, ("many/b.npz",)),
        "trained": (trained.save, ("held.npz", "trained.onnx")),
        "plan": (plan.save, (*recipe, "calib.npz")),
        "recipe": (octavo.W8A8.save, ("model.onnx", "calib.npz", "a.stats")),
        "statistics": (lambda path: octavo.save_stats(stats, path), (*recipe[:2], "calib.npz")),
        "page": (lambda path: octavo.report(plain, output=path), ("recipe.yaml", "folder/a.npz")),
        "page of others": (
            lambda path: octavo.report(compared, scored, timed, output=path),
            ("calib.npz", "model.onnx"),
        ),
    }


def test_what_was_made_from_a_file_is_never_saved_over_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the name, the link or the working folder; the manifest and the weights beside count too."""
    for name, (save, sources) in _saves().items():
        for source in sources:
            for way, link in _ways(source):
                stem = f"{way} {name} {source}".replace("/", " ")
                link(Path(stem), Path(source))
                for path in (Path(source), Path(stem)):
                    with pytest.raises(OutputError):
                        save(path)
    made = octavo.quantize("model.onnx", "calib.npz", effort="plain", threads=1)
    for beside in (".data", ".manifest.json"):
        os.link("calib.npz", f"made{beside}")
        with pytest.raises(OutputError, match="never overwritten"):
            made.save("made", manifest=beside != ".data")
        Path(f"made{beside}").unlink()
    monkeypatch.chdir("many")
    with pytest.raises(OutputError, match="never overwritten"):
        made.save("../calib.npz")


def test_a_text_never_replaces_what_is_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("quantize model.onnx --data calib.npz -o x.onnx --card image", "plan model.onnx -o image"):
        Path("image").write_bytes(b"\x89PNG\r\n\x1a\n")
        assert main(words.split()) == 2
        assert "holds no text" in capsys.readouterr().err
    for recipe in (octavo.W8A8, octavo.W8A16):  # a text may replace a text
        recipe.save("own.yaml")
    assert octavo.Recipe.load("own.yaml") == octavo.W8A16


class _Reader:
    """Samples in the drop-in's manner, of a file that it names."""

    def __init__(self, path: str, model: str = "model.onnx") -> None:
        self.path, self.model = path, model
        self._left = iter(feeds(2))

    def get_next(self) -> Any:
        return next(self._left, None)


def test_the_drop_in_writes_neither_over_data_nor_over_its_cache(folder: Path) -> None:
    quantize_static("model.onnx", "made.onnx", _Reader("calib.npz"), calibration_cache_path="cache.json")  # type: ignore[arg-type]
    for output, cache in (("calib.npz", None), ("new", "new"), ("cache.json", "cache.json")):
        with pytest.raises(octavo.OctavoError, match="choose another output"):
            quantize_static("model.onnx", output, _Reader("calib.npz"), calibration_cache_path=cache)
    written(layer(), folder, "own.onnx")
    quantize_static(
        "own.onnx", "own.onnx", _Reader("calib.npz", "own.onnx")
    )  # a model may take its own place


SPECIAL: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "link-to-a-device": lambda path: path.symlink_to("/dev/null"),
}
if os.path.exists("/proc/self/fd"):  # noqa: PTH110 - as /dev/stdout, whatever that is at the moment
    SPECIAL["link-to-an-open-file"] = lambda path: path.symlink_to("/proc/self/fd/1")


@pytest.mark.parametrize("make", SPECIAL.values(), ids=SPECIAL.keys())
def test_no_output_is_a_device_a_pipe_or_a_folder(
    make: Callable[[Path], object], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("s", "s.html", "s.yaml", "s.data", "s.manifest.json", "s.best.onnx", "s.stats.checkpoint"):
        make(Path(name))
    data = "--data calib.npz"
    for words in (
        *(f"quantize model.onnx {data} -o {flags}" for flags in (
            "s", "x.onnx --report s.html", "x.onnx --card s", "s --plain", "s.onnx", "s --manifest")),
        *(words.format("s", "s.stats") for words in OTHERS),
        "stats merge a.stats a.stats -o s",
    ):  # fmt: skip
        assert main(words.split()) == 2, words
        assert "choose another output" in (said := capsys.readouterr().err) or "is a folder" in said, words


@pytest.mark.parametrize("device", ["/dev/null", "/dev/full", "/dev/zero"])
def test_a_device_stays_a_device(device: str, folder: Path) -> None:
    before = Path(device).stat()
    with pytest.raises(OutputError, match="device"):
        octavo.quantize("model.onnx", output=device, effort="plain")
    with pytest.raises(OutputError, match="device"):
        quantize_dynamic("model.onnx", device)
    with pytest.raises(OutputError, match="device"):
        octavo.plan("model.onnx").save(device)
    with pytest.raises(OutputError, match="device"):
        octavo.W8A8.save(Path(device))
    assert Path(device).stat().st_rdev == before.st_rdev


def test_the_drop_in_refuses_a_pipe_for_both_model_and_output(folder: Path) -> None:
    os.mkfifo("pipe.onnx")
    with pytest.raises(octavo.ModelError, match="regular file"):
        quantize_dynamic("pipe.onnx", "pipe.onnx")


def test_paths_are_found_in_data_and_tasks(folder: Path) -> None:
    data = octavo.arrays(["calib.npz", "many/*.npz"], scale=255)
    task = octavo.TaskCheck("score.py:score", data, options={"labels": "labels.csv"})
    found = {str(path) for path in paths_within(task)}
    assert {"calib.npz", "many/b.npz", "many/c.npz", "score.py", "labels.csv"} <= found
    with pytest.raises(OutputError, match="never overwritten"):
        octavo.quantize("model.onnx", data, output="many/c.npz")
    with pytest.raises(OutputError, match="never overwritten"):
        octavo.quantize("model.onnx", feeds(), output="labels.csv", task=task)
    with pytest.raises(OutputError, match="never overwritten"):
        octavo.report(written(layer(), folder, "x.json"), output="x.json")
    Path("x.json").unlink()


def test_a_name_in_a_folder_of_data_that_links_elsewhere_is_read_too(folder: Path) -> None:
    Path("real.npz").write_bytes(Path("calib.npz").read_bytes())
    Path("folder/linked.npz").symlink_to(Path("real.npz").absolute())
    with pytest.raises(OutputError, match="never overwritten"):
        octavo.quantize("model.onnx", "folder", output="real.npz")


def test_words_that_are_also_folders_are_words(folder: Path) -> None:
    """A preset, a recipe, a task: no path, though a folder has the same name."""
    data = octavo.images([folder / "calib.npz"], preprocess="imagenet")
    for name in ("imagenet", "W8A8", "classification"):
        Path(name).mkdir()
        written(layer(), Path(name), "q.onnx")
        assert not {path.name for path in paths_within(octavo.TaskCheck(name, data))} & {name, ""}
    octavo.quantize(layer(), feeds(), output="W8A8/q.onnx", recipe="W8A8", threads=1)
    octavo.quantize(layer(), feeds(), output="W8A8/q.onnx", plan=octavo.Plan.load("plan.json"), threads=1)
    words = "quantize model.onnx --data calib.npz -o W8A8/q.onnx --recipe W8A8 --threads 1"
    assert main(words.split()) == 0


def test_a_new_file_in_a_folder_of_data_is_written(folder: Path) -> None:
    octavo.quantize("model.onnx", "folder", output="folder/new.onnx", effort="plain", threads=1)
    assert Path("folder/new.onnx").is_file()


def test_only_a_plan_is_written_to_standard_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "model.onnx", "-o", "-"]) == 0
    Path("again.json").write_text(capsys.readouterr().out)
    assert octavo.Plan.load("again.json") == octavo.Plan.load("plan.json")
    for words in OTHERS[:2]:
        assert main(words.format("-").split()) == 2
        assert "standard output" in capsys.readouterr().err
    assert not Path("-").exists()
