#!/usr/bin/env python3
"""Records the corpus' networks as ONNX beside Relay, without weights, for tests/frontends/skeletons.rs.

    record-skeletons.py CORPUS OUT.zip MODEL...

A folder for each: `model.onnx`, whose weights lie in a file `weights.bin` that the test makes; `model.relay`; and `weights.json`, for each
weight its name in Relay, shape and offset. Needs onnx.
"""
import json, pathlib, sys, zipfile

import onnx
from onnx import TensorProto

corpus, out, models = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
with zipfile.ZipFile(out, "w", compresslevel=9) as archive:
    for name in models:
        model = onnx.load(str(corpus / name / "skeleton.onnx"))
        fill = json.loads(next(e.value for e in model.metadata_props if e.key == "fill"))
        weights, offset = [], 0
        for tensor in model.graph.initializer:
            if tensor.name not in fill:
                continue
            assert tensor.data_type == TensorProto.FLOAT, tensor.name
            length = 4
            for n in tensor.dims:
                length *= n
            tensor.data_location = TensorProto.EXTERNAL
            tensor.ClearField("raw_data")
            for key, value in [("location", "weights.bin"), ("offset", offset), ("length", length)]:
                tensor.external_data.add(key=key, value=str(value))
            weights.append([fill[tensor.name], list(tensor.dims), offset])
            offset += -(-length // 64) * 64
        del model.metadata_props[:]
        files = {
            "model.onnx": model.SerializeToString(deterministic=True),
            "model.relay": (corpus / name / "model.relay").read_bytes(),
            "weights.json": json.dumps(weights).encode(),
        }
        for file, content in files.items():
            archive.writestr(zipfile.ZipInfo(f"{name}/{file}"), content, zipfile.ZIP_DEFLATED)
