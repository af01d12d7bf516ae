#!/usr/bin/env python3
"""Runs the recorded programs of TVM's own tests through the `resat` command line and compares with what was recorded.

    conformance.py BIN [FOLDER]

FOLDER holds `exec.tar.gz`, programs with inputs and outputs, and `parse.tar.gz`, texts that are accepted or refused; by default
tests/recorded/tvm. Programs run interpreted, compiled, and with --validate, which compares the optimized program with the one as it
was written. A case may fail only where tests/known-differences.txt lists it with the reason, and an entry of that file that passes is stale
and fails, too. Needs python3 with numpy.

A case of `exec` is a folder with mod.relay, inputs.npz and outputs.npz, whose keys are the positions of parameters and of results, tuples
flattened. A case of `parse` has source.relay, meta.json ({"ok": whether it is legal}) and, where it is, printed.relay.
"""
import collections
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "known-differences.txt"
TIMEOUT = 120

# What runs: kind, how, arguments of `resat run`.
RUNS = [
    ("parse", "text", []),
    ("exec", "interp", ["--backend", "interp"]),
    ("exec", "llvm", ["--backend", "llvm"]),
    ("exec", "validate", ["--validate"]),
]

# Relative and absolute tolerance of floats, by bytes of an element; sums are added up in an order that depends on the processor.
TOLERANCE = {2: (5e-2, 5e-2), 4: (2e-3, 1e-3), 8: (2e-3, 1e-3)}

# Where a program rounds such a sum to an integer, an element that lies between two may fall on either side: one in so many may be off by one.
ROUNDED = 10_000


def difference(got, want, text):
    """Why two arrays differ, or None. `text` is the program."""
    rounds = "float" in text and any(op in text for op in ["quantize", "round(", "cast("])
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"{got.dtype}{got.shape}, recorded {want.dtype}{want.shape}"
    if want.dtype.kind != "f":
        differ = got != want
        count = int(differ.sum())
        if rounds and count and want.dtype.kind in "iu" and count * ROUNDED <= want.size:
            apart = np.abs(got[differ].astype("i8") - want[differ].astype("i8")).max()
            count = 0 if apart <= 1 else count
        return f"{count} of {want.size} integers differ" if count else None
    # Results that were computed in 16 bits on the way are as rough as those.
    relative, absolute = TOLERANCE[2 if "float16" in text else want.dtype.itemsize]
    finite = np.abs(want[np.isfinite(want)])
    scale = float(finite.max()) if finite.size else 0.0
    if np.allclose(got, want, rtol=relative, atol=max(absolute, 1e-4 * scale), equal_nan=True):
        return None
    return f"values differ by up to {np.nanmax(np.abs(got.astype('f8') - want.astype('f8'))):.3g} (largest {scale:.3g})"


def call(command):
    """Exit code, standard output and the first line of standard error."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return None, "", f"not done after {TIMEOUT} s"
    said = done.stderr.decode("utf8", "replace").strip().splitlines()
    return done.returncode, done.stdout.decode("utf8", "replace"), said[0][:160] if said else ""


def run_exec(binary, case, arguments):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.npz")
        command = [binary, "run", case / "mod.relay", "--inputs", case / "inputs.npz", "--outputs", out] + arguments
        code, _, said = call(command)
        if code != 0:
            return f"exit {code}: {said}"
        want, got = np.load(case / "outputs.npz"), np.load(out)
        if sorted(got.files) != sorted(want.files):
            return f"{len(got.files)} results, recorded {len(want.files)}"
        text = (case / "mod.relay").read_text()
        found = (difference(got[k], want[k], text) for k in want.files)
        return next((f"result {k}: {why}" for k, why in zip(want.files, found) if why), None)


def run_parse(binary, case, _):
    ok = json.loads((case / "meta.json").read_text())["ok"]
    code, text, said = call([binary, "parse", case / "source.relay"])
    if not ok:
        return None if code == 2 and said else f"an illegal text: exit {code}, {said or 'no message'}"
    if code != 0:
        return f"exit {code}: {said}"
    with tempfile.NamedTemporaryFile("w", suffix=".relay") as again:
        again.write(text)
        again.flush()
        if call([binary, "parse", again.name])[:2] != (0, text):
            return "what is printed does not parse back to the same text"
    printed = case / "printed.relay"
    if printed.exists() and (result := call([binary, "parse", printed]))[0] != 0:
        return f"the reference's own print: {result[2]}"
    return None


def listed():
    """The cases that may differ: lines of `kind how case: reason`."""
    found = set()
    for number, line in enumerate(LIST.read_text().splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            case, _, reason = line.partition(": ")
            if not reason.strip() or case.count(" ") < 2:
                sys.exit(f"{LIST}:{number}: not of the form `kind how case: reason`")
            found.add(tuple(case.split(" ", 2)))
    return found


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    binary = os.path.abspath(sys.argv[1])
    shipped = ROOT / "tests" / "recorded" / "tvm"
    folder = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else shipped
    may_differ, bad, met = listed(), [], set()
    for kind, how, arguments in RUNS:
        mark, run = ("source.relay", run_parse) if kind == "parse" else ("mod.relay", run_exec)
        with tempfile.TemporaryDirectory() as unpacked:
            with tarfile.open(folder / f"{kind}.tar.gz") as archive:
                archive.extractall(unpacked, filter="data")
            cases = sorted(p.parent for p in pathlib.Path(unpacked).rglob(mark))
            if not cases:
                sys.exit(f"{folder}: no cases of kind {kind}")
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                results = list(pool.map(lambda case: run(binary, case, arguments), cases))
        count = collections.Counter()
        for case, why in zip(cases, results):
            entry = (kind, how, case.name)
            met.add(entry)
            outcome = "passes" if why is None else "fails"
            count[outcome] += 1
            if why is not None and entry not in may_differ:
                bad.append(f"{kind} {how} {case.name}: {why}")
            if why is None and entry in may_differ:
                bad.append(f"{kind} {how} {case.name}: passes, and is listed in {LIST.name}")
        print(f"{kind} {how}: {count['passes']} of {len(cases)} pass", flush=True)
    if folder == shipped:
        bad += [f"{' '.join(entry)}: is listed in {LIST.name} and is no case" for entry in sorted(may_differ - met)]
    print("\n".join(bad) if bad else "recorded programs: nothing differs but what is known to")
    return 1 if bad else 0


sys.exit(main())
