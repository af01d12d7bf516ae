#!/usr/bin/env python3
"""A transformer decoder with a cache of keys and values, as ONNX with random weights, and what it takes for one token.

    decoder.py write OUT.onnx [--layers 12] [--width 768] [--heads 12] [--kv-heads 4] [--hidden 2048] [--vocabulary 8192]
               [--places 2048] [--weights float32|bfloat16|int8|int4] [--plain]
    decoder.py inputs OUT.npz MODEL.onnx --past N [--length N] [--batch N]
    decoder.py record OUT.zip
    decoder.py bench --resat BIN --out DIR [--weights …,…] [--lengths 1,64,…] [--threads 1,2] [--rounds 3] [--repeat 10]

Layers are: root mean square norm, attention with rotary positions in which several heads share keys and values, norm, SiLU-gated feed
forward. Keys and values of the past are inputs, those of the past and now are outputs. By default it has ONNX Runtime's fused operators
(GroupQueryAttention, SimplifiedLayerNormalization), with --plain those of ONNX alone. Weights of int8 and int4 are `MatMulNBits` of blocks
of 32; weights of bfloat16 are cast to float32 before each product.

`bench` runs one token after pasts of these lengths, by one program whose extents are unknown, resat and ONNX Runtime in turn: with keys and
values as inputs and outputs, and (of resat) as state that is kept, which grows by one from run to run. It says what was compiled after the
first two calls, and how far results differ. `record` writes small ones with what ONNX Runtime makes of them:
tests/recorded/frontends/decoder.zip.
"""
import argparse, io, json, math, os, pathlib, statistics as st, subprocess, tempfile, time, zipfile

import numpy as np

BLOCK = 32
MS = "com.microsoft"


class Writer:
    """An ONNX graph that grows by nodes."""

    def __init__(self, args):
        self.args, self.nodes, self.weights = args, [], []
        self.rng = np.random.default_rng(args.seed)

    def op(self, kind, inputs, outputs=1, domain="", **attrs):
        from onnx import helper

        names = outputs if isinstance(outputs, list) else [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **attrs))
        return names[0] if len(names) == 1 else names

    def constant(self, value, name=None, dtype=None):
        from onnx import numpy_helper, helper

        name = name or f"c{len(self.weights)}"
        value = np.asarray(value)
        if dtype is None:
            self.weights.append(numpy_helper.from_array(value, name))
        else:
            self.weights.append(helper.make_tensor(name, dtype, value.shape, value.tobytes(), raw=True))
        return name

    def ints(self, *values):
        return self.constant(np.array(values, np.int64))

    def linear(self, x, name, k, n):
        """A product with a weight of (k, n)."""
        from onnx import TensorProto

        kind = self.args.weights
        w = (self.rng.standard_normal((n, k)) / math.sqrt(k)).astype(np.float32)
        if kind == "float32":
            return self.op("MatMul", [x, self.constant(np.ascontiguousarray(w.T), name)])
        if kind == "bfloat16":
            bits = np.ascontiguousarray(w.T).view(np.uint32)
            rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
            narrow = self.constant(rounded, name, TensorProto.BFLOAT16)
            return self.op("MatMul", [x, self.op("Cast", [narrow], to=TensorProto.FLOAT)])
        bits = {"int8": 8, "int4": 4}[kind]
        blocks = -(-k // BLOCK)
        padded = np.zeros((n, blocks * BLOCK), np.float32)
        padded[:, :k] = w
        padded = padded.reshape(n, blocks, BLOCK)
        most = (1 << bits - 1) - 1
        scales = np.maximum(np.abs(padded).max(axis=2) / most, 1e-8).astype(np.float32)
        q = (np.clip(np.round(padded / scales[:, :, None]), -most, most) + (1 << bits - 1)).astype(np.uint8)
        if bits == 4:
            q = q[:, :, 0::2] | q[:, :, 1::2] << 4
        inputs = [x, self.constant(q, name), self.constant(scales.reshape(-1) if bits == 4 else scales, f"{name}.scales")]
        return self.op("MatMulNBits", inputs, domain=MS, K=k, N=n, bits=bits, block_size=BLOCK)

    def norm(self, x, name):
        scale = self.constant(self.rng.uniform(0.5, 1.5, self.args.width).astype(np.float32), name)
        if not self.args.plain:
            return self.op("SimplifiedLayerNormalization", [x, scale], axis=-1, epsilon=1e-5)
        square = self.op("Mul", [x, x])
        mean = self.op("ReduceMean", [square], axes=[-1])
        root = self.op("Sqrt", [self.op("Add", [mean, self.constant(np.float32(1e-5))])])
        return self.op("Mul", [self.op("Div", [x, root]), scale])


def rotary_tables(places, size):
    angles = np.arange(places)[:, None] / 10000.0 ** (np.arange(size // 2) / (size // 2))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def plain_attention(w, q, k, v, past, present, shared):
    """Attention of ONNX's own operators."""
    a = w.args
    size, group = a.width // a.heads, a.heads // a.kv_heads

    def split(x, heads):
        return w.op("Transpose", [w.op("Reshape", [x, w.ints(0, 0, heads, size)])], perm=[0, 2, 1, 3])

    def rotated(x):
        first = w.op("Slice", [x, w.ints(0), w.ints(size // 2), w.ints(3)])
        second = w.op("Slice", [x, w.ints(size // 2), w.ints(size), w.ints(3)])
        turned = w.op("Concat", [w.op("Neg", [second]), first], axis=3)
        return w.op("Add", [w.op("Mul", [x, shared["cos"]]), w.op("Mul", [turned, shared["sin"]])])

    q, k, v = rotated(split(q, a.heads)), rotated(split(k, a.kv_heads)), split(v, a.kv_heads)
    k = w.op("Concat", [past[0], k], [present[0]], axis=2)
    v = w.op("Concat", [past[1], v], [present[1]], axis=2)

    def repeated(x):
        wide = w.op("Expand", [w.op("Unsqueeze", [x, w.ints(2)]), w.ints(1, 1, group, 1, 1)])
        return w.op("Reshape", [wide, w.op("Concat", [w.ints(0, a.heads), w.ints(-1, size)], axis=0)])

    scores = w.op("MatMul", [q, w.op("Transpose", [repeated(k)], perm=[0, 1, 3, 2])])
    scores = w.op("Mul", [scores, w.constant(np.float32(1 / math.sqrt(size)))])
    scores = w.op("Add", [scores, shared["mask"]])
    y = w.op("MatMul", [w.op("Softmax", [scores], axis=-1), repeated(v)])
    return w.op("Reshape", [w.op("Transpose", [y], perm=[0, 2, 1, 3]), w.ints(0, 0, a.width)])


def shared_by_layers(w):
    """Lengths, and of plain operators cosines, sines and the mask, which all layers read."""
    from onnx import TensorProto

    a = w.args
    size = a.width // a.heads
    cos, sin = rotary_tables(a.places, size)
    length = w.op("Shape", ["ids"], start=1, end=2)
    past = w.op("Shape", ["past_key_0"], start=2, end=3)
    total = w.op("Add", [past, length])
    if not a.plain:
        batch = w.op("Shape", ["ids"], start=0, end=1)
        total32 = w.op("Cast", [total], to=TensorProto.INT32)
        last = w.op("Sub", [total32, w.constant(np.array([1], np.int32))])
        lasts = w.op("Expand", [last, batch])
        return dict(last=lasts, total=w.op("Squeeze", [total32]), cos=w.constant(cos, "cos"), sin=w.constant(sin, "sin"))
    zero, one = w.constant(np.int64(0)), w.constant(np.int64(1))
    columns = w.op("Range", [zero, w.op("Squeeze", [total]), one])
    rows = w.op("Slice", [columns, past, total])
    tables = {}
    for name, half in [("cos", cos), ("sin", sin)]:
        tables[name] = w.op("Gather", [w.constant(np.concatenate([half, half], 1), name), rows])
    seen = w.op("LessOrEqual", [columns, w.op("Unsqueeze", [rows, w.ints(1)])])
    mask = w.op("Where", [seen, w.constant(np.float32(0)), w.constant(np.float32(-1e30))])
    return dict(mask=mask, **tables)


def model_of(a):
    from onnx import TensorProto, helper

    w = Writer(a)
    size, kv = a.width // a.heads, a.kv_heads
    table = w.constant(w.rng.standard_normal((a.vocabulary, a.width)).astype(np.float32), "embeddings")
    x = w.op("Gather", [table, "ids"])
    shared = shared_by_layers(w)
    for i in range(a.layers):
        h = w.norm(x, f"norm_{i}")
        q, k, v = (w.linear(h, f"{n}_{i}", a.width, heads * size) for n, heads in [("q", a.heads), ("k", kv), ("v", kv)])
        past, present = ([f"{p}_{n}_{i}" for n in ["key", "value"]] for p in ["past", "present"])
        if a.plain:
            y = plain_attention(w, q, k, v, past, present, shared)
        else:
            y = f"attention_{i}"
            inputs = [q, k, v, *past, shared["last"], shared["total"], shared["cos"], shared["sin"]]
            w.op("GroupQueryAttention", inputs, [y, *present], MS, num_heads=a.heads, kv_num_heads=kv, do_rotary=1)
        x = w.op("Add", [x, w.linear(y, f"o_{i}", a.width, a.width)])
        h = w.norm(x, f"norm_ff_{i}")
        gate, up = w.linear(h, f"gate_{i}", a.width, a.hidden), w.linear(h, f"up_{i}", a.width, a.hidden)
        h = w.op("Mul", [w.op("Mul", [gate, w.op("Sigmoid", [gate])]), up])
        x = w.op("Add", [x, w.linear(h, f"down_{i}", a.hidden, a.width)])
    x = w.norm(x, "norm_last")
    logits = w.linear(x, "logits_of", a.width, a.vocabulary)
    w.op("Identity", [logits], ["logits"])
    value = lambda name, kind, shape: helper.make_tensor_value_info(name, kind, shape)
    cache = lambda p, extent: [value(f"{p}_{n}_{i}", TensorProto.FLOAT, ["batch", kv, extent, size]) for i in range(a.layers) for n in ["key", "value"]]
    inputs = [value("ids", TensorProto.INT64, ["batch", "length"]), *cache("past", "past")]
    outputs = [value("logits", TensorProto.FLOAT, ["batch", "length", a.vocabulary]), *cache("present", "total")]
    graph = helper.make_graph(w.nodes, "decoder", inputs, outputs, w.weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def write(a):
    import onnx

    onnx.save(model_of(a), str(a.out))


def float_zeros(rng, k=64, n=20):
    """A product whose zero points are no integers, with a bias."""
    from onnx import TensorProto, helper, numpy_helper

    blocks = k // BLOCK
    weights = dict(
        w=rng.integers(0, 256, (n, blocks, BLOCK // 2)).astype(np.uint8),
        s=rng.uniform(0.01, 0.1, n * blocks).astype(np.float32),
        z=rng.uniform(4, 11, n * blocks).astype(np.float32),
        b=rng.standard_normal(n).astype(np.float32),
    )
    node = helper.make_node("MatMulNBits", ["x", "w", "s", "z", "", "b"], ["y"], domain=MS, K=k, N=n, bits=4, block_size=BLOCK)
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    initializers = [numpy_helper.from_array(v, name) for name, v in weights.items()]
    graph = helper.make_graph([node], "product", [value("x", ["rows", k])], [value("y", ["rows", n])], initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def record(a):
    """Cases as record-onnx.py has them: a folder each, with model, inputs and outputs."""
    import onnxruntime as ort

    small = dict(layers=2, width=32, heads=2, kv_heads=1, hidden=64, vocabulary=48, places=64, seed=1)
    models, cases = {}, []
    for kind, plain in [("float32", False), ("float32", True), ("bfloat16", False), ("int8", False), ("int4", False)]:
        name = "plain" if plain else kind
        models[name] = model_of(argparse.Namespace(**small, weights=kind, plain=plain))
        sizes = [(5, 1, 1), (6, 1, 2), (1, 1, 1), (17, 1, 1), (3, 4, 1)]
        cases += [(f"decoder_{name}_{past}_{length}_{batch}", models[name], inputs_of(models[name], past, length, batch)) for past, length, batch in sizes]
    rng = np.random.default_rng(7)
    product = float_zeros(rng)
    cases += [(f"matmul_nbits_float_zeros_{rows}", product, dict(x=rng.standard_normal((rows, 64)).astype(np.float32))) for rows in [1, 3, 40]]
    with zipfile.ZipFile(a.out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, model, given in cases:
            session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
            results = dict(zip([o.name for o in session.get_outputs()], session.run(None, given)))
            files = {"model.onnx": model.SerializeToString(), "meta.json": json.dumps(dict(op=name, steps=0, tolerance=1e-4, runtime=ort.__version__))}
            for file, arrays in [("inputs.npz", given), ("outputs.npz", results)]:
                buffer = io.BytesIO()
                np.savez(buffer, **arrays)
                files[file] = buffer.getvalue()
            for file, data in files.items():
                info = zipfile.ZipInfo(f"{name}/{file}", (1980, 1, 1, 0, 0, 0))
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, data)


def inputs_of(model, past, length, batch, seed=0):
    """Random inputs of a model that `write` made."""
    import onnx

    rng = np.random.default_rng(seed + past)
    graph = onnx.load(str(model)).graph if isinstance(model, (str, os.PathLike)) else model.graph
    vocabulary = next(o for o in graph.output if o.name == "logits").type.tensor_type.shape.dim[2].dim_value
    made = {"ids": rng.integers(0, vocabulary, (batch, length))}
    for i in graph.input[1:]:
        dims = i.type.tensor_type.shape.dim
        made[i.name] = rng.standard_normal((batch, dims[1].dim_value, past, dims[3].dim_value)).astype(np.float32)
    return made


def weight_bytes(model):
    """Bytes of weights that one token reads: of the embeddings a row."""
    import onnx

    sizes = {t.name: len(t.raw_data) for t in onnx.load(str(model)).graph.initializer}
    return sum(n for name, n in sizes.items() if name not in ["embeddings", "cos", "sin"])


def session_of(model, threads):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def timed(session, given, repeat):
    session.run(None, given)
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        session.run(None, given)
        times.append(time.perf_counter() - start)
    return times


def bench_one(a, kind, threads, folder):
    model = folder / f"{kind}.onnx"
    if not model.exists():
        made = argparse.Namespace(**{**vars(a), "weights": kind, "out": model})
        write(made)
    # The first two calls are at lengths of their own.
    pasts = [3, 5, *a.lengths]
    files = []
    for past in pasts:
        files.append(folder / f"{past}.npz")
        np.savez(files[-1], **inputs_of(model, past, 1, 1))
    session = session_of(model, threads)
    read = weight_bytes(model)
    rows = [{"weights": kind, "past": p, "threads": threads, "weights_mb": read / 1e6, "resat": [], "kept": [], "first": [], "ort": []} for p in a.lengths]

    caches = [f"{n}_{i}" for i in range(a.layers) for n in ["key", "value"]]
    state = [x for c in caches for x in ["--state", f"past_{c}=present_{c}"]]

    def run_all(files, state=[]):
        more = [x for f in files for x in ["--inputs", str(f)]]
        command = [a.resat, "bench", str(model), *more, *state, "--threads", str(threads), "--repeat", str(a.repeat), "--json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    before = run_all(files[:2])["special_kernels"]
    for _ in range(a.rounds):
        done, kept = run_all(files), run_all(files, state)
        for row, run, keeping, file in zip(rows, done["runs"][2:], kept["runs"][2:], files[2:]):
            row["resat"] += run["latencies_s"]
            row["kept"] += keeping["latencies_s"]
            row["first"].append(run["first_s"])
            row["ort"] += timed(session, dict(np.load(file)), a.repeat)
    for row in rows:
        seconds = st.median(row["resat"])
        row.update(resat_ms=1e3 * seconds, kept_ms=1e3 * st.median(row.pop("kept")), ort_ms=1e3 * st.median(row.pop("ort")), first_ms=1e3 * min(row.pop("first")), gb_s=read / 1e9 / seconds)
        row.pop("resat")
    outputs = folder / "out.npz"
    subprocess.run([a.resat, "run", str(model), "--inputs", str(files[-1]), "--outputs", str(outputs), "--threads", str(threads)], check=True, capture_output=True)
    found, wanted = np.load(outputs), session.run(["logits"], dict(np.load(files[-1])))[0]
    rows[-1]["compiled_later"] = done["special_kernels"] - before
    rows[-1]["error"] = float(np.abs(found["logits"] - wanted).max() / np.abs(wanted).max())
    return rows


def table(rows):
    lines = ["| weights | threads | past | resat, ms | kept, ms | ONNX Runtime, ms | of that | first call, ms | GB/s of weights |", "| --- |" + " ---: |" * 8]
    for r in rows:
        lines.append(f"| {r['weights']} | {r['threads']} | {r['past']} | {r['resat_ms']:.2f} | {r['kept_ms']:.2f} | {r['ort_ms']:.2f} | {r['ort_ms'] / r['resat_ms']:.2f} | {r['first_ms']:.2f} | {r['gb_s']:.1f} |")
    for r in rows:
        if "error" in r:
            what = f"{r['compiled_later']} kernels compiled after the first two calls; logits differ from ONNX Runtime's by {r['error']:.1e} of the largest"
            lines.append(f"\n{r['weights']}, {r['threads']} threads: {what}.")
    return "\n".join(lines) + "\n"


def bench(a):
    a.out.mkdir(parents=True, exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in a.kinds:
            for threads in a.threads:
                rows += bench_one(a, kind, threads, pathlib.Path(folder))
                (a.out / "decoder.json").write_text(json.dumps(rows, indent=1))
                (a.out / "decoder.md").write_text(table(rows))
            (pathlib.Path(folder) / f"{kind}.onnx").unlink()
    print(table(rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    numbers = lambda text: [int(n) for n in text.split(",")]
    names = lambda text: text.split(",")

    def shape(p):
        for name, default in [("layers", 12), ("width", 768), ("heads", 12), ("kv-heads", 4), ("hidden", 2048), ("vocabulary", 8192), ("places", 2048), ("seed", 1)]:
            p.add_argument(f"--{name}", type=int, default=default)
        p.add_argument("--plain", action="store_true")

    p = commands.add_parser("write")
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--weights", default="float32", choices=["float32", "bfloat16", "int8", "int4"])
    shape(p)
    p = commands.add_parser("inputs")
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("--past", type=int, required=True)
    p.add_argument("--length", type=int, default=1)
    p.add_argument("--batch", type=int, default=1)
    p = commands.add_parser("record")
    p.add_argument("out", type=pathlib.Path)
    p = commands.add_parser("bench")
    p.add_argument("--resat", required=True)
    p.add_argument("--out", type=pathlib.Path, required=True)
    p.add_argument("--weights", dest="kinds", type=names, default=["float32", "bfloat16", "int8", "int4"])
    p.add_argument("--lengths", type=numbers, default=[1, 16, 127, 512, 1024])
    p.add_argument("--threads", type=numbers, default=[1, 2])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--repeat", type=int, default=10)
    shape(p)
    a = parser.parse_args()
    if a.command == "write":
        write(a)
    elif a.command == "inputs":
        np.savez(a.out, **inputs_of(a.model, a.past, a.length, a.batch))
    elif a.command == "record":
        record(a)
    else:
        bench(a)


if __name__ == "__main__":
    main()
