#!/usr/bin/env python3
"""Runs the recorded programs of TVM's own tests and fails on any that is refused, crashes, does not end, or differs, and is not in
tests/known-differences.txt.

Compiled code adds up floats in an order that depends on the processor's vectors; where a program rounds the sum to an integer, one
element in many thousands may fall on the other side. So of the results by compiled code that differ, a few more are let pass.

    conformance.py BIN SHARED

SHARED is the folder with conformance/run.py and its cases. Needs python3 with numpy.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

RUNS = [("parse", "interp"), ("exec", "interp"), ("exec", "llvm")]

# Share of the compiled programs that may differ beyond those that are known to.
SLACK = 0.005


def known():
    """The cases that may differ, by kind and back end: lines of `kind backend case: reason`."""
    listed = set()
    path = pathlib.Path(__file__).parent.parent / "tests" / "known-differences.txt"
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            case, _, reason = line.partition(": ")
            assert reason.strip(), f"{path}: a line without a reason: {line}"
            listed.add(tuple(case.split(" ", 2)))
    return listed


def main():
    binary, shared = sys.argv[1], pathlib.Path(sys.argv[2])
    folder = shared / "conformance"
    if not folder.is_dir():
        print(f"conformance: skipped, as there is no folder {folder}")
        return 0
    listed, wrong = known(), []
    for kind, backend in RUNS:
        with tempfile.TemporaryDirectory() as t:
            report = os.path.join(t, "report.json")
            cases = folder / f"{kind}.tar.xz"
            command = [sys.executable, folder / "run.py", kind, binary, cases, "--out", report, "--show", "0"]
            subprocess.run(command + ["--backend", backend, "--jobs", str(os.cpu_count() or 1)], check=False)
            results = json.load(open(report))
        new = {c: r for c, r in results.items() if r[0] != "pass" and (kind, backend, c) not in listed}
        lines = [f"{kind} {backend} {case}: {outcome}: {why}" for case, (outcome, why) in new.items()]
        is_rounding = backend == "llvm" and all(outcome == "wrong" for outcome, _ in new.values())
        if is_rounding and len(new) <= SLACK * len(results):
            print("\n".join(f"let pass: {line}" for line in lines))
        else:
            wrong += lines
    print("\n".join(wrong) if wrong else "conformance: nothing differs but what is known to")
    return 1 if wrong else 0


sys.exit(main())
