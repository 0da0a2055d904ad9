"""Images: found, opened safely, brought to the model's size, layout and type."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import octavo
from data.feeding import feeds
from octavo.cli.data import PRESET_NAMES
from octavo.data.feeds import Feeds
from octavo.data.images import image_decoding
from octavo.data.images.image_decoding import open_image
from octavo.data.images.preprocessing import PREPROCESSING, Preset
from octavo.data.readers.image_files import map_ahead
from octavo.errors import DataError, RecipeError
from octavo.model.runtime.session import InputSpec

F32, U8 = np.dtype(np.float32), np.dtype(np.uint8)
NCHW = [InputSpec("x", F32, ("batch", 3, 4, 6))]


def noise(width: int, height: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of several sizes, in folders of classes."""
    for index, size in enumerate([(12, 8), (9, 20), (30, 10)]):
        path = tmp_path / f"class{index % 2}" / f"p{index}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(noise(*size, seed=index)).save(path)
    (tmp_path / "labels.txt").write_text("no image")
    (tmp_path / ".hidden.png").write_bytes(b"no image")
    return tmp_path


def only(found: Any) -> np.ndarray:
    (feed,) = found
    return np.asarray(feed["x"])


# ---- size, layout and type come from the model


def test_a_folder_with_all_that_is_below_it(folder: Path) -> None:
    found = Feeds(octavo.images(folder, "unit"), NCHW)
    assert len(found) == 3
    assert {feed["x"].shape for feed in found} == {(1, 3, 4, 6)}
    assert all(feed["x"].dtype == F32 and feed["x"].min() >= 0 and feed["x"].max() <= 1 for feed in found)


@pytest.mark.parametrize("name", [name for name in PREPROCESSING if isinstance(PREPROCESSING[name], Preset)])
def test_layouts_and_types_agree(name: str, folder: Path) -> None:
    file = [folder / "class0" / "p0.png"]
    first = only(feeds(octavo.images(file, name), NCHW))
    last = only(feeds(octavo.images(file, name), [InputSpec("x", F32, (1, 4, 6, 3))]))
    half = only(feeds(octavo.images(file, name), [InputSpec("x", np.dtype(np.float16), (1, 3, 4, 6))]))
    assert first.shape == (1, 3, 4, 6)
    assert np.array_equal(first.transpose(0, 2, 3, 1), last)
    assert np.array_equal(first.astype(np.float16), half)
    gray = only(feeds(octavo.images(file, name), [InputSpec("x", F32, (1, 1, 4, 6))]))
    assert gray.shape == (1, 1, 4, 6)
    pixels = only(feeds(octavo.images(file, name), [InputSpec("x", U8, (1, 4, 6, 3))]))
    assert pixels.dtype == U8
    assert pixels.max() > 1


def test_bytes_need_no_preprocessing_and_floats_do(folder: Path) -> None:
    file = folder / "class0" / "p0.png"
    expected = np.asarray(Image.open(file).resize((6, 4), Image.Resampling.BILINEAR))
    assert np.array_equal(only(feeds(file, [InputSpec("x", U8, (1, 4, 6, 3))]))[0], expected)
    with pytest.raises(DataError, match=r"preprocessing.*imagenet"):
        Feeds(folder, NCHW)


def test_the_size_is_the_models_then_the_users_then_the_presets(folder: Path) -> None:
    free = [InputSpec("x", F32, (1, 3, "height", "width"))]
    assert next(feeds(octavo.images(folder, "imagenet"), free))["x"].shape == (1, 3, 224, 224)
    assert next(feeds(octavo.images(folder, "unit", size=(5, 7)), free))["x"].shape == (1, 3, 7, 5)
    with pytest.raises(DataError, match="width of 'x' open"):
        Feeds(octavo.images(folder, "unit"), free)
    with pytest.raises(DataError, match=r"width 6 .* 5"):
        Feeds(octavo.images(folder, "unit", size=(5, 4)), NCHW)


def test_models_that_take_no_images(folder: Path) -> None:
    for specs in ([InputSpec("x", F32, (1, 8))], [*NCHW, InputSpec("y", F32, (1,))]):
        with pytest.raises(DataError, match="one input of four dimensions"):
            Feeds(octavo.images(folder, "unit"), specs)
    with pytest.raises(DataError, match="1, 3 or 4 channels"):
        Feeds(octavo.images(folder, "unit"), [InputSpec("x", F32, (1, 8, 8, 8))])


def test_batches_and_models_of_a_fixed_batch(folder: Path) -> None:
    found = Feeds(octavo.images(folder, "unit", batch=2), NCHW)
    assert [feed["x"].shape[0] for feed in found] == [2, 1]
    fixed = [InputSpec("x", F32, (2, 3, 4, 6))]
    assert [feed["x"].shape[0] for feed in Feeds(octavo.images(folder, "unit"), fixed)] == [2]
    with pytest.raises(DataError, match=r"batches of 2.* 3"):
        Feeds(octavo.images(folder, "unit", batch=3), fixed)
    with pytest.raises(DataError, match="3 samples"):
        Feeds(octavo.images(folder, "unit"), [InputSpec("x", F32, (8, 3, 4, 6))])


def test_folders_and_lists_without_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no image in"):
        Feeds(octavo.images(tmp_path, "unit"), NCHW)
    with pytest.raises(DataError, match="no images at"):
        octavo.images(tmp_path / "absent", "unit")
    with pytest.raises(DataError, match="list of images is empty"):
        octavo.images([], "unit")


# ---- opening


def test_an_image_is_turned_as_its_camera_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    pixels = noise(12, 8)
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(np.asarray(open_image(tmp_path / "a.png")), np.rot90(pixels, -1))


def test_any_mode_becomes_what_is_requested(tmp_path: Path) -> None:
    color = Image.fromarray(noise(8, 8))
    for name, image in {
        "gray.png": color.convert("L"),
        "alpha.png": color.convert("RGBA"),
        "cmyk.jpg": color.convert("CMYK"),
        "palette.png": color.convert("P"),
        "bit.png": color.convert("1"),
    }.items():
        image.save(tmp_path / name)
        assert open_image(tmp_path / name).mode == "RGB"
        assert open_image(tmp_path / name, "L").mode == "L"
    assert np.array_equal(np.asarray(open_image(tmp_path / "alpha.png")), np.asarray(color))


def test_sixteen_bits_are_narrowed_and_not_cut_off(tmp_path: Path) -> None:
    values = np.array([[0, 257, 32896, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / "a.png")
    assert np.asarray(open_image(tmp_path / "a.png", "L")).tolist() == [[0, 1, 128, 255]]


def test_broken_large_and_foreign_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.jpg"
    Image.fromarray(noise(64, 64)).save(file)
    data = octavo.images(tmp_path, "unit")
    monkeypatch.setattr(image_decoding, "MAX_PIXELS", 1000)
    with pytest.raises(DataError, match=r"a\.jpg has more than"):
        list(feeds(data, NCHW))
    monkeypatch.undo()
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(DataError, match=r"a\.jpg can.t be read as an image"):
        list(feeds(data, NCHW))
    file.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n")
    with pytest.raises(DataError, match=r"a\.jpg can.t be read as an image"):
        list(feeds(data, NCHW))


# ---- the registry


def test_the_command_line_lists_the_presets() -> None:
    assert sorted(PRESET_NAMES) == sorted(n for n, f in PREPROCESSING.items() if isinstance(f, Preset))


def test_the_page_on_data_lists_the_presets() -> None:
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    for name in PRESET_NAMES:
        preset = PREPROCESSING[name]
        assert isinstance(preset, Preset)
        assert f"| `{name}` | {preset.summary} |" in page


def test_a_function_of_ones_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PREPROCESSING, "mine", lambda file, size: None)  # so that it goes after the test

    @octavo.preprocessing("mine")
    def mine(file: str, size: tuple[int, int]) -> Any:
        assert isinstance(file, str)
        return np.asarray(Image.open(file).resize(size), np.float64) / 255

    for given in ("mine", mine):
        found = next(feeds(octavo.images(folder, given), NCHW))["x"]
        assert found.shape == (1, 3, 4, 6)
        assert found.dtype == F32
    with pytest.raises(DataError, match="comes with Octavo"):
        octavo.preprocessing("imagenet")
    with pytest.raises(RecipeError, match="did you mean 'imagenet'"):
        Feeds(octavo.images(folder, "imagnet"), NCHW)


def test_a_function_that_fails_or_gives_another_shape_is_told_by_file(folder: Path) -> None:
    def failing(file: str, size: tuple[int, int]) -> Any:
        raise KeyError("oops")

    with pytest.raises(DataError, match=r"p0\.png: the preprocessing failing failed: KeyError"):
        list(feeds(octavo.images(folder, failing), NCHW))
    with pytest.raises(DataError, match=r"Sample 0 .*p0\.png\), input 'x': .*axis 2 must be 4"):
        list(feeds(octavo.images(folder, lambda file, size: np.zeros((3, 5, 6), np.float32)), NCHW))


def test_the_named_methods_scale_as_they_say(tmp_path: Path) -> None:
    for value in (0, 255):
        Image.fromarray(np.full((40, 50, 3), value, np.uint8)).save(tmp_path / "a.png")
        method1 = PREPROCESSING["preprocess_method1"](str(tmp_path / "a.png"), (14, 21))
        assert method1.shape == (1, 3, 21, 14)
        assert np.all(method1 == (1 if value else -1))
        method2 = PREPROCESSING["preprocess_method2"](str(tmp_path / "a.png"), (14, 21))
        np.testing.assert_allclose(
            method2[0, :, 0, 0], value - np.float32([123.68, 116.78, 103.94]), rtol=1e-6
        )


def test_the_letterbox_is_gray_around_the_image(tmp_path: Path) -> None:
    Image.fromarray(np.full((10, 20, 3), 255, np.uint8)).save(tmp_path / "a.png")
    found = PREPROCESSING["yolo-letterbox"](str(tmp_path / "a.png"), (40, 40))[0]
    assert np.all(found[:, 10:30] == 1)
    assert np.all(found[:, :10] == np.float32(114 / 255))
    assert np.all(found[:, 30:] == np.float32(114 / 255))


# ---- ahead


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_work_ahead_keeps_its_order_and_its_bound(workers: int) -> None:
    begun = []
    lock = threading.Lock()

    def work(item: int) -> int:
        with lock:
            begun.append(item)
        return item * item

    results = map_ahead(work, range(50), workers, depth=5)
    for index in range(50):
        assert next(results) == index * index
        assert len(begun) <= index + max(5, workers) + 1
    assert next(results, None) is None


def test_work_ahead_raises_at_its_place_and_stops_when_left() -> None:
    def work(item: int) -> int:
        if item == 3:
            raise DataError("three")
        return item

    results = map_ahead(work, range(1000), 2, depth=4)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(DataError, match="three"):
        next(results)
    begun = []
    results = map_ahead(begun.append, range(1000), 2, depth=4)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert len(begun) <= 6


def test_threads_change_nothing(folder: Path) -> None:
    serial = [feed["x"] for feed in Feeds(octavo.images(folder, "imagenet", workers=0), NCHW)]
    threaded = [feed["x"] for feed in Feeds(octavo.images(folder, "imagenet", workers=3), NCHW)]
    assert all(np.array_equal(*pair) for pair in zip(serial, threaded, strict=True))
