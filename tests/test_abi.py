"""The C interface from outside: every entry has a guard, and takes any handle, pointer and number without a crash."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from conftest import REPOSITORY
from pymtp.binding.library import check, ffi, lib
from pymtp.engine.context import ContextParams
from pymtp.engine.session import Chunk, Session
from pymtp.errors import Closed, InvalidParameter, ModelError, PymtpError
from pymtp.gguf.facts import model_facts
from pymtp.loader import Weights
from pymtp.loading.params import ModelParams
from random_gguf import glm

# written by the build, and read where nothing can fail
WITHOUT_GUARD = {"pymtp_abi_id", "pymtp_error_message"}


def declared() -> list[str]:
    """The functions in the public headers."""
    headers = sorted((REPOSITORY / "native" / "include").glob("*.h"))
    regions = [header.read_text("utf-8").partition("// [cffi begin]")[2] for header in headers]
    return re.findall(r"^[a-z][\w *]*\b(pymtp_\w+)\(", "\n".join(regions), re.MULTILINE)


def bodies() -> dict[str, str]:
    """The definitions of functions in the C interface's sources, by name."""
    sources = "\n".join(path.read_text("utf-8") for path in (REPOSITORY / "native" / "src").glob("*/*.cpp"))
    found = re.finditer(r"^[a-z][\w :*]*\b(pymtp_\w+)\([^;{]*\) \{\n(.*?)^\}", sources, re.MULTILINE | re.DOTALL)
    return {match[1]: match[2] for match in found}


def test_every_entry_of_the_c_interface_has_a_guard() -> None:
    names, sources = declared(), bodies()
    assert len(names) > 50
    assert set(names) == {name for name in dir(lib) if name.startswith("pymtp_")} - {"pymtp_on_progress"}
    bare = [name for name in names if name not in WITHOUT_GUARD and "pymtp_guard" not in sources[name]]
    assert bare == []


ANY_ARGUMENTS = """
import itertools, math
from pymtp.binding.library import ffi, lib

# what ends or shows something on purpose
lib.pymtp_log_show(5)
skipped = {"pymtp_exit_on_abort", "pymtp_log_show", "pymtp_on_progress"}
freed = ffi.new("struct pymtp_lookup **")
lib.pymtp_lookup_init(64, 3, freed)
lib.pymtp_free(freed[0])

def is_opaque(kind):
    try:
        return ffi.sizeof(kind) == 0
    except Exception:
        return True

def values(kind):
    if kind.kind == "pointer":
        is_handle = kind.item.kind == "struct" and "pymtp" in kind.item.cname and is_opaque(kind.item)
        numbers = [1, 64, 2**40, int(ffi.cast("intptr_t", freed[0]))] if is_handle else []
        return [ffi.NULL, *(ffi.cast(kind, number) for number in numbers)]
    if kind.cname in ("double", "float"):
        return [0.5, -1.0, math.nan]
    return [-1, 0, 1, 2**31 - 1] if kind.cname != "size_t" else [0, 1, 2**63]

n = 0
for name in dir(lib):
    if name.startswith("pymtp_") and name not in skipped:
        function = getattr(lib, name)
        choices = [values(kind) for kind in ffi.typeof(function).args]
        for arguments in itertools.islice(itertools.product(*choices), 3000):
            function(*arguments)
            n += 1
print(n)
"""


def test_no_handle_pointer_or_number_crashes_an_entry() -> None:
    result = subprocess.run(
        [sys.executable, "-c", ANY_ARGUMENTS], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 1000


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    path = glm.write_glm4moe(tmp_path_factory.mktemp("model") / "tiny.gguf")
    return Weights(model_facts(path), ModelParams(), with_heads=True)


def session(weights: Weights) -> Session:
    return Session(weights.model, ContextParams(n_ctx=256, n_threads=1), n_draft_max=2)


def test_what_a_closed_session_has_left_is_closed_too(weights: Weights) -> None:
    made = session(weights)
    made.decode([Chunk([5, 6], 0)])
    row, logits = made.rows()[0], made.logits
    before = logits.copy()
    handle = made._native
    made.close()
    for use in (lambda: row.logits, lambda: made.logits, lambda: made.decode([Chunk([7], 2)])):
        with pytest.raises(Closed, match="the session is closed"):
            use()
    assert (logits == before).all()
    status = lib.pymtp_session_truncate(handle, 1, [0], [0])
    with pytest.raises(PymtpError, match="this is no session: it was freed, or never made"):
        check(status)
    lib.pymtp_free(handle)


def test_a_handle_of_another_kind_is_refused(weights: Weights) -> None:
    made = session(weights)
    state = ffi.new("struct pymtp_state **")
    check(lib.pymtp_session_save(made._native, -1, state))
    status = lib.pymtp_session_truncate(ffi.cast("struct pymtp_session *", state[0]), 1, [0], [0])
    with pytest.raises(PymtpError, match="this is no session"):
        check(status)
    lib.pymtp_free(state[0])
    made.close()


@pytest.mark.parametrize("sequence", [-1, 1, 99, 2**31 - 1, -(2**31)])
def test_a_sequence_that_is_none_is_named(weights: Weights, sequence: int) -> None:
    with session(weights) as made:
        made.decode([Chunk([1, 2, 3, 4], 0)])
        for use in (
            lambda: made.discard(3, 2, sequence=sequence),
            lambda: made.seen_end(sequence, 1),
            lambda: made.truncate(0, sequence=sequence),
            lambda: made.copy(sequence, 0),
        ):
            with pytest.raises(PymtpError, match=f"sequence {sequence} is not one of 1"):
                use()


@pytest.mark.parametrize("sequence", [-1, 1, 2**31 - 1, -(2**31)])
def test_the_state_of_a_sequence_that_is_none_is_refused(weights: Weights, sequence: int) -> None:
    with session(weights) as made:
        made.decode([Chunk([1, 2, 3, 4], 0)])
        state = made.save_sequence(0)
        for use in (lambda: made.save_sequence(sequence), lambda: made.restore_sequence(sequence, state)):
            with pytest.raises(InvalidParameter, match="sequence must be between 0 and 0"):
                use()
        made.decode([Chunk([5], 4)])  # it is as it was


def test_threads_in_one_session_wait_for_each_other_and_for_its_end(weights: Weights) -> None:
    made = session(weights)
    odd: list[BaseException] = []
    closed = 0

    def use(seed: int) -> None:
        nonlocal closed
        try:
            for i in range(100_000):
                try:
                    made.truncate(0)
                    made.decode([Chunk([seed + 1, i % 50 + 3], 0, feed=True)])
                    made.draft_tokens([Chunk([7], 2)], 2)
                    made.save()
                    assert made.logits.shape[0] <= 1
                except Closed:
                    closed += 1
                    return
                except PymtpError:
                    pass  # what one thread does does not fit what another has done in between
        except BaseException as error:
            odd.append(error)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    threading.Event().wait(1.0)
    made.close()
    for thread in threads:
        thread.join(60)
    assert (odd, closed) == ([], 4)


def test_an_assert_that_a_damaged_file_fails_is_an_error(tmp_path: Path) -> None:
    path = glm.write_glm4moe(tmp_path / "tiny.gguf")
    data = bytearray(path.read_bytes())
    key = b"glm4moe.attention.layer_norm_rms_epsilon"
    at = data.index(key) + len(key) + 4
    data[at : at + 4] = b"\x00\x00\x80\xbf"  # -1.0, where llama.cpp asserts eps >= 0
    path.write_bytes(data)
    weights = Weights(model_facts(path), ModelParams(), with_heads=True)
    with pytest.raises(PymtpError, match=r"metadata is damaged: a norm with epsilon -1"):
        session(weights)
    key = b"glm4moe.expert_used_count"
    at = data.index(key) + len(key) + 4
    data[at : at + 4] = b"\xff\x00\x00\x00"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"llama.cpp cannot load this glm4moe model \(.*n_expert_used"):
        Weights(model_facts(path), ModelParams(), with_heads=True)
