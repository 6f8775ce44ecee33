"""Goal: sessions of one user share the pages of what they begin alike with, no answer differs for it in a bit, and
nobody else finds them. Method: the same turns on a daemon that shares and on one that does not; a second user comes in
through the endpoint of a tenant."""
import json
import os
import tempfile

import ar1
import daemon_rig
from ar1 import END, Daemon, Tap, Wire, pack
from daemon_rig import MODEL, balanced, left_clean, same, words

OPTIONS = ("--template", "smollm2", "--kv-memory", "900000", "--chunk", "64", "--batch-rows", "96", "--strikes", "0")
ASK = dict(max_tokens=24, ignore_end=True, temperature=0.7, seed=9, logprobs=1)
TOOLS = ['{"type": "function", "function": {"name": "look", "description": "Looks at the sea, the sky and the shore.", '
         '"parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}']
SYSTEM = "You keep the log of a harbour. Each ship is to be written down with its name, its cargo and the hour. " * 3

folder = tempfile.mkdtemp(prefix="hf-share-")
DOOR = f"ipc://{folder}/red.sock"
TENANTS = os.path.join(folder, "tenants")
with open(os.open(TENANTS, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
    file.write(f"tenant red listen={DOOR}\nallow red uid={os.getuid()} name=ann\n")

with open(os.open(TENANTS.replace("tenants", "tenants2"), os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
    file.write(f"tenant red listen={DOOR.replace('red', 'red2')}\nallow red uid={os.getuid()} name=ann\n")

plain = Daemon(MODEL, *OPTIONS, "--share", "no")
other = Wire(plain.endpoint)
daemon = Daemon(MODEL, *OPTIONS, "--tenants", TENANTS)


def alone(*turns, **ask):
    """The replies of a session on the daemon that shares nothing."""
    session = other.open()
    replies = [other.turn(session, turn, **{**ASK, **ask}) for turn in turns]
    assert replies[0].usage["resident"] == 0
    other.ok("session.close", sess=session)
    return replies


def say(wire, session, text):
    return wire.call("session.turn", {"messages": [{"role": "user", "content": text}], **ASK}, sess=session)


def system_and_tools(wire):
    """The second session with the same beginning computes its own words only."""
    head = {"system": SYSTEM, "tools": TOOLS, "template": "smollm2"}
    texts = ["The Anna, with wool, at nine.", "A boat without a name."]
    seen = []
    for at in (wire, other):
        sessions = [at.ok("session.open", head)["sess"] for _ in texts]
        seen.append([say(at, s, text) for s, text in zip(sessions, texts)])
        seen[-1] += [say(at, s, "And then?") for s in sessions]
        for s in sessions:
            at.ok("session.close", sess=s)
    for shared, computed in zip(*seen):
        same(shared, computed)
    first, second = seen[0][0].usage, seen[0][1].usage
    begun = wire.ok("session.open", head)
    length = begun["r"]["history"]
    wire.ok("session.close", sess=begun["sess"])
    assert length > 200, length
    assert first["resident"] == 0 and first["new"] == first["prompt"], first
    assert second["resident"] >= length // 16 * 16, (second, length)
    assert second["new"] == second["prompt"] - second["resident"] and second["recomputed"] == 0, second
    assert seen[1][1].usage["resident"] == 0


def whatever_way(wire):
    """What one session was given and sampled, another is given as text: found, and goes on in the same way. And the
    first may go away meanwhile, or back."""
    given, more = words(100), words(37)
    a = wire.open()
    first = wire.turn(a, given, **ASK)
    second = wire.turn(a, more, **ASK)
    whole = given + list(first.ids) + more
    b = wire.open()
    reply = wire.turn(b, whole, **ASK)
    assert reply.usage["resident"] == (len(whole) - 1) // 16 * 16, reply.usage
    assert reply.ids == second.ids
    wire.ok("session.rollback", {"to_tokens": 20}, sess=a)
    c = wire.open()
    same(reply, wire.turn(c, whole, **ASK))
    wire.ok("session.close", sess=a)
    wire.ok("session.close", sess=b)
    d = wire.open()
    again = wire.turn(d, whole, **ASK)
    same(reply, again)
    assert again.usage["resident"] == reply.usage["resident"], again.usage
    same(alone(whole)[0], again)
    # Other tokens at one place: only what is before it.
    e = wire.open()
    differs = whole[:70] + [whole[70] ^ 1] + whole[71:]
    cut = wire.turn(e, differs, **ASK)
    assert cut.usage["resident"] == 64, cut.usage
    same(alone(differs)[0], cut)
    for s in (c, d, e):
        wire.ok("session.close", sess=s)
    device = balanced(wire)
    assert device["retained"] == device["shared"] == 0, device


def side_by_side(wire):
    """Of six that begin at once, one computes what they share; the others wait for it and compute their own."""
    shared = words(400)
    tails = [words(20 + k) for k in range(6)]
    sessions = [wire.open() for _ in tails]
    channels = {wire.begin("session.turn", {"tokens": True, **ASK}, pack(shared + tail), sess=s): k
                for k, (s, tail) in enumerate(zip(sessions, tails))}
    ends, ids = {}, {k: () for k in range(6)}
    while len(ends) < 6:
        type, channel, _, body, blob = wire.receive()
        if type == ar1.DATA:
            ids[channels[channel]] += tuple(blob[i] | blob[i + 1] << 8 for i in range(0, len(blob), 4))
        if type == END:
            ends[channels[channel]] = body
    fresh = sum(end["usage"]["new"] for end in ends.values())
    assert fresh <= len(shared) + sum(len(tail) + 16 for tail in tails), fresh
    for k, tail in enumerate(tails):
        assert ends[k]["status"] == "limit"
        assert ids[k] == tuple(alone(shared + tail)[0].ids), k
    for s in sessions:
        wire.ok("session.close", sess=s)


def nobody_else(wire):
    """Another user's session finds nothing of it, and then its own."""
    red = Wire(DOOR)
    given = words(300)
    mine = wire.turn(wire.open(), given, **ASK)
    theirs = red.turn(red.open(), given, **ASK)
    assert theirs.usage["resident"] == 0 and theirs.usage["new"] == 300, theirs.usage
    same(mine, theirs)
    again = red.turn(red.open(), given, **ASK)
    assert again.usage["resident"] == 288, again.usage
    red.close()


def longer(wire):
    """A session with a part of its own takes over what another has computed further, in another way of cutting."""
    given = words(330)
    a, b = wire.open(), wire.open()
    short = wire.turn(b, given[:100], keep=0, **ASK)
    wire.turn(a, given, **ASK)
    reply = wire.turn(b, given[100:], keep=100, **ASK)
    assert reply.usage["resident"] == 320, reply.usage
    same(alone(given)[0], reply)
    same(alone(given[:100])[0], short)


def a_bad_page(wire):
    """A page that is not what it was is lost to all who share it: the one that runs ends, the others compute again."""
    own = Daemon(MODEL, *OPTIONS, "--inject", "tag-device@12")
    at = Wire(own.endpoint)
    shared = words(200)
    sessions = [at.open() for _ in range(3)]
    replies = [at.turn(s, shared + [5 + k], **ASK) for k, s in enumerate(sessions)]
    rounds = 0
    while all(r.status != "error" for r in replies):
        replies = [at.turn(s, words(3), **ASK) for s in sessions]
        rounds += 1
        assert rounds < 40, own.words()[-300:]
    hit = [k for k, r in enumerate(replies) if r.status == "error"]
    assert len(hit) == 1 and replies[hit[0]].end["err"]["n"] == "integrity", replies[hit[0]].end
    history = at.ok("session.list")["r"]
    assert len(history) == 3
    for k, s in enumerate(sessions):
        at.ok("session.rollback", {"to_tokens": 0}, sess=s)
        same(alone(shared + [5 + k])[0], at.turn(s, shared + [5 + k], **ASK))
    at.close()
    left_clean(own)


def public(wire):
    """What the operator names is computed at the start, and found by all; what follows on it is each user's own."""
    head = {"system": SYSTEM, "tools": TOOLS, "template": "smollm2"}
    path = os.path.join(folder, "public.json")
    with open(path, "w") as file:
        json.dump([{"system": SYSTEM, "tools": TOOLS}, {"system": "Another one, which is not asked for."}], file)
    own = Daemon(MODEL, *OPTIONS, "--tenants", TENANTS.replace("tenants", "tenants2"), "--public-prefix", path)
    for start in range(2):
        at, red = Wire(own.endpoint), Wire(DOOR.replace("red", "red2"))
        replies = [say(w, w.ok("session.open", head)["sess"], "One, two, three: who is at sea today?") for w in (at, red, red)]
        computed = say(other, other.ok("session.open", head)["sess"], "One, two, three: who is at sea today?")
        for reply in replies:
            same(computed, reply)
        length = at.ok("session.open", head)["r"]["history"]
        first, theirs, again = (r.usage for r in replies)
        assert first["resident"] == theirs["resident"] == length // 16 * 16, (first, theirs, length)
        assert again["resident"] > length, again  # their own, found by themselves
        names = {p["principal"]: p for p in at.ok("ledger.show")["r"]["principals"]}
        assert names["public"]["bytes"] > 0, names
        # An operator sees its sessions, others do not.
        labels = [[s["label"] for s in w.ok("session.list")["r"]].count("public") for w in (at, red)]
        assert labels == [2, 0], labels
        at.close()
        red.close()
        if start == 0:
            assert own.stop(keep=True) == 0
            os.unlink(f"{own.home}/log")
            own = Daemon(MODEL, *OPTIONS, "--tenants", TENANTS.replace("tenants", "tenants2"), "--public-prefix", path,
                         home=own.home)
    left_clean(own)


def quotas(wire):
    """A user has so many sessions, and so many turns running, and no more; others are not held up."""
    own = Daemon(MODEL, *OPTIONS, "--tenants", TENANTS.replace("tenants", "tenants2"), "--sessions-principal", "3",
                 "--turns-principal", "1")
    at, red = Wire(own.endpoint), Wire(DOOR.replace("red", "red2"))
    sessions = [at.open() for _ in range(3)]
    end = at.call("session.open", {"template": "none"}).end
    assert end["err"]["n"] == "overloaded" and end["err"]["limit"] == 3, end
    assert at.call("session.fork", sess=sessions[0]).end["err"]["n"] == "overloaded"
    long = {"tokens": True, "max_tokens": 900, "ignore_end": True}
    first = at.begin("session.turn", long, pack(words(20)), sess=sessions[0])
    at.expect(ar1.ACCEPTED)
    at.expect(ar1.DATA)
    second = at.begin("session.turn", {**long, "max_tokens": 5}, pack(words(20)), sess=sessions[1])
    theirs = red.turn(red.open(), words(20), max_tokens=5, ignore_end=True)
    assert theirs.status == "limit"
    ended = []
    while len(ended) < 2:
        message = at.receive()
        if message[0] == END:
            ended.append((message[1], message[3]["status"]))
    assert ended == [(first, "limit"), (second, "limit")], ended
    for w in (at, red):
        w.close()
    left_clean(own)


def public_refused(wire):
    path = os.path.join(folder, "wrong.json")
    for text, why in (('{"system": 5}', "nothing else"), ("[1]", "is an object"), ("{}", "system, tools or both"),
                      ('{"system": "a", "tools": [7]}', "a tool is"), ("{", "not JSON"), ("\xff", "not JSON"),
                      (json.dumps({"system": "word " * 3000}), "longer than a context")):
        with open(path, "w", encoding="latin-1") as file:
            file.write(text)
        own = Daemon(MODEL, *OPTIONS, "--public-prefix", path, wait=False)
        assert own.process.wait(30 * ar1.SLOW) == 1, own.words()
        assert "--public-prefix" in own.words() and why in own.words(), (text[:40], own.words())
        own.stop()
    for options, why in ((("--share", "no"), "--share no"), (("--calls", "1"), "--calls")):
        with open(path, "w") as file:
            json.dump([{"system": "One."}, {"system": "Two."}], file)
        own = Daemon(MODEL, *OPTIONS, *options, "--public-prefix", path, wait=False)
        assert own.process.wait(30 * ar1.SLOW) == 1, own.words()
        assert "--public-prefix" in own.words() and why in own.words(), own.words()
        own.stop()
    own = Daemon(MODEL, *OPTIONS, "--public-prefix", path + ".missing", wait=False)
    assert own.process.wait(30 * ar1.SLOW) == 1 and "No such file" in own.words(), own.words()
    own.stop()


tap = Tap()
wire = Wire(daemon.endpoint)
daemon_rig.run(tap, daemon, wire, [
    ("a system prompt and tools are computed once, and no answer differs", system_and_tools),
    ("whatever way the text came, it is found, and lives as long as one has it", whatever_way),
    ("turns that begin alike at once compute that once", side_by_side),
    ("another user finds nothing", nobody_else),
    ("a longer one is taken over", longer),
    ("a bad page hits all who share it", a_bad_page),
    ("what is public is found by all", public),
    ("quotas of one user hold, and hold nobody else up", quotas),
    ("a file of prefixes without sense is refused", public_refused)])
tap.run("it ends with 0 at once, and no sanitizer spoke", left_clean, daemon)
other.close()
plain.stop()
daemon_rig.finish(tap, daemon)
