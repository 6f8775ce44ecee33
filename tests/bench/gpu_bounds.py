"""What a GPU could do at best, reckoned on paper: the tables of kernels/cuda/README.md. Nothing is run.

gpu_bounds.py: bounds of each kernel, then the predicted time of a decode step by batch, context and kind of pages, then
FP8 against BF16 pages, for a model of 8 billion weights on an H100 and an H200.
"""
LAYERS, WIDTH, FF, HEADS, KV_HEADS, HEAD, VOCABULARY = 32, 4096, 14336, 32, 8, 128, 128256
WEIGHTS = LAYERS * (2 * WIDTH * HEADS * HEAD + 2 * WIDTH * KV_HEADS * HEAD + 3 * WIDTH * FF) + WIDTH * VOCABULARY
BITS = 4.5  # a weight: 32 of 4 bits and a scale
KV_BYTES = {"fp8": 2 * LAYERS * KV_HEADS * (HEAD + HEAD // 64), "bf16": 2 * LAYERS * KV_HEADS * 2 * HEAD}
SMS, CLOCK = 132, 1.755e9
# The data sheet's bytes a second; the memory that the driver gives.
MACHINES = {"H100": (3.35e12, 79 << 30), "H200": (4.8e12, 139 << 30)}
ISSUE = SMS * CLOCK * 4 * 4096 / 17  # multiply-adds: 4 instructions a clock, 17 for 4096 in matmul.cu's loop
TENSOR = {"int8 or e4m3": 990e12, "bf16": 495e12}  # multiply-adds, the data sheet's
LAUNCHES, LAUNCH = 11 * LAYERS, 1.2e-6
# What is taken for reached: of the bandwidth by a copy (4.3 of an H200's 4.8 TB/s), of the copy's by attention, of
# the nearer bound by products.
COPY, ATTENTION, PRODUCTS = 0.9, 0.8, 0.6


def ms(seconds):
    return f"{1e3 * seconds:.{1 if seconds >= 2e-3 else 2 if seconds >= 1e-5 else 4}f}"


def bounds():
    print("| kernel | bytes | multiply-adds | H100, ms | H200, ms |\n|---|---|---|---|---|")

    def row(name, size, macs, rate):
        times = [max(size / bandwidth, macs / rate) for bandwidth, _ in MACHINES.values()]
        print(f"| {name} | {size / 1e6:.1f} M | {f'{macs / 1e12:.2f} T' if macs else ''} | {ms(times[0])} | {ms(times[1])} |")
    own = WEIGHTS * BITS / 8
    for tokens in (1, 16, 128, 2048):
        row(f"products of the file's weights, {tokens} token{'s' * (tokens > 1)}", own, WEIGHTS * tokens, ISSUE)
    given = WEIGHTS - WIDTH * VOCABULARY
    row("2048 given tokens, int8 or e4m3", given, given * 2048, TENSOR["int8 or e4m3"])
    row("2048 given tokens, bf16", 2 * given, given * 2048, TENSOR["bf16"])
    for kv, size in KV_BYTES.items():
        row(f"attention, {kv}, 1000 positions", 1000 * size, 0, 1)
    # Given rows see half of a square of positions. A unit is 32 vectors, so 8 rows here; each reads what it sees.
    rows = 2048
    seen = rows * rows // 2
    row(f"attention of {rows} given tokens, fp8", KV_BYTES["fp8"] * seen // (32 * KV_HEADS // HEADS),
        2 * seen * HEADS * HEAD * LAYERS, TENSOR["bf16"])
    # Partials: of each 256 positions a head's values, a maximum and a sum, written and read.
    for batch, context in ((32, 2048), (1, 32768)):
        row(f"merge of partials, {batch} at {context}",
            2 * 4 * batch * LAYERS * HEADS * (HEAD + 2) * context // 256, 0, 1)
    row("embedding, 32 rows", 32 * WIDTH * (BITS / 8 + 4), 0, 1)
    row("norm and quantise, 32 rows, a layer", 32 * WIDTH * (4 + 1.25), 0, 1)
    row("RoPE and pages, 32 rows, a layer", 32 * (2 * HEADS * HEAD * 4 + 2 * KV_HEADS * HEAD * (4 + 1 + 1 / 64)), 0, 1)
    row("gate, 32 rows, a layer", 32 * FF * (8 + 4), 0, 1)
    row("sampling, 32 rows, 33 passes", 33 * 32 * VOCABULARY * 4, 0, 1)
    row("tag check, 32 at 32768, pages of 64", 32 * 32768 // 64 * 24, 0, 1)
    row("digests of 64 pages of 1 MiB", 64 << 20, 0, 1)
    row("sums of 2 ranks, 32 rows, a step", 2 * LAYERS * 32 * WIDTH * 4 * (2 + 1), 0, 1)
    row("copies of the weights in 8 bits, at the start", given * (2 * BITS / 8 + 1), 0, 1)
    print(f"| launches of a step, {LAUNCHES} | | | {ms(LAUNCHES * LAUNCH)} | {ms(LAUNCHES * LAUNCH)} |")


def step(machine, batch, context, kv):
    """Seconds, or None where it does not fit; the bytes of pages."""
    bandwidth, memory = MACHINES[machine]
    own, pages = WEIGHTS * BITS / 8, batch * context * KV_BYTES[kv]
    if own + pages > memory:
        return None, pages
    products = max(own / bandwidth, batch * WEIGHTS / ISSUE) / PRODUCTS
    return products + pages / (bandwidth * COPY * ATTENTION) + LAUNCHES * LAUNCH, pages


def steps():
    kinds = [(machine, kv) for machine in ("H200", "H100") for kv in KV_BYTES]
    print("\n| batch, context | " + " | ".join(f"{machine}, {kv} pages" for machine, kv in kinds) + " |")
    print("|---" * 5 + "|")
    for context, name in ((2048, "2k"), (32768, "32k")):
        for batch in (1, 32, 128):
            cells = [step(machine, batch, context, kv) for machine, kv in kinds]
            print(f"| {batch}, {name} | " + " | ".join(
                f"{ms(seconds)}" if seconds else f"no room: {pages / 1e9:.0f} GB of pages" for seconds, pages in cells) +
                " |")


def kinds():
    print(f"\nPages of FP8 hold {KV_BYTES['bf16'] / KV_BYTES['fp8']:.3f} times the positions of BF16.")
    for machine, (bandwidth, memory) in MACHINES.items():
        room = memory - WEIGHTS * BITS / 8
        said = [f"{concurrency}: {step(machine, concurrency, 2048, 'bf16')[0] / step(machine, concurrency, 2048, 'fp8')[0]:.2f}"
                for concurrency in (1, 8, 32, 64)]
        print(f"{machine}: {room / KV_BYTES['fp8'] / 1e6:.2f} M positions beside the weights against "
              f"{room / KV_BYTES['bf16'] / 1e6:.2f} M; speed at 2k of so many at once, FP8 by BF16: {', '.join(said)}")


if __name__ == "__main__":
    bounds()
    steps()
    kinds()
