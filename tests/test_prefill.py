"""Given tokens with weights of their own (--prefill-weights int8): what is computed again has, token for token,
the plan that it had at first, so a session that lost its pages goes on with the same bits."""
from ar1 import Tap, Wire
from daemon_rig import MODEL, Daemon, balanced, finish, same, words


def start(*options):
    return Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--chunk", "64", "--batch-rows", "96",
                  "--strikes", "0", *options)


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
daemon = start("--prefill-weights", "int8")
wire = Wire(daemon.endpoint)
tap.run("computed again is the same, sampled tokens with the plan of sampled tokens", again_is_the_same, wire)
tap.run("a session that moved is the same", moved_is_the_same, wire)
tap.run("without an option given tokens are as sampled ones", same_is_the_default, wire)
finish(tap, daemon)
