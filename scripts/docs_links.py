"""Mends and checks the links of the site that mdBook has made of docs/:

    python3 scripts/docs_links.py SITE URL

A link to a file of the repository that is no page leads to URL; a picture that is none of docs/ is copied. Every other
link has to lead to a file of the site, and its fragment to an element there. Each page has to be in SUMMARY.md. What is
wrong is named, and the exit code is 1.
"""

from __future__ import annotations

import re
import shutil
import sys
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
ATTRIBUTE = re.compile(r'\b(href|src)="([^"]*)"')
ID = re.compile(r'\bid="([^"]*)"')
# Made by mdBook itself, for wherever they are shown.
LEFT_OUT = {"toc.html", "404.html"}


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: docs_links.py SITE URL")
    site, url = Path(sys.argv[1]).resolve(), sys.argv[2].rstrip("/")
    broken = [f"docs/SUMMARY.md: {page} is missing" for page in pages_left_out(site)]
    for page in sorted(site.rglob("*.html")):
        if page.name in LEFT_OUT:
            continue
        text = page.read_text()

        def mend(match: re.Match[str]) -> str:
            kind, target = match.groups()
            mended = mended_link(site, page, url, kind, target)
            if mended is None:
                broken.append(f"{page.relative_to(site)}: nothing at {target}")
            return f'{kind}="{mended or target}"'

        mended = ATTRIBUTE.sub(mend, text)
        if mended != text:
            page.write_text(mended)
    if broken:
        sys.exit("\n".join(broken))


def pages_left_out(site: Path) -> list[Path]:
    """Pages of docs/ of which mdBook has made none, because SUMMARY.md does not name them."""
    docs = ROOT / "docs"
    pages = sorted(path.relative_to(docs) for path in docs.rglob("*.md") if path.name != "SUMMARY.md")
    return [page for page in pages if not (site / made_of(page)).is_file()]


def made_of(page: Path) -> Path:
    return page.with_name("index.html") if page.name == "README.md" else page.with_suffix(".html")


def mended_link(site: Path, page: Path, url: str, kind: str, target: str) -> str | None:
    """What the link has to be; None if it leads nowhere."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return target
    file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if file.is_dir():
        file /= "index.html"
    if file.is_relative_to(site) and file.is_file():
        anchored = not parts.fragment or file.suffix != ".html" or unquote(parts.fragment) in ids(file)
        return target if anchored else None
    # The page of a folder is its README, which mdBook calls index.
    if file.name == "README.html" and file.with_name("index.html").is_file():
        return target.replace("README.html", "index.html")
    source = source_of(site, page, unquote(parts.path))
    if source is None:
        return None
    name = source.relative_to(ROOT)
    if kind == "src":
        copy = site / "sources" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        return "../" * len(page.parent.relative_to(site).parts) + f"sources/{name}"
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    return f"{url}/{name}{fragment}"


def source_of(site: Path, page: Path, path: str) -> Path | None:
    """The file or folder of the repository that a page of docs/ means, with mdBook's .html taken back."""
    folder = ROOT / "docs" / page.parent.relative_to(site)
    for name in (path, re.sub(r"\.html$", ".md", path)):
        file = (folder / name).resolve()
        if file.exists() and file.is_relative_to(ROOT):
            return file
    return None


@lru_cache(maxsize=None)
def ids(page: Path) -> frozenset[str]:
    return frozenset(ID.findall(page.read_text()))


if __name__ == "__main__":
    main()
