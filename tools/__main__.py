"""``python -m tools``: write everything in the repository that is made from the code."""

from __future__ import annotations

import click

from tools.made import documents


def main() -> None:
    for path, text in documents().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            click.echo(f"wrote {path.name}")


if __name__ == "__main__":
    main()
