"""Goal: what a principal may have (bytes, sessions, turns running) is kept to, with the numbers, and costs no other principal
anything; and the ledger shows all of it, by principal and by session. Method: one user comes in at the daemon's own endpoint,
another at a tenant's; turns whose client gives credit for a byte stand where they are, so that what they hold can be read."""
import json
import os
import subprocess
import sys
import tempfile

import ar1
import daemon_rig
from ar1 import BUILD, Daemon, Tap, Wire, pack
from daemon_rig import MODEL, left_clean, until, words

folder = tempfile.mkdtemp(prefix="hf-quota-")
DOOR = f"ipc://{folder}/red.sock"
TENANTS = os.path.join(folder, "tenants")
with open(os.open(TENANTS, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
    file.write(f"tenant red listen={DOOR}\nallow red uid={os.getuid()} name=ann roles=agent,gateway\n")

LIMIT, SESSIONS, TURNS = 190000, 4, 2
daemon = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "900000", "--strikes", "0", "--tenants", TENANTS, "--share", "no",
                "--stream-bytes", "1024", "--principal-bytes", str(LIMIT), "--sessions-principal", str(SESSIONS), "--turns-principal", str(TURNS), "--principals", "200")
red = Wire(DOOR)
LONGEST = 260  # of the tiny model's tokens: "the"; 342 of it are more than may lie unread
PAGE = red.ok("model.show")["r"]["page_bytes"]


def holdfast(*words):
    p = subprocess.run([f"{BUILD}/holdfast", "--endpoint", daemon.endpoint, *words], capture_output=True, text=True, timeout=60 * ar1.SLOW)
    assert p.returncode == 0, p
    return p.stdout


def charge(prompt, output):
    """What such a turn may ever need: the last token that it samples has no row."""
    return -(-(prompt + output - 1) // 16) * PAGE


def account(wire, name):
    """The principal's line, whose numbers must be the sums of its sessions'."""
    ledger = wire.ok("ledger.show")["r"]
    (line,) = [p for p in ledger["principals"] if p["principal"] == name]
    own = [s for s in ledger["sessions"] if s["principal"] == name]
    for key in ("granted", "charged"):
        assert line[key] == sum(s[key] for s in own), (key, line, own)
    assert line["sessions"] == len(own) and line["running"] == sum(s["state"] == "running" for s in own), (line, own)
    assert line["charged"] <= line["limit"] == LIMIT, line
    assert (line["sessions_limit"], line["running_limit"]) == (SESSIONS, TURNS), line
    return line, {s["sess"]: s for s in own}


def stand(wire, session, prompt, output):
    """Begins a turn that runs and stands still for want of credit: more text than may lie unread."""
    ask = {"tokens": True, "max_tokens": output, "ignore_end": True, "bias": [[LONGEST, 100.0]]}
    wire.begin("session.turn", ask, pack(words(prompt)), sess=session, window=1)
    until(lambda: me.ok("session.show", sess=session)["r"]["state"] == "running")


def let(session):
    """The session is closed, its turn with it; both are off the account then."""
    me.ok("session.close", sess=session)
    until(lambda: session not in account(me, ME)[1])


def served():
    """The neighbour opens a session and has a turn answered, and is charged for nothing afterwards."""
    session = red.open()
    assert red.turn(session, words(30), max_tokens=4, ignore_end=True).status == "limit"
    line, own = account(red, THEIRS)
    assert line["charged"] == line["granted"] == line["running"] == 0 and own[session]["bytes"] > 0, (line, own)
    red.ok("session.close", sess=session)


me = Wire(daemon.endpoint)
ME = me.welcome["principal"]
THEIRS = red.welcome["principal"]


def by_sessions(wire):
    """One more session than the quota is refused with the numbers; a closed one makes room."""
    sessions = [me.open() for _ in range(SESSIONS)]
    for method, keys in (("session.open", {}), ("session.fork", {"sess": sessions[0]})):
        end = me.call(method, {"template": "none"} if method == "session.open" else {}, **keys).end
        assert end["err"]["n"] == "overloaded" and end["err"]["limit"] == SESSIONS, end
    assert account(me, ME)[0]["sessions"] == SESSIONS
    served()
    me.ok("session.close", sess=sessions.pop())
    sessions.append(me.open())
    assert account(me, ME)[0]["sessions"] == SESSIONS
    for s in sessions:
        me.ok("session.close", sess=s)


def by_turns(wire):
    """One more turn than may run waits, says for what, and runs when another is over."""
    sessions = [me.open() for _ in range(3)]
    doors = [Wire(daemon.endpoint) for _ in range(3)]
    for door, session in list(zip(doors, sessions))[:2]:
        stand(door, session, 20, 400)
    line, own = account(me, ME)
    assert line["running"] == 2 and line["charged"] == 2 * charge(20, 400), line
    assert [own[s]["charged"] for s in sessions] == [charge(20, 400)] * 2 + [0], own
    channel = doors[2].begin("session.turn", {"tokens": True, "max_tokens": 3, "ignore_end": True}, pack(words(20)), sess=sessions[2])
    until(lambda: me.ok("session.show", sess=sessions[2])["r"]["state"] == "queued")
    waiting = me.ok("session.show", sess=sessions[2])["r"]["waiting"]
    assert waiting["why"] == "turns" and waiting["place"] == 1 and waiting["short_by"] == 0, waiting
    line, own = account(me, ME)
    assert (line["turns"], line["running"]) == (3, 2) and own[sessions[2]]["charged"] == 0, line
    served()
    let(sessions[0])
    assert doors[2].finish(channel).status == "limit"
    for s in sessions[1:]:
        let(s)
    for door in doors:
        door.close()


def by_bytes(wire):
    """Grants and running turns are charged together: who comes late is clipped, waits, or is refused, with the numbers."""
    sessions = [me.open() for _ in range(3)]
    doors = [Wire(daemon.endpoint) for _ in range(2)]
    granted = me.ok("session.residency", {"residency": {"kind": "pinned", "bytes": 4 * PAGE}}, sess=sessions[0])["r"]["granted"]
    assert granted["bytes"] == 4 * PAGE, granted
    most = LIMIT // PAGE * PAGE  # in whole pages
    output = (most - 8 * PAGE) // PAGE * 16 - 20
    stand(doors[0], sessions[1], 20, output)
    line, own = account(me, ME)
    running = charge(20, output)
    assert line["granted"] == 4 * PAGE and line["charged"] == 4 * PAGE + running, (line, running)
    assert own[sessions[1]]["charged"] == running and own[sessions[1]]["promised"] >= PAGE, own
    # What is left is less than this one needs, by so much.
    channel = doors[1].begin("session.turn", {"tokens": True, "max_tokens": 60, "ignore_end": True}, pack(words(60)), sess=sessions[2])
    until(lambda: me.ok("session.show", sess=sessions[2])["r"]["state"] == "queued")
    waiting = me.ok("session.show", sess=sessions[2])["r"]["waiting"]
    assert waiting["why"] == "pages" and waiting["short_by"] == line["charged"] + charge(60, 60) - LIMIT > 0, (waiting, line)
    assert waiting["blocker"] == sessions[1], waiting
    # A grant gets what is left.
    end = me.ok("session.residency", {"residency": {"kind": "pinned", "bytes": most}}, sess=sessions[0])
    assert end["r"]["granted"]["bytes"] == (LIMIT - running) // PAGE * PAGE, (end, running)
    assert account(me, ME)[0]["charged"] > LIMIT - PAGE
    served()
    end = me.call("session.turn", {"tokens": True, "max_tokens": 985}, pack(words(20)), sess=sessions[0]).end
    assert end["err"]["n"] == "no_pages" and end["err"]["asked"] == charge(20, 985) and end["err"]["limit"] == LIMIT, end
    let(sessions[0])
    let(sessions[1])
    assert doors[1].finish(channel).status == "limit"
    let(sessions[2])
    line, own = account(me, ME)
    assert line["charged"] == line["granted"] == line["bytes"] == line["sessions"] == 0 and not own, line
    for door in doors:
        door.close()


def shown(wire):
    """`holdfast ledger`, as a table and as JSON: deployment, accounts, principals and sessions; a neighbour sees its own only."""
    session = me.open(label="held", residency={"kind": "pinned", "bytes": 2 * PAGE})
    theirs = red.open(label="theirs")
    assert me.turn(session, words(40), max_tokens=3, ignore_end=True).status == "limit"

    ledger = json.loads(holdfast("--json", "ledger"))
    (line,) = [p for p in ledger["principals"] if p["principal"] == ME]
    assert line["granted"] == line["charged"] == 2 * PAGE and line["limit"] == LIMIT, ledger
    assert {s["label"] for s in ledger["sessions"]} == {"held", "theirs"}, ledger
    blocks = [block.splitlines() for block in holdfast("ledger").split("\n\n")]
    table = {block[0].split()[0]: block for block in blocks}
    assert set(table) == {"MiB", "DEPLOYMENT", "PRINCIPAL", "SESSION"}, blocks
    assert [line.split()[0] for line in table["DEPLOYMENT"][1:]] == ["weights", "kv", "headroom"], table
    assert table["PRINCIPAL"][0].split() == ["PRINCIPAL", "SESSIONS", "OF", "TURNS", "RUN", "OF", "MiB", "GRANTED", "CHARGED", "LIMIT"]
    (row,) = [line.split() for line in table["PRINCIPAL"] if line.startswith(ME)]
    mib = f"{2 * PAGE / 2**20:.1f}"
    assert row[1:6] == ["1", str(SESSIONS), "0", "0", str(TURNS)] and row[7:9] == [mib, mib], row
    (row,) = [line.split() for line in table["SESSION"] if line.endswith("held")]
    assert row[0] == session.hex() and row[1:3] == [ME, "idle"], row
    assert len(json.loads(holdfast("--json", "ledger", "--count", "1"))["sessions"]) == 1
    seen = red.ok("ledger.show")["r"]
    assert [s["sess"] for s in seen["sessions"]] == [theirs] and len(seen["principals"]) == 1, seen
    for at, s in ((me, session), (red, theirs)):
        at.ok("session.close", sess=s)


def many(_):
    """More principals than a list has: a part of them, and how many are behind it, as of sessions."""
    names = {ME, "red/ann"} | {f"red/ann/u{i}" for i in range(120)}
    for i in range(120):
        wire = Wire(DOOR, hello=False)
        wire.send(ar1.HELLO, 0, {"client": "test", "minor": 0, "caps": [], "act_as": f"u{i}"})
        assert wire.expect(ar1.WELCOME)[3]["principal"] == f"red/ann/u{i}"
        wire.close()
    parts = [me.ok("ledger.show", {"first": first, "count": 50})["r"] for first in (0, 50, 100, 150)]
    assert [[len(p["principals"]), p["more"]["principals"]] for p in parts] == [[50, 72], [50, 22], [22, 0], [0, 0]], parts
    listed = [p["principal"] for part in parts for p in part["principals"]]
    assert len(set(listed)) == len(listed) == 122 and set(listed) == names, listed
    whole = me.ok("ledger.show")["r"]
    assert len(whole["principals"]) == 100 and whole["more"] == {"principals": 22, "sessions": 0}, whole
    assert "... and 22 more principals: see --first, --count" in holdfast("ledger")
    assert "more" not in holdfast("ledger", "--first", "100")
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.path.join(os.environ.get("SRCDIR", "."), "clients", "python"))
    from holdfast import Client
    with Client(daemon.endpoint) as client:
        assert client.ledger(first=100)["more"] == {"principals": 0, "sessions": 0}
        assert client.ledger(count=2)["more"]["principals"] == 120
    mine = [me.open() for _ in range(3)]
    assert me.ok("ledger.show", {"count": 2})["r"]["more"]["sessions"] == 1
    for session in mine:
        me.ok("session.close", sess=session)


tap = Tap()
daemon_rig.run(tap, daemon, me, [
    ("a principal has as many sessions as it may; a neighbour is served", by_sessions),
    ("as many turns of it run as may; the next one waits for a turn and says so", by_turns),
    ("its grants and its running turns are charged together; what does not fit is clipped, waits or is refused by the numbers", by_bytes),
    ("the ledger shows deployment, accounts, principals and sessions, and nobody else's", shown),
    ("more principals than a list has are listed in parts, with a count of the rest", many)])
tap.run("it ends with 0 at once, and no sanitizer spoke", left_clean, daemon)
daemon_rig.finish(tap, daemon)
