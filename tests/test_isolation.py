"""Goal: one principal's pages never reach another's turn, however they move. Method: a gateway's two principals, with the same
beginning, play turns side by side on a slab that holds neither's contexts whole: they go to host and disk and come back, give way,
are forked, forgotten, and found again after kill -9. One's prompts hold canaries. The other's answers are, bit for bit, those that it
gets alone; and the log is replayed: no page ever has two principals, and one that changed hands was zeroed or written as a whole."""
import os
import shutil
import tempfile

import ar1
from ar1 import HELLO, WELCOME, Tap, Wire, pack
from daemon_rig import audit, begin, kill, left_clean, words

tap = Tap()
HOME = tempfile.mkdtemp(prefix="hf-isolation-")
FILE, IPC = f"{HOME}/tenants", f"ipc://{HOME}/local.sock"
with open(FILE, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
    file.write(f"tenant users listen={IPC} rate=0 bytes=0\nallow users uid={os.getuid()} roles=gateway\n")
OPTIONS = ("--template", "smollm2", "--kv-memory", "300000", "--host-memory", "150000", "--disk-bytes", "4M", "--disk-reserve", "0",
           "--chunk", "64", "--batch-rows", "96", "--audit-commit-ms", "1", "--tenants", FILE)
ROUNDS, SESSIONS = (3, 2) if ar1.SLOW > 1 else (3, 3)
HEAD = words(64)
CANARY = words(12)
PROMPTS = [[HEAD + words(60) if r == 0 else words(40) for r in range(ROUNDS + 1)] for _ in range(SESSIONS)]


class Acting(Wire):
    def __init__(self, name):
        super().__init__(IPC, hello=False)
        self.send(HELLO, 0, {"client": "test", "minor": 0, "caps": [], "act_as": name})
        self.expect(WELCOME)


def turns(names, sessions, ids, seen):
    """A turn of each session, side by side: each on a connection of its own."""
    ask = {"tokens": True, "max_tokens": 8, "ignore_end": True, "logprobs": 1}
    open_calls = []
    for n in names:
        for i, s in enumerate(sessions[n]):
            wire = Acting(n)
            open_calls.append((n, wire, wire.begin("session.turn", ask, pack(ids[n][i]), sess=s)))
    for n, wire, channel in open_calls:
        reply = wire.finish(channel)
        assert reply.status == "limit", reply.end
        seen[n].append((reply.ids, reply.logprobs))
        wire.close()


def play(both):
    """What bob was answered; with ann beside him, or alone. And where the log lies."""
    names = ("bob", "ann") if both else ("bob",)
    daemon, seen = begin(None, *OPTIONS), {n: [] for n in names}
    state = daemon.home

    def join():
        out = []
        for n in names:
            out.append(Acting(n))
            out[-1].name = n  # whose it is
        return out

    wires = join()
    held = {w.name: [w.open() for _ in range(SESSIONS)] for w in wires}
    for r in range(ROUNDS + 1):
        if r == ROUNDS:
            kill(daemon)
            daemon = begin(state, *OPTIONS)
            wires = join()
        ids = {n: [PROMPTS[i][r] if n == "bob" else PROMPTS[i][r][:64] + CANARY + PROMPTS[i][r][64:] + CANARY
                   for i in range(SESSIONS)] for n in names}
        turns(names, held, ids, seen)
        for w in wires:
            for i, s in enumerate(held[w.name]):
                w.ok("session.park", {"place": ("host", "disk", "tokens")[(i + r) % 3]}, sess=s)
        if both:
            fork = wires[1].call("session.fork", sess=held["ann"][0]).end["sess"]
            wires[1].turn(fork, CANARY, max_tokens=2, ignore_end=True)
            wires[1].ok("session.forget" if r % 2 else "session.close", sess=fork)
    for w in wires:
        w.close()
    left_clean(daemon)
    return seen, f"{state}/state"


def apart():
    alone, _ = play(False)
    seen, state = play(True)
    assert seen["bob"] == alone["bob"], "another's work changed an answer"
    for ids, _ in seen["bob"]:
        for at in range(len(ids) - 2):
            assert ids[at:at + 3] not in [CANARY[i:i + 3] for i in range(len(CANARY) - 2)]
    replayed(audit(state, "export"))


def replayed(records):
    holds, last, handed, zeroed, seen = {}, {}, 0, 0, set()
    for r in records:
        if r["kind"] == "boot":
            holds.clear(), last.clear()
        if r["kind"] not in ("assign", "share", "free") or r["place"] != 0:
            continue
        for page in ((r["group"], r["page"] + i) for i in range(r["pages"])):
            if r["kind"] == "free":
                last[page] = holds.pop(page)
                continue
            assert holds.get(page, r["principal"]) == r["principal"], (page, holds[page], r)
            assert r["kind"] == "share" or page not in holds, (page, r)
            if r["kind"] == "assign" and last.get(page, r["principal"]) != r["principal"]:
                handed += 1
                zeroed += r["reason"] == "zeroed"  # of a copy from below the whole page is written
            holds[page] = r["principal"]
            seen.add(r["principal"])
    assert len(seen) == 2 and handed > 3 and zeroed > 0, (seen, handed, zeroed)
    print(f"# {handed} pages changed hands, of which {zeroed} by assignment, zeroed")


tap.run("what one says is not in the other's answers, and no page is ever both's", apart)
shutil.rmtree(HOME)
raise SystemExit(tap.done())
