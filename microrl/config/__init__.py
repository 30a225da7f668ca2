"""The configuration: one typed tree, resolved from presets, flags and `--set`. Free of heavy imports."""

from microrl.config.resolve import check, resolve
from microrl.config.schema import RunConfig

__all__ = ["RunConfig", "check", "resolve"]
