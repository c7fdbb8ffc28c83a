"""What mkdocs.yml cannot say: the pages' order, the first page, links that leave the site, where the repository is.

MkDocs calls these functions by their names. Knows README.md's parts by their headings.
"""

from __future__ import annotations

import os
import re
from typing import Any

from mkdocs.structure.files import File

from cut_release import ROOT, VERSIONS, absolute_links, read, source_url

FIRST_PAGE = """---
hide: [toc]
---
<style>.md-typeset td, .md-typeset th {{padding: .2em .6em !important; min-width: 0 !important}}</style>

# pymtp {version}

{what}

For whoever runs such models alone, in a program or as a server, and wants to see what drafting gains on their machine.
From a [checkout]({source}/README.md), where a C++ compiler is; [other ways](docs/installing.md):

{install}

{table}

{note} Bold: plain decoding is faster, and drafting loses.

[Command line](docs/cli.md) · [Python](docs/python.md) · [server](docs/server.md) ·
[does drafting pay here?](docs/benchmarking.md) · [models](docs/models.md)
"""
COLUMNS = (1, 2, 4, 5, 6)
"""Of README.md's results: what fits without scrolling."""


def on_config(config: Any) -> Any:
    """The navigation, from the lists of docs/README.md; names, and the addresses of this version."""
    nav: list[Any] = [{"Start": "index.md"}]
    for heading, entries in re.findall(
        r"^(\S.*):\n\n((?:- .*\n)+)", (ROOT / "docs/README.md").read_text("utf-8"), re.M
    ):
        pages = re.findall(r"^- \[(.+?)\]\(([\w-]+\.md)\)", entries, re.M)
        nav.append({heading: [{title: path} for title, path in pages]})
    config.nav = nav
    config.repo_url = source_url(ROOT)
    owner, name = config.repo_url.split("/")[-2:]
    config.repo_name = f"{owner}/{name}"
    config.site_url = f"https://{owner.lower()}.github.io/{name}/{os.environ.get('SITE_VERSION', '')}"
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the first page."""
    files.append(File.generated(config, "index.md", content=first_page()))
    return files


def first_page() -> str:
    """What it is, for whom, how to install, how fast: parts of README.md that fit one screen."""
    readme = (ROOT / "README.md").read_text("utf-8")
    parts = dict(re.findall(r"^#+ ([^\n]*)\n\n(.*?)(?=^#+ |\Z)", readme, re.M | re.S))
    table, note, *_ = parts["Results"].split("\n\n")
    cells = [line.split("|") for line in table.splitlines()]
    text = FIRST_PAGE.format(
        version=read(ROOT, "pyproject.toml", VERSIONS["pyproject.toml"]),
        what=parts["pymtp"].partition("\n\n")[0],
        source=source(),
        install=re.findall(r"```sh\n.*?```", parts["Install and run"], re.S)[0],
        table="\n".join("|".join(["", *(row[i] for i in COLUMNS), ""]) for row in cells),
        note=note,
    )
    return absolute_links(text, "", source(), kept="docs/").replace("](docs/", "](")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links to files of the repository that are not of the site lead to the repository."""
    kept = tuple(f"docs/{file.src_uri}" for file in files if file.inclusion.is_included())
    return absolute_links(markdown, "docs", source(), kept)


def source() -> str:
    """Where files of this version are."""
    return f"{source_url(ROOT)}/blob/v{read(ROOT, 'pyproject.toml', VERSIONS['pyproject.toml'])}"
