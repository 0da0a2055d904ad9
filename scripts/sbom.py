"""Write a software bill of materials: what Octavo needs, as it is installed here (CycloneDX 1.6, JSON).

``python scripts/sbom.py [OUT] [--extra NAME …]``. It lists the installed versions of Octavo's dependencies,
of the named extras, of theirs in turn, and the JavaScript in the report's page,
with licences, package URLs and who needs whom. The same environment
gives the same bytes, but for time and serial number, which ``SOURCE_DATE_EPOCH`` fixes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import tomllib

_NEED = re.compile(
    r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[(?P<extras>[^\]]*)\])?[^;]*(?:;(?P<marker>.*))?"
)
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
ROOT = "octavo"
PAGE = "src/octavo/reporting/html/assets/echarts.common.min.js"
BUNDLED = {
    "echarts": "Apache-2.0 AND BSD-3-Clause AND 0BSD",
    "zrender": "BSD-3-Clause",
}  # echarts: with d3, tslib
HERE = Path(__file__).resolve().parent.parent


def normal(name: str) -> str:
    """A name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needs(lines: Iterable[str], extras: Iterable[str]) -> list[tuple[str, tuple[str, ...]]]:
    """What lines of requirements ask for: names, and the extras of each."""
    wanted = set(map(normal, extras))
    asked = []
    for line in lines:
        found = _NEED.match(line)
        if found is None:
            continue
        only_for = {normal(name) for name in _EXTRA.findall(found["marker"] or "")}
        if not only_for or only_for & wanted:
            more = tuple(filter(None, re.split(r"\s*,\s*", found["extras"] or "")))
            asked.append((normal(found["name"]), more))
    return asked


def own_needs(extras: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """What Octavo itself asks for, by its project file."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = project["optional-dependencies"]
    unknown = [name for name in extras if name not in known]
    if unknown:
        raise SystemExit(f"There is no extra {unknown[0]!r}; there are {', '.join(known)}.")
    return needs([*project["dependencies"], *(line for name in extras for line in known[name])], ())


def closure(
    first: Iterable[tuple[str, tuple[str, ...]]],
) -> dict[str, tuple[metadata.Distribution, tuple[str, ...]]]:
    """Everything that is installed and needed, by name: the distribution and whom it needs."""
    found: dict[str, tuple[metadata.Distribution, tuple[str, ...]]] = {}
    seen: set[tuple[str, tuple[str, ...]]] = set()
    waiting = list(first)
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # for another system, by its marker, or not installed
            continue
        asked = needs(distribution.requires or (), extras)
        known = found[name][1] if name in found else ()
        found[name] = (distribution, tuple(sorted({*known, *(one for one, _ in asked)})))
        waiting += asked
    return found


def component(name: str, distribution: metadata.Distribution) -> dict[str, Any]:
    """One part of the bill."""
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": reference(name, distribution),
        "name": name,
        "version": distribution.version,
        "purl": reference(name, distribution),
    }
    about = distribution.metadata
    if about.get("Summary"):
        made["description"] = about["Summary"]
    licence = about.get("License-Expression")
    named = [
        line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or () if line.startswith("License")
    ]
    if licence:
        made["licenses"] = [{"expression": licence}]
    elif named or about.get("License"):
        short = str(about.get("License") or "").splitlines()[:1]
        made["licenses"] = [{"license": {"name": one}} for one in named or short if one]
    record = distribution.read_text("RECORD")
    if record:
        # Of the list of installed files with their hashes: what is installed, not the archive it came in.
        digest = hashlib.sha256(record.encode()).hexdigest()
        made["properties"] = [{"name": "octavo:installed-record:sha256", "value": digest}]
    return made


def bundled() -> list[dict[str, Any]]:
    """The JavaScript libraries in the page's file, which names their versions."""
    content = (HERE / PAGE).read_bytes()
    versions = {
        "echarts": re.search(rb'version="([\d.]+)"', content),
        "zrender": re.search(rb'zrender:"([\d.]+)"', content),
    }
    return [
        {
            "type": "library",
            "bom-ref": (purl := f"pkg:npm/{name}@{found[1].decode()}"),
            "name": name,
            "version": found[1].decode(),
            "purl": purl,
            "licenses": [{"expression": BUNDLED[name]}],
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}],
        }
        for name, found in versions.items()
        if found is not None
    ]


def reference(name: str, distribution: metadata.Distribution) -> str:
    """A package URL."""
    return f"pkg:pypi/{name}@{distribution.version}"


def bill(extras: Sequence[str] = ()) -> dict[str, Any]:
    """The whole document."""
    direct = own_needs(extras)
    found = closure(direct)
    parts = {name: component(name, distribution) for name, (distribution, _) in sorted(found.items())}
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    now = datetime.fromtimestamp(int(epoch), timezone.utc) if epoch else datetime.now(timezone.utc)
    inside = bundled()
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([parts, inside], sort_keys=True) + now.isoformat())
    parts.update((one["name"], one) for one in inside)
    root = {"type": "library", "bom-ref": ROOT, "name": ROOT, "version": own_version()}
    needed = {ROOT: [name for name, _ in direct], **{name: list(below) for name, (_, below) in found.items()}}
    needed[ROOT] += BUNDLED
    needed |= {"echarts": ["zrender"], "zrender": []}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {**root, "licenses": [{"expression": own_licence()}]},
            "properties": [{"name": "octavo:extras", "value": ",".join(extras)}],
        },
        "components": list(parts.values()),
        "dependencies": [
            {
                "ref": ROOT if name == ROOT else parts[name]["bom-ref"],
                "dependsOn": sorted({parts[other]["bom-ref"] for other in below if other in parts}),
            }
            for name, below in needed.items()
        ],
    }


def own_licence() -> str:
    """The licences of what the package holds, by its project file."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["license"])


def own_version() -> str:
    """Octavo's version, out of its source."""
    found = re.search(
        r'__version__ = "([^"]+)"', (HERE / "src/octavo/_version.py").read_text(encoding="utf-8")
    )
    return found[1] if found else "unknown"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", nargs="?", default="out/sbom.cdx.json", help="default: out/sbom.cdx.json")
    parser.add_argument("--extra", action="append", default=[], help="count an extra in (images, text, …)")
    options = parser.parse_args()
    path = Path(options.output)
    path.parent.mkdir(parents=True, exist_ok=True)
    made = bill(options.extra)
    path.write_text(json.dumps(made, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stdout.write(
        f"{path}: octavo {made['metadata']['component']['version']} and {len(made['components'])} packages\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
