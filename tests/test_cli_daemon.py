"""The command line against the daemon with a tiny model: top, watch, metrics, chat --resume, completion, man pages."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

import ar1
import daemon_rig
from ar1 import BUILD, Tap, Wire
from daemon_rig import left_clean, words

SRC = os.environ.get("SRCDIR", ".")
HOLDFAST = f"{BUILD}/holdfast"


def run(*arguments, stdin="", code=0):
    done = subprocess.run([HOLDFAST, *arguments], input=stdin.encode(), capture_output=True, timeout=60 * ar1.SLOW,
                          env={**os.environ, "HOLDFAST_ENDPOINT": endpoint})
    assert done.returncode == code, (arguments, done.returncode, done.stderr)
    return done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def top(wire):
    session = wire.open(label="seen")
    wire.turn(session, words(60), max_tokens=5, ignore_end=True)
    out, _ = run("top")
    assert "serving: 0 turns run" in out and session.hex() in out and "seen" in out and "device   [" in out, out
    bar = [l for l in out.splitlines() if l.startswith("device")][0]
    assert "=" in bar[bar.index("["):bar.index("]")] and len(bar[bar.index("[") + 1:bar.index("]")]) == 48, bar
    assert "\033" not in out
    out, _ = run("top", "--count", "2", "--interval", "20", "--json")
    for line in out.splitlines():
        picture = json.loads(line)
        assert picture["health"]["state"] == "serving" and picture["sessions"][0]["label"] == "seen"
    assert len(out.splitlines()) == 2
    run("top", "--interval", "0", code=2)
    wire.ok("session.close", sess=session)


class Terminal:
    """A program on a terminal of that size."""

    def __init__(self, arguments, rows=24, columns=80, at=None):
        self.fd, there = pty.openpty()
        fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

        def begins():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # who starts tests in the background has it ignored
        self.child = subprocess.Popen([HOLDFAST, *arguments], stdin=there, stdout=there, stderr=there, start_new_session=True,
                                      env={**os.environ, "HOLDFAST_ENDPOINT": at or endpoint}, preexec_fn=begins)
        os.close(there)
        self.out, self.seen, self.deadline = b"", 0, time.time() + 20 * ar1.SLOW

    def more(self):
        assert time.time() < self.deadline, self.out[-2000:]
        try:
            self.out += os.read(self.fd, 65536) if select.select([self.fd], [], [], 0.1)[0] else b""
        except OSError:  # the program is gone
            return False
        return True

    def until(self, what):
        """What it prints from here on, up to where that holds; a text: up to where it comes."""
        def where():
            new = self.out[self.seen:]
            if callable(what):
                return len(new) if what(new.decode(errors="replace")) else None
            return new.index(what.encode()) + len(what.encode()) if what.encode() in new else None
        while where() is None:
            assert self.more(), self.out[-2000:]
        before, self.seen = self.seen, self.seen + where()
        return self.out[before:self.seen].decode(errors="replace")

    def type(self, keys):
        os.write(self.fd, keys)

    def end(self):
        """All that it printed, and how it ended."""
        try:
            while self.more():
                pass
        finally:
            os.close(self.fd)  # who is there yet is hung up on
            code = self.child.wait(20 * ar1.SLOW)
        return self.out.decode(errors="replace"), code


def on_a_terminal(arguments, rows, columns, keys, until):
    """What a program prints on a terminal of that size up to `until`; then it is sent the keys."""
    terminal = Terminal(arguments, rows, columns)
    terminal.until(until)
    terminal.type(keys)
    return terminal.end()


def chat_on_a_terminal(wire):
    """Turn after turn, each piece as it comes; Ctrl-C ends the turn, and at the prompt the chat; a tool runs with consent alone."""
    with tempfile.TemporaryDirectory() as folder:
        at = f"ipc://{folder}/s"
        fake = subprocess.Popen([f"{BUILD}/tests/fake_daemon", at, "1000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert b"ready" in fake.stdout.readline()
        chat = Terminal(["chat", "--system", "Be brief.", "--tool", '{"name": "read_file"}', "--run", "read_file=tr a-z A-Z"], at=at)
        chat.until("> ")
        chat.type(b"hello you\n")
        assert "You said: hello you\r\n[stop; prompt" in chat.until("left]\r\n> ")
        chat.type(b"hang\n")
        chat.until("begun")  # while the turn runs
        chat.type(b"\x03")
        chat.until("[cancelled")
        chat.until("left]\r\n> ")
        for answers, result in (((b"p", b"n"), "error: the user refused this call"), ((b"y",), '{"PATH":"A.TXT"}'),
                                ((b"a",), '{"PATH":"A.TXT"}'), ((), '{"PATH":"A.TXT"}')):
            chat.type(b"tool\n")
            for answer in answers:
                assert "The tool says" not in chat.until("run read_file? [y]es, [n]o, [a]ll from now on: ")
                chat.type(answer + b"\n")
            asked = chat.until(f"The tool says {result}")
            assert answers or "run read_file?" not in asked, asked
            chat.until("left]\r\n> ")
        chat.type(b"\x03")
        out, code = chat.end()
        assert code == 130, (code, out)
        fake.stdin.close()
        fake.wait(20 * ar1.SLOW)


def interrupt_at_the_prompt(wire):
    """Ctrl-C at the very moment of the prompt ends the chat, each time: also before the program waits for a key."""
    for _ in range(40):
        chat = Terminal(["chat"])
        chat.until("> ")
        chat.type(b"\x03")
        out, code = chat.end()
        assert code == 130, (code, out)


def resume_on_a_terminal(wire):
    """--resume shows what was said and goes on; another one of the same session fences the first."""
    session = wire.open("smollm2", system="Words to be seen again.").hex()
    asked = ["chat", "--resume", session, "--max-tokens", "3", "--ignore-end"]
    first = Terminal(asked)
    assert "Words to be seen again." in first.until("> ")
    first.type(b"hello there\n")
    first.until("left]\r\n> ")
    second = Terminal(asked)
    shown = second.until("\r\n> ")
    assert "Words to be seen again." in shown and "hello there" in shown, shown
    first.type(b"am I here?\n")
    assert "fenced" in first.until("\r\n> ")
    second.type(b"and I?\n")
    second.until("left]\r\n> ")
    for chat in (first, second):
        chat.type(b"/quit\n")
    assert [chat.end()[1] for chat in (first, second)] == [1, 0]
    assert wire.ok("session.show", sess=bytes.fromhex(session))["r"]["turn"] == 2
    wire.ok("session.close", sess=bytes.fromhex(session))


def fits(wire):
    """Pictures and tables are no larger than the terminal, however many sessions there are; the ids are whole."""
    sessions = [wire.open(label="a long label, " * 4) for _ in range(40)]
    wire.turn(sessions[0], words(30), max_tokens=2, ignore_end=True)
    wire.ok("session.hint", {"returns_in_ms": 3600000}, sess=sessions[0])
    for rows, columns in ((24, 80), (50, 132)):
        out, code = on_a_terminal(["top", "--interval", "50"], rows, columns, b"\x03", lambda out: out.count("\033[H") > 4)
        assert code == -2, code
        picture = out.split("\033[2J")[3].replace("\r", "").split("\n")
        assert len(picture) <= rows and all(len(line) <= columns for line in picture), (rows, columns, picture)
        first = [line for line in picture if sessions[0].hex() in line]
        titles = [line for line in picture if line.startswith("SESSION")][0]
        assert first and " 59m " in first[0], picture
        assert ("LOWER" in titles) == (columns == 132) and "BACK IN" in titles, picture
        out, _ = on_a_terminal(["sessions"], rows, columns, b"", lambda out: sessions[-1].hex() in out)
        assert all(len(line.rstrip("\r")) <= columns for line in out.split("\n")), out
    for session in sessions:
        wire.ok("session.close", sess=session)


def watch(wire):
    watcher = subprocess.Popen([HOLDFAST, "watch", "--json"], stdout=subprocess.PIPE,
                               env={**os.environ, "HOLDFAST_ENDPOINT": endpoint})
    time.sleep(0.5 * min(ar1.SLOW, 4))
    session = wire.open()
    wire.turn(session, words(60), max_tokens=2, ignore_end=True)
    time.sleep(0.3 * min(ar1.SLOW, 4))
    wire.ok("session.park", {"place": "tokens"}, sess=session)
    time.sleep(0.3 * min(ar1.SLOW, 4))
    wire.ok("session.close", sess=session)
    time.sleep(0.3 * min(ar1.SLOW, 4))
    watcher.terminate()
    lines = [json.loads(l) for l in watcher.communicate()[0].splitlines()]
    events = [l["event"] for l in lines if l["sess"] == session.hex()]
    assert events == ["granted", "running", "ended", "lost", "closed"], lines
    assert [l["seq"] for l in lines] == list(range(lines[0]["seq"], lines[0]["seq"] + len(lines)))
    watcher = subprocess.Popen([HOLDFAST, "watch", "--count", "2"], stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "HOLDFAST_ENDPOINT": endpoint})
    time.sleep(0.5 * min(ar1.SLOW, 4))
    session = wire.open(label="a label")
    wire.ok("session.close", sess=session)
    out = watcher.communicate(timeout=10 * ar1.SLOW)[0].splitlines()
    assert f"{session.hex()}  granted  label a label  kind best_effort" in out[0] and out[1].endswith(f"{session.hex()}  closed  label a label"), out
    assert "no events are told at" in run("watch", "--events", "ipc:///nowhere", code=1)[1]


def carried(wire):
    """export and import: the session says what it would have said; files that are none are refused."""
    session = wire.open()
    wire.turn(session, words(40), max_tokens=4, ignore_end=True)
    with tempfile.TemporaryDirectory() as folder:
        def raw(*arguments, stdin=b"", code=0):
            done = subprocess.run([HOLDFAST, *arguments], input=stdin, capture_output=True, timeout=60 * ar1.SLOW,
                                  env={**os.environ, "HOLDFAST_ENDPOINT": endpoint})
            assert done.returncode == code, (arguments, done.returncode, done.stderr)
            return done.stdout
        file = raw("export", session.hex())
        other = bytes.fromhex(raw("import", stdin=file).decode().strip())
        more = words(5)
        ask = {"max_tokens": 6, "ignore_end": True}
        assert wire.turn(session, more, **ask).ids == wire.turn(other, more, **ask).ids
        with open(f"{folder}/s", "wb") as out:
            out.write(file)
        third = json.loads(raw("import", f"{folder}/s", "--json"))["session"]
        assert wire.ok("session.show", sess=bytes.fromhex(third))["r"]["turn"] == 1
        for at in range(0, len(file), 7):
            raw("import", stdin=file[:at], code=1)
        raw("import", stdin=file + b"x", code=1)
        raw("import", stdin=ar1.msgpack.packb({"format": "holdfast session", "version": 2, "settings": {}, "tokens": b""}), code=1)
        raw("import", stdin=ar1.msgpack.packb({"format": "holdfast session", "version": 1, "settings": {"course": 1}, "tokens": b""}), code=1)
        raw("import", f"{folder}/none", code=1)
        raw("export", "zz", code=2)
        raw("export", "0" * 32, code=1)
    for s in (session, other, bytes.fromhex(third)):
        wire.ok("session.close", sess=s)


def metrics(wire):
    out, _ = run("metrics")
    assert "# TYPE holdfast_time_to_first_token_seconds histogram" in out
    assert json.loads(run("metrics", "--json")[0])["text"].startswith("# HELP")


def resume(wire):
    session = wire.open("smollm2", system="Words to be seen again.").hex()
    run("chat", "--session", session, "--max-tokens", "5", "--ignore-end", stdin="hello there\n")
    out, words = run("chat", "--resume", session, "--max-tokens", "5", "--ignore-end", stdin="and again\n")
    assert "Words to be seen again." in out and "hello there" in out and "and again" not in out, out
    show = wire.ok("session.show", sess=bytes.fromhex(session))["r"]
    assert show["turn"] == 2 and show["epoch"] == 2, show  # attached: the client before is fenced
    run("chat", "--resume", "0" * 32, code=1)
    run("chat", "--resume", "zz", code=2)
    wire.ok("session.close", sess=bytes.fromhex(session))


def completion(wire):
    script, _ = run("completion", "bash")
    ask = script + '\nfor w in "holdfast" "holdfast chat"; do COMP_WORDS=($w --res); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); ' \
                   '[ "$w" = holdfast ] && COMP_WORDS=(holdfast to); _holdfast; echo "${COMPREPLY[@]}"; done'
    done = subprocess.run(["bash", "-euc", ask], capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["touch tokenize top", "--resume"], (done.stdout, done.stderr)
    assert "bashcompinit" in run("completion", "zsh")[0]
    assert "-l resume -r" in run("completion", "fish")[0]
    run("completion", "csh", code=2)
    env = {**os.environ, "HOLDFAST_ENDPOINT": "ipc:///nonexistent/x"}
    assert subprocess.run([HOLDFAST, "completion", "bash"], env=env, capture_output=True).returncode == 0


def man_pages(wire):
    """Every command of the help is in the page, and every page is one."""
    page = open(f"{SRC}/clients/man/holdfast.1", encoding="utf-8").read().replace("\\fR, \\fB", " ")
    helps = subprocess.run([HOLDFAST, "--help"], capture_output=True, text=True).stdout
    for line in helps.split("\n\nholdfast COMMAND")[0].splitlines()[2:]:
        assert line.split()[0] in page.split(".SH COMMANDS")[1].split(".SH EXIT")[0], line
    for name in ("holdfast.1", "libholdfast.3", "holdfastd.8"):
        text = open(f"{SRC}/clients/man/{name}", encoding="utf-8").read()
        assert text.startswith(".TH ") and ".SH NAME" in text and ".SH SEE ALSO" in text
    # The daemon's options, each with its text and default, as --help has them.
    helps = subprocess.run([f"{BUILD}/holdfastd", "--help"], capture_output=True, text=True).stdout
    told = [" ".join(line.split()) for line in helps.splitlines() if line.startswith("  --")]
    page = open(f"{SRC}/clients/man/holdfastd.8", encoding="utf-8").read().split(".SH OPTIONS")[1].split("\n.SH")[0]
    page = re.sub(r"\\f.|\\&", "", page).replace("\\-", "-")
    read = [" ".join(item.removeprefix("\n.B ").split()) for item in page.split(".TP")[1:]]
    assert len(told) > 90 and told == read, sorted(set(told) ^ set(read))
    if subprocess.run(["sh", "-c", "command -v groff"], capture_output=True).returncode:
        return "skip groff is not here to read the pages"
    for name in ("holdfast.1", "libholdfast.3", "holdfastd.8"):
        done = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-K", "utf8", f"{SRC}/clients/man/{name}"], capture_output=True, text=True)
        assert done.returncode == 0 and done.stderr == "", done.stderr


daemon = daemon_rig.start()
endpoint = daemon.endpoint
wire = Wire(endpoint)
tap = Tap()
daemon_rig.run(tap, daemon, wire, [
    ("top", top), ("what is for a terminal fits it", fits), ("watch", watch), ("export and import", carried), ("metrics", metrics), ("chat --resume shows what was said and fences", resume),
    ("chat on a terminal: streaming, Ctrl-C, consent", chat_on_a_terminal), ("chat: Ctrl-C at the prompt", interrupt_at_the_prompt), ("chat --resume on a terminal, twice", resume_on_a_terminal),
    ("completion of shells, from the tables", completion), ("man pages", man_pages)])
tap.run("it ends with 0 at once, and no sanitizer spoke", left_clean, daemon)
daemon_rig.finish(tap, daemon)
