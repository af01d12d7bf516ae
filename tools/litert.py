#!/usr/bin/env python3
"""resat beside LiteRT with XNNPACK on TFLite models: latencies in turn, in one run, so that the machine's drift hits both.

    litert.py BIN MODEL.tflite... [--threads 1,2] [--rounds 8] [--seconds 0.5] [--json OUT]

Inputs are random, those of integers over their whole range; the models' unknown extents are 1. Prints medians and how much they vary between
rounds (greatest over least). Needs numpy and ai-edge-litert (`pip install ai-edge-litert`).
"""
import argparse, json, pathlib, statistics, subprocess, tempfile, time

import numpy as np
from ai_edge_litert.interpreter import Interpreter


def feeds(interpreter):
    r = np.random.default_rng(0)
    draw = lambda d: r.normal(0, 1, d["shape"]).astype(d["dtype"]) if np.dtype(d["dtype"]).kind == "f" else r.integers(np.iinfo(d["dtype"]).min, np.iinfo(d["dtype"]).max + 1, d["shape"], d["dtype"])
    return {d["index"]: (d["name"], np.asarray(draw(d))) for d in interpreter.get_input_details()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--json")
    args = parser.parse_args()
    rows = []
    for path in args.models:
        for threads in map(int, args.threads.split(",")):
            interpreter = Interpreter(path, num_threads=threads)  # XNNPACK takes what it can
            interpreter.allocate_tensors()
            inputs = feeds(interpreter)
            for index, (_, value) in inputs.items():
                interpreter.set_tensor(index, value)
            interpreter.invoke()
            # What LiteRT fixes by allocating, resat is told: compiled for unknown extents, a program would serve them all.
            fixed = [("x".join(map(str, d["shape"])), d) for d in interpreter.get_input_details() if -1 in d["shape_signature"]]
            shapes = [argument for shape, d in fixed for argument in ("--shape", f"{d['name']}={shape}")]
            with tempfile.TemporaryDirectory() as folder:
                given = f"{folder}/in.npz"
                np.savez(given, **{name: value for name, value in inputs.values()})
                ours, theirs = [], []
                for _ in range(args.rounds):
                    times, end = [], time.perf_counter() + args.seconds
                    while time.perf_counter() < end or len(times) < 3:
                        begin = time.perf_counter()
                        interpreter.invoke()
                        times.append(time.perf_counter() - begin)
                    theirs.append(statistics.median(times))
                    repeat = max(5, int(args.seconds / theirs[-1]))
                    command = [args.binary, "bench", path, "--inputs", given, "--threads", str(threads), "--repeat", str(repeat), "--json", *shapes]
                    ours.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["median_s"])
            a, b = statistics.median(ours), statistics.median(theirs)
            spread = lambda l: max(l) / min(l)
            rows.append(dict(model=pathlib.Path(path).name, threads=threads, resat_s=a, litert_s=b, ratio=b / a, resat_rounds=ours, litert_rounds=theirs))
            label = f"{pathlib.Path(path).parent.name}/{pathlib.Path(path).name}"
            print(f"{label:50} t{threads}: resat {a * 1e3:8.3f} ms (varies {spread(ours):.2f} x), LiteRT {b * 1e3:8.3f} ms ({spread(theirs):.2f} x): {b / a:.2f} x", flush=True)
    if args.json:
        json.dump(rows, open(args.json, "w"), indent=1)
