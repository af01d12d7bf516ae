#!/usr/bin/env python3
"""ONNX's own backend tests through `resat run`, against a list of those that are known to fail.

    onnx-suite.py BIN --expected FILE [--backend interp|llvm] [--jobs N] [--only SUBSTR] [--update]

Fails where a test fails that is not listed, and where one is listed that passes: the list may only shrink. --update rewrites it.
Fails as well where the table of operators and their versions (history.rs) is not that of the package's schemas.
Needs numpy and onnx==1.22.0, the last package whose wheel holds the tests as files. How values travel in npz archives is described in
docs/onnx.md.
"""
import argparse, concurrent.futures, glob, os, pathlib, re, subprocess, sys, tempfile

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

KINDS = ["node", "simple", "pytorch-operator", "pytorch-converted", "real"]
READERS = {
    "optional_type": (onnx.OptionalProto, numpy_helper.to_optional),
    "sequence_type": (onnx.SequenceProto, numpy_helper.to_list),
    "tensor_type": (onnx.TensorProto, numpy_helper.to_array),
}


HISTORY = pathlib.Path(__file__).parent.parent / "src/frontend/onnx/history.rs"


def unknown_versions():
    """Where the table of operators and versions differs from ONNX's schemas: a line each."""
    text = HISTORY.read_text()
    rows = re.findall(r'^    \("([^"]*)", "([^"]*)", &\[([\d, ]*)\]\),$', text, re.M)
    taken_back = re.findall(r'"(\w+)"', re.search(r"const EXPERIMENTAL.*?;", text, re.S).group())
    ours = {(domain, op): {int(v) for v in versions.split(",")} for domain, op, versions in rows}
    theirs = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.name not in taken_back:
            theirs.setdefault((schema.domain, schema.name), set()).add(schema.since_version)
    for key in sorted(ours.keys() | theirs.keys()):
        here, there = sorted(ours.get(key, ())), sorted(theirs.get(key, ()))
        # Packages forget the versions that were on trial.
        if here != there and here != [1, *there]:
            yield f"{key[0] or 'ai.onnx'}.{key[1]}: the table has versions {here}, ONNX {there}"


def bits(array):
    """The array as npz can hold it: what numpy lacks as unsigned integers, strings as numpy's own."""
    array = np.asarray(array)
    if array.dtype == object:
        return array.astype(str)
    if array.dtype.type.__module__ != "numpy":
        return array.view(f"u{array.dtype.itemsize}")
    return array


def flattened(name, value):
    if value is None:
        return {}
    if not isinstance(value, (list, tuple)):
        return {name: bits(value)}
    items = {k: v for i, item in enumerate(value) for k, v in flattened(f"{name}#{i}", item).items()}
    return items or {f"{name}#": np.zeros(0, "f4")}


def gathered(name, arrays, like):
    if isinstance(like, (list, tuple)):
        count = len([k for k in arrays if re.fullmatch(re.escape(name) + r"#\d+", k)])
        return [gathered(f"{name}#{i}", arrays, like[i] if i < len(like) else None) for i in range(count)]
    assert name in arrays, f"{name} is missing"
    array, dtype = arrays[name], np.asarray(like).dtype
    if dtype == object:
        return array.astype(object)
    return array.view(dtype) if dtype.type.__module__ != "numpy" and dtype.itemsize == array.dtype.itemsize else array


def compare(want, got, rtol, atol):
    if isinstance(want, (list, tuple)):
        assert len(want) == len(got), f"{len(got)} elements, not {len(want)}"
        for w, g in zip(want, got):
            compare(w, g, rtol, atol)
    elif np.asarray(want).dtype.type.__module__ != "numpy":
        assert want.dtype == got.dtype and want.shape == got.shape, f"{got.dtype}{got.shape}, not {want.dtype}{want.shape}"
        np.testing.assert_allclose(got.astype("f4"), want.astype("f4"), rtol=rtol, atol=atol)
    else:
        Runner.assert_similar_outputs([want], [got], rtol, atol)


def read(path, info):
    message, convert = READERS[info.type.WhichOneof("value")]
    return convert(message.FromString(pathlib.Path(path).read_bytes()))


def data_sets(test, path, model):
    if test.url and "/light/" in test.url:
        weights = {i.name for i in model.graph.initializer}
        inputs = [i for i in model.graph.input if i.name not in weights]
        feeds = {i.name: Runner.generate_dummy_data(i, seed=0, name=test.name, random=False) for i in inputs}
        outputs = [read(f"{path.with_suffix('')}_output_{k}.pb", o) for k, o in enumerate(model.graph.output)]
        yield feeds, outputs
        return
    for folder in sorted(path.parent.glob("test_data_set*")):
        listed = lambda kind: range(len(glob.glob(f"{folder}/{kind}_*.pb")))
        feeds = {model.graph.input[k].name: read(folder / f"input_{k}.pb", model.graph.input[k]) for k in listed("input")}
        yield feeds, [read(folder / f"output_{k}.pb", model.graph.output[k]) for k in listed("output")]


def run(test, args):
    """Why the test fails; nothing where it passes."""
    root = pathlib.Path(onnx.__file__).parent.parent
    path = root / test.url if test.url and "/light/" in test.url else pathlib.Path(test.model_dir) / "model.onnx"
    try:
        model = onnx.load(path)
        with tempfile.TemporaryDirectory() as folder:
            for feeds, wants in data_sets(test, path, model):
                given, out = os.path.join(folder, "in.npz"), os.path.join(folder, "out.npz")
                np.savez(given, **{k: v for name, value in feeds.items() for k, v in flattened(name, value).items()})
                command = [args.binary, "run", str(path), "--inputs", given, "--outputs", out, "--backend", args.backend]
                done = subprocess.run(command, capture_output=True, text=True, timeout=120)
                if done.returncode:
                    return f"exit code {done.returncode}: {' '.join(done.stderr.split())[:300]}"
                with np.load(out) as arrays:
                    for info, want in zip(model.graph.output, wants):
                        if want is not None:
                            compare(want, gathered(info.name, arrays, want), test.rtol, test.atol)
    except (AssertionError, subprocess.TimeoutExpired) as e:
        return " ".join(str(e).split())[:300] or "wrong"
    return ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--expected", required=True)
    parser.add_argument("--backend", default="interp")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="")
    parser.add_argument("--update", action="store_true")
    args = parser.parse_args()
    tests = [(kind, t) for kind in KINDS for t in load_model_tests(kind=kind) if args.only in t.name]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        outcomes = dict(zip([f"{k} {t.name}" for k, t in tests], pool.map(lambda t: run(t[1], args), tests)))
    failed = {name: why for name, why in outcomes.items() if why}
    path = pathlib.Path(args.expected)
    lines = path.read_text().splitlines() if path.exists() else []
    expected = {line for line in lines if line and not line.startswith("#")}
    if args.update:
        head = [line for line in lines if line.startswith("#")]
        path.write_text("\n".join(head + sorted(failed)) + "\n")
    new = {n: w for n, w in failed.items() if n not in expected}
    stale = [n for n in expected if n in outcomes and n not in failed]
    versions = list(unknown_versions())
    for line in versions:
        print(f"history.rs: {line}")
    for name, why in new.items():
        print(f"fails: {name}: {why}")
    for name in sorted(stale):
        print(f"passes, but is listed as failing: {name}")
    print(f"onnx ({args.backend}): {len(outcomes) - len(failed)} of {len(outcomes)} pass")
    sys.exit(0 if args.update or not (new or stale or versions) else 1)
