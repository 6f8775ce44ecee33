#!/usr/bin/env python3
"""Goal: the real cuBLASLt and NCCL, where they are, have what kernels/cuda/ asks of them, though no GPU is here to
call them for. Method: the names that blas.cu and nccl.cu look up are looked up here, and the versions asked, which
needs no GPU. That each function is called as the library's header has it, nvcc checks (CALLED_ALIKE)."""
import ctypes
import os
import re
import sys

SRC = os.environ.get("SRCDIR", os.path.join(os.path.dirname(__file__), ".."))
BUILD = os.environ.get("BUILDDIR", ".")
WANTED = (("blas.cu", "cublasLt", ("libcublasLt.so.13", "libcublasLt.so.12"), "LT_VERSION_LEAST", 15),
          ("nccl.cu", "nccl", ("libnccl.so.2",), "NC_VERSION_LEAST", 8))


def folders():
    """The loader's, then those beside the compiler of the build."""
    yield ""
    makefile = f"{BUILD}/Makefile"
    nvcc = re.search(r"^NVCC = (/.*)$", open(makefile, encoding="utf-8").read(), re.M) if os.path.exists(makefile) else None
    home = os.path.dirname(os.path.dirname(nvcc[1])) if nvcc else "/usr/local/cuda"
    for folder in ("lib64", "lib", "targets/x86_64-linux/lib"):
        yield f"{home}/{folder}/"


def library(names):
    for folder in folders():
        for name in names:
            try:
                return ctypes.CDLL(folder + name)
            except OSError:
                pass
    return None


def version(found, kind):
    if kind == "cublasLt":
        found.cublasLtGetVersion.restype = ctypes.c_size_t
        return found.cublasLtGetVersion()
    number = ctypes.c_int()
    assert found.ncclGetVersion(ctypes.byref(number)) == 0
    return number.value


def main():
    bad = False
    print(f"1..{len(WANTED)}")
    for n, (file, kind, names, least, count) in enumerate(WANTED, 1):
        text = open(f"{SRC}/kernels/cuda/{file}", encoding="utf-8").read()
        wanted = re.findall(r'library_name\(l, "(\w+)"', text)
        declared = re.findall(r"^CALLED_ALIKE\(struct \w+, \w+, (\w+)\);", text, re.M)
        what = f"{kind} has what {file} asks for"
        if len(wanted) != count or sorted(wanted) != sorted(declared):
            print(f"# {file} looks up {len(wanted)} names of {count}; of {len(declared)} the call is compared")
            print(f"not ok {n} - {what}")
            bad = True
            continue
        found = None if os.environ.get("HOLDFAST_SANITIZED") else library(names)
        if not found:
            print(f"ok {n} - {what} # SKIP {'the same in the plain build' if os.environ.get('HOLDFAST_SANITIZED') else f'no {names[0]} is here'}")
            continue
        missing = [name for name in wanted if not hasattr(found, name)]
        new = missing or version(found, kind)
        good = not missing and new >= int(re.search(rf"{least} = (\d+)", text)[1])
        print(f"# {missing} are not in it" if missing else f"# version {new}")
        print(f"{'ok' if good else 'not ok'} {n} - {what}")
        bad = bad or not good
    return bad


if __name__ == "__main__":
    sys.exit(main())
