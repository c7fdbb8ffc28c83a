"""The page's chat in a real browser, on a real server."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import ask, requests_of, said, scripted, set_fields, wait_for_end
from http_server import Client, running
from pymtp import Model
from pymtp.server.settings import ServerSettings

pytestmark = pytest.mark.model

SHOTS = os.environ.get("PYMTP_SCREENSHOTS")
"""A folder for pictures of the page, which docs/ shows."""
NewPage = Callable[..., Any]
SUM = "A farmer picks 12 apples a day and sells each for 2 dollars. How much does he earn in 5 days?"
"""The embedded model thinks about it."""


def load() -> Model:
    return Model(n_ctx=1024, n_seq_max=2, n_threads=1, draft_max=3)


@pytest.fixture(scope="module")
def defaults() -> Any:
    with load() as model:
        return model.defaults


@pytest.fixture(scope="module")
def server(defaults: Any) -> Iterator[Client]:
    with running(load, ServerSettings(defaults)) as client:
        yield client


@pytest.mark.parametrize(
    ("name", "scheme", "width", "height", "question"),
    [("light", "light", 900, 640, SUM), ("phone-dark", "dark", 390, 720, "Tell me a story.")],
    ids=["light", "phone"],
)
def test_a_chat_shows_drafts_speed_and_slots(
    server: Client, new_page: NewPage, name: str, scheme: str, width: int, height: int, question: str
) -> None:
    page = new_page(server.url, color_scheme=scheme, viewport={"width": width, "height": height})
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    page.reload()
    set_fields(page, temperature="0", max_tokens="120")
    page.wait_for_selector("#model:has-text('.gguf')")
    ask(page, question)
    ask(page, "Write a Python function that adds two numbers.")
    assert page.locator("article.assistant").count() == page.locator("article.user").count() == 2
    assert "% of drafts accepted" in page.text_content("article:last-child small")
    assert "of 1024 tokens of context" in page.text_content("article:last-child small")
    page.wait_for_selector("#slots i >> nth=1", state="attached")
    assert page.locator("#slots i").count() == 2
    drafted = page.locator(".assistant .drafted").first
    looks = "e => { const s = getComputedStyle(e); return s.color + s.backgroundColor }"
    plain = page.locator("article.assistant").first
    assert drafted.evaluate(looks) != plain.evaluate(looks)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert all(url.startswith(server.url) for url in urls)
    if SHOTS:
        for summary in page.locator(".thinking summary:visible").all():
            summary.click()
        page.screenshot(path=str(Path(SHOTS) / f"server-page-{name}.png"))
    page.uncheck("[name=colours]")
    assert drafted.evaluate(looks) == drafted.evaluate(f"e => ({looks})(e.parentElement)")


def test_thinking_is_folded_and_not_sent_again(server: Client, new_page: NewPage) -> None:
    question = {"role": "user", "content": SUM}
    asked = {"messages": [question], "temperature": 0, "seed": 1}
    message = server.post("/v1/chat/completions", **asked).json["choices"][0]["message"]
    assert message["reasoning_content"] and message["content"]
    page = new_page(server.url)
    sent = requests_of(page)
    set_fields(page, temperature="0", seed="1")
    ask(page, SUM)
    thoughts = page.locator(".thinking .text")
    assert not thoughts.is_visible() and thoughts.text_content() == ""  # nor is it made before it is looked at
    page.click(".thinking summary")
    page.wait_for_selector(".thinking .text *")
    shown = page.text_content("article:last-child > .text")
    assert thoughts.text_content().strip() and "think>" not in thoughts.text_content() + shown
    assert page.locator(".thinking .drafted").count() > 0
    ask(page, "And 3+3?")
    assert [each["role"] for each in sent[1]["messages"]] == ["user", "assistant", "user"]
    assert all(sorted(each) == ["content", "role"] for each in sent[1]["messages"])
    assert flat(sent[1]["messages"][1]["content"]) == flat(shown)
    set_fields(page, thinking="off")
    ask(page, SUM)
    assert sent[2]["chat_template_kwargs"] == {"enable_thinking": False}
    assert page.locator("article:last-child .thinking").is_hidden()


def flat(text: str) -> str:
    return "".join(text.split())


def test_sampling_is_the_servers_until_a_field_is_filled_in(server: Client, new_page: NewPage) -> None:
    page = new_page(server.url)
    sent = requests_of(page)
    page.wait_for_selector("#model:has-text('.gguf')")
    params = server.get("/props").json["default_generation_settings"]["params"]
    for name in ("temperature", "top_k", "top_p", "min_p", "draft_p_min"):
        assert float(page.get_attribute(f"[name={name}]", "placeholder")) == pytest.approx(params[name])
    assert page.get_attribute("[name=max_tokens]", "placeholder") == "no limit"
    ask(page, "Hello.")
    assert sorted(sent[0]) == ["messages", "return_drafts", "stream"]
    set_fields(page, temperature="0", max_tokens="9", seed="5", draft_max="0", accept="match", system="Be brief.")
    page.reload()
    ask(page, "Hello.")
    own = {"temperature": 0, "max_tokens": 9, "seed": 5, "draft_max": 0, "accept": "match"}
    assert own.items() <= sent[1].items() and sent[1]["messages"][0] == {"role": "system", "content": "Be brief."}
    page.click("nav [popovertarget=settings]")
    page.click("[type=reset]")
    page.keyboard.press("Escape")
    page.reload()
    ask(page, "Hello.")
    assert sorted(sent[2]) == ["messages", "return_drafts", "stream"] and sent[2]["messages"][0]["role"] == "user"


def test_an_answer_that_was_cut_says_so(server: Client, new_page: NewPage) -> None:
    page = new_page(server.url)
    set_fields(page, max_tokens="3")
    ask(page, "Tell me a long story.")
    assert page.text_content("article:last-child .end") == "[cut: max tokens]"
    set_fields(page, max_tokens="")
    for n, text in ((1000, "[cut: the context is full]"), (500, "[cut]")):
        with scripted(page, said("Once", end="length", timings=timings(n))):
            ask(page, "Tell me a long story.")
        assert page.text_content("article:last-child .end") == text
    with scripted(page, said("Once.")):
        ask(page, "Tell me a short story.")
    assert page.locator("article:last-child .end").is_hidden()


def timings(n: int) -> dict[str, float]:
    return {"cache_n": 0, "prompt_n": 24, "predicted_n": n, "predicted_per_second": 9.0}


def test_a_message_that_failed_is_kept_and_not_in_the_way(server: Client, new_page: NewPage) -> None:
    page = new_page(server.url, errors_expected=True)
    sent = requests_of(page)
    long = "word " * 3000
    ask(page, long)
    failed = page.locator("article:last-child")
    assert "failed" in failed.locator(".end").text_content() and "context" in failed.locator(".end").text_content()
    ask(page, "Hello.")
    assert sent[-1]["messages"] == [{"role": "user", "content": "Hello."}]
    page.locator("article.user").first.get_by_text("Edit").click()
    assert page.input_value("#text") == long.strip()
    page.get_by_role("button", name="Cancel").click()
    assert page.input_value("#text") == "" and page.locator("article").count() == 4
    page.route("**/v1/chat/completions", lambda route: route.abort())
    ask(page, "Are you there?")
    assert failed.locator(".end").text_content() == "[failed: the server does not answer]"
    page.reload()
    page.wait_for_selector("article >> nth=5")
    page.unroute("**/v1/chat/completions")
    page.get_by_role("button", name="Try again").last.click()
    page.wait_for_selector("article:last-child .text *")
    wait_for_end(page)
    assert sent[-1]["messages"][-1] == {"role": "user", "content": "Are you there?"}
    assert page.locator("article").count() == 6 and failed.locator(".end").is_hidden()


def test_enter_ends_a_word_of_an_input_method_and_sends_nothing(server: Client, new_page: NewPage) -> None:
    page = new_page(server.url)
    sent = requests_of(page)
    page.focus("#text")
    keys = page.context.new_cdp_session(page)
    keys.send("Input.imeSetComposition", {"text": "にほん", "selectionStart": 3, "selectionEnd": 3})
    assert page.input_value("#text") == "にほん"
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    assert sent == [] and page.locator("article").count() == 0
    keys.send("Input.insertText", {"text": "日本"})
    page.keyboard.press("Enter")
    wait_for_end(page)
    assert sent[0]["messages"] == [{"role": "user", "content": "日本"}]


def test_stop_is_by_keyboard_and_send_waits(server: Client, new_page: NewPage) -> None:
    page = new_page(server.url, errors_expected=True)
    sent = requests_of(page)
    page.route("**/v1/chat/completions", never)
    page.fill("#text", "Tell me a long story.")
    page.keyboard.press("Enter")
    assert page.is_disabled("#send") and page.is_enabled("#stop")
    page.fill("#text", "Another")
    page.keyboard.press("Enter")
    page.context.new_cdp_session(page).send(
        "Input.imeSetComposition", {"text": "x", "selectionStart": 1, "selectionEnd": 1}
    )
    page.keyboard.press("Escape")  # is the input method's
    page.locator("nav [popovertarget=settings]").press("Enter")
    page.keyboard.press("Escape")  # closes the settings alone
    assert page.locator(":popover-open").count() == 0 and page.is_enabled("#stop")
    page.keyboard.press("Escape")
    wait_for_end(page)
    assert page.is_enabled("#send") and len(sent) == 1 and "Another" in page.input_value("#text")
    assert page.text_content("article:last-child .end") == "[stopped]"
    page.unroute("**/v1/chat/completions")
    ask(page, "Hello.")  # nor is an answer without a word in the way
    assert [each["role"] for each in sent[1]["messages"]] == ["user", "assistant", "user"]
    assert page.locator("article:last-child .end").is_hidden()


def never(route: Any) -> None:
    """Leaves a request without an answer."""


def test_an_answer_is_copied_made_again_and_a_question_edited(server: Client, new_page: NewPage) -> None:
    page = new_page(server.url, permissions=["clipboard-read", "clipboard-write"])
    sent = requests_of(page)
    code = "```python\nx = 1\n```"
    with scripted(page, said(f"So:\n\n{code}\n")):
        ask(page, "One.")
        ask(page, "Two.")
    read = "navigator.clipboard.readText()"
    page.click(".code-head button >> nth=0")
    page.wait_for_selector("text=Copied")
    assert page.evaluate(read) == "x = 1"
    page.locator("article:last-child footer").get_by_text("Copy", exact=True).click()
    page.wait_for_selector("article:last-child footer >> text=Copied")
    assert page.evaluate(read) == f"So:\n\n{code}\n"
    with scripted(page, said("Again.")):
        page.locator("article:last-child").get_by_text("Regenerate").click()
        page.wait_for_selector("text=Again.")
        wait_for_end(page)
    assert [each["content"] for each in sent[-1]["messages"]] == ["One.", f"So:\n\n{code}\n", "Two."]
    with scripted(page, said("Edited.")):
        page.locator("article.user").first.get_by_text("Edit").click()
        ask(page, "Three.")
    assert sent[-1]["messages"] == [{"role": "user", "content": "Three."}]
    page.reload()
    page.wait_for_selector("article >> nth=1")
    assert page.locator("article > .text").all_text_contents() == ["Three.", "Edited."]


def test_a_page_by_plain_http_copies_too(server: Client, new_page: NewPage) -> None:
    page = new_page(server.url, permissions=["clipboard-read", "clipboard-write"])
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined, configurable: true})")
    with scripted(page, said("Copy me")):
        ask(page, "Hello.")
    page.locator("article:last-child footer").get_by_text("Copy", exact=True).click()
    page.wait_for_selector("text=Copied")
    page.evaluate("delete navigator.clipboard")
    assert page.evaluate("navigator.clipboard.readText()") == "Copy me"


def test_several_chats_are_kept_deleted_exported_and_imported(
    server: Client, new_page: NewPage, tmp_path: Path
) -> None:
    page = new_page(server.url)
    for i in range(3):
        page.click("#new")
        with scripted(page, said(f"Answer {i}.", "Thought.")):
            ask(page, f"Question {i}.")
    page.click("nav [popovertarget=chats]")
    titles = page.locator("#chats li button:first-child")
    page.wait_for_selector("#chats li >> nth=2")
    assert titles.all_text_contents() == ["Question 2.", "Question 1.", "Question 0."]
    titles.nth(2).click()
    assert page.locator("article > .text").all_text_contents() == ["Question 0.", "Answer 0."]
    page.reload()
    page.wait_for_selector("article >> nth=1")
    assert page.locator("article > .text").all_text_contents() == ["Question 0.", "Answer 0."]
    page.click("nav [popovertarget=chats]")
    with page.expect_download() as download:
        page.click("#export")
    file = tmp_path / "chats.json"
    download.value.save_as(file)
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete Question 0.").click()
    page.wait_for_selector("#chats li >> nth=2", state="detached")
    assert page.locator("article").count() == 0
    page.get_by_role("button", name="Question 1.", exact=True).click()
    with scripted(page, said("Later.")):
        ask(page, "And then?")
    page.set_input_files("#import", file)
    page.wait_for_selector("text=2 chats imported.")
    page.reload()
    page.wait_for_selector("text=Later.")
    other = new_page(server.url)
    other.click("nav [popovertarget=chats]")
    other.set_input_files("#import", file)
    other.wait_for_selector("text=3 chats imported.")
    other.get_by_role("button", name="Question 0.", exact=True).click()
    other.click(".thinking summary")
    other.wait_for_selector(".thinking >> text=Thought.")
    (tmp_path / "other.json").write_text(json.dumps({"messages": []}))
    other.set_input_files("#import", tmp_path / "other.json")
    other.wait_for_selector("#note:has-text('this is not a file of exported chats')")


def test_an_answer_belongs_to_its_chat_and_survives_a_reload(server: Client, new_page: NewPage) -> None:
    page = new_page(server.url)
    sent = requests_of(page)
    set_fields(page, max_tokens="30")
    page.fill("#text", "Tell me a long story.")
    page.keyboard.press("Enter")
    page.wait_for_selector("article.assistant")
    page.click("#new")
    assert page.locator("article").count() == 0
    wait_for_end(page)
    ask(page, "Hello.")
    assert sent[-1]["messages"] == [{"role": "user", "content": "Hello."}]
    page.click("nav [popovertarget=chats]")
    page.locator("#chats li >> nth=1 >> button >> nth=0").click()
    assert page.text_content("article:last-child > .text")
    page.route("**/v1/chat/completions", never)
    page.fill("#text", "And?")
    page.keyboard.press("Enter")
    page.wait_for_selector("article[aria-busy=true]")
    page.reload()
    page.wait_for_selector("article >> nth=3")
    assert page.text_content("article:last-child .end") == "[interrupted]"
    page.fill("#text", "Are you there?")
    page.keyboard.press("Enter")
    page.wait_for_selector("article[aria-busy=true]")
    page.click("nav [popovertarget=chats]")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete Tell me a long story.").click()
    wait_for_end(page)
    page.reload()
    page.click("nav [popovertarget=chats]")
    page.wait_for_selector("#chats li")
    assert page.locator("#chats li button:first-child").all_text_contents() == ["Hello."]


def test_two_tabs_share_a_chat(server: Client, new_page: NewPage) -> None:
    page = new_page(server.url)
    with scripted(page, said("One.")):
        ask(page, "First.")
    other = page.context.new_page()
    other.goto(page.url)
    other.wait_for_selector("article >> nth=1")
    with scripted(other, said("Two.")):
        ask(other, "Second.")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_selector("article >> nth=3")


def test_a_key_is_asked_for_and_goes_with_the_tab(defaults: Any, new_page: NewPage) -> None:
    with running(load, ServerSettings(defaults, api_keys=("secret",))) as client:
        page = new_page(client.url, errors_expected=True)
        page.wait_for_selector("#settings:popover-open")
        page.keyboard.type("secret")
        page.keyboard.press("Tab")
        page.wait_for_selector("#model:has-text('.gguf')")
        page.reload()
        page.wait_for_selector("#model:has-text('.gguf')")
        ask(page, "Hello.")
        assert page.text_content("article:last-child > .text")
        assert "secret" not in page.evaluate("JSON.stringify(localStorage)")
        other = page.context.new_page()
        other.goto(client.url)
        other.wait_for_selector("#model:has-text('the server wants an API key')")


def test_what_does_not_change_is_asked_for_once(defaults: Any, new_page: NewPage) -> None:
    with running(load, ServerSettings(defaults, has_slots=False)) as client:
        page = new_page("about:blank")
        page.clock.install()
        urls: list[str] = []
        page.on("request", lambda request: urls.append(request.url.rpartition("/")[2]))
        page.goto(client.url)
        page.wait_for_selector("#model:has-text('.gguf')")
        ask(page, "Hello.")
        page.clock.run_for(60_000)
        assert urls.count("props") == 1 and "slots" not in urls


def test_a_page_says_when_its_server_is_gone_and_when_it_is_back(server: Client, new_page: NewPage) -> None:
    page = new_page("about:blank", errors_expected=True)
    page.clock.install()
    page.goto(server.url)
    page.wait_for_selector("#model:has-text('.gguf')")

    def becomes(text: str) -> None:
        page.clock.run_for(2000)
        page.wait_for_selector(f"#model:has-text('{text}')")

    page.route("**/slots", lambda route: route.abort())
    becomes("does not answer")
    page.unroute("**/slots")
    becomes(".gguf")
    for path in ("**/slots", "**/props"):
        page.route(path, lambda route: route.fulfill(status=503, body="{}"))
    becomes("the model is loading")
    for path in ("**/slots", "**/props"):
        page.unroute(path)
    becomes(".gguf")


def test_without_javascript_the_page_says_what_it_needs(server: Client, new_page: NewPage) -> None:
    page = new_page(server.url, java_script_enabled=False)
    assert "needs JavaScript" in page.text_content("#model")


def test_whole_sentences_are_read_aloud(server: Client, new_page: NewPage) -> None:
    page = new_page(server.url)
    assert page.locator("#log[aria-live], #log[role=log]").count() == 0
    page.evaluate(
        """() => {
            window.spoken = [];
            const texts = (change) => [...change.addedNodes].map((each) => each.textContent);
            const hear = (changes) => spoken.push(...changes.flatMap(texts));
            new MutationObserver(hear).observe(document.querySelector("#spoken"), { childList: true });
        }"""
    )
    set_fields(page, temperature="0")
    ask(page, "Tell me a long story.")
    spoken, text = page.evaluate("spoken"), page.text_content("article:last-child > .text")
    assert spoken and flat("".join(spoken)) == flat(text)
    assert all(each[-1] in ".!?。！？:;)\"'”" or each == spoken[-1] or "\n" in text for each in spoken)


@pytest.mark.parametrize(("width", "height"), [(320, 600), (900, 400)])
def test_a_small_window_has_room_for_all(server: Client, new_page: NewPage, width: int, height: int) -> None:
    page = new_page(server.url, viewport={"width": width, "height": height})
    fits = "document.documentElement.scrollWidth <= window.innerWidth"
    with scripted(page, said("|a|b|\n|-|-|\n|" + "long " * 90 + "|c|\n\n```\n" + "x" * 900 + "\n```\n\n" + "y" * 900)):
        ask(page, "w" * 300)
    assert page.evaluate("document.querySelector('#log').clientHeight") >= 100 and page.evaluate(fits)
    assert page.evaluate("document.querySelector('#log').scrollWidth <= document.querySelector('#log').clientWidth")
    for name in ("chats", "settings"):
        opener = page.locator(f"nav [popovertarget={name}]")
        opener.press("Enter")
        page.wait_for_selector(f"#{name}:popover-open")
        assert page.evaluate(fits)
        assert page.evaluate(f"document.querySelector('#{name}').scrollWidth <= window.innerWidth")
        assert page.evaluate(f"document.querySelector('#{name}').clientHeight") == height
        last = page.locator(f"#{name} :is(button, label.button) >> nth=-1")
        last.scroll_into_view_if_needed()
        assert last.is_visible()
        page.keyboard.press("Escape")
        assert page.locator(":popover-open").count() == 0
    order = []
    page.focus("#new")
    for _ in range(3):
        order.append(page.evaluate("document.activeElement.textContent"))
        page.keyboard.press("Tab")
    assert order == ["New chat", "Chats", "Settings"]
