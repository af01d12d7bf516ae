#!/usr/bin/env python3
"""Runs models with all that an external compiler takes given to it, and compares with the recorded outputs: integers and outputs of
quantized models to the last bit, floats within a share of the largest.

    partitioned-corpus.py BIN CORPUS COMPILER [MODEL ...]

CORPUS has a folder a model: model.relay, inputs.npz, outputs.npz, and model.params or (with params.py beside the folders)
params.json. Needs python3 with numpy.
"""
import pathlib
import subprocess
import sys
import tempfile

import numpy

SHARE = 1e-4


def params(corpus, model, scratch):
    ready = model / "model.params"
    if ready.exists():
        return ready
    made = pathlib.Path(scratch) / "made.params"
    subprocess.run([sys.executable, corpus / "params.py", model, made], check=True, stdout=subprocess.DEVNULL)
    return made


def differs(got, wanted, exact):
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return f"{got.dtype} {got.shape}, should be {wanted.dtype} {wanted.shape}"
    if exact or not numpy.issubdtype(wanted.dtype, numpy.floating):
        return None if numpy.array_equal(got, wanted) else "not equal"
    most = max(1.0, float(numpy.abs(wanted).max(initial=0)))
    off = float(numpy.abs(got - wanted).max(initial=0)) / most
    return None if off <= SHARE else f"off by {off:.1e} of the largest"


def run(binary, corpus, model, compiler):
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "out.npz"
        command = [binary, "run", model / "model.relay", "--params", params(corpus, model, scratch), "--inputs",
                   model / "inputs.npz", "--outputs", out, "--backend", "llvm", "--passes", f"partition_for({compiler})"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            return done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"code {done.returncode}"
        got, wanted = numpy.load(out), numpy.load(model / "outputs.npz")
        exact = model.name.endswith("_int8")
        found = (differs(got[k], wanted[k], exact) for k in wanted.files)
        return next((f"output {k}: {d}" for k, d in zip(wanted.files, found) if d), None)


def main():
    binary, corpus, compiler, names = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4:]
    models = [m for m in sorted(corpus.iterdir()) if (m / "model.relay").exists() and (not names or m.name in names)]
    wrong = 0
    for model in models:
        why = run(binary, corpus, model, compiler)
        wrong += why is not None
        print(f"{model.name}: {why or 'as recorded'}", flush=True)
    print(f"{len(models) - wrong} of {len(models)} as recorded")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
