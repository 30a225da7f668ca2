"""The configuration: one typed tree, resolved from presets, flags and `--set`. Imports nothing heavy."""

from microrl.config.resolve import check, keys_set, of_presets, override, resolve
from microrl.config.schema import RunConfig

__all__ = ["RunConfig", "check", "keys_set", "of_presets", "override", "resolve"]
