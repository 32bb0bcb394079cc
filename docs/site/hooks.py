"""Adds generated pages to the site; MkDocs calls these functions while it builds."""

from pathlib import Path

from mkdocs.structure.files import File

from docs.site import api, links, methods, searching, theme, tutorials

_COPIES = {page: file for file, page in links.COPIES.items()}


def on_config(config):
    """Adds generated pages to the navigation, before the pages that its part names."""
    generated = {"Methods": methods.navigation, "Reference": api.navigation}
    config.nav = [
        {title: [*generated[title](), *entries] if title in generated else entries}
        for part in config.nav
        for title, entries in part.items()
    ]
    return config


def on_files(files, config):
    """Adds the notebooks, the methods, the API, and each file that a page links to."""
    pages = {page: (links.ROOT / file).read_text() for page, file in _COPIES.items()}
    pages |= methods.pages() | api.pages() | tutorials.pages(config.extra["execute_notebooks"])
    for page, content in pages.items():
        files.append(File.generated(config, page, content=content))
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    for page, content in links.sources(texts).items():
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown, page, **_):
    """Points links into the repository at pages of the site, and ranks pages in searches."""
    page_uri = page.file.src_uri
    searching.rank(page)
    linked = methods.linked(markdown) if page_uri == "methods/index.md" else markdown
    return links.rewritten(linked, page_uri)


def on_post_build(config):
    """Keeps the navigation on narrower screens."""
    theme.keep_navigation(Path(config.site_dir))
