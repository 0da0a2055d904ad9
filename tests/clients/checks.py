"""What the scripts of clients share: the alias, the checks, and the line that tells what came of each."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version

STOCK, OWN = "onnxruntime.quantization", "octavo.quantization"


def stand_in() -> None:
    """Let every import of ``onnxruntime.quantization`` give Octavo's module of the same name."""
    if os.environ.get("CLIENT_USES_STOCK"):
        return
    import onnxruntime

    package = importlib.import_module(OWN)
    names = [OWN, *(found.name for found in pkgutil.walk_packages(package.__path__, f"{OWN}."))]
    for name in names:
        if not name.rpartition(".")[2].startswith("_"):
            sys.modules[name.replace(OWN, STOCK, 1)] = importlib.import_module(name)
    onnxruntime.quantization = package


class Checks:
    """The results of one script; each is a line of JSON on standard output."""

    def __init__(self, *packages: str) -> None:
        self.version = ", ".join(f"{name} {version(name)}" for name in packages)
        self.failed = 0

    def run(self, what: str, check: Callable[[], object]) -> None:
        """Carry out one check; whatever it raises is its failure, and the next one is still carried out."""
        try:
            said, passed = check(), True
        except Exception as error:
            traceback.print_exc()
            said, passed = f"{type(error).__name__}: {error}", False
            self.failed += 1
        line = {"version": self.version, "what": what, "passed": passed, "said": str(said or "")[:300]}
        print(json.dumps(line), flush=True)

    def finish(self) -> None:
        """End the script: 0 where all checks passed."""
        sys.exit(1 if self.failed else 0)
