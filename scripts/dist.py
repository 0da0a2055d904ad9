"""Build the wheel and the source archive, twice, and keep them if both builds have the same bytes.

    python scripts/dist.py [FOLDER]

Beside them lie ``octavo-VERSION.sbom.cdx.json`` (what the package needs, as installed here, and what it
brings along), ``octavo-VERSION.provenance.json`` (from which commit and by which tools they were built) and
``SHA256SUMS``. Times in the archives are those of the commit, or ``SOURCE_DATE_EPOCH``. Needs the package
``build``.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def git(*words: str) -> str:
    """What git says of this checkout; empty where it is none."""
    try:
        found = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def epoch() -> str:
    """The second that files in the archives get: of the commit, unless the environment names one."""
    return os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct") or "1577836800"


def build(folder: Path, time: str) -> dict[str, str]:
    """Build into a folder, from a copy of the sources; returns the digest of each file."""
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "octavo"
        listed = git("ls-files", "-z").split("\0")
        if listed != [""]:
            for name in filter(None, listed):
                if (ROOT / name).is_file():
                    (source / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / name, source / name)
        else:
            ignored = shutil.ignore_patterns(".venv", "out", "dist", "__pycache__", ".*_cache")
            shutil.copytree(ROOT, source, ignore=ignored)
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": time, "PYTHONHASHSEED": "0", "TZ": "UTC"}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def check_wheel(path: Path) -> None:
    """Raise where the wheel lacks a licence of what it brings along, or has what it should not have."""
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
    for asset in (name for name in names if name.endswith(".min.js")):
        stem = asset.removesuffix(".min.js").rsplit("/", 1)[-1].split(".")[0]
        if not any(f"licenses/src/octavo/reporting/html/assets/{stem}.LICENSE" in name for name in names):
            raise SystemExit(f"{path.name} brings {asset} without its licence.")
    strange = [name for name in names if not name.startswith(("octavo/", "octavo-"))]
    if strange or any("__pycache__" in name for name in names):
        raise SystemExit(f"{path.name} holds what does not belong into it: {strange[:3] or '__pycache__'}.")


def main() -> int:
    """Build, compare, and write what belongs to it; returns the exit code."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve()
    time = epoch()
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        digests, again = build(Path(first), time), build(Path(second), time)
        if digests != again:
            say(f"two builds differ: {digests} and {again}")
            return 1
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(first, target)
        target.chmod(0o755)  # copied from a folder that is its owner's alone
    wheel = next(target.glob("*.whl"))
    check_wheel(wheel)
    stem = f"octavo-{wheel.name.split('-')[1]}"
    sbom = target / f"{stem}.sbom.cdx.json"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": time}
    command = [sys.executable, str(ROOT / "scripts" / "sbom.py"), str(sbom)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    provenance = {
        "artifacts": digests,
        "commit": git("rev-parse", "HEAD"),
        "changed_since": bool(git("status", "--porcelain")),
        "source_date_epoch": int(time),
        "built_with": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("build", "hatchling")},
        },
        "builds_compared": 2,
    }
    (target / f"{stem}.provenance.json").write_text(json.dumps(provenance, indent=2) + "\n", encoding="utf-8")
    sums = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in sorted(target.iterdir())
    ]
    (target / "SHA256SUMS").write_text("\n".join(sums) + "\n", encoding="utf-8")
    for line in sums:
        say(line)
    say(f"built twice with the same bytes: {', '.join(digests)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
