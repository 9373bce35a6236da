"""The entry point of containers: the output contains no active control sequences, signals reach the command, and the
exit code is the command's own."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml

from platform_assets.services.container import FORWARDED
from platform_assets.services.home import CHECKOUT
from platform_assets_tests.support.locks import DOCKERFILE
from platform_assets_tests.support.manifests import FOLDER, containers

ENTRY_POINT = ["python", "-m", "platform_assets.services.container"]
ATTACK = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \u202e \x9b2J \x00 ü"
SHOWN = r"red \x1b]0;title\x07 \u202e \x9b2J \x00 ü"
HANGS = "import signal, time; print('ready', flush=True); time.sleep(600)"


def entry_point(*command: str) -> list[str]:
    """Return the command line of a container."""
    return [sys.executable, *ENTRY_POINT[1:], *command]


def ended(code: str) -> subprocess.CompletedProcess[bytes]:
    """Run this Python code in a container until the code ends."""
    return subprocess.run(
        entry_point(sys.executable, "-c", code), cwd=CHECKOUT, capture_output=True, timeout=60, check=False
    )


@contextmanager
def running(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start this Python code in a container; return when the code has printed its first line."""
    with subprocess.Popen(
        entry_point(sys.executable, "-c", code), cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as container:
        try:
            assert container.stdout is not None
            assert container.stdout.readline() == b"ready\n"
            yield container
        finally:
            container.kill()


def test_no_terminal_acts_on_a_containers_output() -> None:
    found = ended(f"import sys; print({ATTACK!r}); print({ATTACK!r}, file=sys.stderr)")
    assert (found.stdout.decode(), found.stderr.decode()) == (f"{SHOWN}\n", f"{SHOWN}\n")
    assert found.returncode == 0


def test_nothing_of_the_output_is_lost() -> None:
    """The output is larger than a pipe's buffer, continues until the process ends, and goes to both streams."""
    found = ended("import os\nfor n in range(20_000): os.write(1 + n % 2, b'%07d\\n' % n)\nos._exit(3)")
    assert found.stdout == b"".join(b"%07d\n" % n for n in range(0, 20_000, 2))
    assert found.stderr == b"".join(b"%07d\n" % n for n in range(1, 20_000, 2))
    assert found.returncode == 3


@pytest.mark.parametrize("number", FORWARDED)
def test_signals_reach_the_command(number: signal.Signals) -> None:
    code = f"import signal, sys; signal.signal({number}, lambda n, _: sys.exit(40 + (n == {number})))\n{HANGS}"
    with running(code) as container:
        container.send_signal(number)
        assert container.wait(60) == 41


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_a_signal_ends_has_the_exit_code_of_a_shell(number: signal.Signals) -> None:
    found = ended(f"import os; os.kill(os.getpid(), {number})")
    assert found.returncode == 128 + number


def test_a_container_ends_with_its_command_though_other_processes_keep_its_output_open() -> None:
    found = ended(f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {HANGS!r}]).pid)")
    os.kill(int(found.stdout.split()[0]), signal.SIGKILL)
    assert found.returncode == 0


def test_ctrl_c_in_a_terminal_reaches_the_command_once() -> None:
    """The terminal also sends SIGINT to the command itself. The command ends at SIGTERM, which would come after a
    second SIGINT if there were one."""
    code = """if True:
        import signal, sys
        seen, awaited = 0, {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
        print("ready", flush=True)
        while signal.sigwait(awaited) == signal.SIGINT:
            seen += 1
            print("interrupted", flush=True)
        sys.exit(seen)"""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(CHECKOUT)
        os.execv(sys.executable, entry_point(sys.executable, "-c", code))
    try:
        with open(terminal, "rb+", buffering=0, closefd=False) as opened:
            lines = iter(opened.readline, b"")
            assert next(lines) == b"ready\r\n"
            opened.write(b"\x03")
            assert next(line for line in lines if b"interrupted" in line)
            os.kill(process, signal.SIGTERM)
            assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 1
    finally:
        os.close(terminal)


@contextmanager
def with_stalled_reader(script: str, *, blocking: bool) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """Run the script in a container whose standard output is a full pipe. Once the script is ready, return the
    container, the pipe's read end and the pipe's size."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    size = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            size += os.write(writer, bytes(select.PIPE_BUF))
    os.set_blocking(writer, blocking)
    with subprocess.Popen(
        entry_point("sh", "-c", script), cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=writer, stderr=subprocess.PIPE
    ) as container:
        try:
            os.close(writer)
            assert container.stderr is not None
            assert select.select([container.stderr], [], [], 60)[0], "a stalled output blocks the other one"
            assert container.stderr.readline() == b"ready\n"
            yield container, reader, size
        finally:
            container.kill()
            os.close(reader)


def test_a_container_whose_output_nobody_reads_ends_with_its_command() -> None:
    with with_stalled_reader("echo lost; echo ready >&2; exec sleep 600", blocking=True) as (container, _, _):
        container.send_signal(signal.SIGTERM)
        assert container.wait(60) == 128 + signal.SIGTERM


def test_output_waits_for_its_reader_if_the_descriptor_does_not_block() -> None:
    script = "echo kept; echo ready >&2; read line"
    with with_stalled_reader(script, blocking=False) as (_, reader, size), open(reader, "rb", closefd=False) as output:
        assert output.read(size) == bytes(size)
        assert output.readline() == b"kept\n"


def test_a_command_has_the_signals_of_a_fresh_process() -> None:
    """Python ignores SIGPIPE, and the entry point briefly blocks signals. A command must inherit neither of these."""
    command = entry_point("grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")
    found = subprocess.run(command, cwd=CHECKOUT, capture_output=True, timeout=60, check=True, text=True)
    masks = {name: int(mask, 16) for name, _, mask in (line.partition(":") for line in found.stdout.splitlines())}
    assert masks["SigBlk"] == 0
    assert not masks["SigIgn"] & 1 << signal.SIGPIPE - 1


def test_a_command_that_is_missing_is_named() -> None:
    found = subprocess.run(
        entry_point("no-such-\x1b[31mcommand"), cwd=CHECKOUT, capture_output=True, timeout=60, check=False
    )
    assert found.returncode == 127
    assert b"no-such-\\x1b[31mcommand" in found.stderr
    assert b"No such file" in found.stderr


def test_each_container_of_our_images_has_the_entry_point() -> None:
    stage = DOCKERFILE.read_text("utf-8").partition(" AS dagster")[2].partition("\nFROM ")[0]
    assert 'ENTRYPOINT ["python", "-m", "platform_assets.services.container"]' in stage
    services = yaml.safe_load((CHECKOUT / "infra" / "compose.yaml").read_text("utf-8"))["services"]
    assert not [name for name, service in services.items() if "entrypoint" in service]
    # In Kubernetes, a command replaces the image's entry point.
    for name, container in containers():
        assert container["command"][:3] == ENTRY_POINT, (name, container["name"])
    launcher = yaml.safe_load((FOLDER / "runs-in-pods" / "dagster.yaml").read_text("utf-8"))["run_launcher"]["config"]
    run = launcher["run_k8s_config"]
    assert run["container_config"]["command"] == ENTRY_POINT
    for container in run["pod_spec_config"]["init_containers"]:
        assert container["command"][:3] == ENTRY_POINT
