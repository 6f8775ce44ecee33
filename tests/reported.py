"""The lines of tests in Python that need no sockets: each result as it comes, and the plan at the end."""
count = failed = 0


def report(good, what, detail="", always=False):
    """A result; what it was judged by is shown where it is bad, or always."""
    global count, failed
    count += 1
    failed += not good
    if detail and (always or not good):
        print("#", detail)
    print("ok" if good else "not ok", count, "-", what, flush=True)


def skip(what, reason):
    global count
    count += 1
    print("ok", count, "-", what, "# SKIP", reason, flush=True)


def done():
    """The exit code, once all has been reported."""
    print(f"1..{count}")
    return 1 if failed else 0
