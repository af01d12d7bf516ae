#!/usr/bin/env python3
"""Times resat beside ONNX Runtime and OpenVINO, all in turn in one run, and writes JSON and a table with ratios.

    rivals.py --resat BIN --shared DIR --out DIR [--only latency,imported,int8,bf16,products,start,memory,sizes,decoder] [--threads 1,2] [--rounds 8]
              [--seconds 0.2] [--models-dir DIR] [--onnx FILE...] [MODEL...]

DIR of --shared holds the folders `corpus` (recorded models) and `rivals` (its bench.py runs the rivals). Ratios are the fastest rival's median over
resat's: more than 1 is faster than every rival. Medians are of turns in one state of the machine, which is named, with how many turns each runtime had in it
(turns.py). What can't be measured is said, and left out.

With --onnx, latency is of these files, and of corpus models only where they are named. A file's inputs are FILE.npz beside it (its name without
`.onnx`), else drawn: numbers from 0 to 1, integers below 100. The outputs' distance from ONNX Runtime's goes into the table, too, and the seconds
that resat took to the first result with an empty cache.

latency   f32 models, warm, by median
imported  the same models from ONNX and from Relay, both by resat
int8      quantized models: resat's on integers, the rivals' on the same networks in QDQ form
bf16      f32 models with contractions in bfloat16, beside OpenVINO as it comes, which takes bfloat16 where the processor multiplies it
products  GEMMs, of two arguments and with a constant second one
start     from text to the first result: with an empty cache, and once the program is kept; rivals from their file to the first result
memory    peak of a process that loads a model and runs it three times, one thread
sizes     programs whose extents are unknown, at six sizes each (sizes.py)
decoder   one token of a decoder with a cache, after pasts of several lengths, by weights of several types (decoder.py)
"""
import argparse, json, math, os, pathlib, shutil, statistics, subprocess, sys, tempfile, time

from turns import in_turn

F32 = ["resnet18", "resnet50", "mobilenet_v2", "squeezenet1_1", "inception_v3", "bert4", "bert12"]
BOUND_BY_WEIGHTS = ["lstm", "mlp"]
INT8 = ["resnet18", "mobilenet_v2"]
PRODUCTS = [(1024, 1024, 1024), (512, 512, 2048), (1, 1024, 4096)]
KINDS = ["latency", "imported", "int8", "bf16", "products", "start", "memory", "sizes", "decoder"]


def note(text):
    notes.append(text)
    print(f"skipped: {text}", flush=True)


def has(package):
    return subprocess.run([sys.executable, "-c", f"import {package}"], capture_output=True).returncode == 0


def models(names, int8):
    """The rivals' files of these models, made where they are missing; the names of those that are there."""
    made = []
    for name in names:
        file = models_dir / f"{name}{'.int8' if int8 else ''}.onnx"
        if not file.exists():
            if not (has("onnx") and (not int8 or has("onnxruntime"))):
                note(f"{name}: there is no {file}, and no package onnx to make it")
                continue
            command = [sys.executable, str(shared / "rivals/models.py"), str(models_dir), *(["--int8"] if int8 else []), name]
            if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
                note(f"{name}: rivals/models.py could not make {file}")
                continue
        made.append(name)
    return made


def params(name, folder):
    file = folder / "model.params"
    if file.exists():
        return file
    file = out / "params" / f"{name}.params"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, str(shared / "corpus/params.py"), str(folder), str(file)], check=True)
    return file


def turn(script, name, runtimes, threads, what, models=None, more=()):
    """The rows of one model: a process a runtime, in turn; `more` are further arguments of resat's."""
    weights = lambda folder: params(folder.name, folder)
    try:
        rows = in_turn(args.resat, script, script.parent.parent / "corpus", models or models_dir, name, runtimes, threads, args.rounds, args.seconds, weights, more)
    except (RuntimeError, subprocess.CalledProcessError) as e:
        note(f"{what} of {name}, {threads} threads: {e}")
        return
    results.extend({"kind": what, **row} for row in rows)
    write()


def latency():
    own = [prepared(file) for file in args.onnx]
    for name in [] if own and not args.models else corpus_models():
        for threads in args.threads:
            turn(shared / "rivals/bench.py", name, ["ort", "ov_f32", "resat"], threads, "latency")


    for name in filter(None, own):
        for threads in args.threads:
            turn(out / "onnx/rivals/bench.py", name, ["ort", "ov_f32", "resat"], threads, "latency", out / "onnx")


def prepared(file):
    """A folder like the shared one for an ONNX file, where resat agrees with ONNX Runtime on it: its name there."""
    import numpy as np, onnxruntime as ort

    root, name = out / "onnx", file.stem
    folder = root / "corpus" / name
    shutil.rmtree(folder, ignore_errors=True)
    for d in [folder, root / "rivals"]:
        d.mkdir(parents=True, exist_ok=True)
    shutil.copy(shared / "rivals/bench.py", root / "rivals/bench.py")
    for link in [folder / "model.relay", root / f"{name}.onnx"]:  # resat tells files apart by their content
        link.unlink(missing_ok=True)
        link.symlink_to(file.resolve())
    sys.path.insert(0, str(shared / "corpus"))
    from params import save

    save({}, folder / "model.params")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    given, rng = file.with_suffix(".npz"), np.random.default_rng(1)
    if given.exists():
        inputs = dict(np.load(given))
    else:
        ports = {i.name: (i.type, i.shape) for i in session.get_inputs()}
        if any(t not in ("tensor(float)", "tensor(int64)", "tensor(int32)") or not all(isinstance(n, int) for n in s) for t, s in ports.values()):
            return note(f"{name}: its inputs are not all of known extents, floats or integers; {given} may hold some")
        draw = lambda t, s: rng.random(s, "float32") if t == "tensor(float)" else rng.integers(0, 100, s).astype(t[7:-1])
        inputs = {n: draw(*p) for n, p in ports.items()}
    np.savez(folder / "inputs.npz", **inputs)
    with tempfile.TemporaryDirectory() as t:
        command = [args.resat, "run", str(file), "--inputs", str(folder / "inputs.npz"), "--outputs", f"{t}/out.npz", "--cache-dir", f"{t}/cache"]
        done = watched(command)
        if done is None:
            return note(f"{name}: resat does not run it")
        ours, distance = np.load(f"{t}/out.npz"), 0.0
        for port, theirs in zip(session.get_outputs(), session.run(None, inputs)):
            mine, theirs = ours[port.name].astype("float64"), theirs.astype("float64")
            distance = max(distance, float(np.abs(mine - theirs).max() / max(np.abs(theirs).max(), 1e-30)))
    results.append({"kind": "checked", "model": name, "rt": "resat", "threads": 1, "seconds": done[1], "distance": distance})
    print(f"{name:16} {done[1]:.2f} s to the first result, outputs within {distance:.1e} of the largest", flush=True)
    return name


def corpus_models():
    named = args.models or F32 + BOUND_BY_WEIGHTS
    return models([m for m in named if (shared / "corpus" / m / "skeleton.onnx").exists()], False)


def imported():
    for name in corpus_models():
        folder = shared / "corpus" / name
        inputs = ["--inputs", str(folder / "inputs.npz")]
        forms = {"onnx": [f"{models_dir}/{name}.onnx"], "relay": [str(folder / "model.relay"), "--params", str(params(name, folder))]}
        for threads in args.threads:
            times = {form: [] for form in forms}
            for _ in range(args.rounds):
                for form, files in forms.items():
                    command = [args.resat, "bench", *files, *inputs, "--threads", str(threads), "--repeat", "20", "--json"]
                    done = watched(command)
                    if done is None:
                        return note(f"imported: resat does not run {name} from {form}")
                    times[form].append(json.loads(done[0])["median_s"])
            medians = {form: statistics.median(t) for form, t in times.items()}
            ratio = medians["relay"] / medians["onnx"]
            for form, seconds in medians.items():
                results.append({"kind": "imported", "model": name, "rt": form, "threads": threads, "median_ms": 1e3 * seconds, "ratio": ratio})
            print(f"{name:16} {threads} threads: onnx {1e3 * medians['onnx']:.3f} ms, relay {1e3 * medians['relay']:.3f} ms", flush=True)
            write()


def int8():
    for name in models([m for m in args.models or INT8 if (shared / f"corpus/{m}_int8").is_dir()], True):
        for threads in args.threads:
            turn(shared / "rivals/bench.py", name, ["ort_int8", "ov_qdq", "resat_int8"], threads, "int8")


def bf16():
    for name in corpus_models():
        for threads in args.threads:
            passes = ["--passes", "ToMixedPrecision(bfloat16),default"]
            turn(shared / "rivals/bench.py", name, ["ov_bf16", "resat"], threads, "bf16", more=passes)


def products():
    """A folder like the shared one, of programs of one product each."""
    if not has("onnx"):
        return note("products: there is no package onnx to make the rivals' models")
    import numpy as np, onnx
    from onnx import TensorProto, helper, numpy_helper

    sys.path.insert(0, str(shared / "corpus"))
    from params import save

    root = out / "products"
    (root / "rivals").mkdir(parents=True, exist_ok=True)
    shutil.copy(shared / "rivals/bench.py", root / "rivals/bench.py")
    rng = np.random.default_rng(1)
    for m, n, k in PRODUCTS:
        a, b = (rng.standard_normal(s).astype("float32") for s in [(m, k), (k, n)])
        for kind, constant in [("given", False), ("constant", True)]:
            name = f"product_{m}x{n}x{k}_{kind}"
            folder = root / "corpus" / name
            folder.mkdir(parents=True, exist_ok=True)
            text = f'#[version = "0.0.5"]\ndef @main(%a: Tensor[({m}, {k}), float32], %b: Tensor[({k}, {n}), float32]) {{\n'
            text += f"  nn.matmul(%a, %b, units={n})\n}}\n"
            (folder / "model.relay").write_text(text)
            save({"b": b} if constant else {}, folder / "model.params")
            np.savez(folder / "inputs.npz", **({"a": a} if constant else {"a": a, "b": b}))
            ports = [helper.make_tensor_value_info(x, TensorProto.FLOAT, s) for x, s in [("a", (m, k)), ("b", (k, n)), ("c", (m, n))]]
            node = helper.make_node("MatMul", ["a", "b"], ["c"])
            weights = [numpy_helper.from_array(b, "b")] if constant else []
            graph = helper.make_graph([node], name, ports[:1] if constant else ports[:2], ports[2:], weights)
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
            onnx.save(model, str(root / f"{name}.onnx"))
            for threads in args.threads:
                turn(root / "rivals/bench.py", name, ["ort", "ov_f32", "resat"], threads, "products", root)


def alone(runtime, name, threads):
    """In a process of its own: loads a model, runs it three times, prints the seconds to the first result."""
    import numpy as np

    z = np.load(shared / "corpus" / name / "inputs.npz")
    inputs = {k: z[k] for k in z.files}
    file = f"{models_dir}/{name}.onnx"
    if runtime == "ort":
        import onnxruntime as ort

        start = time.perf_counter()
        o = ort.SessionOptions()
        o.intra_op_num_threads, o.inter_op_num_threads, o.log_severity_level = threads, 1, 3
        session = ort.InferenceSession(file, o, providers=["CPUExecutionProvider"])
        step = lambda: session.run(None, inputs)
    else:
        import openvino as ov

        start = time.perf_counter()
        config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
        compiled = ov.Core().compile_model(file, "CPU", config)
        request = compiled.create_infer_request()
        for i in compiled.inputs:
            request.set_tensor(i, ov.Tensor(inputs[i.get_any_name()]))
        step = request.infer
    step()
    print(time.perf_counter() - start, flush=True)
    step(), step()


# Linux counts what a process had before `exec` among its peak, which is the memory of who started it. So a small process starts what is watched.
WATCH = """
import json, os, subprocess, sys, time
start = time.perf_counter()
child = subprocess.Popen(sys.argv[1:], stdout=sys.stderr)
_, status, usage = os.wait4(child.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), time.perf_counter() - start, usage.ru_maxrss / 1024]))
"""


def watched(command):
    """Runs a command: its standard output, seconds, and peak of resident memory in MiB; none where it fails."""
    # What is watched writes to the file, by way of the small process's standard error.
    with tempfile.TemporaryFile() as output:
        quiet = ["sh", "-c", 'exec "$@" 2>/dev/null', "sh", *command]
        done = subprocess.run([sys.executable, "-S", "-c", WATCH, *quiet], stdout=subprocess.PIPE, stderr=output, text=True, check=True)
        output.seek(0)
        text = output.read().decode()
    code, seconds, peak = json.loads(done.stdout)
    return None if code else (text, seconds, peak)


def processes(what):
    for name in corpus_models():
        for runtime in ["ort", "ov_f32"]:
            me = [sys.executable, __file__, "--resat", args.resat, "--shared", str(shared), "--out", str(out), "--models-dir", str(models_dir)]
            done = watched([*me, "--alone", runtime, name])
            if done is None:
                note(f"{what} of {name}: {runtime} does not run it")
                continue
            record(what, name, runtime, seconds=float(done[0].split()[-1]), peak_mib=done[2])
        folder = shared / "corpus" / name
        files = [str(folder / "model.relay"), "--params", str(params(name, folder)), "--inputs", str(folder / "inputs.npz")]
        with tempfile.TemporaryDirectory() as t:
            command = [args.resat, "run", *files, "--threads", "1", "--cache-dir", f"{t}/cache", "--outputs", f"{t}/out.npz"]
            for state in ["cold", "warm"]:
                done = watched(command)
                if done is None:
                    note(f"{what} of {name}: resat does not run it")
                    break
                record(what, name, f"resat {state}", seconds=done[1], peak_mib=done[2])
            if what == "memory" and done is not None:
                command = [args.resat, "bench", *files, "--threads", "1", "--repeat", "3", "--cache-dir", f"{t}/cache"]
                done = watched(command)
                if done is not None:
                    record(what, name, "resat", seconds=done[1], peak_mib=done[2])
    if what == "memory":
        done = watched([sys.executable, "-c", "import numpy, onnxruntime"]), watched([sys.executable, "-c", "import numpy, openvino"])
        for runtime, d in zip(["ort", "ov_f32"], done):
            if d is not None:
                record(what, "(imports alone)", runtime, seconds=d[1], peak_mib=d[2])


def sizes():
    script = pathlib.Path(__file__).with_name("sizes.py")
    known = ["resnet18", "mobilenet_v2", "inception_v3", "bert4"]
    for threads in args.threads:
        names = models([m for m in args.models or known if m in known], False)
        command = [sys.executable, str(script), "--resat", args.resat, "--shared", str(shared), "--out", str(out / f"sizes{threads}")]
        if subprocess.run([*command, "--models-dir", str(models_dir), "--threads", str(threads), *names]).returncode:
            note(f"sizes, {threads} threads: sizes.py failed")


def decoder():
    if not has("onnx"):
        return note("decoder: there is no package onnx to make the model")
    script = pathlib.Path(__file__).with_name("decoder.py")
    command = [sys.executable, str(script), "bench", "--resat", args.resat, "--out", str(out / "decoder")]
    if subprocess.run([*command, "--threads", ",".join(map(str, args.threads))]).returncode:
        note("decoder: decoder.py failed")


def record(kind, model, runtime, **values):
    results.append({"kind": kind, "model": model, "rt": runtime, "threads": 1, **values})
    print(f"{model:16} {runtime:12} {values['seconds']:8.3f} s  peak {values['peak_mib']:7.1f} MiB", flush=True)
    write()


def mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def table():
    lines = ["# resat beside its rivals", "", f"{machine()}; {args.rounds} rounds in turn of {args.seconds} s each. Medians in ms."]
    for kind in ["latency", "int8", "bf16", "products"]:
        rows = [r for r in results if r["kind"] == kind]
        if not rows:
            continue
        rivals = list(dict.fromkeys(r["rt"] for r in rows if not r["rt"].startswith("resat")))
        lines += ["", f"## {kind}", "", "| model | threads | resat | " + " | ".join(rivals) + " | fastest rival / resat | state | disturbed |"]
        lines.append("| --- |" + " ---: |" * (len(rivals) + 3) + " --- | ---: |")
        ratios = {}
        for model, threads in dict.fromkeys((r["model"], r["threads"]) for r in rows):
            of = {r["rt"]: r for r in rows if (r["model"], r["threads"]) == (model, threads)}
            mine = next(r for rt, r in of.items() if rt.startswith("resat"))
            ratio = mine["speed_vs_best_rival"]
            group = "bound by weights" if model in BOUND_BY_WEIGHTS else "all"
            ratios.setdefault((group, threads), []).append(ratio)
            cells = [f"{of[rt]['median_ms']:.3f}" if rt in of else "" for rt in rivals]
            load = max(r["disturbed"] for r in of.values())
            lines.append(f"| {model} | {threads} | {mine['median_ms']:.3f} | " + " | ".join(cells) + f" | {ratio:.2f} | {mine['state']} ({mine['turns']}) | {load:.0%} |")
        lines.append("")
        for (group, threads), r in sorted(ratios.items()):
            which = "" if group == "all" else f" ({group})"
            lines.append(f"Geometric mean{which}, {threads} thread{'s' * (threads > 1)}: {mean(r):.3f}; least {min(r):.2f}.")
    rows = [r for r in results if r["kind"] == "checked"]
    if rows:
        lines += ["", "## seconds to the first result, and distance from ONNX Runtime by the largest output", "", "| model | seconds | distance |", "| --- |" + " ---: |" * 2]
        lines += [f"| {r['model']} | {r['seconds']:.2f} | {r['distance']:.1e} |" for r in rows]
    rows = [r for r in results if r["kind"] == "imported"]
    if rows:
        lines += ["", "## imported", "", "| model | threads | from ONNX | from Relay | Relay / ONNX |", "| --- |" + " ---: |" * 4]
        for model, threads in dict.fromkeys((r["model"], r["threads"]) for r in rows):
            of = {r["rt"]: r for r in rows if (r["model"], r["threads"]) == (model, threads)}
            cells = [f"{of[form]['median_ms']:.3f}" for form in ("onnx", "relay")] + [f"{of['onnx']['ratio']:.3f}"]
            lines.append(f"| {model} | {threads} | " + " | ".join(cells) + " |")
    for kind, column, unit in [("start", "seconds", "seconds to the first result"), ("memory", "peak_mib", "MiB at the peak")]:
        rows = [r for r in results if r["kind"] == kind]
        if not rows:
            continue
        runtimes = list(dict.fromkeys(r["rt"] for r in rows))
        lines += ["", f"## {kind}: {unit}", "", "| model | " + " | ".join(runtimes) + " |", "| --- |" + " ---: |" * len(runtimes)]
        for model in dict.fromkeys(r["model"] for r in rows):
            of = {r["rt"]: r[column] for r in rows if r["model"] == model}
            lines.append(f"| {model} | " + " | ".join(f"{of[rt]:.2f}" if rt in of else "" for rt in runtimes) + " |")
    if notes:
        lines += ["", "## Skipped", ""] + [f"- {n}" for n in notes]
    return "\n".join(lines) + "\n"


def machine():
    try:
        names = [l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")]
        return f"{names[0]}, {len(names)} cores"
    except (OSError, IndexError):
        return "an unnamed machine"


def write():
    json.dump({"machine": machine(), "rows": results, "skipped": notes}, open(out / "rivals.json", "w"), indent=1)
    (out / "rivals.md").write_text(table())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--resat", required=True)
    parser.add_argument("--shared", required=True, type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--models-dir", type=pathlib.Path, default=os.environ.get("RESAT_RIVAL_MODELS"))
    parser.add_argument("--onnx", nargs="+", default=[], type=pathlib.Path, metavar="FILE")
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    args = parser.parse_args()
    shared, out = args.shared.resolve(), args.out.resolve()
    models_dir = (args.models_dir or out / "models").resolve()
    results, notes = [], []
    if args.alone:
        alone(args.alone, args.models[0], 1)
        sys.exit()
    for folder in [out, models_dir]:
        folder.mkdir(parents=True, exist_ok=True)
    cores = os.cpu_count() or 1
    wanted = [int(t) for t in args.threads.split(",")]
    args.threads = [t for t in wanted if t <= cores]
    for t in set(wanted) - set(args.threads):
        note(f"{t} threads: the machine has {cores} cores")
    odd = set(args.only.split(",")) - set(KINDS)
    if odd:
        parser.error(f"--only {', '.join(sorted(odd))}: there are {', '.join(KINDS)}")
    missing = [p for p in ["onnxruntime", "openvino"] if not has(p)]
    if missing:
        note(f"everything beside rivals: there is no package {' and no package '.join(missing)}")
        write()
        sys.exit()
    for kind in args.only.split(","):
        {"latency": latency, "imported": imported, "int8": int8, "bf16": bf16, "products": products, "sizes": sizes, "decoder": decoder}.get(kind, lambda: processes(kind))()
    write()
    print(f"\n{table()}\n{out}/rivals.json, {out}/rivals.md")
