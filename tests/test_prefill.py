"""Given tokens with weights of their own (--prefill-weights int8 and bf16): what is computed again has, token for token,
the plan that it had at first, so a session that lost its pages goes on with the same bits; and a page of another
session, or of the disk tier, serves only where its tokens came in the same way."""
import json
import os
import subprocess

from ar1 import BUILD, Tap, Wire
from daemon_rig import FOLDER, MODEL, Daemon, balanced, finish, left_clean, same, words

OPTIONS = ("--template", "smollm2", "--kv-memory", "600000", "--chunk", "64", "--batch-rows", "96", "--strikes", "0")
INT8, BF16 = ("--prefill-weights", "int8"), ("--prefill-weights", "bf16")


def start(*options, **keys):
    return Daemon(MODEL, *OPTIONS, "--share", "no", *options, **keys)  # or a history computed anew would not be


def talk(wire, session):
    history = []
    for turn in range(3):
        given = words(20 + 11 * turn)
        history += given + wire.turn(session, given, max_tokens=30, ignore_end=True, seed=turn, temperature=0.8).ids
    return history


def again_is_the_same(wire):
    session = wire.open()
    history = talk(wire, session)
    twin = wire.ok("session.fork", sess=session)["sess"]
    wire.ok("session.park", {"place": "tokens"}, sess=twin)
    fresh = wire.open()
    given = words(9)
    resident, nothing = (wire.turn(s, given, max_tokens=40, ignore_end=True) for s in (session, twin))
    assert resident.usage["resident"] == len(history) - 1 and nothing.usage["resident"] == 0, nothing.usage
    same(resident, nothing)
    # The plans do differ: with the sampled tokens given, the same words have other probabilities.
    other = wire.turn(fresh, history + given, max_tokens=40, ignore_end=True)
    assert other.logprobs != resident.logprobs
    # Back in the middle of what was sampled, on both.
    for s in (session, twin):
        wire.ok("session.rollback", {"to_tokens": len(history) - 7}, sess=s)
    wire.ok("session.park", {"place": "tokens"}, sess=twin)
    same(*(wire.turn(s, given, max_tokens=20, ignore_end=True) for s in (session, twin)))
    for s in (session, twin, fresh):
        wire.ok("session.close", sess=s)
    balanced(wire)


def moved_is_the_same(wire):
    session = wire.open()
    talk(wire, session)
    reply = wire.call("session.export", sess=session)
    assert reply.end["status"] == "ok", reply.end
    moved = wire.ok("session.import", reply.end["r"], reply.blob)["sess"]
    given = words(5)
    same(*(wire.turn(s, given, max_tokens=20, ignore_end=True) for s in (session, moved)))


def play(wire, given, tail):
    """One session samples 40 tokens, another is given the same ones; both go on with the same tail."""
    ask = dict(max_tokens=40, ignore_end=True, seed=5, temperature=0.8)
    first, second = wire.open(), wire.open()
    sampled = wire.turn(first, given, **ask).ids
    replies = [wire.turn(second, given + sampled + tail, **ask), wire.turn(first, tail, **ask)]
    return (first, second), replies


def shared_is_the_same(wire, kind=INT8):
    """What two sessions were given alike is shared; what the first one sampled is not the second one's."""
    given, tail = words(200), words(30)
    daemon = Daemon(MODEL, *OPTIONS, *kind)
    sessions, replies = play(Wire(daemon.endpoint), given, tail)
    _, wanted = play(wire, given, tail)
    for reply, right in zip(replies, wanted):
        same(reply, right)
    assert wanted[0].usage["resident"] == 0 and replies[0].usage["resident"] == len(given) // 16 * 16, replies[0].usage
    assert len(set(sessions)) == 2
    left_clean(daemon)


def kept_is_the_same(wire):
    """After a restart with the disk tier each has its own pages back."""
    given, tail, last = words(40), words(30), words(7)
    ask = dict(max_tokens=20, ignore_end=True, seed=6, temperature=0.8)
    daemon = start(*INT8, "--disk-bytes", "4M", "--disk-reserve", "0")
    sessions, _ = play(Wire(daemon.endpoint), given, tail)
    left_clean(daemon)
    os.rename(f"{daemon.home}/log", f"{daemon.home}/log.first")
    again = start(*INT8, "--disk-bytes", "4M", "--disk-reserve", "0", home=daemon.home)
    at = Wire(again.endpoint)
    twins, _ = play(wire, given, tail)
    for s, twin in zip(sessions, twins):
        reply, right = (w.turn(x, last, **ask) for w, x in ((at, s), (wire, twin)))
        assert reply.usage["resident"] + reply.usage["reloaded"] > len(given), reply.usage
        same(reply, right)
    left_clean(again)


def auto_says_what_it_chose(_):
    """int8 where it is faster and fits, and never in silence."""
    def plan(*options):
        done = subprocess.run([f"{BUILD}/holdfastd", "--model", MODEL, *OPTIONS, *options, "--listen", f"ipc://{FOLDER}/s",
                               "--state", f"{FOLDER}/none", "--check", "--json"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout), done.stderr
    plain, said = plan()
    assert plain["prefill_weights"] == "same" and not said, said
    auto, said = plan("--prefill-weights", "auto")
    assert said.count("\n") == 1 and f"--prefill-weights auto: {auto['prefill_weights']}: " in said, said
    if auto["prefill_weights"] != "same":
        assert "perplexity" in said and auto["weights_bytes"] > plain["weights_bytes"], auto
        assert plan("--prefill-weights", auto["prefill_weights"])[0]["weights_bytes"] == auto["weights_bytes"], auto
    for isa in ("scalar", "avx2"):
        done, said = plan("--prefill-weights", "auto", "--isa", isa)
        assert done["prefill_weights"] == "same" and "not faster here" in said, said
        assert done["weights_bytes"] == plain["weights_bytes"]


def halves_are_the_same(_):
    """The copy in bf16 is under the same rules, is another plan, and one of fp8 is refused with the reason."""
    daemon = start(*BF16)
    wire = Wire(daemon.endpoint)
    again_is_the_same(wire)
    shared_is_the_same(wire, BF16)
    left_clean(daemon)
    none = subprocess.run([f"{BUILD}/holdfastd", "--model", MODEL, *OPTIONS, "--prefill-weights", "fp8", "--listen",
                           f"ipc://{FOLDER}/s", "--state", f"{FOLDER}/none"], stderr=subprocess.PIPE, text=True, timeout=60,
                          check=False)
    assert none.returncode != 0 and "the CPU has no copy of the weights in fp8" in none.stderr, none.stderr


def same_is_the_default(_):
    """The file's weights for all: sampled or given makes no difference."""
    plain = start()
    wire = Wire(plain.endpoint)
    session, fresh = wire.open(), wire.open()
    history, given = talk(wire, session), words(9)
    same(wire.turn(session, given, max_tokens=20, ignore_end=True),
         wire.turn(fresh, history + given, max_tokens=20, ignore_end=True))
    wire.close()
    assert plain.stop() == 0


tap = Tap()
daemon = start(*INT8)
wire = Wire(daemon.endpoint)
tap.run("computed again is the same, sampled tokens with the plan of sampled tokens", again_is_the_same, wire)
tap.run("a session that moved is the same", moved_is_the_same, wire)
tap.run("what is shared between sessions came in the same way", shared_is_the_same, wire)
tap.run("what the disk tier kept came in the same way", kept_is_the_same, wire)
tap.run("a copy in bf16 is under the same rules", halves_are_the_same, wire)
tap.run("auto says what it chose", auto_says_what_it_chose, wire)
tap.run("without an option given tokens are as sampled ones", same_is_the_default, wire)
finish(tap, daemon)
