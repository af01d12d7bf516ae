//! Statements to control flow: one [`Emitter`] per LLVM function, which holds what the variables stand for in it.
//!
//! Every function says the alignment of its stack first. LLVM finds out that it spills whole vectors when no register is left to realign
//! the stack with, and then spills across cache lines and pages, depending on where the caller's stack stands: the same loop ran up to
//! three times slower by the thread that called it.

use std::collections::HashMap;

use inkwell::{
    IntPredicate,
    attributes::AttributeLoc,
    context::Context,
    module::{Linkage, Module},
    types::BasicMetadataTypeEnum,
    values::{BasicMetadataValueEnum, FunctionValue, InstructionOpcode as Opcode, PointerValue},
};

use super::{
    CodegenError,
    captures::Captures,
    ir::{Ir, Ty, V},
    moving::Moving,
    state::{Binding, Cost, Env, Lanes, Mask, Masks, Waiting},
};
use crate::{
    codegen::CodegenTarget,
    loops::{
        AxisId, BUFFER_ALIGN, Buffer, BufferId, Kernel, LoopKind, Scalar, Space, Stmt, TensorId, TileBlock,
        affine::{self, Affine, Facts},
    },
    tensor::DType,
};

/// Bytes of a lane of `float32` and `int32`, by which vector loops are split.
const WORD: usize = 4;

/// The variable of the lanes of a vector loop's later parts. No kernel has so many variables.
const LANE: AxisId = AxisId(u32::MAX);

/// The module that kernels are emitted into.
pub(super) struct Unit<'ctx> {
    pub(super) ctx: &'ctx Context,
    pub(super) module: Module<'ctx>,
    pub(super) target: CodegenTarget,
}

/// Emits one function.
pub(super) struct Emitter<'u, 'ctx> {
    pub(super) ir: Ir<'u, 'ctx>,
    pub(super) unit: &'u Unit<'ctx>,
    pub(super) kernel: &'u Kernel,
    symbol: String,
    function: FunctionValue<'ctx>,
    /// Pointers of all buffers but those on the stack, which appear when they are first used.
    buffers: Vec<Option<PointerValue<'ctx>>>,
    /// Which of them may be the same memory as another.
    in_place: Vec<bool>,
    context: Option<PointerValue<'ctx>>,
    pub(super) env: Env<'ctx>,
    level: u32,
    pub(super) lanes: Option<Lanes>,
    pub(super) affine_memo: affine::Memo,
    pub(super) masks: Masks<'ctx>,
    /// Values within the statement at hand, by expression and mask.
    pub(super) values: HashMap<(usize, usize), V<'ctx>>,
    /// The keys of `values` in the order in which they came, to forget those of a branch.
    pub(super) value_log: Vec<(usize, usize)>,
    pub(super) costs: HashMap<usize, Cost>,
    /// What operations that the machine lacks are made of, by address: as long as this lives, so do these.
    pub(super) expanded: HashMap<usize, Scalar>,
    outlined: usize,
    /// How many unrolled loops stand around the statement, and no other ones between.
    pub(super) unrolled: u32,
    /// Pointer induction variables of the loops around the statement, the innermost last.
    pub(super) moving: Vec<Option<Moving<'ctx>>>,
    /// Bound `int64` variables as the sums that they were bound to, the innermost last.
    pub(super) sums: Vec<(AxisId, Affine)>,
    /// Vectors that unrolled loops are yet to store.
    pub(super) waiting: Vec<Waiting<'ctx>>,
    /// How the matrix registers are set up for all of the function, where they are.
    pub(super) tiles: Option<TileBlock>,
}

fn vec_of<'ctx>(types: impl IntoIterator<Item = Ty<'ctx>>) -> Vec<BasicMetadataTypeEnum<'ctx>> {
    types.into_iter().map(Into::into).collect()
}

/// Emits the function of a kernel under its symbol.
pub(super) fn kernel<'ctx>(unit: &Unit<'ctx>, kernel: &Kernel) -> Result<(), CodegenError> {
    let ir = Ir::new(unit.ctx, &unit.module);
    let pointer = unit.ctx.ptr_type(Default::default());
    let void = unit.ctx.void_type();
    // The entry fetches the pointers; the work stands in a function of its own, whose parameters can say that they
    // don't overlap.
    let entry = unit.module.add_function(&kernel.name, void.fn_type(&[pointer.into(); 3], false), None);
    attributes(unit, entry);
    let shared: Vec<usize> = (0..kernel.buffers.len()).filter(|&b| is_shared(kernel, b)).collect();
    let params = vec![BasicMetadataTypeEnum::from(pointer); shared.len() + 1];
    let work = unit.module.add_function(
        &format!("{}.body", kernel.name),
        void.fn_type(&params, false),
        Some(Linkage::Internal),
    );
    attributes(unit, work);
    align_stack(unit, work);
    ir.go_to(ir.block(entry, ""));
    let [context, args, workspace] = [0, 1, 2].map(|i| entry.get_nth_param(i).expect("three parameters"));
    let (offsets, _) = kernel.workspace();
    let mut passed = vec![context];
    for &b in &shared {
        passed.push(match kernel.buffers[b].space {
            Space::Input(i) | Space::Output(i) => {
                let slot = ir.offset(pointer.into(), args.into_pointer_value(), ir.i64(i as i64));
                ir.load(pointer.into(), slot, 8)
            }
            _ => {
                let at = offsets[b].expect("a shared buffer has its place in the workspace");
                ir.offset(unit.ctx.i8_type().into(), workspace.into_pointer_value(), ir.i64(at)).into()
            }
        });
    }
    call_work(unit, kernel, &ir, work, &passed);
    ir.ret();
    let mut e = Emitter::new(unit, kernel, &kernel.name, work);
    e.context = Some(e.parameter(0));
    for (i, &b) in shared.iter().enumerate() {
        e.buffers[b] = Some(e.parameter(i as u32 + 1));
        e.buffer_attributes(i as u32 + 1, b);
    }
    e.with_tiles(&kernel.body, |e| e.stmt(&kernel.body))?;
    e.ir.ret();
    Ok(())
}

/// Calls a kernel's work. Where that sums floating point numbers on x86, subnormal ones count as zeros until it returns: Intel's processors
/// take some 150 cycles for each product of one, and probabilities of masked positions are such. What a sum loses is below 1.2e-38 times its
/// largest factor, for each term. Other kernels have them as IEEE 754 says.
fn call_work<'ctx>(unit: &Unit<'ctx>, kernel: &Kernel, ir: &Ir<'_, 'ctx>, work: FunctionValue<'ctx>, args: &[V<'ctx>]) {
    if unit.target.arch() != "x86_64" || !kernel.sums_floats() {
        ir.call(work, args);
        return;
    }
    let word: Ty = unit.ctx.i32_type().into();
    let slot = || ir.builder.build_alloca(unit.ctx.i32_type(), "").expect("the builder stands in a block");
    let (before, within) = (slot(), slot());
    ir.call(ir.declared("llvm.x86.sse.stmxcsr"), &[before.into()]);
    let flushing = ir.bin(Opcode::Or, ir.load(word, before, 4), ir.int(FLUSH_SUBNORMAL, word));
    ir.store(within, flushing, 4);
    ir.call(ir.declared("llvm.x86.sse.ldmxcsr"), &[within.into()]);
    ir.call(work, args);
    ir.call(ir.declared("llvm.x86.sse.ldmxcsr"), &[before.into()]);
}

/// Bits of x86's control register MXCSR by which subnormal operands (DAZ) and results (FTZ) are zero.
const FLUSH_SUBNORMAL: i64 = 1 << 6 | 1 << 15;

/// For each buffer, whether the caller may give the memory of another one for it.
fn may_be_another(kernel: &Kernel) -> Vec<bool> {
    let pairs = kernel.in_place();
    let named = |b: &Buffer| match b.space {
        Space::Input(i) => pairs.iter().any(|p| p.0 == i),
        Space::Output(i) => pairs.iter().any(|p| p.1 == i),
        _ => false,
    };
    kernel.buffers.iter().map(named).collect()
}

/// Whether a buffer lives outside of the functions that use it.
fn is_shared(kernel: &Kernel, buffer: usize) -> bool {
    !matches!(kernel.buffers[buffer].space, Space::Local | Space::Register)
}

fn attributes<'ctx>(unit: &Unit<'ctx>, f: FunctionValue<'ctx>) {
    let add = |key, value: &str| {
        f.add_attribute(AttributeLoc::Function, unit.ctx.create_string_attribute(key, value));
    };
    add("target-cpu", &unit.target.cpu);
    let features = unit.target.machine_features();
    if !features.is_empty() {
        add("target-features", &features);
    }
    f.add_attribute(AttributeLoc::Function, Ir::new(unit.ctx, &unit.module).flag("nounwind", 0));
}

/// Aligns a function's stack to whole vectors. LLVM learns that it spills vectors only once registers are given out, when none is
/// left to hold the frame, and then spills to wherever the caller's stack happens to be: into two cache lines each time, or into
/// two pages, which makes a loop three times slower.
fn align_stack<'ctx>(unit: &Unit<'ctx>, f: FunctionValue<'ctx>) {
    let bytes = unit.target.vector_bytes() as u64;
    if bytes > ABI_STACK_ALIGN {
        f.add_attribute(AttributeLoc::Function, Ir::new(unit.ctx, &unit.module).flag("alignstack", bytes));
    }
}

/// What calling conventions promise of the stack's alignment, in bytes.
const ABI_STACK_ALIGN: u64 = 16;

impl<'u, 'ctx> Emitter<'u, 'ctx> {
    fn new(unit: &'u Unit<'ctx>, kernel: &'u Kernel, symbol: &str, function: FunctionValue<'ctx>) -> Self {
        let ir = Ir::new(unit.ctx, &unit.module);
        ir.go_to(ir.block(function, ""));
        Emitter {
            ir,
            unit,
            kernel,
            symbol: symbol.to_owned(),
            function,
            buffers: vec![None; kernel.buffers.len()],
            in_place: may_be_another(kernel),
            context: None,
            env: Env::default(),
            level: 0,
            lanes: None,
            affine_memo: Default::default(),
            masks: Masks::default(),
            values: HashMap::new(),
            value_log: vec![],
            costs: HashMap::new(),
            expanded: HashMap::new(),
            outlined: 0,
            unrolled: 0,
            moving: vec![],
            sums: vec![],
            waiting: vec![],
            tiles: None,
        }
    }

    fn parameter(&self, i: u32) -> PointerValue<'ctx> {
        self.function.get_nth_param(i).expect("as many parameters as declared").into_pointer_value()
    }

    fn buffer_attributes(&self, param: u32, buffer: usize) {
        let add = |name: &str, value| {
            self.function.add_attribute(AttributeLoc::Param(param), self.ir.flag(name, value));
        };
        if !self.in_place[buffer] {
            add("noalias", 0);
        }
        add("nonnull", 0);
        add("align", BUFFER_ALIGN as u64);
        if matches!(self.kernel.buffers[buffer].space, Space::Input(_)) {
            add("readonly", 0);
        }
    }

    /// Where a buffer begins. Those on the stack are laid out in the function's first block.
    pub(super) fn buffer(&mut self, b: BufferId) -> PointerValue<'ctx> {
        let i = b.0 as usize;
        if let Some(p) = self.buffers[i] {
            return p;
        }
        let decl = &self.kernel.buffers[i];
        let first = self.function.get_first_basic_block().expect("a function has a first block");
        let here = self.ir.here();
        match first.get_first_instruction() {
            Some(inst) => self.ir.builder.position_before(&inst),
            None => self.ir.go_to(first),
        }
        let element = self.ir.memory_type(decl.dtype);
        let array = match element {
            Ty::IntType(t) => t.array_type(decl.len as u32),
            t => t.into_float_type().array_type(decl.len as u32),
        };
        let p = self.ir.builder.build_alloca(array, "").expect("the builder stands in a block");
        let inst = p.as_instruction().expect("an alloca is an instruction");
        inst.set_alignment(BUFFER_ALIGN as u32).expect("an alignment is a power of two");
        self.ir.go_to(here);
        self.buffers[i] = Some(p);
        p
    }

    // Variables.

    /// Runs `f` with a variable bound.
    pub(super) fn with<T>(&mut self, axis: AxisId, binding: Binding<'ctx>, f: impl FnOnce(&mut Self) -> T) -> T {
        self.env.0.push((axis, binding));
        self.affine_memo.clear();
        let out = f(self);
        self.env.0.pop();
        self.affine_memo.clear();
        out
    }

    /// A new statement begins: values from before may not be reused, since memory may change or control may not come by.
    pub(super) fn fresh(&mut self) {
        self.values.clear();
        self.value_log.clear();
    }

    pub(super) fn index(&mut self, s: &Scalar) -> Affine {
        affine::affine(s, &self.env, &mut self.affine_memo)
    }

    // Statements.

    pub(super) fn stmt(&mut self, s: &Stmt) -> Result<(), CodegenError> {
        match s {
            Stmt::Block(all) => all.iter().try_for_each(|s| self.stmt(s)),
            Stmt::Store { buffer, index, value } => {
                self.fresh();
                match self.store_later(*buffer, index, value)? {
                    true => Ok(()),
                    false => self.store(*buffer, index, value),
                }
            }
            Stmt::Prefetch { buffer, index } => {
                self.fresh();
                let at = self.index(index);
                let address = self.place(*buffer, &at)?;
                self.ir.prefetch(address);
                Ok(())
            }
            Stmt::For { var, extent, kind: LoopKind::Unrolled, body } => {
                let turns = self.constant(extent)?;
                self.unrolled += 1;
                for i in 0..turns {
                    self.with(*var, Binding::Sum(Affine::constant(i)), |e| e.stmt(body))?;
                }
                self.unrolled -= 1;
                if self.unrolled == 0 {
                    self.store_waiting();
                }
                Ok(())
            }
            Stmt::For { var, extent, kind: LoopKind::Vector, body } => self.vector(*var, extent, body),
            // What waits to be stored is stored where it stands, before control goes elsewhere.
            s => {
                self.store_waiting();
                let around = std::mem::take(&mut self.unrolled);
                let done = match s {
                    Stmt::Let { var, value, body } => self.bind(*var, value, body),
                    Stmt::If { cond, then, otherwise } => self.condition(cond, then, otherwise.as_deref()),
                    Stmt::While { cond, body } => self.repeat(cond, body),
                    Stmt::Tiles { block, step } => self.tile_step(block, step),
                    Stmt::Transpose { from, at, stride, to, extent } => {
                        self.transpose(*from, [at, stride], *to, *extent)
                    }
                    Stmt::For { var, extent, kind: LoopKind::Parallel, body } => self.parallel(*var, extent, body),
                    Stmt::For { var, extent, body, .. } => self.serial(*var, extent, body),
                    Stmt::Block(_) | Stmt::Store { .. } | Stmt::Prefetch { .. } => {
                        unreachable!("these are told apart above")
                    }
                };
                self.unrolled = around;
                done
            }
        }
    }

    pub(super) fn constant(&mut self, extent: &Scalar) -> Result<i64, CodegenError> {
        let n = self.index(extent).as_constant();
        n.ok_or_else(|| CodegenError::Invalid(format!("the extent {extent:?} is not constant")))
    }

    fn vector(&mut self, var: AxisId, extent: &Scalar, body: &Stmt) -> Result<(), CodegenError> {
        let n = self.constant(extent)?;
        match n {
            ..=0 => Ok(()),
            // A vector of one lane is a scalar.
            1 => self.with(var, Binding::Sum(Affine::constant(0)), |e| e.stmt(body)),
            _ => {
                let register = (self.unit.target.vector_bytes() / WORD) as i64;
                if n <= register || (n as u64).is_power_of_two() {
                    return self.lanes_from(var, 0, n, body);
                }
                // Split into powers of two and a remainder: a sum of 24 lanes that a loop carries, LLVM (22.1.8) scalarizes in each iteration.
                let mut first = 0;
                while first < n {
                    let left = n - first;
                    let count = if left < register { left } else { 1 << left.ilog2() };
                    match count {
                        1 => self.with(var, Binding::Sum(Affine::constant(first)), |e| e.stmt(body))?,
                        _ => self.lanes_from(var, first, count, body)?,
                    }
                    first += count;
                }
                Ok(())
            }
        }
    }

    /// The lanes from `first` on of a vector loop, `count` of them.
    fn lanes_from(&mut self, var: AxisId, first: i64, count: i64, body: &Stmt) -> Result<(), CodegenError> {
        let axis = if first == 0 { var } else { LANE };
        self.lanes = Some(Lanes { axis, count: count as u32 });
        let facts = Facts { range: Some((0, count - 1)), level: self.level + 1, varying: true };
        let done = self.with(axis, Binding::Lane { facts }, |e| match first {
            0 => e.stmt(body),
            _ => {
                let at = e.index(&Scalar::axis(LANE)).plus(&Affine::constant(first), 1);
                e.with(var, Binding::Sum(at), |e| e.stmt(body))
            }
        });
        self.lanes = None;
        done
    }

    fn bind(&mut self, var: AxisId, value: &Scalar, body: &Stmt) -> Result<(), CodegenError> {
        if value.dtype() == DType::I64 {
            let sum = self.index(value);
            let plain = sum.terms.iter().all(|t| !t.facts.varying || matches!(t.atom, affine::Atom::Axis(_)));
            if sum.as_constant().is_some() || (sum.varying() && plain) {
                return self.with(var, Binding::Sum(sum), |e| e.stmt(body));
            }
        }
        self.fresh();
        let v = self.value(value)?;
        let sum = (value.dtype() == DType::I64).then(|| self.index(value));
        let range = sum.as_ref().and_then(Affine::range);
        let facts = Facts { range, level: self.level, varying: v.is_vector_value() };
        let outside = self.sums.len();
        self.sums.extend(sum.map(|sum| (var, sum)));
        let done = self.with(var, Binding::Value { v, facts }, |e| e.stmt(body));
        self.sums.truncate(outside);
        done
    }

    fn condition(&mut self, cond: &Scalar, then: &Stmt, otherwise: Option<&Stmt>) -> Result<(), CodegenError> {
        match affine::decide(cond, &self.env, &mut self.affine_memo) {
            Some(true) => return self.stmt(then),
            Some(false) => return otherwise.map_or(Ok(()), |s| self.stmt(s)),
            None => {}
        }
        self.fresh();
        let c = self.value(cond)?;
        let (yes, done) = (self.ir.block(self.function, ""), self.ir.block(self.function, ""));
        let no = otherwise.map(|_| self.ir.block(self.function, ""));
        self.ir.branch(c, yes, no.unwrap_or(done));
        for (block, stmt) in [(Some(yes), Some(then)), (no, otherwise)] {
            if let (Some(block), Some(stmt)) = (block, stmt) {
                self.ir.go_to(block);
                self.stmt(stmt)?;
                self.ir.jump(done);
            }
        }
        self.ir.go_to(done);
        Ok(())
    }

    fn repeat(&mut self, cond: &Scalar, body: &Stmt) -> Result<(), CodegenError> {
        let [head, turn, done] = [(); 3].map(|()| self.ir.block(self.function, ""));
        self.ir.jump(head);
        self.ir.go_to(head);
        self.level += 1;
        self.fresh();
        let c = self.value(cond)?;
        self.ir.branch(c, turn, done);
        self.ir.go_to(turn);
        self.stmt(body)?;
        self.ir.jump(head);
        self.level -= 1;
        self.ir.go_to(done);
        Ok(())
    }

    fn serial(&mut self, var: AxisId, extent: &Scalar, body: &Stmt) -> Result<(), CodegenError> {
        match self.index(extent).as_constant() {
            Some(..=0) => return Ok(()),
            Some(1) => return self.with(var, Binding::Sum(Affine::constant(0)), |e| e.stmt(body)),
            _ => {}
        }
        self.fresh();
        let range = self.index(extent).range().map(|(_, hi)| (0, (hi - 1).max(0)));
        let guarded = self.index(extent).range().is_none_or(|(lo, _)| lo < 1);
        let n = self.value(extent)?;
        let turns = self.index(extent).as_constant();
        self.counted(var, self.ir.i64(0).into(), n, range, guarded, turns, body)
    }

    /// The loop over `from..to`; `guarded` where it may be empty. A known trip count (`turns`) becomes branch weights: without them LLVM's block frequencies
    /// take all loops for equally long, and the register allocator keeps constants and operands of short epilogue loops live across long ones, where it
    /// spills accumulators.
    #[expect(clippy::too_many_arguments, reason = "all that a loop has")]
    fn counted(
        &mut self,
        var: AxisId,
        from: V<'ctx>,
        to: V<'ctx>,
        range: affine::Range,
        guarded: bool,
        turns: Option<i64>,
        body: &Stmt,
    ) -> Result<(), CodegenError> {
        let (head, done) = (self.ir.block(self.function, ""), self.ir.block(self.function, ""));
        let before = self.ir.here();
        match guarded {
            true => self.ir.branch(self.ir.icmp(IntPredicate::SLT, from, to), head, done),
            false => self.ir.jump(head),
        }
        self.ir.go_to(head);
        let phi = self.ir.builder.build_phi(self.unit.ctx.i64_type(), "").expect("the builder stands in a block");
        phi.add_incoming(&[(&from, before)]);
        self.level += 1;
        let facts = Facts { range, level: self.level, varying: false };
        self.moving.push(Moving::new((var, self.level), from, [before, head], body));
        self.with(var, Binding::Value { v: phi.as_basic_value(), facts }, |e| e.stmt(body))?;
        self.level -= 1;
        if let Some(moving) = self.moving.pop().flatten() {
            moving.advance(self);
        }
        let i = phi.as_basic_value().into_int_value();
        let next = self.ir.builder.build_int_nsw_add(i, self.ir.i64(1), "").expect("the builder stands in a block");
        phi.add_incoming(&[(&next, self.ir.here())]);
        self.ir.branch_back(self.ir.icmp(IntPredicate::SLT, next.into(), to), head, done, turns);
        self.ir.go_to(done);
        Ok(())
    }

    /// Calls the runtime with the body as a function over a range of iterations. What the body uses of this function
    /// travels in a record on the stack.
    fn parallel(&mut self, var: AxisId, extent: &Scalar, body: &Stmt) -> Result<(), CodegenError> {
        self.fresh();
        let range = self.index(extent).range().map(|(_, hi)| (0, (hi - 1).max(0)));
        let n = self.value(extent)?;
        let (ctx, module) = (self.unit.ctx, &self.unit.module);
        let pointer = ctx.ptr_type(Default::default());
        let (i64_type, void) = (ctx.i64_type(), ctx.void_type());
        let uses = Captures::of(body);
        let used = |b: usize| is_shared(self.kernel, b) && uses.buffers.contains(&TensorId(b as u32));
        let pointers: Vec<usize> = (0..self.buffers.len()).filter(|&b| used(b)).collect();
        let mut env = self.env.clone();
        env.0.retain(|(variable, _)| uses.variables.contains(variable));
        let scalars: Vec<usize> = (0..env.0.len()).filter(|&i| matches!(env.0[i].1, Binding::Value { .. })).collect();
        let value_of = |i: usize| match env.0[i].1 {
            Binding::Value { v, .. } => v,
            _ => unreachable!("only values are captured"),
        };
        let mut captured: Vec<V> = vec![];
        for &b in &pointers {
            captured.push(self.buffer(TensorId(b as u32)).into());
        }
        captured.extend(scalars.iter().map(|&i| value_of(i)));

        self.outlined += 1;
        let symbol = format!("{}.{}", self.symbol, self.outlined);
        let mut params = vec_of(captured.iter().map(|v| v.get_type()));
        params.extend([BasicMetadataTypeEnum::from(i64_type); 2]);
        let work =
            module.add_function(&format!("{symbol}.body"), void.fn_type(&params, false), Some(Linkage::Internal));
        let entry_type = void.fn_type(&[pointer.into(), i64_type.into(), i64_type.into()], false);
        let entry = module.add_function(&symbol, entry_type, Some(Linkage::Internal));
        attributes(self.unit, work);
        align_stack(self.unit, work);
        attributes(self.unit, entry);

        // The record: one 8-byte slot each.
        let record_type = i64_type.array_type(captured.len() as u32);
        let first = self.function.get_first_basic_block().expect("a function has a first block");
        let here = self.ir.here();
        match first.get_first_instruction() {
            Some(inst) => self.ir.builder.position_before(&inst),
            None => self.ir.go_to(first),
        }
        let record = self.ir.builder.build_alloca(record_type, "").expect("the builder stands in a block");
        self.ir.go_to(here);
        for (i, &v) in captured.iter().enumerate() {
            self.ir.store(self.ir.offset(i64_type.into(), record, self.ir.i64(i as i64)), v, 8);
        }
        let context = self.context.expect("parallel loops are not nested");
        let run = self.ir.load(pointer.into(), context, 8).into_pointer_value();
        let run_type = void.fn_type(&[pointer.into(), pointer.into(), pointer.into(), i64_type.into()], false);
        let args: [BasicMetadataValueEnum; 4] = [
            context.into(),
            entry.as_global_value().as_pointer_value().into(),
            record.into(),
            n.into_int_value().into(),
        ];
        self.ir.builder.build_indirect_call(run_type, run, &args, "").expect("the builder stands in a block");

        // The entry takes the record apart.
        let ir = Ir::new(ctx, module);
        ir.go_to(ir.block(entry, ""));
        let record = entry.get_nth_param(0).expect("three parameters").into_pointer_value();
        let mut passed: Vec<V> = captured
            .iter()
            .enumerate()
            .map(|(i, v)| ir.load(v.get_type(), ir.offset(i64_type.into(), record, ir.i64(i as i64)), 8))
            .collect();
        passed.extend([1, 2].map(|i| entry.get_nth_param(i).expect("three parameters")));
        call_work(self.unit, self.kernel, &ir, work, &passed);
        ir.ret();

        let mut e = Emitter::new(self.unit, self.kernel, &symbol, work);
        for (i, &b) in pointers.iter().enumerate() {
            e.buffers[b] = Some(e.parameter(i as u32));
            e.buffer_attributes(i as u32, b);
        }
        e.env = env;
        e.level = self.level;
        for (i, &at) in scalars.iter().enumerate() {
            let param = work.get_nth_param((pointers.len() + i) as u32).expect("as many parameters as declared");
            if let Binding::Value { v, .. } = &mut e.env.0[at].1 {
                *v = param;
            }
        }
        let bound = |i| work.get_nth_param((captured.len() + i) as u32).expect("as many parameters as declared");
        e.with_tiles(body, |e| e.counted(var, bound(0), bound(1), range, true, None, body))?;
        e.ir.ret();
        Ok(())
    }

    /// Runs `f` where only the lanes that `also` names, and that were running before, count.
    pub(super) fn masked<T>(&mut self, also: V<'ctx>, f: impl FnOnce(&mut Self) -> T) -> T {
        let v = match self.masks.current() {
            None => also,
            Some(outer) => {
                let n = self.lanes.map_or(0, |l| l.count);
                let wide = outer.v.is_vector_value() || also.is_vector_value();
                let lift = |v: V<'ctx>| if wide { self.ir.splat(v, n) } else { v };
                self.ir.bin(Opcode::And, lift(outer.v), lift(also))
            }
        };
        self.masks.push(Mask { v });
        let out = f(self);
        self.masks.pop();
        out
    }

    pub(super) fn new_block(&self) -> inkwell::basic_block::BasicBlock<'ctx> {
        self.ir.block(self.function, "")
    }
}
