"""Who was refused, whose key was taken away, and with what the daemon was begun is in the audit log, and a flood of refusals does not fill it.

Method: each way to be refused is gone, by TCP with keys and by users of this machine; then the log is asked what it has of that.
"""
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import ar1
from ar1 import ACCEPTED, BUILD, CANCEL, HELLO, REJECT, RESUME, Daemon, Refused, Tap, Wire, pack, zmq
from daemon_rig import MODEL, await_message, begin, left_clean, words

import zmq.auth
from zmq.utils import z85
if not zmq.has("curve"):
    ar1.skip_all("this libzmq has no CURVE")

HOME = tempfile.mkdtemp(prefix="hf-authority-")
KEYS = {name: tuple(k.decode() for k in zmq.curve_keypair()) for name in ("server", "ann", "bob", "gate", "watch", "old", "nobody")}
PORTS = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
TCP, OTHER, CONTROL = (f"tcp://127.0.0.1:{s.getsockname()[1]}" for s in PORTS)
IPC, FILE = f"ipc://{HOME}/local.sock", f"{HOME}/tenants"
BURST = 16  # AUTH_BURST of runtime/authority.h


def key(name):
    return f"key={KEYS[name][0]} name={name}"


LINES = [f"tenant red listen={TCP} control={CONTROL} rate=0 bytes=0", f"tenant blue listen={OTHER}", f"tenant users listen={IPC}",
         f"allow red {key('ann')}", f"allow red {key('gate')} roles=gateway", f"allow red {key('watch')} roles=operator",
         f"allow red {key('old')} until=2001-01-01", f"allow blue {key('bob')}"]


def write(lines, path=FILE):
    with open(path, "w", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
        file.write("\n".join(lines) + "\n")


def connect(endpoint, who=None, routing=None):
    s = zmq.Context.instance().socket(zmq.DEALER)
    s.setsockopt(zmq.LINGER, 0)
    s.setsockopt(zmq.IMMEDIATE, 1)
    if routing:
        s.setsockopt(zmq.ROUTING_ID, routing)
    if who:
        s.curve_publickey, s.curve_secretkey = (k.encode() for k in KEYS[who])
        s.curve_serverkey = KEYS["server"][0].encode()
    s.connect(endpoint)
    return s


class Curve(Wire):
    def __init__(self, endpoint, who, act_as=None, routing=None):
        self.socket, self.channel = connect(endpoint, who, routing), 0
        self.send(HELLO, 0, {"client": "test", "minor": 0, "caps": [], **({"act_as": act_as} if act_as else {})})
        type, _, _, self.welcome, _ = self.receive()
        if type == REJECT:
            self.close()
            raise Refused(self.welcome["err"])


def refused(name, what, *arguments, **more):
    try:
        what(*arguments, **more)
    except Refused as why:
        assert why.name == name, why.name
        return
    raise AssertionError("it was let do that")


def ask(*question):
    done = subprocess.run([f"{BUILD}/holdfastd", "audit", "--state", STATE, "--json", *question], capture_output=True, text=True)
    assert done.returncode == 0, done
    return [json.loads(line) for line in done.stdout.splitlines()]


def records(kind, reason=None):
    return [r for r in ask("export") if r["kind"] == kind and reason in (None, r["reason"])]


def await_records(kind, reason, count):
    deadline = time.time() + 20 * ar1.SLOW
    while len(found := records(kind, reason)) < count and time.time() < deadline:
        time.sleep(0.05)
    assert len(found) == count, (kind, reason, count, found)
    return found


def names():
    return {r["name"]: r["tenant"] for r in records("config", "tenant")}


def fingerprint(who):
    return hashlib.blake2b(z85.decode(KEYS[who][0]), digest_size=16).hexdigest()


def how_it_began():
    (boot,) = records("boot")
    assert "--kv-memory 600000" in boot["options"] and f"--tenants {FILE}" in boot["options"] and "--audit-pace-ms" not in boot["options"], boot
    assert KEYS["server"][1] not in str(ask("export"))
    by = {r["reason"]: r for r in records("config")}
    assert len(by["model"]["digest"]) == 64 and len(by["plan"]["digest"]) == 32 and by["tenants"]["grants"] == 5, by
    assert by["options"]["digest"] == hashlib.blake2b(boot["options"].encode(), digest_size=16).hexdigest(), by
    assert names() == {"local": 0, "red": 1, "blue": 2, "users": 3}
    table = subprocess.run([f"{BUILD}/holdfastd", "audit", "--state", STATE, "between", "0", "9e9"], capture_output=True, text=True).stdout
    assert "--kv-memory 600000" in table and "tenant 1 is red, 4 grants" in table, table


def connections():
    tries = [(TCP, "nobody"), (TCP, "bob"), (OTHER, "ann"), (TCP, "old")]
    held = [connect(*one) for one in tries]
    seen = await_records("auth", "key", len(tries))
    assert sorted((r["tenant"], r["key"]) for r in seen) == sorted((1 if e == TCP else 2, fingerprint(who)) for e, who in tries), seen
    assert all(r["from"] == "127.0.0.1" and r["principal"] is None and r["session"] == r["op"] == "" for r in seen), seen
    for s in held:
        s.close()
    local = connect(IPC)
    (user,) = await_records("auth", "user", 1)
    assert user["tenant"] == 3 and user["from"] == f"uid {os.getuid()}, process {os.getpid()}", user
    local.close()


def roles():
    refused("forbidden", Curve, TCP, "ann", act_as="x")
    assert [r["tenant"] for r in await_records("auth", "act_as", 1)] == [1]
    watch, control = Curve(TCP, "watch"), Curve(CONTROL, "ann")
    refused("forbidden", watch.open)
    refused("forbidden", control.open)
    control.send(RESUME, 5, {"op": bytes(16), "after_seq": 0, "window": 9})
    assert control.expect(REJECT)[3]["err"]["n"] == "forbidden"
    one, two, three = await_records("auth", "role", 3)
    assert one["principal"] != two["principal"] == three["principal"], (one, two)
    own = connect(TCP, "ann", routing=b"mine")
    own.send_multipart([b"AR\1\1" + bytes(20), b"\x80"])
    await_records("auth", "routing_id", 1)
    for link in (watch, control, own):
        link.close()


def anothers():
    ann, bob = Curve(TCP, "ann"), Curve(OTHER, "bob")
    session = ann.open()
    channel = ann.begin("session.turn", {"tokens": True, "max_tokens": 900, "ignore_end": True}, pack(words(9)), sess=session, window=9,
                        detach_ms=60000)
    op = await_message(ann, ACCEPTED, channel)["op"]
    assert bob.call("session.show", sess=session).end["err"]["n"] == "not_found"
    assert bob.call("session.show", sess=os.urandom(16)).end["err"]["n"] == "not_found"  # nobody's: nothing to tell
    bob.send(CANCEL, 0, {"op": op})
    bob.send(CANCEL, 0, {"op": os.urandom(16)})
    bob.channel += 1
    bob.send(RESUME, bob.channel, {"op": op, "after_seq": 0, "window": 100})
    for _ in range(3):
        bob.expect(REJECT)
    (seen,) = await_records("auth", "session", 1)
    assert seen["session"] == session.hex() and seen["tenant"] == 2, seen
    calls = await_records("auth", "call", 2)
    assert {(r["op"], r["session"], r["principal"]) for r in calls} == {(op.hex(), session.hex(), seen["principal"])}, calls
    assert {r["kind"] for r in ask("session", session.hex())} >= {"auth", "session_open"}
    ann.send(CANCEL, channel, {})
    ann.close()
    bob.close()


def reload(word, lines):
    told = daemon.words().count(word)
    write(lines)
    daemon.process.send_signal(signal.SIGHUP)
    deadline = time.time() + 10 * ar1.SLOW
    while daemon.words().count(word) == told and time.time() < deadline:
        time.sleep(0.02)


def reloads():
    ann = Curve(TCP, "ann")
    first = records("config", "tenants")[0]["digest"]
    reload("tenants read again", [l for l in LINES if KEYS["ann"][0] not in l] + [f"allow blue {key('nobody')}", f"allow blue {key('old')}"])
    (seen,) = await_records("config", "reload", 1)
    assert (seen["added"], seen["removed"], seen["changed"], seen["grants"]) == (2, 1, 0, 6) and seen["digest"] != first, seen
    ann.send(ar1.PING, 0, {"t": 1})
    assert ann.expect(REJECT)[3]["err"]["n"] == "key_revoked"
    (cut,) = await_records("auth", "revoked", 1)
    assert cut["tenant"] == 1 and cut["principal"] is not None, cut
    reload("as they were", ["allow red nothing"])
    (wrong,) = await_records("config", "reload_refused", 1)
    assert wrong["digest"] == seen["digest"] and wrong["grants"] == 6, wrong
    reload("tenants read again", [LINES[0], LINES[1] + " rate=7", *LINES[2:]])
    last = await_records("config", "reload", 2)[-1]
    assert (last["added"], last["removed"], last["changed"], last["grants"]) == (1, 2, 1, 5), last
    ann.close()


def flood():
    """Beyond its budget a refusal costs nothing on the disk, is counted, and hides none of another reason or tenant."""
    tries, ann, before = 300, Curve(TCP, "ann"), len(records("auth", "act_as"))
    for _ in range(tries):
        ann.send(HELLO, 0, {"client": "x", "minor": 0, "caps": [], "act_as": "y"})
        ann.expect(REJECT)
    refused("forbidden", Curve, OTHER, "bob", act_as="x")
    deadline = time.time() + 20 * ar1.SLOW
    while not [r for r in records("auth", "act_as")[before:] if r["tenant"] == 2] and time.time() < deadline:
        time.sleep(0.05)
    seen = records("auth", "act_as")[before:]
    assert len([r for r in seen if r["tenant"] == 2]) == 1
    assert BURST - 1 <= len([r for r in seen if r["tenant"] == 1]) <= BURST + 2 * ar1.SLOW, len(seen)
    ann.close()
    left_clean(daemon)
    red = [r for r in records("auth", "act_as")[before:] if r["tenant"] == 1]
    assert sum(1 + r["left_out"] for r in red) == tries and len(red) < BURST + 5 * ar1.SLOW, red[-2:]


def changed_plan():
    """Started again with pages of another form: what was before is said, and python hears of it as well."""
    write(LINES)
    second = begin(daemon.home, *OPTIONS, "--kv", "bf16")
    assert second.stop(keep=True) == 0
    sys.path.insert(0, os.path.join(os.environ.get("SRCDIR", "."), "clients", "python"))
    from holdfast import audit
    said = list(audit.ask("export", state=STATE, program=f"{BUILD}/holdfastd"))
    plans = [r["digest"] for r in said if r["reason"] == "plan"]
    (was,) = [r["digest"] for r in said if r["reason"] == "plan_changed"]
    assert len(plans) == 2 and plans[0] != plans[1] and was == plans[0], (plans, was)
    assert not [r for r in said if r["reason"] == "model_changed"]
    assert "--kv bf16" in [r for r in said if r["kind"] == "boot"][1]["options"]


for s in PORTS:
    s.close()
write(LINES)
with open(f"{HOME}/server.key", "w", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
    file.write(KEYS["server"][1] + "\n")
OPTIONS = ["--template", "smollm2", "--kv-memory", "600000", "--strikes", "0", "--tenants", FILE, "--curve-key", f"{HOME}/server.key"]
daemon = Daemon(MODEL, *OPTIONS)
STATE = f"{daemon.home}/state"
tap = Tap()
for what, test in (("with what it began: options, model, plan, tenants", how_it_began), ("connections of nobody known", connections),
                   ("roles: acting for others, what a role does not do, names of one's own", roles), ("another's session and calls", anothers),
                   ("reloads, what they changed, and who was cut off", reloads), ("a flood is counted, and hides nothing else", flood),
                   ("another plan than before, and Python", changed_plan)):
    tap.run(what, test)
daemon.stop()
shutil.rmtree(HOME, ignore_errors=True)
raise SystemExit(tap.done())
