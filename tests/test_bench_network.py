"""The benchmark over a network: its delays, and a whole run where namespaces are allowed."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from relay import Relay

BENCH = Path(__file__).resolve().parent.parent / "bench"


def test_a_relay_delays_both_ways_and_changes_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as echo:

        def answer() -> None:
            connection, _ = echo.accept()
            while data := connection.recv(1 << 16):
                connection.sendall(data)

        threading.Thread(target=answer, daemon=True).start()
        relay = Relay(("127.0.0.1", 0), ("127.0.0.1", echo.getsockname()[1]), 0.05)
        with socket.create_connection(("127.0.0.1", relay.port), timeout=10) as client:
            for data in (b"x", os.urandom(100_000)):
                began = time.monotonic()
                client.sendall(data)
                found = b""
                while len(found) < len(data):
                    found += client.recv(1 << 16)
                assert found == data
                assert time.monotonic() - began >= 0.1
            relay.delay_s = 0.0

            def round_trip_s() -> float:
                began = time.monotonic()
                client.sendall(b"x")
                assert client.recv(1) == b"x"
                return time.monotonic() - began

            assert any(round_trip_s() < 0.1 for _ in range(100))  # others may hold up some of them
        relay.close()


@pytest.mark.slow
def test_drafts_gain_over_a_slow_network(shared: Path, tmp_path: Path) -> None:
    """Needs ../shared, root and iproute2."""
    if not hasattr(os, "geteuid") or os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"category": "code", "prompt": "def is_prime(n):"}))
    arguments = [str(shared / "models" / "nano-glm-Q8_0.gguf"), str(prompts), "--ms", "20", "--tokens", "40"]
    command = [sys.executable, str(BENCH / "network.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    if done.stdout.startswith("skipped"):
        pytest.skip(done.stdout)
    gain = re.search(r"^\| 20 \|.*?\|.*?\| ([\d.]+) \(", done.stdout, re.MULTILINE)
    assert gain and float(gain[1]) > 1.3
    assert "texts that differ: 0" in done.stdout
