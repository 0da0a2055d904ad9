"""Model folders: parts, variants of each, calibration by running the pipeline, one table for all."""

from octavo.folders.result import FolderResult
from octavo.folders.run import quantize_folder

__all__ = ["FolderResult", "quantize_folder"]
