"""The version, read by the build and by manifests."""

__version__ = "0.1.0"
