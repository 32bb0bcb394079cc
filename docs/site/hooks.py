"""Adds generated pages to the site; MkDocs calls these functions while it builds."""

from mkdocs.structure.files import File

from docs.site import api, links, methods, tutorials

_COPIES = {page: file for file, page in links.COPIES.items()}


def on_config(config):
    """Fills the parts of the navigation that are lists of generated pages."""
    generated = {"Methods": methods.navigation, "API": api.navigation}
    config.nav = [
        {title: generated[title]() if title in generated else entry}
        for part in config.nav
        for title, entry in part.items()
    ]
    return config


def on_files(files, config):
    """Adds the notebooks, the methods, the API, and each file that a page links to."""
    pages = {page: (links.ROOT / file).read_text() for page, file in _COPIES.items()}
    pages["changelog.md"] = f"---\nsearch:\n  boost: 0.1\n---\n{pages['changelog.md']}"
    pages |= methods.pages() | api.pages() | tutorials.pages(config.extra["execute_notebooks"])
    for page, content in pages.items():
        files.append(File.generated(config, page, content=content))
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    for page, content in links.sources(texts).items():
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown, page, **_):
    """Points links into the repository at pages of the site."""
    page_uri = page.file.src_uri
    linked = methods.linked(markdown) if page_uri == "methods/index.md" else markdown
    return links.rewritten(linked, page_uri)
