"""How the page shows texts: Markdown, colours of drafts, images. In a real browser."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from browser import ask, chunk, requests_of, said, scripted, set_fields
from http_server import Client, running
from pymtp import Model
from pymtp.server.settings import ServerSettings
from random_gguf import write_qwen35
from random_gguf.vision import png, write_qwen3vl_projector

NewPage = Callable[..., Any]

TEXT = """\
# Title *with* emphasis

A paragraph with **bold**, `code <b>`, ~~struck~~ and a [link](https://example.org "title").
A second line, &amp; an entity, \\*no emphasis\\*, https://example.org/bare and <user@example.org>.

1. one
2. two
   - nested
   - [x] done

     with a paragraph

3. three

> A quote
> of two lines
>
> - and a list

| left | right |
|:-----|------:|
| a    | `b`   |
| c<br>d |     |

```python
def f(x):
    return x < 1 and "&lt;"
```

    indented

Setext
------

* * *

![picture](https://example.org/a.png)

An end with [a reference][1].

[1]: https://example.org/ref
"""
"""One of each thing that Markdown has."""
HOSTILE = [
    "<img src=x onerror=alert(1)> <script>alert(1)</script>",
    "<iframe srcdoc='<script>parent.alert(1)</script>'></iframe>",
    "[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](data:text/html,<script>alert(1)</script>) [d](vbscript:x)",
    "[e](java\tscript:alert(1)) [f]( javascript:alert(1)) [g](file:///etc/passwd) [h](//example.org)",
    "![i](javascript:alert(1)) ![j](https://example.org/track.png) <javascript:alert(1)>",
    '[k](https://example.org" onclick="alert(1)) <a href="javascript:alert(1)">l</a>',
    "```html onload=alert(1)\n<script>alert(1)</script>\n```",
    "<style>*{display:none}</style><svg onload=alert(1)><math><mi//xlink:href='javascript:alert(1)'>",
    "> " * 3000 + "deep",
    "- " * 2000 + "deep",
    "[" * 5000 + "a*b_" * 2000,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A tiny model that takes images."""
    folder = tmp_path_factory.mktemp("vision")
    files = write_qwen35(folder / "tiny.gguf"), write_qwen3vl_projector(folder / "mmproj.gguf")
    with running(
        lambda: Model(files[0], mmproj=files[1], n_ctx=512, n_threads=1, n_gpu_layers=0, chat_template="chatml"),
        ServerSettings(),
    ) as client:
        yield client


SHOW = """async ([texts, flags, isWhole]) => {
    const { MarkdownView } = await import("./markdown.js");
    const element = document.createElement("div");
    const view = new MarkdownView(element);
    for (const text of texts) view.show(text, flags ?? "", isWhole ?? false);
    return element.innerHTML;
}"""


def test_markdown_is_what_marked_makes_of_it(server: Client, new_page: NewPage) -> None:
    """The words and the elements that hold them are those of marked's own HTML, which the page never uses."""
    page = new_page(server.url, bypass_csp=True)
    words = """(root) => {
        const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
        const found = [];
        while (walker.nextNode()) {
            const path = [];
            for (let e = walker.currentNode.parentElement; e && e !== root; e = e.parentElement) {
                if (!/^(DIV|THEAD|TBODY)$/.test(e.tagName)) path.push(e.tagName + (e.getAttribute("href") ?? ""));
            }
            for (const word of walker.currentNode.data.split(/\\s+/)) if (word) found.push(`${word} ${path}`);
        }
        return [...found, ...[...root.querySelectorAll("li > input")].map((e) => e.checked)];
    }"""
    own, others = page.evaluate(
        """async ([text, words, show]) => {
            const { parse } = await import("./marked.esm.js");
            const own = document.createElement("div");
            own.innerHTML = await eval(show)([[text]]);
            for (const head of own.querySelectorAll(".code-head")) head.remove();
            const html = parse(text, { gfm: true, breaks: true });
            const others = new DOMParser().parseFromString(html, "text/html").body; // which loads nothing
            for (const image of others.querySelectorAll("img")) {
                const link = document.createElement("a");
                link.setAttribute("href", image.src);
                link.textContent = image.alt;
                image.replaceWith(link);
            }
            for (const each of others.querySelectorAll("h1, h2")) {
                const head = document.createElement("h" + (Number(each.tagName[1]) + 2));
                head.append(...each.childNodes);
                each.replaceWith(head);
            }
            return [eval(words)(own), eval(words)(others)];
        }""",
        [TEXT, words, SHOW],
    )
    assert own == others and len(own) > 60


def test_a_text_that_grows_looks_as_if_it_came_at_once(server: Client, new_page: NewPage) -> None:
    page = new_page(server.url)
    chance = random.Random(1)
    source = TEXT.replace("[a reference][1]", "no reference")
    flags = "".join(chance.choice("01") for _ in source)
    whole = page.evaluate(SHOW, [[source], flags])
    for _ in range(20):
        cuts = sorted(chance.sample(range(1, len(source)), 30))
        assert page.evaluate(SHOW, [[*(source[:cut] for cut in cuts), source], flags]) == whole
    defined = "See [a][1].\n\nTwo.\n\nThree.\n\nFour.\n\n[1]: https://example.org\n"  # at the end, for what is above
    assert page.evaluate(SHOW, [[defined[:-9], defined], "", True]) == page.evaluate(SHOW, [[defined]])


def test_an_answer_cannot_do_anything(server: Client, new_page: NewPage) -> None:
    page = new_page(server.url)
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    for text in HOSTILE:
        page.click("#new")
        with scripted(page, said(text, text)):
            ask(page, text)
        page.click(".thinking summary")
        page.wait_for_selector(".thinking .text *")
        allowed = "div p h3 h4 h5 h6 ul ol li blockquote table thead tbody tr th td pre code span strong em del a br hr"
        found = page.evaluate(
            """[...document.querySelectorAll("article .text *")].map((e) =>
                [e.tagName.toLowerCase(), e.getAttributeNames().filter((name) => name.startsWith("on"))])"""
        )
        assert {tag for tag, _ in found} <= {*allowed.split(), "button", "input"} and not any(on for _, on in found)
        links = page.locator("article .text a").evaluate_all("all => all.map((e) => [e.protocol, e.rel])")
        assert all(link[0] in ("https:", "http:", "mailto:") and "noopener" in link[1] for link in links)
    assert all(url.startswith(server.url) for url in urls)


def test_the_policy_refuses_what_the_page_never_does(server: Client, new_page: NewPage) -> None:
    page = new_page(server.url, errors_expected=True)
    for script in ("document.body.innerHTML = '<b>'", "new DOMParser().parseFromString('a', 'text/html')"):
        tried = f"() => {{ try {{ {script}; return 'done' }} catch (error) {{ return error.name }} }}"
        assert page.evaluate(tried) == "TypeError"


PIECES = [
    ("Let", False),
    (" me", True),
    (" think", True),
    (".\n", False),
    ("</think>", True),
    ("\n\n", True),
    ("A **b", False),
    ("old** w", True),
    ("ord\n\n", False),
    ("```py\n", True),
    ("if a:\n", False),
    ("    b", True),
    (" = 1", True),
    ("\n```\n", False),
    ("[te", True),
    ("xt](https://e.org) e", False),
    ("nd 🙂", True),
]
"""A text of a model, and which pieces were drafted."""


@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_drafts_keep_their_colours_through_tags_and_markdown(server: Client, new_page: NewPage, n: int) -> None:
    """However the parts come: as the server sends them, `n` characters of a text before the piece that has them."""
    page = new_page(server.url)
    raw = "".join(piece for piece, _ in PIECES)
    thought, content = "Let me think.", raw.partition("</think>\n\n")[2]
    events = [chunk({"reasoning_content": thought[i : i + n]}) for i in range(0, len(thought), n)]
    events += [chunk({"content": content[i : i + n]}) for i in range(0, len(content), n)]
    for i, piece in enumerate(PIECES):
        at = min(len(events), (i + 1) * max(1, len(events) // len(PIECES)) + i)
        events.insert(at, {**chunk({}), "drafts": [piece]})
    with scripted(page, [*events, *said()]):
        ask(page, "Go.")
    page.click(".thinking summary")
    page.wait_for_selector(".thinking .text *")
    drafted = "[...e.querySelectorAll('.drafted')].map((each) => each.textContent)"
    assert page.locator(".thinking .text").evaluate(f"e => {drafted}") == ["me think"]
    own = page.locator("article.assistant > .text")
    assert own.evaluate(f"e => {drafted}") == ["old", "w", "b = 1", "te", "nd 🙂"]
    assert own.locator("strong").inner_html() == 'b<span class="drafted">old</span>'


GIVE = """async ([event, data, type, text]) => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 64, height: 48 });
    canvas.getContext("2d").fillRect(0, 0, 9, 9);
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, type));
    const all = [...new Uint8Array(await blob.arrayBuffer())];
    const turned = [0xff, 0xe1, 0, 34, ...new TextEncoder().encode("Exif\\0\\0MM\\0*"), 0, 0, 0, 8, 0, 1,
        1, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0]; // EXIF: lies on its side
    if (type === "image/jpeg") all.splice(2, 0, ...turned);
    const given = new DataTransfer();
    given.items.add(new File([new Uint8Array(all)], "image", { type }));
    if (text) given.setData("text/plain", text);
    const Kind = event === "paste" ? ClipboardEvent : DragEvent;
    document.querySelector("#text").dispatchEvent(new Kind(event, { [data]: given, bubbles: true, cancelable: true }));
}"""


def test_images_are_picked_pasted_and_dropped(server: Client, new_page: NewPage) -> None:
    page = new_page(server.url)
    sent = requests_of(page)
    page.wait_for_selector("#pick")
    set_fields(page, max_tokens="4")
    page.set_input_files("#pick input", {"name": "a.png", "mimeType": "image/png", "buffer": png(64, 48)})
    page.wait_for_selector("#images img")
    page.evaluate(GIVE, ["paste", "clipboardData", "image/jpeg"])
    page.wait_for_selector("#images img >> nth=1")
    page.evaluate(GIVE, ["drop", "dataTransfer", "image/webp"])
    page.evaluate(GIVE, ["paste", "clipboardData", "image/png", "a table"])
    page.wait_for_selector("#images img >> nth=2")
    sizes = page.locator("#images img").evaluate_all("all => all.map((e) => [e.naturalWidth, e.naturalHeight])")
    assert sizes == [[64, 48], [48, 64], [64, 48]]
    page.click("#images button >> nth=0")
    ask(page, "What is this?")
    parts = sent[0]["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "image_url", "text"]
    assert [part["image_url"]["url"][:15] for part in parts[:2]] == ["data:image/jpeg", "data:image/png;"]
    assert page.locator("#images img").count() == 0 and page.locator("article.user img").count() == 2
    assert page.locator("article:last-child small").text_content().startswith("4 tokens")
    page.reload()
    page.wait_for_selector("article.user img >> nth=1")
    page.locator("article.user").get_by_text("Edit").click()
    assert page.locator("#images img").count() == 2
    page.keyboard.press("Escape")
    page.set_input_files("#pick input", {"name": "a.png", "mimeType": "image/png", "buffer": b"no picture"})
    page.wait_for_selector("#note:has-text('a.png is not an image')")


def test_a_model_without_a_projector_offers_no_images(server: Client, new_page: NewPage) -> None:
    page = new_page("about:blank")
    props = server.get("/props").json | {"modalities": {"vision": False}}
    page.route("**/props", lambda route: route.fulfill(body=json.dumps(props), content_type="application/json"))
    page.goto(server.url)
    page.wait_for_selector("#model:has-text('tiny')")
    assert page.locator("#pick").is_hidden()
