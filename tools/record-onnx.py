#!/usr/bin/env python3
"""Records what ONNX Runtime makes of operators beyond ONNX's own, tests/recorded/frontends/onnx.zip, and of forms that exporters give to
ONNX's own, tests/recorded/frontends/onnx-exported.zip: a folder for each case.

    record-onnx.py onnx.zip
    record-onnx.py onnx-exported.zip

Cases are small, and their inputs seeded. Needs numpy, onnx==1.22.0 and onnxruntime; `make test` needs neither: it reads the archive.
"""
import io, json, sys, zipfile, zlib

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto as T, helper, numpy_helper

MS, ML = "com.microsoft", "ai.onnx.ml"
CASES = {}


def case(name, op, inputs, outputs=("y",), domain=MS, constants=(), version=None, tolerance=None, open_dims=(), **attrs):
    """A model of one node. `inputs`: a name and an array each, an empty name for none; `constants` names those that are weights."""
    CASES[name] = dict(op=op, inputs=inputs, outputs=outputs, domain=domain, constants=constants, version=version or {MS: 1, ML: 3, "": 17}[domain], tolerance=tolerance, open_dims=open_dims, attrs=attrs)


def network(name, nodes, inputs, weights, outputs=("y",), open_dims=(), relay=None, tolerance=None):
    """A model of several nodes: (operator, inputs, outputs with tabs between, attributes) each, in the order that they are computed. `relay` is the same program
    in Relay, whose parameters are the weights."""
    CASES[name] = dict(op=name, nodes=nodes, inputs=[*inputs, *weights], outputs=outputs, domain="", constants=[k for k, _ in weights], tolerance=tolerance, open_dims=open_dims, relay=relay)


def at_opset(version, *names):
    """The version of ONNX's operators that cases import."""
    for name in names:
        CASES[name]["opset"] = version


def rng(name):
    return np.random.default_rng(zlib.crc32(name.encode()))


def model_of(c):
    elem = lambda a: helper.np_dtype_to_tensor_dtype(a.dtype)
    if "nodes" in c:
        nodes = [helper.make_node(op, list(ins), out.split("\t"), **attrs) for op, ins, out, attrs in c["nodes"]]
    else:
        nodes = [helper.make_node(c["op"], [k for k, _ in c["inputs"]], list(c["outputs"]), domain=c["domain"], **c["attrs"])]
    given = {k: np.asarray(v) for k, v in c["inputs"] if k}
    weights = [numpy_helper.from_array(v, k) for k, v in given.items() if k in c["constants"]]
    names = {key[:2]: key[2] if len(key) > 2 else None for key in c["open_dims"]}
    shape = lambda k, v: [names.get((k, i), d) for i, d in enumerate(v.shape)]
    ins = [helper.make_tensor_value_info(k, elem(v), shape(k, v)) for k, v in given.items() if k not in c["constants"]]
    outs = [onnx.ValueInfoProto(name=o) for o in c["outputs"] if o]
    graph = helper.make_graph(nodes, "case", ins, outs, weights)
    opsets = [helper.make_opsetid("", c.get("opset", 17))] + ([helper.make_opsetid(c["domain"], c["version"])] if c["domain"] else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def scalars(**kinds):
    """A scale and a zero point of quantized numbers: name=(scale, zero, dtype)."""
    return [x for k, (s, z, d) in kinds.items() for x in ((f"{k}_scale", np.float32(s)), (f"{k}_zero", np.array(z, d)))]


def quantized(r, shape, dtype):
    info = np.iinfo(dtype)
    return r.integers(info.min, info.max + 1, shape, dtype=dtype)


def microsoft():
    r = rng("microsoft")
    f = lambda *s: r.normal(0, 1, s).astype("f4")
    x, v8 = f(2, 3, 8), f(8)
    case("gelu", "Gelu", [("x", x)])
    case("quick_gelu", "QuickGelu", [("x", x)], alpha=1.5)
    case("bias_gelu", "BiasGelu", [("x", x), ("b", v8)])
    case("fast_gelu", "FastGelu", [("x", x)])
    case("fast_gelu_bias", "FastGelu", [("x", x), ("b", v8)])
    case("skip_layer_norm", "SkipLayerNormalization", [("x", x), ("skip", f(2, 3, 8)), ("g", v8), ("beta", f(8)), ("bias", f(8))], ("y", "", "", "sum"), epsilon=1e-5)
    case("skip_layer_norm_plain", "SkipLayerNormalization", [("x", x), ("skip", f(3, 8)), ("g", v8)])
    case("skip_simplified_layer_norm", "SkipSimplifiedLayerNormalization", [("x", x), ("skip", f(2, 3, 8)), ("g", v8), ("bias", f(8))], ("y", "", "", "sum"), epsilon=1e-5)
    case("simplified_layer_norm", "SimplifiedLayerNormalization", [("x", x), ("g", v8)], domain="", epsilon=1e-5, axis=-1)
    ids, seg = r.integers(0, 10, (2, 5)).astype("i4"), r.integers(0, 2, (2, 5)).astype("i4")
    words, pos, segs = f(10, 8), f(6, 8), f(2, 8)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], "i4")
    case("embed_layer_norm", "EmbedLayerNormalization", [("ids", ids), ("seg", seg), ("w", words), ("p", pos), ("s", segs), ("g", v8), ("b", f(8)), ("mask", mask)], ("y", "count"))
    case("embed_layer_norm_places", "EmbedLayerNormalization", [("ids", ids), ("", None), ("w", words), ("p", pos), ("", None), ("g", v8), ("b", f(8)), ("", None), ("places", r.integers(0, 6, (2, 5)).astype("i4"))], ("y", "count"))
    case("fused_matmul", "FusedMatMul", [("a", f(2, 4, 3)), ("b", f(2, 5, 4))], transA=1, transB=1, alpha=0.5)
    case("fused_matmul_batch", "FusedMatMul", [("a", f(3, 2, 4)), ("b", f(4, 2, 5))], transBatchA=1, transBatchB=1)
    case("fused_gemm", "FusedGemm", [("a", f(3, 4)), ("b", f(5, 4)), ("c", f(5))], transB=1, alpha=0.7, beta=0.3, activation="LeakyRelu", activation_alpha=0.2)
    img, w = f(1, 4, 6, 6), f(3, 4, 3, 3)
    for name, act, params in [("relu", "Relu", []), ("clip", "Clip", [-0.5, 0.5]), ("leaky", "LeakyRelu", [0.1]), ("hard_sigmoid", "HardSigmoid", [0.3, 0.4]), ("tanh", "Tanh", [])]:
        case(f"fused_conv_{name}", "FusedConv", [("x", img), ("w", w), ("b", f(3))], activation=act, pads=[1, 1, 1, 1], **(dict(activation_params=params) if params else {}))
    case("fused_conv_sum", "FusedConv", [("x", img), ("w", w), ("b", f(3)), ("z", f(1, 3, 4, 4))], activation="Relu")
    for bits, block, k in [(4, 16, 32), (4, 16, 40), (8, 16, 32)]:
        n, blocks = 6, -(-k // block)
        q = r.integers(0, 256, (n, blocks, block * bits // 8)).astype("u1")
        s = (f(n * blocks) * 0.1).astype("f4")
        z = r.integers(0, 256, (n * -(-blocks * bits // 8),)).astype("u1")
        case(f"matmul_nbits_{bits}_{k}", "MatMulNBits", [("x", f(2, 3, k)), ("w", q), ("s", s)], constants=("w", "s"), K=k, N=n, bits=bits, block_size=block, tolerance=2e-3)
        case(f"matmul_nbits_zero_{bits}_{k}", "MatMulNBits", [("x", f(2, 3, k)), ("w", q), ("s", s), ("z", z)], constants=("w", "s", "z"), K=k, N=n, bits=bits, block_size=block, tolerance=2e-3)

    # Attention
    heads, size = 2, 4
    hidden = heads * size
    x, w3, b3 = f(2, 3, 6), f(6, 3 * hidden), f(3 * hidden)
    att = lambda name, extra=(), outs=("y",), **k: case(name, "Attention", [("x", x), ("w", w3), ("b", b3), *extra], outs, num_heads=heads, **k)
    att("attention")
    att("attention_causal", unidirectional=1)
    att("attention_lengths", [("m", np.array([2, 3], "i4"))])
    att("attention_ends_starts", [("m", np.array([3, 2, 1, 0], "i4"))])
    att("attention_key_mask", [("m", np.array([[1, 1, 0], [1, 1, 1]], "i4"))])
    att("attention_mask_3d", [("m", r.integers(0, 2, (2, 3, 3)).astype("i4") | np.eye(3, dtype="i4"))])
    att("attention_past", [("", None), ("past", f(2, 2, heads, 5, size))], ("y", "present"), unidirectional=1)
    att("attention_bias", [("", None), ("", None), ("add", f(2, heads, 3, 3))], scale=0.3)
    case("attention_sizes", "Attention", [("x", x), ("w", f(6, 2 * hidden + 12)), ("b", f(2 * hidden + 12))], num_heads=heads, qkv_hidden_sizes=[hidden, hidden, 12])
    xq, wq = quantized(r, (2, 3, 6), "u1"), quantized(r, (6, 3 * hidden), "i1")
    case("qattention", "QAttention", [("x", xq), ("w", wq), ("b", b3), ("sx", np.float32(0.02)), ("sw", np.float32(0.01)), ("m", np.array([2, 3], "i4")), ("zx", np.array(120, "u1")), ("zw", np.array(3, "i1"))], constants=("w", "zx", "zw", "sx", "sw"), num_heads=heads)
    q, k, v = f(2, 3, hidden), f(2, 5, hidden), f(2, 5, hidden)
    mha = lambda name, ins, outs=("y",), **a: case(name, "MultiHeadAttention", ins, outs, num_heads=heads, **a)
    mha("mha", [("q", q), ("k", k), ("v", v)])
    mha("mha_bias", [("q", q), ("k", k), ("v", v), ("b", b3)])
    mha("mha_lengths_mask", [("q", q), ("k", k), ("v", v), ("", None), ("m", np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "i4"))])
    mha("mha_added", [("q", q), ("k", k), ("v", v), ("", None), ("", None), ("add", f(1, heads, 3, 5))], scale=0.4)
    mha("mha_past", [("q", q), ("k", f(2, 3, hidden)), ("v", f(2, 3, hidden)), ("", None), ("", None), ("", None), ("pk", f(2, heads, 4, size)), ("pv", f(2, heads, 4, size))], ("y", "pk2", "pv2"), unidirectional=1)
    mha("mha_of_encoder", [("q", q), ("k", f(2, heads, 5, size)), ("v", f(2, heads, 5, size))])
    mha("mha_open", [("q", q), ("k", k), ("v", v)], open_dims=(("q", 0), ("q", 1), ("k", 0), ("k", 1), ("v", 0), ("v", 1)))

    # Decoders
    kv, size = 2, 16
    nh = 4
    cos, sin = (t.astype("f4") for t in (np.cos(np.outer(np.arange(16), 1 / 10 ** (np.arange(8) / 8))), np.sin(np.outer(np.arange(16), 1 / 10 ** (np.arange(8) / 8)))))
    for inter in (0, 1):
        case(f"rotary_{inter}", "RotaryEmbedding", [("x", f(2, 3, nh * size)), ("p", np.array([[0, 1, 2], [4, 5, 6]], "i8")), ("c", cos), ("s", sin)], interleaved=inter)
        case(f"rotary_4d_{inter}", "RotaryEmbedding", [("x", f(2, nh, 3, size)), ("p", np.array([3], "i8")), ("c", cos), ("s", sin)], interleaved=inter)
    case("rotary_part", "RotaryEmbedding", [("x", f(2, 3, nh * 20)), ("p", np.array([[0, 1, 2], [4, 5, 6]], "i8")), ("c", cos), ("s", sin)], num_heads=nh, rotary_embedding_dim=16)
    def gqa(name, batch, seq, past, last, total, extra=(), outs=("y", "pk2", "pv2"), packed=False, rotary=False, tail=(), **a):
        qkv = [("q", f(batch, seq, (nh + 2 * kv) * size)), ("", None), ("", None)] if packed else [("q", f(batch, seq, nh * size)), ("k", f(batch, seq, kv * size)), ("v", f(batch, seq, kv * size))]
        # The cache holds what the rows have, zeros beyond.
        cache = [f(batch, kv, past, size), f(batch, kv, past, size)]
        for b, at in enumerate(last):
            for c in cache:
                c[b, :, at + 1 - seq :] = 0
        ins = qkv + [("pk", cache[0]), ("pv", cache[1]), ("last", np.array(last, "i4")), ("total", np.array(total, "i4"))]
        if rotary:
            ins += [("c", cos), ("s", sin)]
        case(name, "GroupQueryAttention", ins + list(tail), outs, num_heads=nh, kv_num_heads=kv, **({"do_rotary": 1} if rotary else {}), **a)
    gqa("gqa_prompt", 1, 4, 0, [3], 4)
    gqa("gqa_token", 2, 1, 5, [5, 5], 6)
    gqa("gqa_token_rotary", 2, 1, 5, [5, 5], 6, rotary=True)
    gqa("gqa_token_rotary_interleaved", 1, 1, 5, [5], 6, rotary=True, rotary_interleaved=1)
    gqa("gqa_packed", 1, 1, 5, [5], 6, packed=True, rotary=True)
    gqa("gqa_lengths_differ", 2, 1, 6, [4, 6], 7)
    gqa("gqa_window", 1, 1, 9, [9], 10, local_window_size=4)
    gqa("gqa_prompt_window", 1, 6, 0, [5], 6, local_window_size=3, rotary=True)
    gqa("gqa_softcap", 1, 1, 5, [5], 6, softcap=2.0, scale=0.7)
    gqa("gqa_smooth", 1, 1, 5, [5], 6, smooth_softmax=1)
    gqa("gqa_several_new", 1, 3, 5, [7], 8, rotary=True)

    # Quantized numbers
    for d in ("u1", "i1"):
        z = 120 if d == "u1" else 5
        a, b = quantized(r, (2, 3, 4, 5), d), quantized(r, (4, 5), d)
        A, B, C = dict(a=(0.02, z, d)), dict(b=(0.05, z + 2, d)), dict(c=(0.04, z - 3, d))
        two = lambda x, y: [("a", x), *scalars(**A), ("b", y), *scalars(**B), *scalars(**C)]
        case(f"qlinear_add_{d}", "QLinearAdd", two(a, b))
        case(f"qlinear_mul_{d}", "QLinearMul", two(a, b))
        one = lambda x, c=C: [("a", x), *scalars(**A), *scalars(**c)]
        case(f"qlinear_sigmoid_{d}", "QLinearSigmoid", one(a, dict(c=(1 / 256, 0 if d == "u1" else -128, d))), constants=("a_scale", "a_zero", "c_scale", "c_zero"))
        case(f"qlinear_leaky_relu_{d}", "QLinearLeakyRelu", one(a), constants=("a_scale", "a_zero", "c_scale", "c_zero"), alpha=0.1)
        case(f"qlinear_global_average_pool_{d}", "QLinearGlobalAveragePool", one(a), channels_last=0)
        case(f"qlinear_global_average_pool_last_{d}", "QLinearGlobalAveragePool", one(a), channels_last=1)
        case(f"qlinear_average_pool_{d}", "QLinearAveragePool", one(quantized(r, (1, 3, 6, 6), d)), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
        case(f"qlinear_average_pool_last_{d}", "QLinearAveragePool", one(quantized(r, (1, 6, 6, 3), d)), kernel_shape=[2, 2], channels_last=1)
        case(f"qlinear_softmax_{d}", "QLinearSoftmax", one(quantized(r, (3, 8), d), dict(c=(1 / 256, 0 if d == "u1" else -128, d))), axis=-1, opset=13)
        case(f"qlinear_concat_{d}", "QLinearConcat", [*scalars(**C), ("a", a), *scalars(**A), ("b", quantized(r, (2, 3, 4, 5), d)), *scalars(**B)], constants=("c_scale", "c_zero", "a_scale", "a_zero", "b_scale", "b_zero"), axis=1)
        case(f"qlinear_where_{d}", "QLinearWhere", [("m", r.integers(0, 2, (4, 5)).astype(bool)), ("a", quantized(r, (4, 5), d)), *scalars(**A), ("b", b), *scalars(**B), *scalars(**C)], constants=("a_scale", "a_zero", "b_scale", "b_zero", "c_scale", "c_zero"))
    xq, wq = quantized(r, (1, 6, 6, 4), "u1"), quantized(r, (3, 4, 3, 3), "i1")
    case("qlinear_conv_last", "QLinearConv", [("x", xq), *scalars(x=(0.02, 128, "u1")), ("w", wq), *scalars(w=(0.01, 0, "i1")), *scalars(y=(0.1, 100, "u1")), ("b", r.integers(-99, 99, 3).astype("i4"))], constants=("w", "w_scale", "w_zero", "x_scale", "x_zero", "y_scale", "y_zero", "b"), channels_last=1, pads=[1, 1, 1, 1])
    aq, bq = quantized(r, (3, 4), "u1"), quantized(r, (5, 4), "i1")
    gemm = [("a", aq), *scalars(a=(0.02, 128, "u1")), ("b", bq), *scalars(b=(0.01, 0, "i1")), ("c", r.integers(-99, 99, 5).astype("i4"))]
    case("qgemm_float", "QGemm", gemm, transB=1, alpha=1.0)
    case("qgemm", "QGemm", gemm + scalars(y=(0.05, 120, "u1")), transB=1, alpha=1.0)
    bq = quantized(r, (4, 5), "i1")
    case("matmul_integer_to_float", "MatMulIntegerToFloat", [("a", aq), ("b", bq), ("sa", np.float32(0.02)), ("sb", np.float32(0.03)), ("za", np.array(128, "u1")), ("zb", np.array(3, "i1")), ("bias", f(5))], constants=("b", "sb", "zb", "bias"))
    case("matmul_integer_to_float_columns", "MatMulIntegerToFloat", [("a", aq), ("b", bq), ("sa", np.float32(0.02)), ("sb", np.abs(f(5)) * np.float32(0.1)), ("za", np.array(128, "u1")), ("zb", np.zeros(5, "i1"))], constants=("b", "sb", "zb"))
    for name, directions, batch, dtype, by_channel in [("lstm", 1, 3, "i1", False), ("lstm_both_ways", 2, 1, "u1", False), ("lstm_by_channel", 2, 2, "i1", True)]:
        own = rng(name)
        steps, width, hidden = 5, 6, 8
        low, high = (-128, 128) if dtype == "i1" else (0, 256)
        matrix = lambda rows: own.integers(low, high, (directions, rows, 4 * hidden)).astype(dtype)
        shape = (directions, 4 * hidden) if by_channel else (directions,)
        scale = lambda: own.uniform(0.005, 0.015, shape).astype("f4")
        zero = np.full(shape, 0 if dtype == "i1" else 124, dtype)
        bias = own.standard_normal((directions, 8 * hidden)).astype("f4")
        weights = [("w", matrix(width)), ("r", matrix(hidden)), ("b", bias), ("", None), ("", None), ("", None), ("", None), ("sw", scale()), ("zw", zero), ("sr", scale()), ("zr", zero)]
        x = own.standard_normal((steps, batch, width)).astype("f4")
        direction = "bidirectional" if directions == 2 else "forward"
        case(f"dynamic_quantize_{name}", "DynamicQuantizeLSTM", [("x", x), *weights], outputs=("y", "h", "c"), constants=("w", "r", "b", "sw", "zw", "sr", "zr"), tolerance=1e-2, hidden_size=hidden, direction=direction)
    case("dynamic_quantize_matmul", "DynamicQuantizeMatMul", [("a", f(2, 3, 4)), ("b", bq), ("sb", np.float32(0.03)), ("zb", np.array(3, "i1")), ("bias", f(5))], constants=("b", "sb", "zb", "bias"), tolerance=2e-2)
    case("matmul_integer16", "MatMulInteger16", [("a", quantized(r, (3, 4), "i2")), ("b", quantized(r, (4, 5), "i2"))])
    case("quantize_linear_16", "QuantizeLinear", [("x", f(3, 4)), ("s", np.float32(0.001)), ("z", np.array(7, "i2"))])
    case("dequantize_linear_16", "DequantizeLinear", [("x", quantized(r, (3, 4), "u2")), ("s", np.float32(0.001)), ("z", np.array(7, "u2"))])


def trees(r, count, depth, features, outputs, prefix, mode="BRANCH_LEQ", leaf_ids=None, positive=False, missing=False):
    """Random trees as lists of nodes."""
    n = {k: [] for k in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids", "missing_value_tracks_true")}
    w = {k: [] for k in ("treeids", "nodeids", "ids", "weights")}
    for t in range(count):
        stack, nextid = [(0, 0)], 1
        while stack:
            i, level = stack.pop(0)
            leaf = level == depth or (level > 1 and r.random() < 0.25)
            n["treeids"].append(t), n["nodeids"].append(i)
            n["featureids"].append(0 if leaf else int(r.integers(features)))
            n["values"].append(0.0 if leaf else float(np.float32(r.normal())))
            kind = mode if isinstance(mode, str) else mode[int(r.integers(len(mode)))]
            n["modes"].append("LEAF" if leaf else kind)
            n["missing_value_tracks_true"].append(int(missing and not leaf and r.random() < 0.5))
            n["truenodeids"].append(0 if leaf else nextid), n["falsenodeids"].append(0 if leaf else nextid + 1)
            if leaf:
                for o in leaf_ids or range(outputs):
                    w["treeids"].append(t), w["nodeids"].append(i), w["ids"].append(o)
                    v = float(np.float32(r.normal()))
                    w["weights"].append(abs(v) / count if positive else v)
            else:
                stack += [(nextid, level + 1), (nextid + 1, level + 1)]
                nextid += 2
    return {f"nodes_{k}": v for k, v in n.items()} | {f"{prefix}_{k}": v for k, v in w.items()}


def classical():
    r = rng("classical")
    f = lambda *s: r.normal(0, 1, s).astype("f4")
    ml = lambda name, op, ins, outs=("y",), **k: case(name, op, ins, outs, domain=ML, **k)
    x = f(7, 5)
    for agg in ("SUM", "AVERAGE", "MIN", "MAX"):
        ml(f"tree_regressor_{agg.lower()}", "TreeEnsembleRegressor", [("x", x)], n_targets=1, aggregate_function=agg, **trees(r, 4, 3, 5, 1, "target"))
    ml("tree_regressor_targets", "TreeEnsembleRegressor", [("x", x)], n_targets=3, base_values=[0.5, -1.0, 2.0], **trees(r, 3, 4, 5, 3, "target"))
    ml("tree_regressor_modes", "TreeEnsembleRegressor", [("x", x)], n_targets=1, **trees(r, 5, 4, 5, 1, "target", mode=["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GT", "BRANCH_GTE", "BRANCH_EQ", "BRANCH_NEQ"]))
    nan = x.copy()
    nan[::2, ::2] = np.nan
    ml("tree_regressor_missing", "TreeEnsembleRegressor", [("x", nan)], n_targets=1, **trees(r, 5, 4, 5, 1, "target", missing=True))
    ml("tree_regressor_open", "TreeEnsembleRegressor", [("x", x)], n_targets=1, open_dims=(("x", 0),), **trees(r, 5, 4, 5, 1, "target"))
    ml("tree_regressor_double", "TreeEnsembleRegressor", [("x", x.astype("f8"))], n_targets=1, **trees(r, 4, 3, 5, 1, "target"))
    ml("tree_regressor_probit", "TreeEnsembleRegressor", [("x", x)], n_targets=1, post_transform="PROBIT", **trees(r, 1, 2, 5, 1, "target", positive=True))
    for t in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):
        ml(f"tree_classifier_{t.lower()}", "TreeEnsembleClassifier", [("x", x)], ("l", "y"), classlabels_int64s=[3, 1, 7], post_transform=t, **trees(r, 4, 3, 5, 3, "class"))
    for t in ("NONE", "LOGISTIC"):
        ml(f"tree_classifier_binary_{t.lower()}", "TreeEnsembleClassifier", [("x", x)], ("l", "y"), classlabels_int64s=[4, 9], post_transform=t, **trees(r, 4, 3, 5, 1, "class"))
        ml(f"tree_classifier_binary_base_{t.lower()}", "TreeEnsembleClassifier", [("x", x)], ("l", "y"), classlabels_int64s=[4, 9], post_transform=t, base_values=[0.25], **trees(r, 4, 3, 5, 1, "class"))
        ml(f"tree_classifier_binary_positive_{t.lower()}", "TreeEnsembleClassifier", [("x", x)], ("l", "y"), classlabels_int64s=[4, 9], post_transform=t, **trees(r, 4, 3, 5, 2, "class", positive=True, leaf_ids=[1]))
    for t in ("NONE", "LOGISTIC"):
        ml(f"tree_classifier_binary_probability_{t.lower()}", "TreeEnsembleClassifier", [("x", x)], ("l", "y"), classlabels_int64s=[4, 9], post_transform=t, **trees(r, 4, 3, 5, 2, "class", positive=True, leaf_ids=[0]))
    for t in ("NONE", "SOFTMAX", "LOGISTIC"):
        ml(f"linear_classifier_{t.lower()}", "LinearClassifier", [("x", x)], ("l", "y"), coefficients=f(15).tolist(), intercepts=f(3).tolist(), classlabels_ints=[5, 2, 8], post_transform=t, multi_class=1)
    for t in ("NONE", "LOGISTIC", "SOFTMAX"):
        ml(f"linear_classifier_binary_{t.lower()}", "LinearClassifier", [("x", x)], ("l", "y"), coefficients=f(5).tolist(), intercepts=f(1).tolist(), classlabels_ints=[5, 2], post_transform=t)
        ml(f"linear_classifier_two_{t.lower()}", "LinearClassifier", [("x", x)], ("l", "y"), coefficients=f(10).tolist(), intercepts=f(2).tolist(), classlabels_ints=[5, 2], post_transform=t)
    ml("linear_regressor", "LinearRegressor", [("x", x)], coefficients=f(10).tolist(), intercepts=f(2).tolist(), targets=2, version=1)
    for k, params in [("LINEAR", [0.0, 0.0, 0.0]), ("POLY", [0.5, 1.0, 3.0]), ("RBF", [0.3, 0.0, 0.0]), ("SIGMOID", [0.2, 0.1, 0.0])]:
        ml(f"svm_regressor_{k.lower()}", "SVMRegressor", [("x", x)], kernel_type=k, kernel_params=params, n_supports=4, support_vectors=f(20).tolist(), coefficients=f(4).tolist(), rho=[0.4], version=1)
        ml(f"svm_classifier_{k.lower()}", "SVMClassifier", [("x", x)], ("l", "y"), kernel_type=k, kernel_params=params, vectors_per_class=[2, 1, 2], support_vectors=f(25).tolist(), coefficients=f(10).tolist(), rho=f(3).tolist(), classlabels_ints=[3, 6, 9], version=1)
    ml("svm_regressor_one_class", "SVMRegressor", [("x", x)], kernel_type="RBF", kernel_params=[0.3, 0.0, 0.0], n_supports=4, support_vectors=f(20).tolist(), coefficients=f(4).tolist(), rho=[0.1], one_class=1, version=1)
    ml("scaler", "Scaler", [("x", x)], offset=f(5).tolist(), scale=f(5).tolist(), version=1)
    ml("scaler_one", "Scaler", [("x", r.integers(-9, 9, (3, 5)))], offset=[0.5], scale=[2.0], version=1)
    for norm in ("MAX", "L1", "L2"):
        ml(f"normalizer_{norm.lower()}", "Normalizer", [("x", np.abs(f(4, 5)))], norm=norm, version=1)
    ml("label_encoder_ints", "LabelEncoder", [("x", r.integers(0, 6, (3, 4)))], keys_int64s=[1, 3, 5], values_floats=[0.5, 1.5, 2.5], default_float=-7.0)
    ml("label_encoder_floats", "LabelEncoder", [("x", np.array([1.0, np.nan, 2.0, 4.0], "f4"))], keys_floats=[1.0, float("nan"), 2.0], values_int64s=[10, 20, 30], default_int64=-1)
    ml("one_hot_encoder", "OneHotEncoder", [("x", r.integers(0, 6, (3, 2)))], cats_int64s=[1, 3, 5], zeros=1, version=1)
    ml("imputer", "Imputer", [("x", nan)], imputed_value_floats=[1.0, 2.0, 3.0, 4.0, 5.0], replaced_value_float=float("nan"), version=1)
    ml("imputer_ints", "Imputer", [("x", r.integers(0, 3, (4, 2)))], imputed_value_int64s=[9], replaced_value_int64=1, version=1)
    ml("feature_vectorizer", "FeatureVectorizer", [("a", f(3, 2)), ("b", f(3, 1))], inputdimensions=[2, 1], version=1)
    ml("array_feature_extractor", "ArrayFeatureExtractor", [("x", f(3, 5)), ("p", np.array([4, 0, 2], "i8"))], version=1)
    ml("binarizer", "Binarizer", [("x", f(3, 5))], threshold=0.3, version=1)


class Net:
    """Nodes that are written one after another; a number of nodes makes names."""

    def __init__(self, r):
        self.nodes, self.weights, self.r = [], [], r

    def w(self, *shape, values=None):
        name = f"w{len(self.weights)}"
        self.weights.append((name, np.asarray(values) if values is not None else (self.r.normal(0, 1, shape) / 4).astype("f4")))
        return name

    def op(self, op, *ins, out=None, **attrs):
        out = out or f"t{len(self.nodes)}"
        self.nodes.append((op, ins, out, attrs))
        return out


def networks():
    r = rng("named")
    net = Net(r)
    net.op("MatMul", net.op("Add", "a", "b"), net.w(3, 2), out="y")
    ins = [("a", r.normal(0, 1, (4, 3)).astype("f4")), ("b", r.normal(0, 1, (4, 3)).astype("f4"))]
    network("named_dimensions", net.nodes, ins, net.weights, open_dims=(("a", 0, "batch"), ("b", 0, "batch")))

    # A block of a transformer as exporters take it apart.
    r = rng("block")
    net = Net(r)
    f4 = lambda v: net.w(values=np.array(v, "f4"))
    ints = lambda *v: net.w(values=np.array(v, "i8"))

    def layer_norm(x):
        d = net.op("Sub", x, net.op("ReduceMean", x, axes=[-1]))
        v = net.op("ReduceMean", net.op("Pow", d, f4(2.0)), axes=[-1])
        n = net.op("Div", d, net.op("Sqrt", net.op("Add", v, f4(1e-5))))
        return net.op("Add", net.op("Mul", n, net.w(32)), net.w(32))

    def heads(x, perm):
        return net.op("Transpose", net.op("Reshape", net.op("Add", net.op("MatMul", x, net.w(32, 32)), net.w(32)), ints(1, 6, 4, 8)), perm=perm)

    n = layer_norm("x")
    q, k, v = heads(n, [0, 2, 1, 3]), heads(n, [0, 2, 3, 1]), heads(n, [0, 2, 1, 3])
    p = net.op("Softmax", net.op("Div", net.op("MatMul", q, k), f4(8**0.5)), axis=-1)
    a = net.op("Reshape", net.op("Transpose", net.op("MatMul", p, v), perm=[0, 2, 1, 3]), ints(1, 6, 32))
    x = net.op("Add", "x", net.op("MatMul", a, net.w(32, 32)))
    h = net.op("Add", net.op("MatMul", layer_norm(x), net.w(32, 64)), net.w(64))
    g = net.op("Mul", net.op("Mul", h, net.op("Add", net.op("Erf", net.op("Div", h, f4(2**0.5))), f4(1.0))), f4(0.5))
    net.op("Add", x, net.op("MatMul", g, net.w(64, 32)), out="y")
    network("exported_block", net.nodes, [("x", r.normal(0, 1, (1, 6, 32)).astype("f4"))], net.weights)

    # A convolutional network, and the same in Relay.
    net = Net(rng("convolutional"))
    c1 = net.op("Conv", "x", net.w(16, 3, 3, 3), net.w(16), pads=[1, 1, 1, 1], kernel_shape=[3, 3])
    bn = net.op("BatchNormalization", c1, net.w(16), net.w(16), net.w(16), net.w(values=np.abs(net.r.normal(1, 0.1, 16)).astype("f4")))
    c2 = net.op("Conv", net.op("MaxPool", net.op("Relu", bn), kernel_shape=[2, 2], strides=[2, 2]), net.w(16, 16, 3, 3), net.w(16), pads=[1, 1, 1, 1])
    flat = net.op("Flatten", net.op("GlobalAveragePool", net.op("Relu", c2)))
    net.op("Gemm", flat, net.w(10, 16), net.w(10), out="y", transB=1)
    types = ", ".join(f"%{k}: Tensor[({', '.join(map(str, v.shape))}), float32]" for k, v in [("x", np.zeros((1, 3, 16, 16))), *net.weights])
    relay = f"""#[version = "0.0.5"]
def @main({types}) {{
  %0 = nn.conv2d(%x, %w0, padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3]);
  %1 = nn.bias_add(%0, %w1);
  %2 = nn.batch_norm(%1, %w2, %w3, %w4, %w5, epsilon=1e-05f);
  %3 = nn.relu(%2.0);
  %4 = nn.max_pool2d(%3, pool_size=[2, 2], strides=[2, 2], padding=[0, 0, 0, 0]);
  %5 = nn.conv2d(%4, %w6, padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3]);
  %6 = nn.bias_add(%5, %w7);
  %7 = nn.relu(%6);
  %8 = nn.global_avg_pool2d(%7);
  %9 = nn.batch_flatten(%8);
  %10 = nn.dense(%9, %w8, units=10);
  add(%10, %w9)
}}
"""
    network("convolutional", net.nodes, [("x", net.r.normal(0, 1, (1, 3, 16, 16)).astype("f4"))], net.weights, relay=relay)


def qdq():
    """Two convolutions between QuantizeLinear and DequantizeLinear, as ONNX Runtime's quantizer writes them: weights by channel, biases of 32 bits."""
    r = rng("qdq")
    scale = lambda k, s, z, d: [(f"{k}s", np.float32(s)), (f"{k}z", np.array(z, d))]
    both = lambda x, k: [("QuantizeLinear", [x, f"{k}s", f"{k}z"], f"{k}q", {}), ("DequantizeLinear", [f"{k}q", f"{k}s", f"{k}z"], f"{k}d", {})]
    weights = [*scale("x", 0.02, 128, "u1"), *scale("h", 0.03, 0, "u1"), *scale("y", 0.05, 120, "u1")]
    nodes = both("x", "x")
    for k, x, ci, co, size, next_, act in [("a", "xd", 3, 16, 3, "h", "Relu"), ("b", "hd", 16, 8, 1, "y", None)]:
        per = r.uniform(0.004, 0.008, co).astype("f4")
        weights += [(f"{k}w", quantized(r, (co, ci, size, size), "i1")), (f"{k}ws", per), (f"{k}wz", np.zeros(co, "i1"))]
        weights += [(f"{k}b", r.integers(-2000, 2000, co, dtype="i4")), (f"{k}bs", per * np.float32(0.02 if k == "a" else 0.03)), (f"{k}bz", np.zeros(co, "i4"))]
        nodes += [("DequantizeLinear", [f"{k}w", f"{k}ws", f"{k}wz"], f"{k}wd", dict(axis=0)), ("DequantizeLinear", [f"{k}b", f"{k}bs", f"{k}bz"], f"{k}bd", dict(axis=0))]
        nodes += [("Conv", [x, f"{k}wd", f"{k}bd"], f"{k}c", dict(pads=[size // 2] * 4))] + ([(act, [f"{k}c"], f"{k}r", {})] if act else [])
        nodes += both(f"{k}r" if act else f"{k}c", next_)
    nodes.append(("Identity", ["yd"], "y", {}))
    network("qdq", nodes, [("x", r.normal(0, 1, (1, 3, 8, 8)).astype("f4"))], weights, tolerance=0.02)


def resizes():
    """Resizes of one axis of an image, where the other's extent stays unknown and is kept."""
    x = rng("resizes").normal(0, 1, (1, 2, 5, 6)).astype("f4")
    for mode in ("linear", "nearest"):
        nodes = [("Resize", ["x", "", "s"], "y", dict(mode=mode))]
        network(f"resize_columns_{mode}", nodes, [("x", x)], [("s", np.array([1, 1, 1, 2], "f4"))], open_dims=(("x", 2, "height"),))
        network(f"resize_open_{mode}", nodes, [("x", x)], [("s", np.array([1, 1, 2, 1.5], "f4"))], open_dims=(("x", 2, "height"), ("x", 3, "width")))


def windows():
    """Windows over images of unknown extents, whose padding depends on these, or of which `ceil_mode` takes those that begin within the image."""
    r = rng("windows")
    w = ("w", r.normal(0, 1, (3, 2, 3, 3)).astype("f4"))
    kinds = {
        "conv": ("Conv", [w], {}),
        "max": ("MaxPool", [], dict(kernel_shape=[3, 2])),
        "mean": ("AveragePool", [], dict(kernel_shape=[3, 2])),
        "mean_padded": ("AveragePool", [], dict(kernel_shape=[3, 2], count_include_pad=1)),
        "norm": ("LpPool", [], dict(kernel_shape=[3, 2])),
    }
    places = {
        "upper": dict(auto_pad="SAME_UPPER", strides=[2, 2]),
        "lower": dict(auto_pad="SAME_LOWER", strides=[3, 2]),
        "ceil": dict(ceil_mode=1, strides=[2, 2], pads=[1, 0, 0, 0]),
    }
    for kind, (op, weights, attrs) in kinds.items():
        for place, more in places.items():
            if place == "ceil" and op in ("Conv", "LpPool"):
                continue
            for n, (h, v) in enumerate([(6, 7), (7, 6)]):
                x = r.normal(0, 1, (2, 2, h, v)).astype("f4")
                nodes = [(op, ["x"] + [k for k, _ in weights], "y", {**attrs, **more})]
                network(f"windows_{kind}_{place}_{n}", nodes, [("x", x)], weights, open_dims=(("x", 0, "n"), ("x", 2, "h"), ("x", 3, "w")))


def exported():
    r = rng("exported")
    f = lambda *s: r.normal(0, 1, s).astype("f4")
    info = helper.make_tensor_value_info

    # Recurrent layers over sequences whose length the model leaves open, and batches as well.
    hidden, width = 4, 3
    for op, gates, states in [("LSTM", 4, ("y", "h", "c")), ("GRU", 3, ("y", "h")), ("RNN", 1, ("y", "h"))]:
        for kind, d, open_dims, extra, attrs in [
            ("steps", 1, [("x", 0)], [], {}),
            ("both", 2, [("x", 0), ("x", 1)], [], dict(direction="bidirectional")),
            ("back", 1, [("x", 0), ("x", 1)], [("lengths", np.array([4, 2], "i4"))], dict(direction="reverse")),
            ("long", 1, [], [], {}),
        ]:
            steps = 300 if kind == "long" else 5
            inputs = [("x", f(steps, 2, width)), ("w", f(d, gates * hidden, width)), ("r", f(d, gates * hidden, hidden) * 0.5), ("b", f(d, 2 * gates * hidden)), *extra]
            case(f"{op.lower()}_{kind}", op, inputs, states, domain="", constants=("w", "r", "b"), open_dims=open_dims, hidden_size=hidden, tolerance=1e-3, **attrs)
    # A scan over an open length, backwards in part, whose body reads from outside.
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "a"], ["t"]), helper.make_node("Mul", ["t", "outside"], ["u"]), helper.make_node("Add", ["u", "b"], ["o"]), helper.make_node("Identity", ["t"], ["next"])],
        "body", [info("s", T.FLOAT, [3]), info("a", T.FLOAT, [3]), info("b", T.FLOAT, [3])], [info("next", T.FLOAT, [3]), info("o", T.FLOAT, [3])])
    network("scan_open", [("Relu", ["scale"], "outside", {}), ("Scan", ["s0", "xs", "zs"], "last\tall", dict(body=body, num_scan_inputs=2, scan_input_axes=[0, 1], scan_input_directions=[0, 1], scan_output_axes=[1], scan_output_directions=[1]))], [("scale", f(3)), ("s0", f(3)), ("xs", f(5, 3)), ("zs", f(3, 5))], [], outputs=("last", "all"), open_dims=(("xs", 0), ("zs", 1)))
    # Nodes that come before what they read.
    network("disordered", [("Add", ["t", "x"], "y", {}), ("Relu", ["s"], "t", {}), ("Neg", ["x"], "s", {})], [("x", f(2, 3))], [])

    # An image of open extents, upsampled.
    case("upsample_open", "Upsample", [("x", f(1, 2, 3, 4)), ("s", np.array([1, 1, 2, 3], "f4"))], domain="", constants=("s",), open_dims=(("x", 2), ("x", 3)), mode="nearest")
    at_opset(9, "upsample_open")

    # Operators that ONNX had on trial, in the version of that time.
    x = f(1, 3, 6, 7)
    for name, op, inputs, attrs in [
        ("trial_affine", "Affine", [("x", x)], dict(alpha=0.5, beta=2.0)),
        ("trial_crop", "Crop", [("x", x)], dict(border=[1, 2, 2, 1])),
        ("trial_crop_size", "Crop", [("x", x)], dict(border=[1, 2, 0, 0], scale=[3, 4])),
        ("trial_slice", "DynamicSlice", [("x", x), ("s", np.array([1, -3], "i8")), ("e", np.array([3, 100], "i8")), ("a", np.array([2, 3], "i8"))], {}),
        ("trial_image_scaler", "ImageScaler", [("x", x)], dict(scale=0.25, bias=[0.5, -1.0, 2.0])),
        ("trial_softplus", "ParametricSoftplus", [("x", x)], dict(alpha=0.7, beta=1.3)),
        ("trial_scale", "Scale", [("x", x)], dict(scale=3.0)),
        ("trial_tanh", "ScaledTanh", [("x", x)], dict(alpha=0.7, beta=1.3)),
        ("trial_threshold", "ThresholdedRelu", [("x", x)], dict(alpha=0.4)),
    ]:
        case(name, op, inputs, domain="", constants=("s", "e", "a"), **attrs)
        at_opset(8, name)

    # Random numbers by what does not depend on the generator: mean and square.
    def drawn(name, nodes, tolerance, inputs=()):
        network(name, nodes, [*inputs, ("zero", np.zeros(1, "f4"))], [], tolerance=tolerance)
    stats = [("ReduceMean", ["d"], "m", dict(axes=[0, 1], keepdims=0)), ("Mul", ["d", "d"], "q", {}), ("ReduceMean", ["q"], "v", dict(axes=[0, 1], keepdims=0)), ("Unsqueeze", ["m", "ax"], "m1", {}), ("Unsqueeze", ["v", "ax"], "v1", {}), ("Add", ["m1", "zero"], "m2", {}), ("Concat", ["m2", "v1"], "y", dict(axis=0))]
    ax = ("Constant", [], "ax", dict(value_ints=[0]))
    drawn("random_normal", [ax, ("RandomNormal", [], "d", dict(shape=[100, 200], mean=0.5, scale=2.0)), *stats], 0.05)
    drawn("random_uniform", [ax, ("RandomUniform", [], "d", dict(shape=[100, 200], low=-1.0, high=3.0, seed=7.0)), *stats], 0.05)
    drawn("random_normal_like", [ax, ("RandomNormalLike", ["x"], "d", {}), *stats], 0.05, [("x", np.zeros((150, 100), "f4"))])
    drawn("random_uniform_like", [ax, ("RandomUniformLike", ["x"], "d", {}), *stats], 0.05, [("x", np.zeros((150, 100), "f4"))])
    # Not with other shares: ONNX Runtime draws 1 with the probability of 0.
    drawn("bernoulli", [ax, ("Bernoulli", ["x"], "d", {}), *stats], 0.05, [("x", np.full((150, 100), 0.5, "f4"))])
    drawn("multinomial", [ax, ("Multinomial", ["x"], "i", dict(sample_size=5000)), ("Cast", ["i"], "d", dict(to=T.FLOAT)), *stats], 0.05, [("x", np.log(np.array([[0.1, 0.6, 0.3], [0.5, 0.25, 0.25]], "f4")))])

    # Classical models as skl2onnx writes them.
    ml = lambda name, op, inputs, outputs, **a: case(name, op, inputs, outputs, domain=ML, version=1, **a)
    x = f(6, 5)
    for classes, labels in [(2, dict(classlabels_strings=["nay", "yes"])), (3, dict(classlabels_ints=[3, 6, 9])), (4, dict(classlabels_ints=[0, 1, 2, 3]))]:
        pairs, count = classes * (classes - 1) // 2, 2 * classes
        ml(f"svm_probabilities_{classes}", "SVMClassifier", [("x", x)], ("l", "y"), kernel_type="RBF", kernel_params=[0.3, 0.0, 3.0], vectors_per_class=[2] * classes, support_vectors=f(count * 5).tolist(), coefficients=f((classes - 1) * count).tolist(), rho=f(pairs).tolist(), prob_a=(-1 - abs(f(pairs))).tolist(), prob_b=(f(pairs) * 0.2).tolist(), **labels)
    ml("linear_of_open_width", "LinearClassifier", [("x", x)], ("l", "y"), coefficients=f(15).tolist(), intercepts=f(3).tolist(), classlabels_ints=[1, 2, 3], multi_class=1, post_transform="SOFTMAX", open_dims=(("x", 0), ("x", 1)))
    ml("zip_map", "ZipMap", [("x", f(3, 2))], ("p",), classlabels_strings=["no", "yes"])
    ml("zip_map_open", "ZipMap", [("x", f(3, 2))], ("p",), classlabels_int64s=[4, 7], open_dims=(("x", 0),))
    # A layer as PyTorch writes it, of more results than a block, over sequences of different lengths.
    hidden = 40
    weights = [("w", f(2, 3 * hidden, width)), ("r", f(2, 3 * hidden, hidden) * 0.2), ("b", f(2, 6 * hidden)), ("lengths", np.array([5, 3], "i4")), ("h0", f(2, 2, hidden))]
    case("gru_after", "GRU", [("x", f(5, 2, width)), *weights], ("y", "h"), domain="", constants=("w", "r", "b"), open_dims=[("x", 0), ("x", 1)], hidden_size=hidden, tolerance=1e-3, direction="bidirectional", linear_before_reset=1)
    # Activations of other kinds are computed step by step.
    case("lstm_others", "LSTM", [("x", f(5, 2, width)), ("w", f(1, 16, width)), ("r", f(1, 16, 4) * 0.5), ("b", f(1, 32))], ("y", "h", "c"), domain="", constants=("w", "r", "b"), open_dims=[("x", 0), ("x", 1)], hidden_size=4, tolerance=1e-3, activations=["HardSigmoid", "Tanh", "Softsign"])


def like(name, nodes):
    """What a case computes, in ONNX's own operators: ONNX Runtime's processor back end lacks the case's own."""
    CASES[name]["like"] = dict(CASES[name], nodes=nodes, opset=18)


def lists_and_texts():
    r = rng("lists")
    f = lambda *s: r.normal(0, 1, s).astype("f4")
    texts = lambda *t: np.array(t)
    own = lambda name, op, inputs, opset, outputs=("y",), **a: (case(name, op, inputs, outputs, domain="", **a), at_opset(opset, name))

    # Strings: delimiters that overlap themselves, splits that end early, classes of characters.
    lines = texts("a::b:::c", "::", "x", ":::::")
    for name, text, attrs in [
        ("overlapping", lines, dict(delimiter="::")),
        ("overlapping_few", lines, dict(delimiter="::", maxsplit=1)),
        ("words", texts("  a b  c ", "", " ", "one"), {}),
        ("words_few", texts("  a b  c ", "", " ", "one", "a b "), dict(maxsplit=1)),
        ("letters", texts("abcabc", "bcb", "é日b本c"), dict(delimiter="b", maxsplit=0)),
    ]:
        network(f"split_{name}", [("StringSplit", ["x"], "s\tn", attrs), ("Shape", ["s"], "shape", {}), ("Equal", ["s", "p"], "y", {})], [("x", text), ("p", texts("c"))], [], outputs=("y", "n", "shape"))
        at_opset(20, f"split_{name}")
    for k, pattern in enumerate([r"[a-z]+\d{2,3}", r"(\W|^)\w*é?", r"a|bc|", r"[^[:digit:]]*", r"\bx.y\b"]):
        own(f"match_{k}", "RegexFullMatch", [("x", texts("abc12", "", "é", "x-y", "bc", "日本", "ab1234", "x1y").reshape(2, 4))], 20, pattern=pattern)

    # Boxes: scores that are no probabilities, thresholds of 0, none that are wanted.
    boxes = np.sort(r.uniform(0, 1, (2, 12, 2, 2)).astype("f4"), 2).transpose(0, 1, 2, 3).reshape(2, 12, 4)
    scores, number = f(2, 3, 12) * 2, lambda v, d="f4": np.array([v], d)
    for name, inputs, attrs in [
        ("logits", [("n", number(5, "i8")), ("t", number(0.3))], {}),
        ("least", [("n", number(5, "i8")), ("t", number(0.3)), ("l", number(-1.5))], {}),
        ("touching", [("n", number(12, "i8")), ("t", number(0.0)), ("l", number(0.25))], {}),
        ("none", [("n", number(0, "i8")), ("t", number(0.5))], {}),
        ("unsaid", [], {}),
        ("centres", [("n", number(3, "i8")), ("t", number(0.2))], dict(center_point_box=1)),
    ]:
        for known in (True, False):
            own(f"boxes_{name}{'' if known else '_open'}", "NonMaxSuppression", [("b", boxes), ("s", scores), *inputs], 11, constants=[k for k, _ in inputs] if known else (), **attrs)

    x, rois, of = f(2, 3, 6, 7), np.array([[0.5, 1.0, 5.5, 4.2], [-3.0, -2.0, 9.0, 9.0], [2.0, 2.0, 2.5, 2.2], [0.0, 0.0, 6.0, 5.0]], "f4"), np.array([0, 1, 1, 0], "i8")
    for name, opset, attrs in [
        ("fixed", 16, dict(sampling_ratio=2)),
        ("adaptive", 16, {}),
        ("whole", 16, dict(coordinate_transformation_mode="output_half_pixel", spatial_scale=0.5)),
        ("old", 10, dict(spatial_scale=0.7)),
    ]:
        own(f"roi_max_{name}", "RoiAlign", [("x", x), ("r", rois), ("b", of)], opset, mode="max", output_height=3, output_width=2, **attrs)

    offsets, mask = lambda g: f(2, 2 * g * 9, 4, 5), lambda g: r.uniform(0, 1, (2, g * 9, 4, 5)).astype("f4")
    for groups, shared in [(1, 1), (2, 1), (1, 2), (2, 4)]:
        own(f"deformed_{groups}_{shared}", "DeformConv", [("x", f(2, 4, 4, 5)), ("w", f(6, 4 // groups, 3, 3)), ("o", offsets(shared)), ("b", f(6)), ("m", mask(shared))], 19, group=groups, offset_group=shared, pads=[1, 1, 1, 1], kernel_shape=[3, 3])

    # Sequences whose length only running shows.
    net = Net(r)
    net.op("SplitToSequence", "x", "k", out="s", axis=1)
    net.op("SequenceLength", "s", out="n")
    net.op("SequenceAt", "s", "i", out="e")
    net.op("SequenceInsert", net.op("SequenceErase", "s", "i"), "e", out="t")
    net.op("ConcatFromSequence", "t", out="y", axis=1)
    for k, i in [(2, 1), (3, -1), (9, 0)]:
        network(f"pieces_{k}", net.nodes, [("x", f(3, 7)), ("k", np.array(k, "i8")), ("i", np.array(i, "i8"))], [], outputs=("n", "e", "y"))

    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["i", "one"], ["j"]), helper.make_node("Cast", ["j"], ["c"], to=T.FLOAT), helper.make_node("Mul", ["c", "x"], ["e"]), helper.make_node("SequenceInsert", ["s", "e"], ["t"]), helper.make_node("Identity", ["go"], ["on"])],
        "body", [info("i", T.INT64, []), info("go", T.BOOL, []), helper.make_tensor_sequence_value_info("s", T.FLOAT, None)], [info("on", T.BOOL, []), helper.make_tensor_sequence_value_info("t", T.FLOAT, None)])
    for new in (0, 1):
        nodes = [("SequenceEmpty", [], "s0", {}), ("Loop", ["n", "", "s0"], "all", dict(body=body)), ("ConcatFromSequence", ["all"], "y", dict(axis=1, new_axis=new))]
        network(f"grown_{new}", nodes, [("n", np.array(4, "i8")), ("x", f(2, 3))], [("one", np.array(1, "i8"))])

    # Products of halves, whose sums are not halves.
    h = lambda *s: f(*s).astype("f2")
    own("halves_matmul", "MatMul", [("a", h(3, 256)), ("b", h(256, 4))], 13, tolerance=1e-3)
    own("halves_gemm", "Gemm", [("a", h(3, 256)), ("b", h(4, 256)), ("c", h(4))], 13, transB=1, tolerance=1e-3)
    own("halves_conv", "Conv", [("x", h(1, 32, 5, 5)), ("w", h(4, 32, 3, 3)), ("b", h(4))], 13, tolerance=1e-3)

    # Weights of few bits whose columns say which scale they have.
    for bits, block in [(4, 32)]:
        k, n = 64, 5
        q = r.integers(0, 256, (n, k // block, block * bits // 8), dtype="u1")
        s, groups = np.abs(f(n * (k // block))) * np.float32(0.1), r.permutation(np.arange(k) // block).astype("i4")
        case(f"matmul_nbits_groups_{bits}", "MatMulNBits", [("x", f(3, k)), ("w", q), ("s", s), ("", None), ("g", groups)], constants=("w", "s", "g"), K=k, N=n, bits=bits, block_size=block, tolerance=2e-3)

    # Operators that ONNX Runtime has for other processors.
    case("nhwc_conv", "NhwcConv", [("x", f(1, 5, 6, 3)), ("w", f(4, 3, 3, 3)), ("b", f(4))], pads=[1, 1, 1, 1], strides=[2, 1])
    like("nhwc_conv", [("Transpose", ["x"], "t", dict(perm=[0, 3, 1, 2])), ("Conv", ["t", "w", "b"], "u", dict(pads=[1, 1, 1, 1], strides=[2, 1])), ("Transpose", ["u"], "y", dict(perm=[0, 2, 3, 1]))])
    case("bias_softmax", "BiasSoftmax", [("x", f(2, 3, 4, 5)), ("b", f(2, 1, 4, 5))], axis=3, is_inner_broadcast=0)
    like("bias_softmax", [("Add", ["x", "b"], "t", {}), ("Softmax", ["t"], "y", dict(axis=3))])
    scale = lambda k, s, z: [(f"{k}_scale", np.float32(s)), (f"{k}_zero", np.array(z, "u1"))]
    case("qlinear_reduce_mean", "QLinearReduceMean", [("x", quantized(r, (2, 3, 4), "u1")), *scale("x", 0.02, 120), *scale("y", 0.01, 128)], constants=("x_scale", "x_zero", "y_scale", "y_zero"), axes=[1], keepdims=1)
    like("qlinear_reduce_mean", [("Constant", [], "axes", dict(value_ints=[1])), ("DequantizeLinear", ["x", "x_scale", "x_zero"], "t", {}), ("ReduceMean", ["t", "axes"], "u", {}), ("QuantizeLinear", ["u", "y_scale", "y_zero"], "y", {})])


def as_arrays(results):
    """Outputs as `resat run` gives them: maps of rows as a matrix and its keys."""
    flat = {}
    for name, value in results.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            keys = list(value[0])
            flat[name] = np.array([list(row.values()) for row in value], "f4")
            flat[f"{name}#keys"] = np.array(keys)
        else:
            flat[name] = np.asarray(value).astype(str) if np.asarray(value).dtype == object else value
    return flat


def own_operator(archive):
    """A model with an operator that is nobody's: tests register it, or see it refused."""
    info = helper.make_tensor_value_info
    node = helper.make_node("affine", ["x"], ["y"], name="mine", domain="toy", scale=2.0, shift=-1.0)
    graph = helper.make_graph([node], "case", [info("x", T.FLOAT, [2, 5])], [info("y", T.FLOAT, [2, 5])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("toy", 1)]
    write_model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    archive.writestr(zipfile.ZipInfo("custom_operator/model.onnx", (1980, 1, 1, 0, 0, 0)), write_model)


if __name__ == "__main__":
    onnxruntime.set_default_logger_severity(3)
    if "exported" in sys.argv[1]:
        exported()
        lists_and_texts()
        qdq()
        resizes()
        windows()
    else:
        microsoft()
        classical()
        networks()
    lost = 0
    with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_DEFLATED) as archive:
        for name, c in CASES.items():
            model = model_of(c)
            given = {k: np.asarray(v) for k, v in c["inputs"] if k and k not in c["constants"]}
            try:
                session = onnxruntime.InferenceSession(model_of(c.get("like", c)).SerializeToString(), providers=["CPUExecutionProvider"])
                results = as_arrays(dict(zip([o.name for o in session.get_outputs()], session.run(None, given))))
            except Exception as e:
                lost += 1
                print(f"{name}: {str(e)[:300]}")
                continue
            def write(file, data):
                info = zipfile.ZipInfo(f"{name}/{file}", (1980, 1, 1, 0, 0, 0))
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, data)
            write("model.onnx", model.SerializeToString())
            files = [("inputs.npz", given), ("outputs.npz", results)]
            if c.get("relay"):
                write("model.relay", c["relay"])
                files.append(("params.npz", {k: v for k, v in c["inputs"] if k in c["constants"]}))
            for file, arrays in files:
                buffer = io.BytesIO()
                np.savez(buffer, **arrays)
                write(file, buffer.getvalue())
            steps = 1 if c["op"].startswith(("QLinear", "QGemm")) else 0
            write("meta.json", json.dumps(dict(op=c["op"], steps=steps, tolerance=c["tolerance"] or 1e-4, runtime=onnxruntime.__version__)))
        if "exported" not in sys.argv[1]:
            own_operator(archive)
    print(f"{len(CASES) - lost} cases, {lost} that ONNX Runtime does not run")
