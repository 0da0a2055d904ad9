"""Where models go in an output folder, and what belongs beside them: weights files, tokenizer, configuration.

transformers.js looks for models in ``onnx/``, and for weights beside a model in ``NAME.onnx_data`` where
``config.json`` says that there are some.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from octavo.core import leftovers
from octavo.core.files import write_text
from octavo.core.outputs import paths_within
from octavo.errors import OutputError
from octavo.folders.discovery import ModelFolder, read_json
from octavo.folders.making import Trial
from octavo.folders.parts import Part
from octavo.model.files import io
from octavo.model.files.sharing import common_bytes, save_together

_WEB = "transformers.js_config"
_EXTERNAL = "use_external_data_format"
MIN_COMMON = 0.5  # of the smaller decoder: with less in common each stays in a file of its own


def folder_of(folder: ModelFolder, part: Part, *, keep: bool) -> Path:
    """Return the folder of a part's variants below the output.

    A part keeps its place, unless it lies at the top of a folder of transformers: those go to ``onnx/``, if
    no part of the same name is there.
    """
    own, place = Path(part.name).parent, Path("onnx")
    is_free = all(one.name != (place / part.stem).as_posix() for one in folder.parts)
    return place if own == Path() and folder.is_for_web and is_free and not keep else own


def copy_model(part: Part, target: Path) -> Path:
    """Copy the float model; weights that lie in other files go into one beside it."""
    place = target / part.path.name
    if len(part.files) == 1:
        shutil.copyfile(part.path, place)
    else:
        io.save(io.load(part.path), place, external_data=True, location=_weights_of(place).name)
    return place


def copy_files(folder: ModelFolder, staged: Path) -> tuple[str, ...]:
    """Copy what belongs beside the models; the folder's own card stays as ``README.original.md``."""
    copied = []
    for file in folder.beside:
        place = file.relative_to(folder.root)
        if place.as_posix() == "README.md":
            place = Path("README.original.md")
        (staged / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, staged / place)
        copied.append(place.as_posix())
    return tuple(copied)


def tell_about_weights(staged: Path, written: Sequence[Trial]) -> None:
    """Enter models that have their weights beside them into ``config.json``, where transformers.js looks."""
    config = staged / "config.json"
    files = [trial.file for trial in written if trial.file is not None]
    large = [file.name for file in files if _weights_of(staged / file).exists()]
    if not large or not config.is_file():
        return
    settings = read_json(config)
    own = settings.get(_WEB)
    web = dict(own) if isinstance(own, dict) else {}
    said = web.get(_EXTERNAL)
    web[_EXTERNAL] = {**(said if isinstance(said, dict) else {}), **dict.fromkeys(large, 1)}
    write_text(config, json.dumps({**settings, _WEB: web}, indent=2) + "\n")


def renamed(file: Path, place: Path) -> Path:
    """Give a model another name, and the weights beside it the name that goes with it."""
    if _weights_of(file).exists():
        io.save(io.load(file), place, location=_weights_of(place).name)
        remove(file)
    else:
        file.replace(place)
    return place


def share_weights(decoders: Sequence[Path]) -> int:
    """Store what models have in common once, beside the first of them; return the bytes that this saves.

    Where it would save little, all stay as they are: 0.
    """
    models = [io.load(file) for file in decoders]
    common = common_bytes(models)
    if common < MIN_COMMON * min(map(size_of, decoders)):
        return 0
    store = decoders[0].with_name(".together")
    store.mkdir()
    made = [store / file.name for file in decoders]
    save_together(models, made, _weights_of(made[0]).name)
    for file, one in zip(decoders, made, strict=True):
        remove(file)
        one.replace(file)
    _weights_of(made[0]).replace(_weights_of(decoders[0]))
    store.rmdir()
    return common


def size_of(file: Path) -> int:
    """Return the bytes of a model and of the weights beside it."""
    return sum(one.stat().st_size for one in (file, _weights_of(file)) if one.exists())


def remove(file: Path) -> None:
    """Remove a model and the weights beside it."""
    file.unlink(missing_ok=True)
    _weights_of(file).unlink(missing_ok=True)


def _weights_of(file: Path) -> Path:
    return file.with_name(f"{file.name}_data")


# ---- A folder that appears whole or not at all: built beside its place under a hidden name, then renamed

MANIFEST = "octavo.json"


def check_output(output: Path, source: Path, reads: Any = None) -> None:
    """Raise where a folder may not be written: it is read, or holds what Octavo has not made.

    ``reads`` is whatever else the run reads: data or a tokenizer in an earlier output would go with it.
    """
    place, root = output.resolve(), source.resolve()
    if place == root or place.is_relative_to(root) or root.is_relative_to(place):
        raise OutputError(
            f"{output} and the input {source} lie within each other; choose an output outside of it."
        )
    for path in paths_within(reads):
        if os.path.realpath(path).startswith(f"{place}{os.sep}"):
            raise OutputError(
                f"{output} would be replaced, and {path} in it is read by this run; choose another output."
            )
    if not output.parent.is_dir():
        raise OutputError(f"{output} can't be written: there is no folder {output.parent}; create it first.")
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise OutputError(f"{output} is not a folder; choose another output.")
    if output.is_dir() and any(output.iterdir()) and not (output / MANIFEST).is_file():
        raise OutputError(
            f"{output} holds files and no {MANIFEST}, so it is not an output of Octavo and is not "
            "replaced; choose a new folder."
        )


@contextlib.contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """Give an empty folder to write into; when the block ends well it takes the place of the output.

    What stood there before is removed after that, and put back if anything fails. What a killed run leaves
    behind is settled by the next one (:mod:`octavo.core.leftovers`).
    """
    output = output.absolute()
    leftovers.sweep(output.parent)
    staged = output.with_name(leftovers.new_name("dir"))
    try:
        staged.mkdir(0o700)
        yield staged
        staged.chmod(0o755)
        _exchange(output, staged)
    except OSError as error:
        raise OutputError(f"{output} can't be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _exchange(output: Path, staged: Path) -> None:
    if not output.exists():
        staged.rename(output)
        return
    old = output.with_name(leftovers.backup_name(output, staged, "old"))
    output.rename(old)
    try:
        staged.rename(output)
    except BaseException:
        if not output.exists():
            old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)
