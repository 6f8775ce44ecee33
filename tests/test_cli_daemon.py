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
import threading
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
        self.out, self.seen, self.quiet = b"", 0, 0

    def __enter__(self):
        return self

    def __exit__(self, *what):
        """Whatever failed: no program stays behind."""
        if self.fd is not None:
            self.child.kill()
            os.close(self.fd)
            self.child.wait()

    def more(self):
        """What it prints next; only that it is silent for long is an error, however slow the machine is."""
        try:
            new = os.read(self.fd, 65536) if select.select([self.fd], [], [], 0.1)[0] else b""
        except OSError:  # the program is gone
            return False
        self.quiet = 0 if new else self.quiet + 1
        assert self.quiet < 300 * ar1.SLOW, self.out[-2000:]
        self.out += new
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
        while self.more():
            pass
        code = self.child.wait(30 * ar1.SLOW)
        os.close(self.fd)
        self.fd = None
        return self.out.decode(errors="replace"), code


def on_a_terminal(arguments, rows, columns, keys, until):
    """What a program prints on a terminal of that size up to `until`; then it is sent the keys."""
    with Terminal(arguments, rows, columns) as terminal:
        terminal.until(until)
        terminal.type(keys)
        return terminal.end()


class Fake:
    """A daemon without a model, whose turns do what they are told."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="hf-")
        self.at = f"ipc://{self.folder}/s"
        self.child = subprocess.Popen([f"{BUILD}/tests/fake_daemon", self.at, "1000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self):
        assert b"ready" in self.child.stdout.readline()
        return self

    def __exit__(self, *what):
        self.child.stdin.close()
        try:
            self.child.wait(20 * ar1.SLOW)
        finally:
            self.child.kill()


def chat_on_a_terminal(wire):
    """Turn after turn, each piece as it comes; Ctrl-C ends the turn, and at the prompt the chat; a tool runs with consent alone."""
    with Fake() as fake, Terminal(["chat", "--system", "Be brief.", "--tool", '{"name": "read_file"}', "--run", "read_file=tr a-z A-Z"],
                                  at=fake.at) as chat:
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


def interrupt_at_the_prompt(wire):
    """Ctrl-C at the very moment of the prompt ends the chat, each time: also before the program waits for a key."""
    for _ in range(40):
        with Terminal(["chat"]) as chat:
            chat.until("> ")
            chat.type(b"\x03")
            out, code = chat.end()
            assert code == 130, (code, out)


IN_THREADS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>
/* A thread that blocks signals for itself tells whether it was open to them until now. */
int pthread_sigmask(int how, const sigset_t *set, sigset_t *old)
{
	int (*const mask)(int, const sigset_t *, sigset_t *) = (int (*)(int, const sigset_t *, sigset_t *))dlsym(RTLD_NEXT, "pthread_sigmask");
	sigset_t now;
	mask(SIG_BLOCK, NULL, &now);
	if (gettid() != getpid() && write(2, sigismember(&now, SIGINT) ? "thread: closed\\n" : "thread: open\\n", sigismember(&now, SIGINT) ? 15 : 13) < 0)
		return 1;
	return mask(how, set, old);
}
"""
AT_THE_CALL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>
/* A call with a key asks for 16 bytes just before it begins: at the second one that signals are taken for there is one. */
ssize_t getrandom(void *at, size_t n, unsigned flags)
{
	static int count;
	const ssize_t got = ((ssize_t (*)(void *, size_t, unsigned))dlsym(RTLD_NEXT, "getrandom"))(at, n, flags);
	struct sigaction now;
	sigaction(SIGINT, NULL, &now);
	if (n == 16 && now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN && ++count == 2)
		raise(atoi(getenv("SIGNAL")));
	return got;
}
"""


def beside(folder, source):
    """The environment for a program with that in front of its libraries; None: no compiler here."""
    with open(f"{folder}/beside.c", "w") as file:
        file.write(source)
    try:
        subprocess.run([*os.environ.get("CC", "cc").split(), "-shared", "-fPIC", "-o", f"{folder}/beside.so", f"{folder}/beside.c", "-ldl"],
                       check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return {**os.environ, "LD_PRELOAD": f"{folder}/beside.so", "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}


def interrupt_before_the_call(wire):
    """A signal in the moment between the last look at it and the call's beginning ends the turn too, also where no piece ever comes."""
    with tempfile.TemporaryDirectory() as folder, Fake() as fake:
        env = beside(folder, AT_THE_CALL)
        if not env:
            return "skip no compiler here"
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            done = subprocess.run([HOLDFAST, "turn", "--message", "wait"], capture_output=True, text=True, timeout=20 * ar1.SLOW,
                                  env={**env, "HOLDFAST_ENDPOINT": fake.at, "SIGNAL": str(int(number))})
            assert done.returncode == code and "[cancelled" in done.stderr, (done.returncode, done.stderr)


def signals_of_threads(wire):
    """No thread of the library is open to the program's signals, not for a moment: a handler that runs there ends no wait."""
    with tempfile.TemporaryDirectory() as folder:
        env = beside(folder, IN_THREADS)
        if not env:
            return "skip no compiler here"
        done = subprocess.run([HOLDFAST, "health"], env={**env, "HOLDFAST_ENDPOINT": endpoint}, capture_output=True, text=True,
                              timeout=20 * ar1.SLOW)
        assert done.returncode == 0 and "thread: open" not in done.stderr, done.stderr
        if "thread: closed" not in done.stderr:
            return "skip this ZeroMQ's threads do not say"


def resume_on_a_terminal(wire):
    """--resume shows what was said and goes on; another one of the same session fences the first."""
    session = wire.open("smollm2", system="Words to be seen again.").hex()
    asked = ["chat", "--resume", session, "--max-tokens", "3", "--ignore-end"]
    with Terminal(asked) as first:
        assert "Words to be seen again." in first.until("> ")
        first.type(b"hello there\n")
        first.until("left]\r\n> ")
        with Terminal(asked) as second:
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


def cells(text, where):
    """The tables of a picture: each row as a dict by title. Titles and cells without spaces."""
    rows, titles = [], None
    for line in text.replace("\r", "").split("\n"):
        if not line.strip() or line[0] in " :" or "[" in line or "tokens a second" in line or "turns run" in line:
            titles = None
            continue
        if titles is None:
            titles = line.replace("BACK IN", "BACK_IN").split()
            continue
        assert len(line.split()) in (len(titles), len(titles) - 1), (where, titles, line)  # a label may be empty
        rows.append(dict(zip(titles, line.split())))
    return rows


def narrow(wire):
    """On a small terminal each table leaves out columns, and what it shows is whole; so does the live picture."""
    sessions = [wire.open(label="w" + "x" * 30) for _ in range(3)]
    wire.turn(sessions[0], words(30), max_tokens=2, ignore_end=True)
    for what, last in (("sessions", sessions[-1].hex()), ("ledger", sessions[-1].hex()), ("pages", "\r\n")):
        whole = cells(run(what)[0], what)
        for columns in (40, 60, 80):
            out, code = on_a_terminal([what], 200, columns, b"", last)
            lines = out.replace("\r", "").split("\n")
            assert code == 0 and all(len(line) <= columns for line in lines), (what, columns, out)
            rows = cells(out, (what, columns))
            assert len(rows) == len(whole), (what, columns, out)
            for row, full in zip(rows, whole):
                for title, cell in row.items():
                    cut = title in ("LABEL", "PRINCIPAL")
                    assert full[title] == cell or cut and full[title].startswith(cell) or title in ("IDLE", "BACK_IN"), (what, columns, row)
                assert not {"SESSION", "PAGE", "PRINCIPAL", "DEPLOYMENT", "MiB"}.isdisjoint(row), (what, columns, row)
            assert what == "pages" or any(s.hex() in out for s in sessions), out
    for columns in (40, 60):
        out, code = on_a_terminal(["top", "--interval", "50"], 24, columns, b"\x03", lambda out: out.count("\033[H") > 2)
        picture = out.split("\033[2J")[2].replace("\r", "").split("\n")
        assert len(picture) <= 24 and all(len(line) <= columns for line in picture), (columns, picture)
        assert "tokens a second" in out and "device   [" in out and sessions[0].hex() in out, picture
    for session in sessions:
        wire.ok("session.close", sess=session)


def rate(wire):
    """`top` shows as many tokens a second as there were: what its pictures say makes what was sampled."""
    session = wire.open()
    began = time.time()
    top = subprocess.Popen([HOLDFAST, "top", "--count", "1000", "--interval", "200"], stdout=subprocess.PIPE, text=True,
                           env={**os.environ, "HOLDFAST_ENDPOINT": endpoint})
    try:
        rates = []

        def more():
            for line in top.stdout:
                if "tokens a second" in line:
                    rates.append(float(re.search(r"([0-9.]+) tokens a second", line)[1]))
                    return rates[-1]
            raise AssertionError("top ended")
        assert more() == 0
        assert len(wire.turn(session, words(9), max_tokens=40, ignore_end=True).ids) == 40
        while not any(rates):
            more()
        while more() > 0:
            pass
    finally:
        top.kill()
        top.wait()
        top.stdout.close()
    # Between two pictures lies a fifth of a second at least, and all of it at most.
    took = time.time() - began
    assert sum(rates) * 0.2 <= 40.5 and sum(rates) * took >= 39.5, (rates, took)
    wire.ok("session.close", sess=session)


def signal_in_a_tool(wire):
    """A SIGTERM, or Ctrl-C's signal, while a tool runs ends the tool with all that it has started, and the chat; its session is
    closed. One that heeds no signal is ended too."""
    for number, tool in ((signal.SIGTERM, "sleep 987 & sleep 986; echo never"), (signal.SIGTERM, "trap '' TERM; while :; do sleep 0.05; done"),
                         (signal.SIGINT, "sleep 985")):
        with Fake() as fake, tempfile.TemporaryDirectory() as folder:
            chat = subprocess.Popen([HOLDFAST, "chat", "--tool", '{"name": "read_file"}', "--yes", "--run",
                                     f"read_file=echo $$ >{folder}/pid; mv {folder}/pid {folder}/there; {tool}"],
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    env={**os.environ, "HOLDFAST_ENDPOINT": fake.at},
                                    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
            try:
                chat.stdin.write(b"tool\n")
                chat.stdin.flush()
                daemon_rig.until(lambda: os.path.exists(f"{folder}/there"))
                with open(f"{folder}/there") as file:
                    group = int(file.read())
                chat.send_signal(number)
                if number == signal.SIGINT:
                    daemon_rig.until(lambda: not alive(group))
                    chat.stdin.write(b"hello you\n")
                    out, err = chat.communicate(timeout=30 * ar1.SLOW)
                    assert chat.returncode == 0 and b"You said: hello you" in out, (chat.returncode, out, err)
                else:
                    out, err = chat.communicate(timeout=30 * ar1.SLOW)
                    assert chat.returncode == 143 and b"never" not in err, (chat.returncode, out, err)
                assert b"The tool says" not in out
                daemon_rig.until(lambda: not alive(group))
            finally:
                chat.kill()
                chat.wait()


def alive(group):
    """Somebody of the process group is there and no zombie."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            return True
    return False


class Watcher:
    """holdfast watch, and the lines that it has printed."""

    def __init__(self, *arguments):
        self.child = subprocess.Popen([HOLDFAST, "watch", *arguments], stdout=subprocess.PIPE, text=True,
                                      env={**os.environ, "HOLDFAST_ENDPOINT": endpoint})
        self.lines = []

    def __enter__(self):
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        return self

    def read(self):
        for line in self.child.stdout:
            self.lines.append(line)

    def until(self, what, wire=None):
        """Up to where that holds; with a wire something is made to happen meanwhile: nobody says when a subscriber has come in."""
        deadline = time.time() + 30 * ar1.SLOW
        while not what():
            assert time.time() < deadline, self.lines
            if wire:
                wire.ok("session.close", sess=wire.open(label="to be seen"))
            time.sleep(0.05)
        return self.lines

    def __exit__(self, *what):
        self.child.kill()
        self.child.wait()
        self.reader.join()


def watch(wire):
    with Watcher("--json") as watcher:
        watcher.until(lambda: watcher.lines, wire)
        session = wire.open()
        wire.turn(session, words(60), max_tokens=2, ignore_end=True)
        wire.ok("session.park", {"place": "tokens"}, sess=session)
        wire.ok("session.close", sess=session)
        of_it = lambda: [e for e in map(json.loads, list(watcher.lines)) if e["sess"] == session.hex()]
        watcher.until(lambda: any(e["event"] == "closed" for e in of_it()))
        assert [e["event"] for e in of_it()] == ["granted", "running", "ended", "lost", "closed"], watcher.lines
        seen = [json.loads(line)["seq"] for line in watcher.lines]
        assert seen == list(range(seen[0], seen[0] + len(seen))), seen
    with Watcher("--count", "2") as watcher:
        watcher.until(lambda: watcher.child.poll() is not None, wire)
        watcher.reader.join()
        kinds = "granted  label to be seen  kind best_effort", "closed  label to be seen"
        said = [re.fullmatch(rf"\d\d:\d\d:\d\d  [0-9a-f]{{32}}  (({kinds[0]}.*)|{kinds[1]})\n", line) for line in watcher.lines]
        assert len(said) == 2 and all(said) and bool(said[0][2]) != bool(said[1][2]) and watcher.child.poll() == 0, watcher.lines
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
    ("top", top), ("top: tokens a second", rate), ("what is for a terminal fits it", fits), ("tables on narrow terminals", narrow), ("watch", watch), ("export and import", carried), ("metrics", metrics), ("chat --resume shows what was said and fences", resume),
    ("chat on a terminal: streaming, Ctrl-C, consent", chat_on_a_terminal), ("chat: Ctrl-C at the prompt", interrupt_at_the_prompt),
    ("a signal while a tool runs", signal_in_a_tool), ("a signal before the call begins", interrupt_before_the_call), ("the library's threads take no signals", signals_of_threads), ("chat --resume on a terminal, twice", resume_on_a_terminal),
    ("completion of shells, from the tables", completion), ("man pages", man_pages)])
tap.run("it ends with 0 at once, and no sanitizer spoke", left_clean, daemon)
daemon_rig.finish(tap, daemon)
