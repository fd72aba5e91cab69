"""Tables for terminals."""

from collections.abc import Sequence


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column is left-aligned, the others right."""
    first, *others = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    return [
        "  ".join([line[0].ljust(first), *(cell.rjust(width) for cell, width in zip(line[1:], others, strict=True))])
        for line in (columns, *rows)
    ]
