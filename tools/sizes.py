#!/usr/bin/env python3
"""Programs whose extents are unknown, at several sizes: beside the program that is built for each size, and beside ONNX Runtime.

    sizes.py --resat BIN --shared DIR --out DIR [--models-dir DIR] [--threads 2] [--rounds 3] [--repeat 10] [MODEL...]

DIR of --shared holds the folder `corpus` of recorded models. Of image models batch, height and width become unknown, of bert4 batch and length;
the text of the programs is changed for that. ONNX Runtime runs the same networks with dimensions that have names, where --models-dir has
MODEL.onnx (rivals.py makes them).

In each round every one runs all sizes, in turn; a row has medians over all rounds, and the least of the first calls at a size once another one
had been run. A second table has how long a process takes until the first result, with an empty cache: of the program of unknown extents at the first size, and of
the one that is built for that.
"""
import argparse, json, math, os, pathlib, re, statistics as st, subprocess, sys, tempfile, time
import numpy as np

IMAGES = {"resnet18": "x", "mobilenet_v2": "x", "inception_v3": "x", "squeezenet1_1": "x"}
IMAGE_SIZES = [(1, 224, 224), (2, 224, 224), (1, 256, 192), (3, 160, 160), (1, 320, 240), (4, 128, 128)]
LARGER = {"inception_v3": [(1, 299, 299), (2, 299, 299), (1, 320, 256), (3, 192, 192), (1, 384, 299), (4, 224, 160)]}
TEXT_SIZES = [(1, 128), (2, 128), (1, 64), (4, 50), (1, 37), (3, 200)]
PLACES = 512
# What bert4's reshapes say of its recorded size, and what says the same of any.
RESHAPES = {
    "[-1, 768]": "[0, 0, -1]",
    "[-1, 3072]": "[0, 0, -1]",
    "[1, 128, 768]": "[0, 0, -1]",
    "[1, 128, 3072]": "[0, 0, -1]",
    "[1, 128, 12, 64]": "[0, 0, 12, 64]",
    "[-1, 64, 128]": "[-3, 0, 0]",
    "[-1, 128, 64]": "[-3, 0, 0]",
    "[-1, 128, 128]": "[-3, 0, 0]",
    "[1, 12, 128, 128]": "[-4, -1, 12, 0, 0]",
    "[1, 12, 128, 64]": "[-4, -1, 12, 0, 0]",
}


def text_of(name, shared):
    """The program without comments, its head and its body."""
    text = (shared / "corpus" / name / "model.relay").read_text()
    head, body = re.sub(r"/\* (ty|span)=.*?\*/", "", text, flags=re.S).split("{", 1)
    return re.sub(r"->[^{]*$", "", head), body


def image_program(name, shared, shape):
    head, body = text_of(name, shared)
    head, found = re.subn(r"%(\w+): Tensor\[\(1, 3, \d+, \d+\), float32\]", f"%\\1: Tensor[({shape}), float32]", head, count=1)
    assert found, f"{name}: no image among the parameters"
    return head + "{" + body


def bert_program(shared, shape):
    head, body = text_of("bert4", shared)
    head = head.replace("(1, 128), int64", f"({shape}), int64")
    head = head.replace("@main(", f"@main(%places: Tensor[(1, {PLACES}, 768), float32], ", 1)
    for n in range(2):
        body = body.replace(f"meta[relay.Constant][{n}] ", "slice_like(%places, %3, axes=[1]) ", 1)
    for fixed, free in RESHAPES.items():
        body = body.replace(f"newshape={fixed}", f"newshape={free}")
    return head + "{" + body


def weights(name, shared, to):
    sys.path.insert(0, str(shared / "corpus"))
    import params

    made = {n: params.make(n, s, d) for n, (s, d) in json.load(open(shared / "corpus" / name / "params.json")).items()}
    if name == "bert4":
        made["places"] = params.make("places", (1, PLACES, 768), "float32")
    params.save(made, to)


def inputs(name, size):
    rng = np.random.default_rng(sum(size))
    if name != "bert4":
        n, h, w = size
        return {IMAGES[name]: rng.standard_normal((n, 3, h, w)).astype("float32")}
    mask = np.ones(size, "int64")
    mask[:, size[1] - size[1] // 4 :] = 0
    return {"ids": rng.integers(0, 30000, size), "mask": mask}


def bench(resat, program, params, files, threads, repeat):
    """The runs at each size by one process."""
    more = [x for f in files for x in ["--inputs", str(f)]]
    command = [resat, "bench", str(program), "--params", str(params), *more, "--threads", str(threads), "--repeat", str(repeat), "--json"]
    done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return done.get("runs") or [done], done


def cold(resat, program, params, file, threads):
    """Seconds from the start of a process to its end, in which it builds a program and runs it once, with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        command = [resat, "run", str(program), "--params", str(params), "--inputs", str(file), "--outputs", f"{cache}/out.npz"]
        start = time.perf_counter()
        subprocess.run([*command, "--threads", str(threads)], check=True, env={**os.environ, "XDG_CACHE_HOME": cache}, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start


def rival(name, models_dir, threads):
    """ONNX Runtime's session where it can take any size."""
    file = models_dir and models_dir / f"{name}.onnx"
    if not file or not file.exists():
        return None
    try:
        import onnx, onnxruntime as ort
    except ImportError:
        return None
    model = onnx.load(file)
    if name == "bert4":
        free_bert(model.graph)
    for value in [*model.graph.input, *model.graph.output]:
        for i, d in enumerate(value.type.tensor_type.shape.dim):
            if i in ([0, 1] if name == "bert4" else [0, 2, 3]):
                d.ClearField("dim_value")
                d.dim_param = f"{value.name}_{i}"
    del model.graph.value_info[:]
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def free_bert(graph):
    """bert4 at any size: reshapes that keep what comes first, places out of a table, and the same token type everywhere."""
    from onnx import helper, numpy_helper

    def with_value(value, change):
        array = change(numpy_helper.to_array(value).copy())
        value.CopyFrom(numpy_helper.from_array(array, value.name))

    constants = {n.output[0]: n for n in graph.node if n.op_type == "Constant"}
    values = {k: n.attribute[0].t for k, n in constants.items()} | {x.name: x for x in graph.initializer}
    for n in graph.node:
        if n.op_type == "Reshape":
            with_value(values[n.input[1]], lambda a: np.concatenate([[0, 0], a[2:]]))
    with_value(values["/m/embeddings/token_type_embeddings/Gather_output_0"], lambda a: a[:, :1])
    table = "/m/embeddings/position_embeddings/Gather_output_0"
    with_value(values[table], lambda a: np.resize(a, (1, PLACES, 768)))
    constants[table].output[0] = "places"
    graph.initializer.append(numpy_helper.from_array(np.zeros(2, "int64"), "first"))
    cut = [helper.make_node("Shape", ["ids"], ["extents"]), helper.make_node("Slice", ["places", "first", "extents"], [table])]
    nodes = [*constants.values(), *cut, *(n for n in graph.node if n.op_type != "Constant")]
    del graph.node[:]
    graph.node.extend(nodes)


def timed(session, given, repeat):
    for _ in range(2):
        session.run(None, given)
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        session.run(None, given)
        times.append(time.perf_counter() - start)
    return times


def measure(name, args, folder):
    sizes = TEXT_SIZES if name == "bert4" else LARGER.get(name, IMAGE_SIZES)
    made = bert_program if name == "bert4" else lambda shared, shape: image_program(name, shared, shape)
    axes = lambda size: ", ".join(map(str, size if name == "bert4" else (size[0], 3, *size[1:])))
    params, free = folder / "weights.params", folder / "free.relay"
    weights(name, args.shared, params)
    free.write_text(made(args.shared, "?, ?" if name == "bert4" else "?, 3, ?, ?"))
    files, fixed = [], []
    for i, size in enumerate(sizes):
        files.append(folder / f"{i}.npz")
        np.savez(files[-1], **inputs(name, size))
        fixed.append(folder / f"{i}.relay")
        fixed[-1].write_text(made(args.shared, axes(size)))
    session = rival(name, args.models_dir, args.threads)
    rows = [{"model": name, "size": list(s), "free": [], "first": [], "fixed": [], "ort": []} for s in sizes]
    starts = {"free": [], "fixed": []}
    for _ in range(args.rounds):
        # Memory that a virtual machine has given back to its host takes longer to write to: all find what the one before has freed.
        cold(args.resat, fixed[0], params, files[0], args.threads)
        for kind, program in [("free", free), ("fixed", fixed[0])]:
            starts[kind].append(cold(args.resat, program, params, files[0], args.threads))
        # Another size has been run before each: the first is met twice.
        runs, last = bench(args.resat, free, params, [*files[1:], files[0]], args.threads, args.repeat)
        for row, run in zip(rows[1:] + rows[:1], runs):
            row["free"] += run["latencies_s"]
            row["first"].append(run["first_s"])
        for row, program, file in zip(rows, fixed, files):
            row["fixed"] += bench(args.resat, program, params, [file], args.threads, args.repeat)[0][0]["latencies_s"]
            if session:
                row["ort"] += timed(session, dict(np.load(file)), args.repeat)
    calls = {k: last[k] for k in ["general_calls", "special_calls", "special_kernels"]}
    rows[0] |= {f"{kind}_cold_s": st.median(times) for kind, times in starts.items()}
    return [{**{k: row[k] for k in row if k in ["model", "size"] or k.endswith("_cold_s")}, **calls, "threads": args.threads,
             **{f"{k}_ms": 1e3 * st.median(row[k]) for k in ["free", "fixed", "ort"] if row[k]}, "first_ms": 1e3 * min(row["first"])}
            for row in rows]  # fmt: skip


def table(rows):
    lines = ["| model | size | unknown | built for it | of that | ONNX Runtime | of that | first call |", "| --- | --- |" + " ---: |" * 6]
    for r in rows:
        ratio = lambda k: f"{r[k] / r['free_ms']:.2f}" if k in r else ""
        cell = lambda k: f"{r[k]:.2f}" if k in r else ""
        cells = [cell("free_ms"), cell("fixed_ms"), ratio("fixed_ms"), cell("ort_ms"), ratio("ort_ms"), cell("first_ms")]
        lines.append(f"| {r['model']} | {'x'.join(map(str, r['size']))} | " + " | ".join(cells) + " |")
    for k, what in [("fixed_ms", "the programs built for each size"), ("ort_ms", "ONNX Runtime")]:
        ratios = [r[k] / r["free_ms"] for r in rows if k in r]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            lines.append(f"\nSpeed against {what}: geometric mean {mean:.2f}, least {min(ratios):.2f}.")
    lines += ["\n| first result, cold, s | unknown | built for it | of that |", "| --- | ---: | ---: | ---: |"]
    for r in rows:
        if "free_cold_s" in r:
            unknown, built = r["free_cold_s"], r["fixed_cold_s"]
            lines.append(f"| {r['model']} | {unknown:.2f} | {built:.2f} | {unknown / built:.2f} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["resnet18", "mobilenet_v2", "inception_v3", "bert4"], metavar="MODEL")
    parser.add_argument("--resat", required=True)
    parser.add_argument("--shared", required=True, type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--models-dir", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=10)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in args.models:
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(name, args, pathlib.Path(folder))
        (args.out / "sizes.json").write_text(json.dumps(rows, indent=1))
        (args.out / "sizes.md").write_text(table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
