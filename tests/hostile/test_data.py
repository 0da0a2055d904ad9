"""Calibration data made to be opened: bombs, lying headers, pickles, names that climb, images, tensors."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import octavo
from hostile.models import WIDTH
from hostile.sandbox import Sandbox
from octavo.data.feeds import Feeds
from octavo.data.readers.text_files import lines, text
from octavo.errors import DataError
from octavo.model.runtime.session import InputSpec

SPECS = [InputSpec("x", np.dtype(np.float32), ("n", WIDTH))]
IMAGE_SPECS = [InputSpec("x", np.dtype(np.float32), (1, 3, 8, 8))]
GOOD = np.arange(2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)


def samples(data: object, specs: list[InputSpec] = SPECS) -> list[list[float]]:
    """The first values of all samples."""
    return [next(iter(one.values())).reshape(-1)[:2].tolist() for one in Feeds(data, specs)]


class _Trap:
    """Unpickled, it would run a command."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/octavo-was-here",)


def npy(header: str, content: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """A numpy file with any header."""
    text = header.encode("latin1") + b"\n"
    length = struct.pack("<H" if version[0] == 1 else "<I", len(text))
    return b"\x93NUMPY" + version + length + text + content


def _plain(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _objects() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([_Trap()], object), allow_pickle=True)
    return stream.getvalue()


def _shape(shape: str, descr: str = "'<f4'", content: bytes = bytes(64)) -> bytes:
    return npy(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}", content)


ARRAYS: dict[str, bytes] = {
    "empty": b"",
    "magic-only": b"\x93NUMPY",
    "pickle": pickle.dumps(_Trap()),
    "object-array": _objects(),
    "object-in-a-structure": _shape("(1,)", "[('a', '|O')]"),
    "terabytes": _shape(f"({2**40}, {WIDTH})"),
    "overflows-int64": _shape(f"({2**62}, {WIDTH})"),
    "overflows-to-zero": _shape(f"({2**32}, {2**32})"),
    "negative": _shape(f"(-1, {WIDTH})"),
    "huge-element": _shape("(1,)", "('<f4', (1099511627776,))"),
    "one-byte-short": _plain(GOOD)[:-1],
    "rank-100": _shape(repr((1,) * 100)),
    "code-in-the-header": npy("__import__('os').system('touch /tmp/octavo-was-here')"),
    "no-dictionary": npy("[1, 2, 3]"),
    "key-missing": npy("{'descr': '<f4', 'shape': (1,)}"),
    "unknown-type": _shape("(1,)", "'<q99'"),
    "shape-of-text": _shape("('a',)"),
    "shape-of-floats": _shape("(1.5,)"),
    "header-deep": npy("(" * 3000),
    "header-no-end": npy("{'descr': '<f4', 'shape': (1,"),
    "header-of-60-kB": npy(" " * 60_000),
    "header-length-beyond": b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{}",
    "version-9": npy("{}", version=b"\x09\x00"),
    "datetime": _plain(np.array([["2020-01-01"] * WIDTH], "datetime64[s]")),
    "complex": _plain(GOOD.astype(np.complex64)),
    "text": _plain(np.array([["a"] * WIDTH])),
    "nan": _plain(np.full((1, WIDTH), np.nan, np.float32)),
    "infinity": _plain(np.full((1, WIDTH), np.inf, np.float32)),
    "other-width": _plain(np.zeros((2, WIDTH + 1), np.float32)),
    "doubles": _plain(GOOD.astype(np.float64)),
}


@pytest.mark.parametrize("content", ARRAYS.values(), ids=ARRAYS.keys())
def test_a_hostile_array(sandbox: Sandbox, content: bytes) -> None:
    """In a file of its own, in a folder, in a .npz, compressed or not, and in archives."""
    alone = sandbox.given / "a.npy"
    alone.write_bytes(content)
    folder = sandbox.given / "folder"
    folder.mkdir()
    (folder / "a.npy").write_bytes(content)
    places = [alone, folder]
    for name, kind in (("s.npz", zipfile.ZIP_STORED), ("c.npz", zipfile.ZIP_DEFLATED), ("z.zip", 8)):
        with zipfile.ZipFile(sandbox.given / name, "w", kind) as archive:
            archive.writestr("x.npy", content)
        places.append(sandbox.given / name)
    with tarfile.open(sandbox.given / "t.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo("x.npy")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    places.append(sandbox.given / "t.tar.gz")

    sandbox.refuses_each([lambda place=place: samples(place) for place in places], DataError)


def test_an_array_that_is_there_twice(sandbox: Sandbox) -> None:
    """Which of the two counts would be a guess, in a file of its own and in an archive."""
    path = sandbox.given / "a.npz"
    with zipfile.ZipFile(path, "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        for factor in (1, 2):
            archive.writestr("x.npy", _plain(GOOD * factor))
    with zipfile.ZipFile(sandbox.given / "a.zip", "w") as archive:
        archive.write(path, "a.npz")
    sandbox.refuses(lambda: samples(path), DataError, "twice")
    sandbox.refuses(lambda: samples(sandbox.given / "a.zip"), DataError, "twice")


def _bomb(path: Path, name: str, size: int) -> None:
    """A zip whose one entry is zeros, announced as so many bytes."""
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    head = _shape(f"({size // (4 * WIDTH)}, {WIDTH})", content=b"")
    body = packer.compress(head + bytes(16 << 20)) + packer.flush()
    total = size + len(head)
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 8, 0, 0, 0, len(body), total, len(name), 0)
    central = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 8, 0, 0, 0, len(body), total, len(name),
                          0, 0, 0, 0, 0, 0)  # fmt: skip
    start = len(local) + len(name) + len(body)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(central) + len(name), start, 0)
    path.write_bytes(local + name.encode() + body + central + name.encode() + end)


@pytest.mark.parametrize("name", ["bomb.npz", "bomb.zip"])
def test_a_zip_bomb(sandbox: Sandbox, name: str) -> None:
    _bomb(sandbox.given / name, "x.npy", 320 << 20)
    sandbox.refuses(lambda: samples(sandbox.given / name), DataError, "unpacked")


def test_a_zip_that_announces_more_than_memory_holds(sandbox: Sandbox) -> None:
    path = sandbox.given / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", _plain(GOOD))
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\1\2")
    content[at + 24 : at + 28] = struct.pack("<I", 0xFFFFFF00)
    path.write_bytes(content)
    sandbox.refuses(lambda: samples(path), DataError)


@pytest.mark.parametrize("name", ["one.txt", "one.jsonl", "one.csv"])
def test_a_text_that_is_one_line_without_end(sandbox: Sandbox, name: str) -> None:
    (sandbox.given / name).touch()
    os.truncate(sandbox.given / name, 1 << 36)
    data = text(sandbox.given / name, sandbox.given / "tokenizer.json")
    sandbox.refuses(lambda: list(lines(data.texts, None)), DataError, "line 1 has")


def test_a_tar_bomb(sandbox: Sandbox) -> None:
    path = sandbox.given / "a.tar.gz"
    with gzip.open(path, "wb") as stream:
        info = tarfile.TarInfo("x.npy")
        info.size = 1 << 40
        stream.write(info.tobuf(tarfile.GNU_FORMAT))
        stream.write(bytes(1 << 20))
    sandbox.refuses(lambda: samples(path), DataError)


def test_a_tar_of_many_small_bombs(sandbox: Sandbox) -> None:
    path = sandbox.given / "a.tar.gz"
    body = gzip.compress(bytes(64 << 20), 1)
    with path.open("wb") as stream:
        for number in range(5):
            info = tarfile.TarInfo(f"{number}.npy")
            info.size = 64 << 20
            stream.write(gzip.compress(info.tobuf()) + body)
        stream.write(gzip.compress(bytes(1024)))
    sandbox.refuses(lambda: samples(path), DataError, "unpacked")


def test_a_tar_header_of_a_gigabyte(sandbox: Sandbox) -> None:
    path = sandbox.given / "a.tar.gz"
    with gzip.open(path, "wb") as stream:
        info = tarfile.TarInfo("././@LongLink")
        info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 34
        stream.write(info.tobuf(tarfile.GNU_FORMAT))
        stream.write(bytes(1 << 20))
    sandbox.refuses(lambda: samples(path), DataError)


CLIMBING = [
    "../../elsewhere/secret.bin.npy",
    "/etc/x.npy",
    "C:\\x.npy",
    "a/../../x.npy",
    "..\\x.npy",
    "\x1b[2J.npy",
]


@pytest.mark.parametrize("name", CLIMBING)
@pytest.mark.parametrize("kind", ["zip", "tar", "npz"])
def test_names_that_climb_are_only_names(sandbox: Sandbox, name: str, kind: str) -> None:
    path = sandbox.given / f"a.{kind}"
    if kind == "tar":
        with tarfile.open(path, "w") as tar:
            info = tarfile.TarInfo(name)
            info.size = len(_plain(GOOD))
            tar.addfile(info, io.BytesIO(_plain(GOOD)))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, _plain(GOOD))
    if kind == "npz":
        sandbox.refuses(lambda: samples(path), DataError)
    else:
        assert sandbox.gives(lambda: samples(path)) == [[0.0, 1.0], [32.0, 33.0]]


def _tar_of(type: bytes, target: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with tarfile.open(path, "w") as tar:
            info = tarfile.TarInfo("x.npy")
            info.type, info.linkname = type, target
            tar.addfile(info)

    return make


BROKEN_ARCHIVES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "zip-garbage": ("a.zip", lambda path: path.write_bytes(b"PK\3\4" + bytes(50))),
    "zip-empty": ("a.zip", lambda path: zipfile.ZipFile(path, "w").close()),
    "npz-garbage": ("a.npz", lambda path: path.write_bytes(b"\xff" * 100)),
    "tar-garbage": ("a.tar", lambda path: path.write_bytes(b"\xff" * 1024)),
    "gz-garbage": ("a.tar.gz", lambda path: path.write_bytes(b"\x1f\x8b" + b"\xff" * 100)),
    "gz-cut": ("a.tar.gz", lambda path: path.write_bytes(gzip.compress(bytes(2048))[:12])),
    "tar-link": ("a.tar", _tar_of(tarfile.SYMTYPE, "/etc/passwd")),
    "tar-hard-link": ("a.tar", _tar_of(tarfile.LNKTYPE, "../elsewhere/secret.bin")),
    "tar-device": ("a.tar", _tar_of(tarfile.CHRTYPE, "")),
    "tar-fifo": ("a.tar", _tar_of(tarfile.FIFOTYPE, "")),
    "unknown-ending": ("a.pt", lambda path: path.write_bytes(pickle.dumps(_Trap()))),
    "joblib": ("a.joblib", lambda path: path.write_bytes(pickle.dumps(_Trap()))),
    "pickle": ("a.pkl", lambda path: path.write_bytes(pickle.dumps(_Trap()))),
    "folder-of-nothing": ("a", lambda path: path.mkdir()),
    "fifo-image": ("a", lambda path: (path.mkdir(), os.mkfifo(path / "a.png"))),
    "fifo-array": ("a", lambda path: (path.mkdir(), os.mkfifo(path / "a.npy"))),
    "fifo-tensor": ("a", lambda path: (path.mkdir(), os.mkfifo(path / "input_0.pb"))),
}


@pytest.mark.parametrize(("name", "make"), BROKEN_ARCHIVES.values(), ids=BROKEN_ARCHIVES.keys())
def test_a_broken_or_foreign_file(sandbox: Sandbox, name: str, make: Callable[[Path], object]) -> None:
    make(sandbox.given / name)
    sandbox.refuses(lambda: samples(sandbox.given / name), DataError)


def _tensor(**fields: object) -> bytes:
    made = onnx.TensorProto(data_type=1, dims=[1, WIDTH], raw_data=bytes(4 * WIDTH))
    for name, value in fields.items():
        if isinstance(value, list):
            made.ClearField(name)
            getattr(made, name).extend(value)
        else:
            setattr(made, name, value)
    return made.SerializeToString()


def _elsewhere() -> bytes:
    made = onnx.TensorProto(data_type=1, dims=[1, WIDTH], data_location=1)
    made.external_data.add(key="location", value="../elsewhere/secret.bin")
    return made.SerializeToString()


TENSORS = {
    "empty": b"",
    "garbage": b"\xff" * 64,
    "short": _tensor(raw_data=bytes(8)),
    "terabytes": _tensor(dims=[2**40, WIDTH]),
    "overflow": _tensor(dims=[2**62, WIDTH]),
    "negative": _tensor(dims=[-1, WIDTH]),
    "unknown-type": _tensor(data_type=77),
    "elsewhere": _elsewhere(),
    "text": _tensor(data_type=8),
}


@pytest.mark.parametrize("content", TENSORS.values(), ids=TENSORS.keys())
def test_a_hostile_tensor_file(sandbox: Sandbox, content: bytes) -> None:
    (sandbox.given / "a.pb").write_bytes(content)
    (sandbox.given / "set").mkdir()
    (sandbox.given / "set" / "input_0.pb").write_bytes(content)
    places = (sandbox.given / "a.pb", sandbox.given / "set")
    sandbox.refuses_each([lambda place=place: samples(place) for place in places], DataError)


def _png(width: int, height: int, content: bytes = b"", *more: tuple[bytes, bytes]) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0))
    rest = b"".join(chunk(kind, body) for kind, body in more)
    return b"\x89PNG\r\n\x1a\n" + head + rest + chunk(b"IDAT", content) + chunk(b"IEND", b"")


IMAGES: dict[str, tuple[str, bytes]] = {
    "empty": ("a.png", b""),
    "garbage": ("a.jpg", b"\xff\xd8\xff" + bytes(64)),
    "cut-off": ("a.png", _png(8, 8, zlib.compress(bytes(200)))[:45]),
    "bomb": ("a.png", _png(60_000, 60_000, zlib.compress(bytes(1000)))),
    "bomb-just-below-pillows-limit": ("a.png", _png(10_000, 8_500, zlib.compress(bytes(1000)))),
    "size-0": ("a.png", _png(0, 8)),
    "size-2-to-the-31": ("a.png", _png(2**31 - 1, 2**31 - 1)),
    "no-pixels": ("a.png", _png(8, 8)),
    "text-bomb": ("a.png", _png(8, 8, b"", (b"zTXt", b"k\0\0" + zlib.compress(bytes(80 << 20))))),
    "gif-of-nothing": ("a.gif", b"GIF89a" + bytes(7)),
    "tiff-loop": ("a.tif", b"II*\x00\x08\x00\x00\x00\x01\x00" + bytes(12) + b"\x08\x00\x00\x00"),
    "bmp-negative": (
        "a.bmp",
        b"BM" + bytes(12) + struct.pack("<I2i2H6I", 40, -8, -(2**31), 1, 24, 0, 0, 0, 0, 0, 0),
    ),
    "webp-garbage": ("a.webp", b"RIFF\xff\xff\xff\x7fWEBPVP8 " + bytes(64)),
    "postscript": ("a.png", b"%!PS-Adobe-3.0 EPSF-3.0\n(touch /tmp/octavo-was-here) system\n"),
    "fits": ("a.png", b"SIMPLE  =                    T" + b" " * 2850),
    "ppm-huge": ("a.ppm", b"P6 99999 99999 255\n"),
    "pickle": ("a.png", pickle.dumps(_Trap())),
}


@pytest.mark.parametrize(("name", "content"), IMAGES.values(), ids=IMAGES.keys())
def test_a_hostile_image(sandbox: Sandbox, name: str, content: bytes) -> None:
    pytest.importorskip("PIL")
    (sandbox.given / "images").mkdir()
    (sandbox.given / "images" / name).write_bytes(content)
    given = octavo.images(sandbox.given / "images", "imagenet", workers=0)
    sandbox.refuses(lambda: samples(given, IMAGE_SPECS), DataError)


LINES = {
    "json-deep": ("a.jsonl", b"[" * 100_000),
    "json-number-of-10000-digits": ("a.jsonl", b'{"text": ' + b"9" * 10_000 + b"}"),
    "json-no-object": ("a.jsonl", b"3\n"),
    "json-cut": ("a.jsonl", b'{"text": "a'),
    "json-other-type": ("a.jsonl", json.dumps({"text": {"a": 1}}).encode()),
    "csv-nul": ("a.csv", b'text\n\0\0\n"unclosed'),
    "csv-field-of-a-megabyte": ("a.csv", b"text\n" + b"a" * (1 << 20)),
    "no-utf8": ("a.txt", b"\xff\xfe\xfd"),
    "nothing": ("a.txt", b"\n \n"),
    "missing": ("b.txt", b""),
}


@pytest.mark.parametrize(("name", "content"), LINES.values(), ids=LINES.keys())
def test_hostile_lines(sandbox: Sandbox, name: str, content: bytes) -> None:
    from octavo.data.readers.text_files import lines

    path = sandbox.given / name
    if content:
        path.write_bytes(content)

    def texts() -> list[str]:
        found = [one for _, one in lines(path, None)]
        if not found or "\0\0" in found:
            raise DataError("There are no texts.")
        return found

    sandbox.refuses(texts, DataError)


@pytest.mark.parametrize("name", ["n" * 5000, "a\0b", "nothing.npz", "/dev/zero", "/dev/null"])
def test_a_path_that_leads_nowhere(sandbox: Sandbox, name: str) -> None:
    sandbox.refuses(lambda: samples(name), DataError)


@pytest.mark.parametrize("name", ["os:getcwd", "trap:feeds"])
def test_code_is_called_only_where_it_is_written_out(sandbox: Sandbox, name: str) -> None:
    """A file of that name is data, and a module beside the model is not imported for a model or a recipe."""
    (sandbox.given / "trap.py").write_text("raise SystemExit('imported')\n")
    (sandbox.given / "recipe.yaml").write_text(f"data: {name}\n")
    path = sandbox.given / name
    path.write_bytes(b"no data")
    sandbox.refuses(lambda: samples(str(path)), DataError)
    sandbox.refuses(lambda: samples(name), DataError)
    sandbox.refuses(lambda: octavo.Recipe.load("recipe.yaml"), octavo.RecipeError, "data")


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.zip", "a.tar", "a.tar.gz", "a.pb"])
@pytest.mark.parametrize("kind", ["pipe", "endless"])
@pytest.mark.parametrize("way", ["alone", "with-others", "pattern"])
def test_data_that_is_a_pipe_or_a_device_is_refused(sandbox: Sandbox, name: str, kind: str, way: str) -> None:
    path = sandbox.given / name
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    np.save(sandbox.given / "b.npy", np.ones((2, 4), np.float32))
    data: object = path
    if way != "alone":
        data = [path, sandbox.given / "b.npy"] if way == "with-others" else f"{sandbox.given}/a.*"
    sandbox.refuses(lambda: samples(data), DataError, "regular file")


def test_the_size_of_an_image_is_read_in_the_same_bounds_as_the_image(sandbox: Sandbox) -> None:
    pytest.importorskip("PIL")
    from octavo.data.images.image_decoding import open_image
    from octavo.evaluation.image_samples import image_size

    (sandbox.given / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")
    (sandbox.given / "b.png").write_bytes(_png(1 << 20, 1 << 20))
    os.mkfifo(sandbox.given / "c.png")
    for name in ("a.png", "b.png", "c.png"):
        path = sandbox.given / name
        sandbox.refuses_each([lambda: open_image(path), lambda: image_size(path)], DataError)  # noqa: B023
