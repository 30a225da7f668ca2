"""Tables as text."""

import pytest

from microrl.tables import as_text, table


@pytest.mark.parametrize("width", [18, 24, 40])
def test_a_narrow_table_breaks_its_cells_rather_than_cut_them(width):
    """Where there is room, a column that begins with "<" keeps its cells on one line."""
    cells = ["73.7 [67.1, 79.8]", "+45.4 [+40.0, +50.6]"]
    lines = as_text(table(["<value", "<gain"], [cells]), width).splitlines()
    assert all(len(line) <= width for line in lines)
    for number in "73.7", "79.8", "+45.4", "+50.6":
        assert any(number in line for line in lines), lines
    assert (len(lines) == 2) == (width == 40)
