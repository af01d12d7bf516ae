"""resat: a compiler for TVM's Relay IR by equality saturation.

Rewrite rules run over one e-graph that holds all orders at once; a cost model decides; the rest becomes native code through LLVM.

>>> import numpy as np, resat as rs
>>> mod = rs.parse('#[version = "0.0.5"] def @main(%x: Tensor[(2, 3), float32]) { nn.relu(transpose(transpose(%x))) }')
>>> exe = rs.build(mod)
>>> y, = exe.run({"x": np.array([[1, -2, 3], [-4, 5, -6]], "float32")})
>>> y.tolist()
[[1.0, 0.0, 3.0], [0.0, 5.0, 0.0]]
"""

import atexit as _atexit

from . import _passes as _passes_module
from . import _resat
from ._arrays import empty
from ._build import (
    Explanation,
    Study,
    WhyNot,
    alternatives,
    build,
    emit_c,
    explain,
    load_library,
    machine,
    prices,
    run,
    sensitivity,
    why_not,
)
from ._compiler import ExternalCompiler, compilers, register_compiler
from ._config import BuildConfig
from ._dialect import Dialect, describe_operator, dialects, operators
from ._errors import CompileError, Diagnostic, InternalError, Refused
from ._explore import Exploration, RayExecutor, explore
from ._module import Function, load, load_params, parse, save_params
from ._passes import (
    Pass,
    Pipeline,
    ResatWarning,
    Sequential,
    default_pipeline,
    module_pass,
    optional,
    partition_for,
    passes,
)
from ._resat import Executable, Library, LibraryRuns, Module, Node, Nodes, Problem, Region, Rule, Stateful, Tensor, TensorType, __version__
from ._rules import RuleCheck, Ruleset, describe_rule_language, load_rules, rulesets
from ._trace import PassRecord, Trace

# Calls that Ctrl-C has ended work until the kernel at hand is done: not while the process tears down what they use.
_atexit.register(_resat.wait_for_calls, 10.0)

# The passes of the registry, as classes: Quantize, ConvertLayout, Legalize, FoldConstant, …
globals().update(_passes_module._classes)

__all__ = sorted(
    name for name in globals() if not name.startswith("_") and name not in ("annotations",)
)
