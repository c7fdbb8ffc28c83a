"""`pymtp chat` as people use it: through a pipe, and at a terminal of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pymtp_cli.app import app
from typer.testing import CliRunner

from pymtp import Model
from terminal import Terminal
from test_answer_rules import THINKING

pytestmark = pytest.mark.model

TIMEOUT_S = 120
FLAGS = ["-t", "1", "--temp", "0", "-n", "24"]
COMMAND = [sys.executable, "-m", "pymtp_cli", "chat", *FLAGS]
EOG = (0, 2)  # the tokens with which the embedded model ends an answer
# prompt_toolkit asks for marked pastes while it reads a message
PROMPT, SENT = "\x1b[?2004h", "\x1b[?2004l"
THINKS = "A farmer picks 12 apples a day and sells each for 2 dollars. How much does he earn in 5 days?"
STATUS = re.compile(
    r"\[\d+ tok/s, \d+ tokens(?: \(-n\))?, (drafts \d+ of \d+ accepted, )?prompt (\d+) \+ (\d+) cached"
    r"(?:, [\d.]+ tokens per round)?\]"
)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def chat(*lines: str, flags: list[str] | None = None) -> Any:
    """Say `lines` through a pipe."""
    arguments = ["chat", *FLAGS, *(flags or [])]
    return CliRunner().invoke(app, arguments, input="\n".join([*lines, ""]).encode(), prog_name="pymtp")


def test_a_pipe_gets_answers_and_no_escape_codes() -> None:
    result = chat("Hello, who are you?", "Tell me about the sea.")
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.splitlines()) >= 2
    assert "\x1b" not in result.stdout + result.stderr
    first, second = STATUS.finditer(result.stderr)
    assert int(first[3]) == 0
    assert int(second[3]) > int(first[2])  # the first prompt and its answer are still there


def test_stats_say_what_was_computed() -> None:
    result = chat("/stats", "Hello", "Tell me about the sea.", "/stats")
    assert "there is no answer yet" in result.stderr
    kept, total, new = map(int, re.findall(r"in cache: +(\d+) of (\d+) tokens, (\d+) computed", result.stderr)[0])
    assert kept + new == total
    assert new > 0 < kept
    last, everything = re.findall(r"^generation: +(\d+) tokens", result.stderr, re.MULTILINE)
    assert int(last) < int(everything)


def test_an_answer_can_be_made_again_and_a_turn_taken_back() -> None:
    result = chat("/undo", "/regen", "Hello", "/regen", "/undo", "/show")
    assert "there is nothing to undo" in result.stderr
    assert "there is no answer to regenerate yet" in result.stderr
    first, again = result.stdout.splitlines()
    assert first == again  # at temperature 0
    assert "removed the last message and its answer; 0 turns left" in result.stderr


def test_another_answer_has_another_seed() -> None:
    result = chat("Tell me about the sea.", "/regen", "/regen", flags=["--temp", "1.5", "--seed", "1", "-n", "12"])
    assert len(set(result.stdout.splitlines())) > 1


def test_parameters_can_be_set_by_their_names() -> None:
    result = chat(
        "/set top_k 5", "/set", "/set temprature 1", "/set top_p 3", "/set max_tokens 2", "Hello", "/set seed"
    )
    assert "top_k: 5" in result.stderr
    assert re.search(r"^temperature +0$", result.stderr, re.MULTILINE)
    assert "no parameter temprature; did you mean temperature?" in result.stderr
    assert "top_p must be between 0 and 1, not 3.0" in result.stderr
    assert "2 tokens (-n), " in result.stderr
    assert "seed: random" in result.stderr


def test_parameters_can_be_set_by_the_names_and_in_the_syntax_of_their_flags() -> None:
    result = chat(
        *("/set temp 0.3", "/set --top-k 7", "/set top_p 0.5", "/set seed 5", "/set seed -1", "/set n 3"),
        *(
            "/set samplers top_k;temperature",
            "/set samplers",
            "/set dry-sequence-breaker \\n;END",
            "/set mirostat-ent 4",
        ),
        *("/set tempp 1", "/set"),
    )
    notes = result.stderr.splitlines()
    for line in ("temperature: 0.3", "top_k: 7", "top_p: 0.5", "seed: 5", "seed: random", "max_tokens: 3"):
        assert line in notes
    assert notes.count("samplers: top_k;temperature") == 2
    assert "dry_sequence_breakers: \\n;END" in notes
    assert "mirostat_tau: 4" in notes
    assert "no parameter tempp; did you mean temp?" in result.stderr
    assert "None" not in result.stderr and "(" not in "".join(notes[-30:])


def test_the_system_prompt_can_be_changed() -> None:
    result = chat("/system", "/system Be brief.", "/show", "/system none", "/system", flags=["-sys", "Speak of fish."])
    assert re.findall(r"system prompt: (.*)", result.stderr) == ["Speak of fish.", "Be brief.", "none", "none"]
    assert re.search(r"^system prompt +Be brief\.$", result.stderr, re.MULTILINE)


def test_drafting_can_be_changed() -> None:
    result = chat("/mtp", "/mtp 1", "Hello", "/mtp off", "Hello", "/mtp auto", "/mtp 19", "/mtp some")
    assert re.findall(r"drafting: (.*)", result.stderr) == [
        "adaptive",
        "1 token per round",
        "off",
        "adaptive",
    ]
    drafting, plain = STATUS.finditer(result.stderr)
    assert drafting[1] and not plain[1]
    assert result.stderr.count("/mtp takes on, off, auto or 0 to 15; for more, restart with --draft-max") == 2
    assert "the model cannot draft" in chat("/mtp on", flags=["--draft", "none"]).stderr


def test_a_file_goes_with_the_next_message(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the notes", encoding="utf-8")
    (tmp_path / "latin1.txt").write_bytes(b"caf\xe9")
    result = chat(
        "/read notes.txt",
        "Hello",
        "Hello",
        "/save chat.json",
        "/read missing.txt",
        "/read",
        "/read latin1.txt",
        "/read .",
        "/read /dev/zero",
        *(f"{command} {'x' * 300}" for command in ("/read", "/load", "/save")),
    )
    assert "notes.txt: 9 characters go with the next message" in result.stderr
    said = json.loads((tmp_path / "chat.json").read_text(encoding="utf-8"))["messages"]
    assert [message["content"] for message in said[::2]] == ["the notes\n\nHello", "Hello"]
    for text in (
        "cannot read missing.txt: No such file",
        "/read needs the name",
        "not valid UTF-8",
        "cannot read .: it is not a regular file",
        "cannot read /dev/zero: it is not a reg",
    ):
        assert text in result.stderr
    assert " ".join(result.stderr.split()).count("File name too long") == 3


def test_a_conversation_can_be_saved_and_taken_up(tmp_path: Path) -> None:
    first = chat("Hello", "Tell me about the sea.", "/save chat.json", "/save chat.json", flags=["-sys", "Be brief."])
    assert "chat.json: 2 turns saved\n" in first.stderr
    assert "chat.json: 2 turns saved, in place of the chat that was there\n" in first.stderr
    again = chat("/load chat.json", "/show chat", "/regen", "/system")
    assert "chat.json: 2 turns loaded" in again.stderr
    assert "system prompt: Be brief." in again.stderr
    assert again.stdout.splitlines()[-1] == first.stdout.splitlines()[-1]
    assert "Tell me about the sea." in again.stdout


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", "[" * 100_000, '{"format": "pymtp chat", "messages": [1]}', "my diary"],
    ids=lambda content: content[:20],
)
def test_what_is_no_chat_is_neither_loaded_nor_overwritten(tmp_path: Path, content: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(content, encoding="utf-8")
    result = chat(
        "/load file.json", "/save file.json", "/save /nonexistent/x", "/save", "/load", "/save a\0b", "/load ~nobody/x"
    )
    assert result.exit_code == 1
    assert "file.json is not a saved chat" in result.stderr
    assert "file.json exists and is not a saved chat" in result.stderr
    assert "cannot write /nonexistent/x: No such file" in result.stderr
    assert path.read_text(encoding="utf-8") == content


def test_text_that_utf8_cannot_encode_is_one_line(tmp_path: Path) -> None:
    result = chat("Hello", flags=["-sys", "\udcff"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "-sys/--system-prompt: must be valid UTF-8; convert it first (iconv -t UTF-8)" in result.stderr
    messages = [{"role": "user", "content": "\ud800"}, {"role": "assistant", "content": "b"}]
    saved = {"format": "pymtp chat", "system": None, "messages": messages}
    (tmp_path / "chat.json").write_text(json.dumps(saved), encoding="utf-8")
    assert "chat.json is not a saved chat" in chat("/load chat.json").stderr


def test_a_context_beyond_what_the_model_was_trained_with_is_said() -> None:
    result = chat("/exit", flags=["-c", "4096"])
    assert (result.exit_code, result.stdout) == (0, "")
    assert "a context of 4096 tokens, but the model was trained with 2048" in result.stderr


def test_turns_that_do_not_alternate_are_not_loaded(tmp_path: Path) -> None:
    saved = {"format": "pymtp chat", "system": None, "messages": [{"role": "user", "content": "a"}]}
    (tmp_path / "odd.json").write_text(json.dumps(saved), encoding="utf-8")
    assert "messages must be pairs of user and assistant" in chat("/load odd.json").stderr


def test_a_saved_reason_that_is_not_one_is_not_shown(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "finish_reason": []}]
    saved = {"format": "pymtp chat", "system": None, "messages": messages}
    (tmp_path / "odd.json").write_text(json.dumps(saved), encoding="utf-8")
    result = chat("/load odd.json", "/show chat")
    assert (result.exit_code, result.stdout) == (0, "a\nb\n") and "cut" not in result.stderr


def test_a_wrong_command_is_answered_with_the_nearest() -> None:
    result = chat("/sats", "/xyzzy", "/exit now", "//slash")
    assert "no command /sats; did you mean /stats?" in result.stderr
    assert "no command /xyzzy; /help lists them" in result.stderr
    assert "/exit takes no argument" in result.stderr
    assert len(STATUS.findall(result.stderr)) == 1  # "//" says a slash


def test_a_script_can_see_that_a_command_failed() -> None:
    assert chat("/nonsense", "Hello").exit_code == chat("/nonsense", "/exit").exit_code == 1
    assert chat("/save chat.json", "/set temp 1").exit_code == 0
    assert chat("/save /nowhere/chat.json").exit_code == 1


def test_a_note_is_one_line_where_no_terminal_shows_it() -> None:
    note = "pymtp: no command /nonsense; /help lists them (to send it as a message, begin with //)"
    assert len(note) > 80
    assert note in chat("/nonsense").stderr.splitlines()


def test_commands_have_the_names_of_other_programs_too() -> None:
    assert "list the commands" in chat("/?").stderr
    for name in ("/quit", "/bye"):
        assert (chat(name, "Hello").exit_code, chat(name, "Hello").stdout) == (0, "")


def test_an_answer_that_was_cut_is_marked_also_when_it_is_shown_again() -> None:
    result = chat("Tell me about the sea.", "/show chat", "/save chat.json", flags=["-n", "3"])
    assert result.stderr.count("[cut: -n]") == 1
    again = chat("/load chat.json", "/show chat")
    assert again.stderr.count("[cut: -n]") == 1
    assert again.stdout == result.stdout.replace(result.stdout.splitlines()[0] + "\n", "", 1)
    whole = chat("Hello", "/show chat", flags=["-n", "100"])
    assert "cut" not in whole.stderr and "interrupted" not in whole.stderr


def test_several_files_go_with_a_message(tmp_path: Path) -> None:
    for name in ("b.py", "a.py", "c.txt"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    result = chat("/read *.py", "Hello", "/read *.rs", "/save chat.json", flags=["-n", "1"])
    assert "no file matches *.rs; check the path" in result.stderr
    messages = json.loads(Path("chat.json").read_text(encoding="utf-8"))["messages"]
    assert messages[0]["content"] == "a.py\n\nb.py\n\nHello"


def test_a_first_message_may_be_a_flag_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "first.txt").write_text("Hello\n", encoding="utf-8")
    by_flag, by_file, typed = (
        chat(*lines, flags=flags)
        for lines, flags in (([], ["-p", "Hello"]), ([], ["-f", "first.txt"]), (["Hello"], []))
    )
    assert by_flag.stdout == by_file.stdout == typed.stdout != ""


def test_the_line_of_figures_can_be_turned_off() -> None:
    result = chat("/set stats off", "Tell me about the sea.", "/set stats maybe", flags=["-n", "3"])
    assert "tok/s" not in result.stderr
    assert result.stderr.count("[cut: -n]") == 1
    assert "stats must be one of on, true, off, false, not 'maybe'" in result.stderr


def test_exit_leaves_the_rest_unread() -> None:
    result = chat("/exit", "Hello")
    assert (result.exit_code, result.stdout) == (0, "")


def test_a_full_context_drops_the_oldest_turns_with_a_notice() -> None:
    result = chat(*["Tell me about the sea."] * 6, "/show", flags=["-c", "128"])
    assert "[the context is full: the oldest turn is left out from now on]" in result.stderr
    assert re.search(r"^turns +6 turns \(\d of them left out\)$", result.stderr, re.MULTILINE)


def test_a_message_that_does_not_fit_ends_nothing() -> None:
    result = chat("word " * 200, "Hello", flags=["-c", "64"])
    assert result.exit_code == 1
    said = " ".join(result.stderr.split())
    assert "the last message makes a prompt of" in said and "/undo" not in said  # older turns are left out already
    assert len(STATUS.findall(result.stderr)) == 1


def test_a_model_without_a_template_is_refused_before_it_is_loaded(write_gguf: Callable[..., Path]) -> None:
    path = write_gguf()
    result = CliRunner().invoke(app, ["chat", str(path)], prog_name="pymtp")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{path} has no chat template; use it without one: pymtp run {path} --raw" in result.stderr


def test_the_reader_may_leave() -> None:
    command = f"yes 'Tell me a story.' | {' '.join(COMMAND)} | head -c 10"
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=TIMEOUT_S)
    assert len(done.stdout) == 10
    assert b"Traceback" not in done.stderr


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(COMMAND, input=b"Hello\n", stdout=full, stderr=subprocess.PIPE, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert b"cannot write to stdout: No space left on device" in done.stderr


# --- at a terminal ---


def environment_in(folder: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    return {**clean, "XDG_STATE_HOME": str(folder / "state")}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return environment_in(tmp_path)


@pytest.fixture
def terminal(environment: dict[str, str]) -> Iterator[Terminal]:
    with Terminal(COMMAND, env=environment) as terminal:
        terminal.wait_for(PROMPT)
        yield terminal


@pytest.fixture(scope="module")
def shared_terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Terminal, Path]]:
    """A chat that several tests have, and its working folder."""
    folder = tmp_path_factory.mktemp("chat")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        terminal = Terminal(COMMAND, env=environment_in(folder))
    with terminal:
        terminal.wait_for(PROMPT)
        yield terminal, folder
        assert leave(terminal) == 0


@pytest.fixture
def cleared(shared_terminal: tuple[Terminal, Path], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """The shared chat without messages, in its working folder."""
    terminal, folder = shared_terminal
    monkeypatch.chdir(folder)
    say(terminal, "/clear")
    terminal.forget()
    return terminal


def say(terminal: Terminal, keys: str) -> str:
    """Press `keys` and Enter; return all that is shown until the next message can be typed."""
    at = len(terminal.seen)
    terminal.press(f"{keys}\r")
    end = terminal.wait_for(PROMPT, after=terminal.wait_for(SENT, after=at))
    return terminal.seen[at:end]


def leave(terminal: Terminal) -> int:
    terminal.press("\x04")
    return terminal.wait()


def saved_message(terminal: Terminal) -> str:
    say(terminal, "/save chat.json")
    messages = json.loads(Path("chat.json").read_text(encoding="utf-8"))["messages"]
    return str(messages[0]["content"])


def shown(text: str) -> str:
    """`text` without escape sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_a_conversation_at_a_terminal(terminal: Terminal) -> None:
    assert "/help lists the commands" in terminal.seen
    assert "\x1b[2m[" in say(terminal, "Hello, who are you?")  # the status line is dim
    assert " cached" in say(terminal, "Tell me about the sea.")
    terminal.press("/exit\r")
    assert terminal.wait() == 0


def test_what_is_typed_during_an_answer_comes_after_it(cleared: Terminal) -> None:
    cleared.press("Tell me about the sea.\r")
    cleared.wait_for(SENT)
    cleared.press("/set top_k 7\r")
    assert "/set" not in cleared.seen[: cleared.wait_for("tok/s")].partition(SENT)[2]
    cleared.wait_for(PROMPT, after=cleared.wait_for("top_k: 7"))


def test_ctrl_c_clears_what_is_typed_and_twice_leaves(terminal: Terminal) -> None:
    terminal.press("half a mess\x03")
    terminal.press("\x03")
    terminal.wait_for(PROMPT, after=terminal.wait_for("press Ctrl-C again, or Ctrl-D, to quit"))
    terminal.press("\x03")
    assert terminal.wait() == 130


def test_ctrl_c_stops_an_answer_and_keeps_the_conversation(environment: dict[str, str]) -> None:
    endless = [*COMMAND, "-n", "-1", *(flag for token in EOG for flag in ("-l", f"{token}-inf"))]
    with Terminal(endless, env=environment) as terminal:
        terminal.wait_for(PROMPT)
        terminal.press("Tell me a story.\r")
        terminal.wait_for_more(200, after=terminal.wait_for(SENT))
        terminal.press("\x03")
        terminal.wait_for(PROMPT, after=terminal.wait_for("tok/s"))
        assert "1 turn" in say(terminal, "/show")
        at = len(terminal.seen)
        terminal.press("/regen\r")
        terminal.wait_for_more(200, after=terminal.wait_for(SENT, after=at))
        terminal.press("\x03")
        terminal.wait_for(PROMPT, after=terminal.wait_for("tok/s", after=at))
        terminal.press("\x03")
        assert terminal.wait() == 130
    assert "Traceback" not in terminal.seen


def test_several_lines_can_be_typed_and_pasted(cleared: Terminal) -> None:
    say(cleared, "one\\\rtwo\x1b\rthree\x1b[200~\nfour\nfive\x1b[201~")
    assert saved_message(cleared) == "one\ntwo\nthree\nfour\nfive"


def test_wide_and_combining_characters_are_sent_as_typed(cleared: Terminal) -> None:
    say(cleared, "日本語x\x7f e\u0301 \U0001f469\u200d\U0001f680 ende")
    assert saved_message(cleared) == "日本語 e\u0301 \U0001f469\u200d\U0001f680 ende"


def test_tab_completes(cleared: Terminal) -> None:
    Path("my notes.txt").write_text("notes", encoding="utf-8")
    for typed, added in (("/rea", "d"), (" my", "notes.txt")):
        complete(cleared, typed, added)
    assert "my notes.txt: 5 characters go with the next message" in say(cleared, "")
    complete(cleared, "/set max", "tokens")
    assert "max_tokens: 5" in say(cleared, " 5")


def complete(terminal: Terminal, typed: str, added: str) -> None:
    """Press Tab after what is typed, which then is drawn before what Tab has added."""
    at = len(terminal.seen)
    terminal.press(typed)
    at = terminal.wait_for(typed[-1], after=at)
    terminal.press("\t")
    terminal.wait_for(added, after=at)


def test_history_outlives_the_conversation(environment: dict[str, str]) -> None:
    for keys in ("/set top_k 7", "\x1b[A"):  # typed; then the arrow up
        with Terminal(COMMAND, env=environment) as terminal:
            terminal.wait_for(PROMPT)
            assert "top_k: 7" in say(terminal, keys)
            assert leave(terminal) == 0
    folder = Path(environment["XDG_STATE_HOME"]) / "pymtp"
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / "chat_history").stat().st_mode & 0o077 == 0


def test_a_history_that_cannot_be_kept_stops_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a folder should be", encoding="utf-8")
    with Terminal(COMMAND, env=environment) as terminal:
        terminal.wait_for(PROMPT)
        assert "top_k: 7" in say(terminal, "/set top_k 7")
        assert leave(terminal) == 0


def test_accepted_drafts_are_coloured_where_that_is_asked_for(environment: dict[str, str]) -> None:
    command = [*COMMAND, "--draft-max", "2", "-n", "60"]
    question = "Write a Python function that reverses a string."
    with Terminal([*command, "--color"], env=environment) as terminal:
        terminal.wait_for(PROMPT)
        answer = say(terminal, question)
        assert "color: off" in say(terminal, "/set color off")
        plain = say(terminal, "/regen")
        assert leave(terminal) == 0
    with Model(n_threads=1, draft_max=2) as model:
        generation = model.chat([{"role": "user", "content": question}], temperature=0, max_tokens=60)
        list(generation)
    drafted = "".join(part for part, was_drafted in generation.parts() if was_drafted)
    coloured = "".join(re.findall("\x1b\\[32m(.*?)\x1b\\[39m", answer, re.DOTALL))
    assert "".join(coloured.split()) == "".join(drafted.split()) != ""
    assert generation.text.strip() in shown(answer).replace("\r", "")
    assert "def reverse" in plain and "\x1b[32m" not in plain


@pytest.mark.slow
def test_a_chat_at_a_terminal_can_be_continued(environment: dict[str, str], tmp_path: Path) -> None:
    kept = Path(environment["XDG_STATE_HOME"]) / "pymtp" / "last_chat.json"
    with Terminal([*COMMAND, "--no-history"], env=environment) as terminal:
        terminal.wait_for(PROMPT)
        say(terminal, "Hello")
        assert leave(terminal) == 0
    assert not kept.parent.exists()  # nothing of it is kept
    with Terminal([*COMMAND, "--resume"], env=environment) as terminal:
        terminal.wait_for("cannot continue the chat")
        assert terminal.wait() == 1
    with Terminal([*COMMAND, "-sys", "Be brief."], env=environment) as terminal:
        terminal.wait_for(PROMPT)
        say(terminal, "Hello")
        terminal.hang_up()  # not even /exit
        terminal.process.wait(TIMEOUT_S)
    assert kept.stat().st_mode & 0o077 == 0
    with Terminal([*COMMAND, "--resume"], env=environment) as terminal:
        terminal.wait_for(PROMPT)
        assert "continuing the latest chat: 1 turn; /show chat shows them" in terminal.seen
        settings = shown(say(terminal, "/show"))
        assert "Be brief." in settings and "1 turn" in settings
        assert leave(terminal) == 0


def test_what_was_taken_back_is_not_continued(environment: dict[str, str]) -> None:
    with Terminal(COMMAND, env=environment) as terminal:
        terminal.wait_for(PROMPT)
        for text in ("Hello", "Hello again", "/undo"):
            say(terminal, text)
        assert leave(terminal) == 0
    with Terminal([*COMMAND, "--resume"], env=environment) as terminal:
        terminal.wait_for("continuing the latest chat: 1 turn;")
        terminal.wait_for(PROMPT)
        say(terminal, "/clear")
        assert leave(terminal) == 0
    assert "Hello" in (Path(environment["XDG_STATE_HOME"]) / "pymtp" / "last_chat.json").read_text(encoding="utf-8")


def test_a_terminal_without_cursor_still_has_a_prompt(environment: dict[str, str]) -> None:
    command = ["sh", "-c", f"TERM=dumb {' '.join(COMMAND)}"]
    with Terminal(command, env=environment) as terminal:
        terminal.wait_for("> ", after=terminal.wait_for("/help lists the commands"))
        terminal.press("Hello\r")
        terminal.wait_for("> ", after=terminal.wait_for("tok/s"))
        assert leave(terminal) == 0
    assert "\x1b" not in terminal.seen
    answer = terminal.seen.partition("Hello\r\n")[2].partition("\r\n[")[0]
    assert len(answer) > 10 and "\r\n" not in answer


def test_without_colours_nothing_is_dimmed(environment: dict[str, str]) -> None:
    with Terminal(COMMAND, env={**environment, "NO_COLOR": "1"}) as terminal:
        terminal.wait_for(PROMPT)
        assert "tok/s" in say(terminal, "Hello")
        assert leave(terminal) == 0
    assert "\x1b[2m" not in terminal.seen
    assert not re.search(r"\x1b\[[0-9;]*[34][0-7]m", terminal.seen)


def test_names_and_system_prompts_do_not_control_the_terminal(environment: dict[str, str]) -> None:
    flags = ["--override-kv", "general.name=str:\x1b]0;a name\a", "-sys", "\x1b[31mred"]
    with Terminal([*COMMAND, *flags], env=environment) as terminal:
        terminal.wait_for(PROMPT)
        assert "\ufffd[31mred" in say(terminal, "/system") and "\ufffd[31mred" in say(terminal, "/show")
        assert leave(terminal) == 0
    assert "\ufffd]0;a name\ufffd" in terminal.seen
    assert "\x1b]0;" not in terminal.seen and "\x1b[31m" not in terminal.seen


def test_thinking_is_dimmed(environment: dict[str, str]) -> None:
    with Terminal([*COMMAND, "-n", "100"], env=environment) as terminal:
        terminal.wait_for(PROMPT)
        answer = say(terminal, THINKS)
        assert leave(terminal) == 0
    parts = re.findall(r"\x1b\[2m(.*?)\x1b\[22m", answer.partition(SENT)[2], re.DOTALL)
    *thinking, status = parts
    assert len(thinking) > 2 and thinking[0] == "<think>" and thinking[-1] == "</think>"
    assert "tok/s" in status
    assert "The" in re.sub(r"\x1b\[2m.*?\x1b\[22m", "", answer, flags=re.DOTALL)  # the answer itself is not


def test_a_pipe_gets_the_answer_alone_and_stderr_the_thinking(tmp_path: Path) -> None:
    (tmp_path / "thinks.jinja").write_text(THINKING)
    result = chat("Two?", flags=["--chat-template-file", "thinks.jinja", "--reasoning-budget", "4"])
    thought, _, status = result.stderr.partition("</think>\n")
    assert len(thought.splitlines()[-1]) > 0 and status.startswith("[")
    assert result.stdout.strip() and "think>" not in result.stdout
    assert not result.stdout.startswith("\n")
    shown = json.loads(
        CliRunner()
        .invoke(
            app, ["run", *FLAGS, "--chat-template-file", "thinks.jinja", "--reasoning-budget", "4", "--json", "Two?"]
        )
        .stdout
    )
    assert result.stdout.strip() == shown["text"].strip()


def test_at_40_columns_no_line_of_ours_is_wider(environment: dict[str, str]) -> None:
    with Terminal(COMMAND, columns=40, env=environment) as terminal:
        terminal.wait_for(PROMPT)
        table = shown(say(terminal, "/help")).splitlines()
        answer = shown(say(terminal, "Hello")).splitlines()
        assert leave(terminal) == 0
    ours = [*table, next(line for line in answer if "tok/s" in line)]
    assert len(ours) > 20
    assert all(len(line.strip("\r")) <= 40 for line in ours)


def test_answers_can_go_elsewhere_while_the_terminal_asks(environment: dict[str, str], tmp_path: Path) -> None:
    command = ["sh", "-c", f"{' '.join(COMMAND)} > answers.txt"]
    with Terminal(command, env=environment) as terminal:
        terminal.wait_for(PROMPT)
        assert "tok/s" in say(terminal, "Hello")
        assert leave(terminal) == 0
    answer = (tmp_path / "answers.txt").read_text(encoding="utf-8")
    assert answer.endswith("\n")
    assert "\x1b" not in answer
    assert answer.strip() not in shown(terminal.seen)


def test_a_terminal_that_closes_ends_it(environment: dict[str, str]) -> None:
    with Terminal(COMMAND, env=environment) as terminal:
        terminal.wait_for(PROMPT)
        terminal.press("Tell me a story.\r")
        terminal.wait_for(SENT)
        terminal.hang_up()
        terminal.process.wait(TIMEOUT_S)
