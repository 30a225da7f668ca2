"""Rows written as the hub has them: Parquet, CSV or JSON lines."""

import csv
import json


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
