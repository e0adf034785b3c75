"""Write the measured parts of a page between their markers; the prose around them is written by hand."""

from __future__ import annotations

from pathlib import Path


def write_block(page: Path, name: str, lines: list[str]) -> None:
    """Replace the lines between the markers of the block `name`."""
    begin, end = f"<!-- {name}: written by benchmarks/ -->", f"<!-- end of {name} -->"
    before, has_begin, rest = page.read_text().partition(begin)
    _, has_end, after = rest.partition(end)
    if not has_begin or not has_end:
        raise SystemExit(
            f"{page} has no block '{name}': put the lines '{begin}' and '{end}' into it"
        )
    body = "\n".join(lines).strip("\n")
    page.write_text(f"{before}{begin}\n\n{body}\n\n{end}{after}")
