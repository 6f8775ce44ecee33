"""Goal: kill -9 at any moment loses no session, breaks no chain, and does nothing twice. Method: a daemon with anchors and
segments and a disk tier, four sessions that talk with keys and are parked there; it is killed by a signal at a random moment, or ends
itself at a named point that it was started with: each that runtime/fault.c knows is in a table here. Each call is asked again with its key until it is answered. At the end of each round: every session is there with
the turns, history and tokens of a daemon that was never killed, there are no others, an older epoch is fenced, and the log
verifies against its anchors. HOLDFAST_KILLS=1000 for the long loop."""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

import ar1
from ar1 import BUILD, Daemon, Refused, Tap, Wire, pack
from daemon_rig import MODEL, unsanitary, words

tap = Tap()
KILLS = int(os.environ.get("HOLDFAST_KILLS", 4 if ar1.SLOW > 1 else 25))
SEED = int(os.environ.get("HOLDFAST_SEED", 23))
RANDOM = random.Random(SEED)
OPTIONS = ("--template", "smollm2", "--kv-memory", "900000", "--chunk", "64", "--batch-rows", "96", "--audit-history", "60",
           "--audit-segment", "32", "--anchor-ms", "50", "--anchor-entries", "16", "--audit-headroom", "64K", "--disk-bytes", "2M",
           "--disk-reserve", "0")
POINTS = {"put": 40, "commit": 25, "committed": 25, "row": 25, "step": 50, "batch": 30, "accepted": 12, "segment": 30, "drop": 2,
          "anchor": 4, "keys": 4, "forget": 1, "reserve": 3, "key": 6, "mark": 20, "index": 1, "statfs": 1, "tier-write": 12, "tier-read": 8}
BIRTH = ("statfs", "created", "reserve", "key", "put", "commit", "committed", "keys")  # those that a new folder passes
SESSIONS, TURNS = 4, 3
count = {"signal": 0, "lost": 0, "broken": 0, "twice": 0, **{p: 0 for p in POINTS}}


class Gone(Exception):
    pass


class Life:
    """One daemon after another on one folder."""

    def __init__(self):
        self.home, self.daemon, self.wire, self.point, self.starts, self.bag = None, None, None, None, 0, []

    def start(self):
        if self.home and os.path.exists(f"{self.home}/log"):
            os.remove(f"{self.home}/log")
        if not self.bag:  # each point comes before any comes again
            self.bag = [*POINTS, *[None] * (len(POINTS) // 4)]
            RANDOM.shuffle(self.bag)
        self.point = self.bag.pop()
        more = ["--inject", f"{self.point}@{RANDOM.randrange(1, POINTS[self.point] + 1)}=crash"] if self.point else []
        while True:
            anchors = ["--anchor", f"{self.home}/second"] if self.home else []
            self.daemon = Daemon(MODEL, *OPTIONS, *anchors, *more, home=self.home, wait=False)
            self.home = self.daemon.home
            try:
                self.daemon.wait()
                break
            except RuntimeError:
                assert self.daemon.process.wait() == -signal.SIGKILL, self.daemon.words()
                self.ended()
                more = []
        self.starts += 1
        if self.wire:
            self.wire.close()
        self.wire = Wire(self.daemon.endpoint, hello=False)
        self.wire.send(ar1.HELLO, 0, {"client": "test", "minor": 0, "caps": []})

    def ended(self):
        self.daemon.log.close()
        unsanitary(self.daemon.words())
        count[self.point or "signal"] += 1

    def again(self):
        """After its end, by a point or by us."""
        if self.daemon.process.poll() is None:
            self.point = None
            self.daemon.process.kill()
        assert self.daemon.process.wait() == -signal.SIGKILL, self.daemon.words()
        self.ended()
        self.start()

    def parked(self, session):
        """To the disk; it may be there already, or have nothing yet."""
        try:
            self.call("session.park", {"place": "disk"}, sess=session)
        except Refused:
            pass

    def call(self, method, a=None, blob=None, moment=None, **keys):
        """Asked until it is answered; the process may be gone in between, any number of times."""
        while True:
            try:
                channel = self.wire.begin(method, a or {}, blob, **keys)
                left = max(0.002, moment - time.time()) if moment else 60 * ar1.SLOW
                while True:
                    try:
                        return self.wire.finish(channel, timeout=min(left, 1) if self.daemon.process.poll() is None else 0.05)
                    except TimeoutError:
                        if self.daemon.process.poll() is not None or (moment and time.time() > moment):
                            raise Gone from None
            except Gone:
                moment = None if self.daemon.process.poll() is None else moment
                self.again()
                moment = moment and time.time() + RANDOM.random() * 0.3 * ar1.SLOW


def kills():
    return sum(v for k, v in count.items() if k not in ("lost", "broken", "twice"))


def right_ones(given):
    daemon = Daemon(MODEL, *OPTIONS)
    wire = Wire(daemon.endpoint)
    out = []
    for turns in given:
        session = wire.open()
        out.append([wire.turn(session, ids, ignore_end=True, **more) for ids, more in turns])
    daemon.stop()
    return out


def verified(life):
    done = subprocess.run([f"{BUILD}/holdfastd", "audit", "--state", f"{life.home}/state", "--anchor", f"{life.home}/second", "--json",
                           "verify"], capture_output=True, text=True, timeout=60 * ar1.SLOW)
    verdict = json.loads(done.stdout)
    if not verdict["ok"]:
        print(f"# {done.stderr.strip()}")
        count["broken"] += 1
    return verdict


def loop():
    given = [[(words(20 + k), {"max_tokens": 12, "seed": k}) for _ in range(TURNS)] for k in range(SESSIONS)]
    right = right_ones(given)
    life = Life()
    life.start()
    life.again()  # so that there are anchors from here on
    started, rounds = time.time(), 0
    while kills() < KILLS:
        rounds += 1
        todo = {k: [("session.open", {"template": "none"}, None, os.urandom(16))] +
                [("session.turn", {"tokens": True, "logprobs": 1, "ignore_end": True, **more}, pack(ids), os.urandom(16))
                 for ids, more in given[k]] for k in range(SESSIONS)}
        session, replies = {}, {k: [] for k in range(SESSIONS)}
        while any(todo.values()):
            moment = time.time() + RANDOM.random() * 0.5 * ar1.SLOW
            k = RANDOM.choice([k for k in todo if todo[k]])
            method, a, blob, key = todo[k][0]
            keys = {"idem": key, "detach_ms": 60000, **({"sess": session[k]} if k in session else {})}
            reply = life.call(method, a, blob, moment if RANDOM.random() < 0.5 else None, **keys)
            session.setdefault(k, reply.end["sess"])
            replies[k].append(reply)
            todo[k].pop(0)
            if RANDOM.random() < 0.4:
                life.parked(session[k])
        round_check(life, session, replies, right)
    verdict = verified(life)
    print(f"# {kills()} kills in {time.time() - started:.0f} s, {rounds} rounds of {SESSIONS} sessions, seed {SEED}: "
          f"{count['lost']} sessions lost, {count['broken']} chains broken, {count['twice']} done twice")
    print("# " + ", ".join(f"{k} {v}" for k, v in count.items() if k not in ("lost", "broken", "twice")))
    print(f"# the log: {verdict['entries']} entries, {verdict['archived']} in segments, {verdict['anchors']} anchors, boot {verdict['boot']}")
    assert count["lost"] == count["broken"] == count["twice"] == 0
    assert KILLS < 500 or all(count[p] for p in POINTS), "a point that nothing passes"
    assert life.daemon.stop() == 0 or life.point


def round_check(life, session, replies, right):
    for k in range(SESSIONS):
        for got, reply in zip(replies[k][1:], right[k]):
            assert got.ids == reply.ids and got.logprobs == reply.logprobs, k
        shown = life.call("session.show", sess=session[k]).end
        if "err" in shown:
            count["lost"] += 1
            continue
        shown = shown["r"]
        count["lost"] += shown["history"] < right[k][-1].usage["history"]
        count["twice"] += shown["turn"] > TURNS or shown["history"] > right[k][-1].usage["history"]
    # Whoever was attached before is fenced, and stays so.
    epoch = life.call("session.attach", sess=session[0]).end["epoch"]
    if RANDOM.random() < 0.3:
        life.again()
    try:
        old = life.call("session.rollback", {"to_turn": 0}, sess=session[0], epoch=epoch - 1).end["err"]["n"]
    except Refused as refused:
        old = refused.name
    count["twice"] += old != "fenced"
    listed = life.call("session.list").end["r"]
    count["twice"] += len(listed) > SESSIONS
    count["lost"] += len(listed) < SESSIONS
    verified(life)
    for k in range(SESSIONS):
        try:
            life.call("session.forget" if k == 0 else "session.close", sess=session[k])
        except Refused:
            pass  # it was done, and the answer was lost
    assert life.call("session.list").end["r"] == []


def complete():
    """Every point of the code can end a process here: in the loop, or in the first start of a folder."""
    with open(os.path.join(os.environ.get("SRCDIR", ".."), "runtime/fault.c")) as file:
        known = set(re.findall(r'"([a-z-]+)"', re.search(r"names\[FAULT_COUNT\] = {(.*?)};", file.read(), re.DOTALL)[1]))
    assert len(known) > 15 and known == {*POINTS, *BIRTH}, known ^ {*POINTS, *BIRTH}


def born():
    """A folder whose first start ended at a point: the next one begins it, or finds it whole."""
    for point in BIRTH:
        daemon = Daemon(MODEL, *OPTIONS, "--inject", f"{point}@1=crash", wait=False)
        assert daemon.process.wait(60 * ar1.SLOW) == -signal.SIGKILL, (point, daemon.words())
        daemon.log.close()
        os.remove(f"{daemon.home}/log")
        daemon = Daemon(MODEL, *OPTIONS, home=daemon.home)
        assert Wire(daemon.endpoint).turn(Wire(daemon.endpoint).open(), words(9), max_tokens=3, ignore_end=True).ids, point
        assert daemon.stop(keep=True) == 0, point
        unsanitary(daemon.words())
        shutil.rmtree(daemon.home)


tap.run("each named point is in the table", complete)
tap.run("killed in the first start of a folder", born)
tap.run(f"{KILLS} kills: nothing lost, nothing broken, nothing twice", loop)
raise SystemExit(tap.done())
