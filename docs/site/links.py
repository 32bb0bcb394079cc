"""Maps files of the repository to pages, so that documents' links hold in both places."""

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/notebooks/README.md": "tutorials/index.md",
}
"""The files outside `docs/` that are pages, with these pages."""
_FILE_OF = {page: file for file, page in COPIES.items()}
_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)")
_CODE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def file_of(page: str) -> str:
    """Returns the file that a page was made of, relative to the repository."""
    if page.startswith("tutorials/") and page not in _FILE_OF:
        return f"examples/notebooks/{Path(page).stem}.py"
    return _FILE_OF.get(page, f"docs/{page}")


def page_of(file: str) -> str:
    """Returns the page, or the file of the site, that shows a file of the repository."""
    file = _shown_file(file)
    if file in COPIES:
        return COPIES[file]
    if file.startswith("docs/") and not (ROOT / file).is_dir() and not file.endswith(".py"):
        return file.removeprefix("docs/")
    if file.startswith("examples/notebooks/"):
        return f"tutorials/{Path(file).stem}.md"
    return f"source/{file}.md"


def _shown_file(file: str) -> str:
    """Returns the README of a folder that has one, and other files and folders as they are."""
    return posixpath.join(file, "README.md") if (ROOT / file / "README.md").exists() else file


def rewritten(markdown: str, page: str) -> str:
    """Returns the text of a page with its links to files replaced by links to pages."""

    def point(match):
        file = _target(match[1], page)
        if not (ROOT / file).exists():
            return match[0]  # a generated page
        return f"]({posixpath.relpath(page_of(file), posixpath.dirname(page) or '.')}"

    parts = _CODE.split(markdown)
    return "".join(part if i % 2 else _LINK.sub(point, part) for i, part in enumerate(parts))


def sources(pages: Mapping[str, str]) -> dict[str, str]:
    """Returns the pages that show the files to which these pages link, and so on.

    Args:
        pages: The texts of pages.
    """
    found, unread = {}, dict(pages)
    while unread:
        page, text = unread.popitem()
        outside_code = "".join(_CODE.split(text)[::2])
        for file in {_target(link, page) for link in _LINK.findall(outside_code)}:
            target = page_of(file)
            if target.startswith("source/") and target not in found and (ROOT / file).exists():
                found[target] = unread[target] = _shown(_shown_file(file))
    return found


def _target(link: str, page: str) -> str:
    if page.startswith("source/"):
        return link
    return posixpath.normpath(posixpath.join(posixpath.dirname(file_of(page)), link))


def _shown(file: str) -> str:
    path = ROOT / file
    head = "---\nsearch:\n  exclude: true\n---\n"
    if path.suffix == ".md":
        folder = posixpath.dirname(file)
        return head + _LINK.sub(
            lambda link: f"]({posixpath.normpath(posixpath.join(folder, link[1]))}",
            path.read_text(),
        )
    head += f"# `{file}`\n\n"
    if path.is_dir():
        shown = sorted(p for p in path.iterdir() if not p.name.startswith(("_", ".")))
        return head + "".join(f"* [`{p.name}`]({p.relative_to(ROOT)})\n" for p in shown)
    language = "python" if path.suffix == ".py" else "text"
    return f"{head}``````{language}\n{path.read_text()}``````\n"
