#!/usr/bin/env python3
"""Runs models with all that an external compiler takes given to it, and compares with the recorded outputs: integers and outputs of
quantized models to the last bit, floats within a share of the largest. Tells how many regions there are, and how much is in them; a
model without any fails, as nothing was compared then.

    partitioned-corpus.py BIN CORPUS COMPILER [--precision DTYPE] [MODEL ...]

With `--precision bfloat16` (or float16) models of floats compute in that type, and are compared with what LLVM makes of the same.

CORPUS has a folder a model: model.relay, inputs.npz, outputs.npz, and model.params or (with params.py beside the folders)
params.json. Needs python3 with numpy.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy

SHARE = {"": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


class Failed(Exception):
    pass


def resat(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"code {done.returncode}")


def params(corpus, model, scratch):
    ready = model / "model.params"
    if ready.exists():
        return ready
    made = scratch / "made.params"
    subprocess.run([sys.executable, corpus / "params.py", model, made], check=True, stdout=subprocess.DEVNULL)
    return made


def floats(array, precision):
    """Bfloat16 comes as the bits, in uint16."""
    if precision == "bfloat16" and array.dtype == numpy.uint16:
        return (array.astype(numpy.uint32) << 16).view(numpy.float32)
    return array


def differs(got, wanted, exact, share):
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return f"{got.dtype} {got.shape}, should be {wanted.dtype} {wanted.shape}"
    if exact or not numpy.issubdtype(wanted.dtype, numpy.floating):
        return None if numpy.array_equal(got, wanted) else "not equal"
    most = max(1.0, float(numpy.abs(wanted).max(initial=0)))
    off = float(numpy.abs(got.astype(numpy.float64) - wanted).max(initial=0)) / most
    return None if off <= share else f"off by {off:.1e} of the largest"


def regions(text):
    """The number of functions for a compiler, and of the calls of operators in them."""
    count, calls, inside = 0, 0, False
    with open(text) as lines:
        for line in lines:
            if line.startswith("#[metadata]"):
                break
            if line.startswith("def "):
                inside = "Compiler=" in line
                count += inside
            elif "Compiler=" in line:  # a region within another function
                count += 1
            calls += inside and not line.startswith("def ") and "(" in line and "fn (" not in line
    return count, calls


def run(binary, corpus, model, compiler, precision, scratch):
    weights = params(corpus, model, scratch)
    before = f"ToMixedPrecision({precision})" if precision else ""
    passes = ", ".join(filter(None, [before, f"partition_for({compiler})"]))
    given = [model / "model.relay", "--params", weights]
    out, text, plain = scratch / "out.npz", scratch / "parts.relay", scratch / "plain.npz"
    resat(binary, "opt", *given, "--passes", passes, "-o", text)
    found = regions(text)
    text.unlink()
    inputs = ["--inputs", model / "inputs.npz", "--backend", "llvm"]
    start = time.time()
    resat(binary, "run", *given, *inputs, "--outputs", out, "--passes", passes)
    seconds = time.time() - start
    if precision:
        resat(binary, "run", *given, *inputs, "--outputs", plain, "--passes", f"{before}, default")
    got, wanted = numpy.load(out), numpy.load(plain if precision else model / "outputs.npz")
    exact = model.name.endswith("_int8")
    if not found[0]:
        return found, seconds, "no region"
    off = ((k, differs(floats(got[k], precision), floats(wanted[k], precision), exact, SHARE[precision])) for k in wanted.files)
    return found, seconds, next((f"output {k}: {d}" for k, d in off if d), None)


def main():
    wanted = argparse.ArgumentParser(usage=__doc__)
    wanted.add_argument("binary")
    wanted.add_argument("corpus", type=pathlib.Path)
    wanted.add_argument("compiler")
    wanted.add_argument("models", nargs="*")
    wanted.add_argument("--precision", default="", choices=SHARE)
    a = wanted.parse_intermixed_args()
    missing = [m for m in a.models if not (a.corpus / m / "model.relay").exists()]
    if missing:
        sys.exit(f"{a.corpus} has no {', '.join(missing)}")
    models = [m for m in sorted(a.corpus.iterdir()) if (m / "model.relay").exists() and (not a.models or m.name in a.models)]
    if a.precision:
        models = [m for m in models if not m.name.endswith("_int8")]
    good = "as LLVM's" if a.precision else "as recorded"
    wrong = 0
    for model in models:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                (count, calls), seconds, why = run(a.binary, a.corpus, model, a.compiler, a.precision, pathlib.Path(scratch))
                verdict = f"{why or good}; {count} regions of {calls} calls; {seconds:.1f} s"
            except Failed as e:
                why = verdict = str(e)
        wrong += why is not None
        print(f"{model.name}: {verdict}", flush=True)
    print(f"{len(models) - wrong} of {len(models)} {good}")
    sys.exit(wrong > 0 or not models)


if __name__ == "__main__":
    main()
