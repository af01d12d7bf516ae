"""resat: a compiler for TVM's Relay IR by equality saturation. Made by make_stubs.py."""

from collections.abc import Mapping
from typing import Any

from ._arrays import empty as empty
from ._build import Explanation as Explanation, Study as Study, WhyNot as WhyNot, alternatives as alternatives, build as build, emit_c as emit_c, explain as explain, load_library as load_library, machine as machine, prices as prices, run as run, sensitivity as sensitivity, why_not as why_not
from ._compiler import ExternalCompiler as ExternalCompiler, compilers as compilers, register_compiler as register_compiler
from ._config import BuildConfig as BuildConfig
from ._dialect import Dialect as Dialect, describe_operator as describe_operator, dialects as dialects, operators as operators
from ._errors import CompileError as CompileError, Diagnostic as Diagnostic, InternalError as InternalError, Refused as Refused
from ._explore import Exploration as Exploration, RayExecutor as RayExecutor, explore as explore
from ._module import Function as Function, load as load, load_params as load_params, parse as parse, save_params as save_params
from ._passes import Pass as Pass, Pipeline as Pipeline, ResatWarning as ResatWarning, Sequential as Sequential, default_pipeline as default_pipeline, module_pass as module_pass, optional as optional, partition_for as partition_for, passes as passes
from ._resat import Executable as Executable, Library as Library, LibraryRuns as LibraryRuns, Module as Module, Node as Node, Nodes as Nodes, Problem as Problem, Region as Region, Rule as Rule, Stateful as Stateful, Tensor as Tensor, TensorType as TensorType, __version__ as __version__
from ._rules import RuleCheck as RuleCheck, Ruleset as Ruleset, describe_rule_language as describe_rule_language, load_rules as load_rules, rulesets as rulesets
from ._trace import PassRecord as PassRecord, Trace as Trace

class AllowedListAnnotator(Pass):
    """`AllowedListAnnotator(compiler, op, …)`: the same for the operators named, and a compiler of any name."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class AlterOpLayout(Pass):
    """Convolutions and pools in blocked layouts where that pays."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class AnnotateTarget(Pass):
    """`AnnotateTarget(compiler, …)`: compiler_begin and compiler_end around each call that the compilers take, the preferred ones first; `include_non_call_ops=false` leaves tuples outside."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class BackwardFoldScaleAxis(Pass):
    """Scales of their results move into the weights of convolutions and dense layers."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class Calibrate(Pass):
    """Marks the operands that `Quantize` would quantize, with their scales and their layer's error; its arguments, but for `max_error` and `integer`."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class CanonicalizeCast(Pass):
    """Casts of casts become one, and casts to the same type none."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class CanonicalizeOps(Pass):
    """Bias_add becomes an add."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class CombineParallelBatchMatmul(Pass):
    """Batch_matmuls of one input become one, and slices of its result; `min_num_branches=N`, 3 where not given."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class CombineParallelConv2D(Pass):
    """Convolutions of one input become one, and slices of its result; `min_num_branches=N`, 3 where not given."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class CombineParallelDense(Pass):
    """Dense layers of one input become one batch_matmul, or with `to_batch=false` one dense layer; `min_num_branches=N`."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class ConvertLayout(Pass):
    """Operators in the layouts that are wanted, with as few transforms as can be: `from="NHWC", to="NHWC4c"` for all, `nn.conv2d="NHWC:HWIO"` (data and weight; `default` goes with the data) for single ones; `skip=0` leaves the first such call."""

    def __init__(self, layouts: str | Mapping[str, Any] | None = None, *, to: str | None = None, skip: Any = None) -> None: ...

class DeadCodeElimination(Pass):
    """Drops what nothing uses."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class DefuseOps(Pass):
    """Calls of primitive functions become their operators again."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class DynamicToStatic(Pass):
    """Extents that follow from constants become known."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class EliminateCommonSubexpr(Pass):
    """What is computed twice is computed once."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class EtaExpand(Pass):
    """Operators that are used as values become functions."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class FakeQuantizationToInteger(Pass):
    """Float operators between dequantize and quantize become integer operators; `hard_fail=true` refuses what has no integer form, `optional_qnn_ops=nn.softmax` allows less exact forms of the operators named."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class FastMath(Pass):
    """Functions that may be less exact in the last places, which are faster: fast_tanh, fast_erf, fast_exp, nn.fast_softmax."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class FlattenAtrousConv(Pass):
    """A convolution between space_to_batch_nd and batch_to_space_nd becomes a dilated one."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class FoldConstant(Pass):
    """What depends on constants and known shapes alone is computed now; `fold_qnn=false` leaves operators of dialects."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class FoldExplicitPadding(Pass):
    """Padding by itself moves into the convolution or pool that follows."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class FoldScaleAxis(Pass):
    """Scales and biases move into the weights of convolutions and dense layers."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class ForwardFoldScaleAxis(Pass):
    """Scales of their inputs move into the weights of convolutions and dense layers."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class FuseOps(Pass):
    """Groups operators into primitive functions, one kernel each; `largest=N` bounds a group."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class InferType(Pass):
    """Checks the module's types and annotates parameters."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class Inline(Pass):
    """Calls of known functions become their bodies, pure bindings sharing."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class Legalize(Pass):
    """Operators of whatever dialects the module holds become plain ones."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class MergeCompilerRegions(Pass):
    """Annotated regions that follow each other become one, as long as they stay convex."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class MergeComposite(Pass):
    """`MergeComposite(compiler or file, …)`: what patterns meet becomes functions with the attribute `Composite`."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class Partition(Pass):
    """`Partition(compiler, op, …)`: regions of these operators (all that it supports where none is named) go to an external compiler."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class PartitionGraph(Pass):
    """Annotated regions become functions of the module, for their compilers; `bind_constants=true|false` says whether constants are in them, `mod_name=default` is part of their names."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class Quantize(Pass):
    """Convolutions, dense layers and matrix multiplications in integers, by scales that samples show: `calibration="samples.npz"`, `method=minmax|percentile|kl|global_scale`, `percentile=99.99`, `scale=8.0`, `from_layer=0`, `to_layer=N`, `skip="name,2"`, `dtype_input=int8|uint8`, `dtype_weight=int8`, `per_channel=true`, `symmetric=true`, `integer=true`; with `max_error=E` each layer is a choice."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class Saturate(Pass):
    """The named rulesets over one e-graph; where none is named, or for the name `all`, the shipped ones and those of the dialects that the module holds."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class SimplifyExpr(Pass):
    """Algebra of elementwise operators, reshapes, transposes and casts."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class SimplifyFCTranspose(Pass):
    """A dense layer of a transposed weight becomes a product with the weight as it is."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class SimplifyInference(Pass):
    """Batch_norm, dropout and their like become arithmetic."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

class ToMixedPrecision(Pass):
    """Contractions, and what follows them, compute in float16 (or bfloat16, float64): `mixed_precision_type=…`; results keep their types with `keep_orig_output_dtype=true`, sums are float32 with `accumulation_dtype=float32`, `ignore=OP` leaves an operator as it is, `missing_op_mode=0` refuses operators of which nothing is said."""

    def __init__(self, *args: Any, **named: Any) -> None: ...
