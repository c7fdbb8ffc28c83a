"""The page in a real browser: headless Chromium, if there is one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from http_server import Client, running
from pymtp import Model
from pymtp.server.settings import ServerSettings

pytestmark = pytest.mark.model

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
SHOTS = os.environ.get("PYMTP_SCREENSHOTS")
"""A folder for pictures of the page, which docs/ shows."""


@pytest.fixture(scope="module")
def server() -> Iterator[Client]:
    with Model(draft_max=3) as model:
        defaults = model.defaults
    with running(lambda: Model(n_ctx=1024, n_seq_max=2, n_threads=1, draft_max=3), ServerSettings(defaults)) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


def ask(page: Any, text: str) -> None:
    """Type a message, send it with Enter, and wait for the whole answer."""
    page.fill("#text", text)
    page.keyboard.press("Enter")
    page.wait_for_selector(".assistant span", timeout=30_000)
    page.wait_for_selector("#stop:disabled", timeout=60_000)


@pytest.mark.parametrize(
    ("name", "scheme", "width", "height"), [("light", "light", 900, 640), ("phone-dark", "dark", 390, 720)]
)
def test_a_chat_shows_drafts_speed_and_slots(
    server: Client, browser: Any, name: str, scheme: str, width: int, height: int
) -> None:
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": height})
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(server.url)
    page.evaluate("document.querySelector('details').open = true")
    page.fill("[name=temperature]", "0")
    page.fill("[name=max_tokens]", "120")
    page.evaluate("document.querySelector('details').open = false")
    page.wait_for_selector("#model:has-text('.gguf')")
    ask(page, "Write a Python function that adds two numbers.")
    ask(page, "Tell me a story.")
    assert page.locator(".assistant").count() == page.locator(".user").count() == 2
    assert page.locator(".assistant .drafted").count() > 0
    assert "% of drafts accepted" in page.text_content("#stats")
    assert page.locator("#slots i").count() == 2
    drafted = page.locator(".assistant .drafted").first
    plain = page.locator(".assistant span:not(.drafted)").first
    looks = "e => { const s = getComputedStyle(e); return s.color + s.backgroundColor + s.textDecoration }"
    assert drafted.evaluate(looks) != plain.evaluate(looks)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert all(url.startswith(server.url) for url in requests) and problems == []
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / f"server-page-{name}.png"))
    page.close()


def test_the_page_stops_clears_and_shows_errors_by_keyboard(server: Client, browser: Any) -> None:
    page = browser.new_page()
    page.goto(server.url)
    page.evaluate("document.querySelector('details').open = true")
    page.fill("[name=max_tokens]", "900")
    page.fill("#text", "Tell me a long story.")
    page.keyboard.press("Enter")
    page.wait_for_selector(".assistant span", timeout=30_000)
    page.keyboard.press("Escape")
    page.wait_for_selector("#stop:disabled", timeout=10_000)
    page.click("#clear")
    assert page.locator("#log > *").count() == 0
    page.fill("[name=top_p]", "")
    page.fill("#text", "word " * 3000)
    page.keyboard.press("Enter")
    page.wait_for_selector("p.error", timeout=10_000)
    assert "context size" in page.text_content("p.error")
    ask(page, "Hello.")  # what could not be answered is not sent again
    page.close()


def test_an_answer_that_is_cleared_away_is_not_part_of_the_next_chat(server: Client, browser: Any) -> None:
    page = browser.new_page()
    page.goto(server.url)
    sent: list[Any] = []
    page.on("request", lambda request: sent.append(request.post_data_json) if request.method == "POST" else None)
    page.fill("#text", "Tell me a long story.")
    page.keyboard.press("Enter")
    page.wait_for_selector(".assistant span", timeout=30_000)
    page.click("#clear")
    page.wait_for_selector("#stop:disabled", timeout=10_000)
    ask(page, "Hello.")
    assert sent[-1]["messages"] == [{"role": "user", "content": "Hello."}]
    page.close()


@pytest.mark.parametrize(("width", "height"), [(360, 560), (390, 720), (900, 640)])
def test_the_conversation_stays_in_sight_beside_the_settings(
    server: Client, browser: Any, width: int, height: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto(server.url)
    page.evaluate("document.querySelector('details').open = true")
    assert page.evaluate("document.querySelector('#log').clientHeight") >= 100
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.close()
