"""Files, processes and foreign text are touched in few places: each is listed here, with the reason.

A model is read by ``model/files``, a small file by ``core/files.py``, data by ``data/readers``, and
whatever is written goes through ``core/files.py``. A call that opens, renames, unpickles, starts a process or
compiles an expression anywhere else has to be added here, with what bounds it.
"""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "octavo"

READ = frozenset({"open", "os.open", "os.fdopen", "io.open", ".open(mode)", ".read_bytes()", ".read_text()"})
WRITE = frozenset({".write_bytes()", ".write_text()", "np.save", "np.savez", "np.savez_compressed"})
MOVE = frozenset({
    "os.rename", "os.replace", "os.link", "os.symlink", "os.remove", "os.unlink", "shutil.move",
    "shutil.copy", "shutil.copyfile", "shutil.rmtree",
    ".unlink()", ".symlink_to()", ".hardlink_to()", ".touch()",
})  # fmt: skip
PARSE = frozenset({
    "onnx.load", "onnx.load_model", "onnx.load_from_string", "onnx.load_model_from_string", "onnx.save",
    "onnx.save_model", "ir.load", "ir.save", "np.load", "np.memmap", "np.fromfile", "yaml.load",
    "yaml.unsafe_load", "pickle.load", "pickle.loads", ".FromString()", ".ParseFromString()", "mmap.mmap",
    "zipfile.ZipFile", "tarfile.open", "Image.open",
})  # fmt: skip
CODE = frozenset({
    "eval", "exec", "compile", "os.system", "os.popen", "os.fork", "ctypes.CDLL", "importlib.import_module",
    ".exec_module()", "importlib.util.spec_from_file_location",
    "re.compile(text)", "re.match(text)", "re.search(text)", "re.fullmatch(text)", "re.sub(text)",
})  # fmt: skip
MODULES = ("subprocess", "tempfile", "socket", "urllib", "http", "shelve", "marshal", "multiprocessing")

# Where a kind of call may stand, and what bounds it there.
ALLOWED: dict[str, dict[str, str]] = {
    # the loader of models
    "model/files/external.py": {
        ".open(mode)": "the file of a model or of its weights, opened after the checks of its kind and place",
        ".read_bytes()": "a file system without maps: the same file, read whole",
        "mmap.mmap": "the same file",
    },
    "model/files/gguf_format.py": {
        ".open(mode)": "a regular file; every count and offset is checked",
        "mmap.mmap": "the same file",
    },
    "model/files/reading.py": {".FromString()": "the one place where bytes become a model"},
    # the reader of small files, the writer, folders for the time of a run
    "core/files.py": {
        "os.open": "regular files up to a size; new files only, never through a link; folders for their lock",
        "os.fdopen": "of that",
        ".unlink()": "files of this run that did not take their place",
    },
    "core/leftovers.py": {
        ".read_text()": "the kernel's boot id",
        ".unlink()": "what runs that were killed left under our own names",
        "shutil.rmtree": "the same",
    },
    "core/scratch.py": {
        "tempfile.mkdtemp": "the one maker of folders for a run",
        "tempfile.TemporaryDirectory": "the same",
        "tempfile.gettempdir": "where it makes them",
        "shutil.rmtree": "removes them",
    },
    "core/scratch_arrays.py": {
        "np.savez": "arrays of the run in such a folder", "np.load": "the same, without pickle",
    },
    "core/linear_regex.py": {
        "re.compile(text)": "checks the syntax of a recipe's expression; matching never backtracks",
        "importlib.import_module": "Python's own parser of expressions",
    },
    "result.py": {"shutil.rmtree": "the folder in which a result is checked before it takes its place"},
    # readers of data: regular files, headers and sizes checked before anything is allocated
    "data/readers/numpy_files.py": {
        ".open(mode)": "a regular file", "np.load": "its header was checked; without pickle",
        "np.memmap": "the stretch of a member that was checked", "zipfile.ZipFile": "members are checked",
    },
    "data/readers/archives.py": {
        ".open(mode)": "a regular file", "zipfile.ZipFile": "members are checked, never extracted",
        "tarfile.open": "members are read as streams, never extracted",
    },
    "data/readers/tensor_files.py": {
        ".FromString()": "a tensor, checked like one of a model",
    },
    "data/readers/text_files.py": {".open(mode)": "a regular file, line by line"},
    "data/images/image_decoding.py": {"Image.open": "regular files, few formats, bounded pixels"},
    "evaluation/task_registry.py": {
        ".exec_module()": "FILE.py:FUNCTION, which the user writes out",
        "importlib.util.spec_from_file_location": "the same",
    },
    "data/named_functions.py": {"importlib.import_module": "module:function, which the user writes out"},
    "calibration/saved.py": {
        ".unlink()": "a checkpoint that has served",
    },
    "quantization/_work.py": {".read_bytes()": "the model that the output replaces, for the loader"},
    # files that Octavo itself has written, in a folder of the run
    "calibration/engines/ray.py": {
        ".open(mode)": "a copy of the job's files on a node", ".read_text()": "the mark that a copy is whole",
        ".write_text()": "the same", ".unlink()": "the same", "np.memmap": "the job's own file",
        "os.open": "the lock of the copy", "shutil.rmtree": "removes the copy",
        "tempfile.gettempdir": "where copies lie on a node", "pickle.loads": "from the driver, by Ray",
        "socket.create_connection": "asks whether a cluster listens",
    },
    "calibration/observe/subgraphs.py": {".FromString()": "a copy of a value of the model at hand"},
    "evaluation/timing/footprint.py": {
        "subprocess.run": "measures memory in a process of its own",
    },
    "evaluation/timing/footprint_process.py": {
        ".read_text()": "the request, and the kernel's figures", ".write_text()": "the answer",
    },
    "evaluation/timing/latency.py": {".read_text()": "the kernel's figures of threads"},
    "folders/beside.py": {
        "shutil.copyfile": "regular files of the folder, into the staged output",
        ".unlink()": "a model of the staged output",
        "shutil.rmtree": "the staged output, and the one that it replaces",
    },
    "folders/chat.py": {"subprocess.Popen": "renders a chat template, a program, in a process with limits"},
    "folders/chat_process.py": {".read_text()": "the kernel's figures of this process"},
    "folders/making.py": {".unlink()": "a variant of the staged output that does not hold"},
    "model/prepare/shapes.py": {
        ".write_bytes()": "the request to it",
        "subprocess.run": "shape inference of onnx in a process of its own, as it may crash",
    },
    "model/runtime/session.py": {
        ".write_bytes()": "a model of the run",
    },
    "reporting/html/page.py": {".read_text()": "the page's assets, a part of the package"},
    "tuning/measure.py": {
        "os.link": "a model of the run", "shutil.copyfile": "the same, on another file system",
    },
    # other processes: they are told by Octavo what to do, through pipes that only it holds
    "calibration/engines/processes.py": {"subprocess.Popen": "workers: this interpreter"},
    "calibration/engines/worker.py": {
        "pickle.loads": "from the parent", "open": "the null device", "os.fdopen": "the pipes",
    },
    "isolation/child.py": {
        "pickle.load": "from the parent", ".open(mode)": "the file that the parent wrote",
        "os.fork": "the guarded run",
        "os.open": "the null device", ".read_bytes()": "the kernel's figures of processes",
        "importlib.import_module": "the function that the parent names",
    },
    "isolation/confine.py": {"ctypes.CDLL": "the C library", ".write_text()": "the kernel's maps of users"},
    "isolation/landlock.py": {"ctypes.CDLL": "the C library", "os.open": "folders that rules are about"},
    "isolation/parent.py": {
        "subprocess.Popen": "the child: this interpreter", ".write_bytes()": "the request to it",
        "shutil.rmtree": "its folder",
    },
    "cli/guarded.py": {"ctypes.CDLL": "the C library", "os.fork": "the guarded run"},
    "cli/main.py": {
        "os.open": "the null device, in the place of a stream that is closed or has no reader",
        "os.fdopen": "of that",
    },
    # parts of the package that are loaded when they are first used
    "__init__.py": {"importlib.import_module": "the package's own names"},
    "evaluation/__init__.py": {"importlib.import_module": "the package's own names"},
    "quantization/__init__.py": {"importlib.import_module": "the package's own names"},
    "quantization/_names.py": {"importlib.import_module": "the package's own names"},
    "core/scheme.py": {"importlib.import_module": "the package's own methods"},
    "core/arrays.py": {"importlib.import_module": "CuPy, where it is installed"},
    "core/lazy.py": {"importlib.import_module": "entries of the package's registries"},
}  # fmt: skip


def _dotted(function: ast.expr) -> str:
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute):
        return f"{_dotted(function.value)}.{function.attr}"
    return ""


def _is_literal(node: ast.expr) -> bool:
    """Whether an expression is written in the source, perhaps with constants of the source in it."""
    if isinstance(node, ast.JoinedStr):
        return True
    if isinstance(node, ast.BinOp):
        return _is_literal(node.left) and _is_literal(node.right)
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id.isupper())


def _imported(tree: ast.AST) -> dict[str, str]:
    """The full names of what a file imports from modules."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level == 0
        for alias in node.names
    }


def kind_of(call: ast.Call, imported: dict[str, str]) -> str | None:
    """What a call does, by the names above; None for all others."""
    name = _dotted(call.func)
    name = imported.get(name, name)
    last = name.rpartition(".")[2] or (call.func.attr if isinstance(call.func, ast.Attribute) else "")
    if name.startswith("re.") and f"{name}(text)" in CODE:
        return f"{name}(text)" if call.args and not _is_literal(call.args[0]) else None
    if name.split(".")[0] in MODULES and "." in name:
        return name
    if name in READ | WRITE | MOVE | PARSE | CODE:
        return name
    if name.endswith("Image.open"):
        return "Image.open"
    if isinstance(call.func, ast.Attribute):
        mode = call.args[0] if call.args else None
        if last == "open" and (
            (
                isinstance(mode, ast.Constant)
                and isinstance(mode.value, str)
                and set(mode.value) <= set("rwxab+t")
            )
            or any(word.arg in ("encoding", "newline", "mode") for word in call.keywords)
        ):
            return ".open(mode)"
        if last in ("read_bytes", "read_text") and len(call.args) == 0:
            return f".{last}()"
        if f".{last}()" in READ | WRITE | MOVE | PARSE | CODE and last not in ("read_bytes", "read_text"):
            return f".{last}()"
    return None


def found_calls() -> dict[tuple[str, str], list[int]]:
    """Every such call in the package: file and kind, with the lines."""
    found: dict[tuple[str, str], list[int]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = _imported(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (kind := kind_of(node, imported)) is not None:
                key = (path.relative_to(SOURCE).as_posix(), kind)
                found.setdefault(key, []).append(node.lineno)
    return found


def test_files_processes_and_foreign_text_are_touched_only_where_it_is_said_why() -> None:
    found = found_calls()
    unlisted = [f"{file}:{lines[0]} {kind}" for (file, kind), lines in found.items()
                if kind not in ALLOWED.get(file, {})]  # fmt: skip
    assert not unlisted, "use core/files.py or model/files, or say here what bounds it"


def test_nothing_is_listed_that_is_not_there() -> None:
    found = found_calls()
    stale = [
        f"{file} {kind}" for file, kinds in ALLOWED.items() for kind in kinds if (file, kind) not in found
    ]
    assert not stale


def test_the_search_finds_what_it_looks_for() -> None:
    text = """
open(a); os.open(a); p.open("rb"); p.open(encoding="utf-8"); p.read_text(); onnx.load(p); np.load(p)
re.compile(pattern); re.compile("literal"); subprocess.run([]); tempfile.mkdtemp(); p.unlink()
from importlib import import_module as load
load(name); Session.open(p)
read_text(p, 10); bounded.read_bytes(p, 10); PIL.Image.open(p); pickle.loads(b); x.ParseFromString(b)
"""
    tree = ast.parse(text)
    kinds = [kind_of(node, _imported(tree)) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert [kind for kind in kinds if kind is not None] == [
        "open", "os.open", ".open(mode)", ".open(mode)", ".read_text()", "onnx.load", "np.load",
        "re.compile(text)", "subprocess.run", "tempfile.mkdtemp", ".unlink()", "importlib.import_module",
        "Image.open", "pickle.loads",
        ".ParseFromString()",
    ]  # fmt: skip
