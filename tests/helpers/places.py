"""Where the tests find what does not lie beside them."""

from pathlib import Path

HELPERS = Path(__file__).resolve().parent
FIXTURES = HELPERS.parent / "fixtures"
ROOT = HELPERS.parents[1]
