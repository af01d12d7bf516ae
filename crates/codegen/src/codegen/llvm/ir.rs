//! A thin layer over inkwell's builder in which scalars and vectors of one kind are handled alike.
#![allow(unsafe_code)]

use inkwell::{
    FloatPredicate, IntPredicate,
    attributes::{Attribute, AttributeLoc},
    basic_block::BasicBlock,
    builder::{Builder, BuilderError},
    context::Context,
    intrinsics::Intrinsic,
    llvm_sys::core::LLVMBuildGEP2,
    module::Module,
    types::{AsTypeRef, BasicType, BasicTypeEnum, VectorType},
    values::{
        AsValueRef, BasicMetadataValueEnum, BasicValue, BasicValueEnum, FastMathFlags, FunctionValue,
        InstructionOpcode as Opcode, IntValue, PointerValue, VectorValue,
    },
};

use crate::tensor::DType;

/// More turns of a loop than so many are as many for LLVM.
const MOST_TURNS: i64 = 1 << 16;

/// A value of LLVM: of a scalar or of a vector type.
pub(super) type V<'ctx> = BasicValueEnum<'ctx>;
/// A type of LLVM.
pub(super) type Ty<'ctx> = BasicTypeEnum<'ctx>;

/// Builders fail only where they stand in no block or types are mixed up, which is this module's own fault.
fn built<T>(result: Result<T, BuilderError>) -> T {
    result.expect("the builder stands in a block and operands have the types that the operation wants")
}

/// A builder within a module.
pub(super) struct Ir<'u, 'ctx> {
    pub(super) ctx: &'ctx Context,
    pub(super) module: &'u Module<'ctx>,
    pub(super) builder: Builder<'ctx>,
}

impl<'u, 'ctx> Ir<'u, 'ctx> {
    pub(super) fn new(ctx: &'ctx Context, module: &'u Module<'ctx>) -> Ir<'u, 'ctx> {
        Ir { ctx, module, builder: ctx.create_builder() }
    }

    // Types.

    /// How a value of a dtype is held in registers: `bool` as i1, the short floats as f32 (rounded after every operation).
    pub(super) fn value_type(&self, dtype: DType) -> Ty<'ctx> {
        match dtype {
            DType::Bool => self.ctx.bool_type().into(),
            DType::I8 | DType::U8 => self.ctx.i8_type().into(),
            DType::I16 | DType::U16 => self.ctx.i16_type().into(),
            DType::I32 | DType::U32 => self.ctx.i32_type().into(),
            DType::I64 | DType::U64 => self.ctx.i64_type().into(),
            DType::F16 | DType::BF16 | DType::F32 => self.ctx.f32_type().into(),
            DType::F64 => self.ctx.f64_type().into(),
        }
    }

    /// How a value of a dtype is held in memory.
    pub(super) fn memory_type(&self, dtype: DType) -> Ty<'ctx> {
        match dtype {
            DType::Bool => self.ctx.i8_type().into(),
            DType::F16 | DType::BF16 => self.ctx.i16_type().into(),
            _ => self.value_type(dtype),
        }
    }

    /// The vector of `lanes` scalars, or the scalar type itself.
    pub(super) fn wide(&self, scalar: Ty<'ctx>, lanes: Option<u32>) -> Ty<'ctx> {
        match (scalar, lanes) {
            (Ty::IntType(t), Some(n)) => t.vec_type(n).into(),
            (Ty::FloatType(t), Some(n)) => t.vec_type(n).into(),
            (Ty::PointerType(t), Some(n)) => t.vec_type(n).into(),
            (t, _) => t,
        }
    }

    /// Number of lanes of a vector value.
    pub(super) fn lanes(v: V<'ctx>) -> Option<u32> {
        match v {
            V::VectorValue(v) => Some(v.get_type().get_size()),
            _ => None,
        }
    }

    /// The type with the same number of lanes as `v` and the given elements.
    pub(super) fn like(&self, scalar: Ty<'ctx>, v: V<'ctx>) -> Ty<'ctx> {
        self.wide(scalar, Self::lanes(v))
    }

    /// Bits of an element of `v`.
    pub(super) fn element_bits(v: V<'ctx>) -> u32 {
        let scalar = match v.get_type() {
            Ty::VectorType(t) => t.get_element_type(),
            t => t,
        };
        match scalar {
            Ty::IntType(t) => t.get_bit_width(),
            Ty::FloatType(t) => t.get_bit_width(),
            _ => 64,
        }
    }

    // Constants.

    fn spread(&self, scalar: V<'ctx>, ty: Ty<'ctx>) -> V<'ctx> {
        match ty {
            Ty::VectorType(t) => VectorType::const_vector(&vec![scalar; t.get_size() as usize]).into(),
            _ => scalar,
        }
    }

    fn scalar_of(ty: Ty<'ctx>) -> Ty<'ctx> {
        match ty {
            Ty::VectorType(t) => t.get_element_type(),
            t => t,
        }
    }

    /// A float constant of a float type or a vector of it.
    pub(super) fn float(&self, x: f64, ty: Ty<'ctx>) -> V<'ctx> {
        self.spread(Self::scalar_of(ty).into_float_type().const_float(x).into(), ty)
    }

    /// An integer constant of an integer type or a vector of it; cut to the type's width.
    pub(super) fn int(&self, i: i64, ty: Ty<'ctx>) -> V<'ctx> {
        let t = Self::scalar_of(ty).into_int_type();
        let unused = 64 - t.get_bit_width().min(64);
        self.spread(t.const_int((i << unused >> unused) as u64, true).into(), ty)
    }

    pub(super) fn i64(&self, i: i64) -> IntValue<'ctx> {
        self.ctx.i64_type().const_int(i as u64, true)
    }

    /// A vector of 64 `bool`, that of lane i the i-th bit.
    pub(super) fn bits(&self, bits: u64) -> V<'ctx> {
        let t = self.ctx.bool_type();
        VectorType::const_vector(&(0..64).map(|i| t.const_int(bits >> i & 1, false)).collect::<Vec<_>>()).into()
    }

    /// A vector of bytes.
    pub(super) fn bytes(&self, values: impl IntoIterator<Item = u64>) -> V<'ctx> {
        let t = self.ctx.i8_type();
        VectorType::const_vector(&values.into_iter().map(|i| t.const_int(i, false)).collect::<Vec<_>>()).into()
    }

    fn i32_vector(&self, values: impl IntoIterator<Item = u32>) -> VectorValue<'ctx> {
        let t = self.ctx.i32_type();
        VectorType::const_vector(&values.into_iter().map(|i| t.const_int(i as u64, false)).collect::<Vec<_>>())
    }

    // Operations.

    pub(super) fn bin(&self, op: Opcode, a: V<'ctx>, b: V<'ctx>) -> V<'ctx> {
        built(self.builder.build_binop(op, a, b, ""))
    }

    /// Lets a product and a sum become one fused operation where the machine has it.
    fn contract(&self, v: V<'ctx>) -> V<'ctx> {
        if let Some(inst) = v.as_instruction_value()
            && inst.can_use_fast_math_flags()
        {
            let _ = inst.set_fast_math_flags(FastMathFlags::AllowContract);
        }
        v
    }

    pub(super) fn fadd(&self, a: V<'ctx>, b: V<'ctx>) -> V<'ctx> {
        self.contract(self.bin(Opcode::FAdd, a, b))
    }

    pub(super) fn fsub(&self, a: V<'ctx>, b: V<'ctx>) -> V<'ctx> {
        self.contract(self.bin(Opcode::FSub, a, b))
    }

    pub(super) fn fmul(&self, a: V<'ctx>, b: V<'ctx>) -> V<'ctx> {
        self.contract(self.bin(Opcode::FMul, a, b))
    }

    pub(super) fn fdiv(&self, a: V<'ctx>, b: V<'ctx>) -> V<'ctx> {
        self.bin(Opcode::FDiv, a, b)
    }

    /// `a * b + c`, fused where the machine can.
    pub(super) fn fma(&self, a: V<'ctx>, b: V<'ctx>, c: V<'ctx>) -> V<'ctx> {
        self.fadd(self.fmul(a, b), c)
    }

    pub(super) fn fneg(&self, a: V<'ctx>) -> V<'ctx> {
        match a {
            V::VectorValue(v) => built(self.builder.build_float_neg(v, "")).into(),
            v => built(self.builder.build_float_neg(v.into_float_value(), "")).into(),
        }
    }

    pub(super) fn add(&self, a: V<'ctx>, b: V<'ctx>) -> V<'ctx> {
        self.bin(Opcode::Add, a, b)
    }

    pub(super) fn sub(&self, a: V<'ctx>, b: V<'ctx>) -> V<'ctx> {
        self.bin(Opcode::Sub, a, b)
    }

    pub(super) fn mul(&self, a: V<'ctx>, b: V<'ctx>) -> V<'ctx> {
        self.bin(Opcode::Mul, a, b)
    }

    pub(super) fn and(&self, a: V<'ctx>, b: V<'ctx>) -> V<'ctx> {
        self.bin(Opcode::And, a, b)
    }

    pub(super) fn or(&self, a: V<'ctx>, b: V<'ctx>) -> V<'ctx> {
        self.bin(Opcode::Or, a, b)
    }

    pub(super) fn xor(&self, a: V<'ctx>, b: V<'ctx>) -> V<'ctx> {
        self.bin(Opcode::Xor, a, b)
    }

    /// Shifted by the same constant in every lane.
    pub(super) fn shift(&self, op: Opcode, a: V<'ctx>, by: i64) -> V<'ctx> {
        self.bin(op, a, self.int(by, a.get_type()))
    }

    /// All bits inverted.
    pub(super) fn not(&self, a: V<'ctx>) -> V<'ctx> {
        self.xor(a, self.int(-1, a.get_type()))
    }

    pub(super) fn icmp(&self, p: IntPredicate, a: V<'ctx>, b: V<'ctx>) -> V<'ctx> {
        match (a, b) {
            (V::VectorValue(a), V::VectorValue(b)) => built(self.builder.build_int_compare(p, a, b, "")).into(),
            (a, b) => built(self.builder.build_int_compare(p, a.into_int_value(), b.into_int_value(), "")).into(),
        }
    }

    pub(super) fn fcmp(&self, p: FloatPredicate, a: V<'ctx>, b: V<'ctx>) -> V<'ctx> {
        match (a, b) {
            (V::VectorValue(a), V::VectorValue(b)) => built(self.builder.build_float_compare(p, a, b, "")).into(),
            (a, b) => built(self.builder.build_float_compare(p, a.into_float_value(), b.into_float_value(), "")).into(),
        }
    }

    /// `a` where `c` holds, else `b`; a scalar condition chooses whole vectors.
    pub(super) fn select(&self, c: V<'ctx>, a: V<'ctx>, b: V<'ctx>) -> V<'ctx> {
        match c {
            V::VectorValue(c) => built(self.builder.build_select(c, a, b, "")),
            c => built(self.builder.build_select(c.into_int_value(), a, b, "")),
        }
    }

    /// A conversion to a type with as many lanes as `v` has and the given elements.
    pub(super) fn cast(&self, op: Opcode, v: V<'ctx>, scalar: Ty<'ctx>) -> V<'ctx> {
        built(self.builder.build_cast(op, v, self.like(scalar, v), ""))
    }

    /// The same bits as another type of the same element width.
    pub(super) fn bitcast(&self, v: V<'ctx>, scalar: Ty<'ctx>) -> V<'ctx> {
        built(self.builder.build_bit_cast(v, self.like(scalar, v), ""))
    }

    /// The same bits as a value of a type of the same width.
    pub(super) fn recast(&self, v: V<'ctx>, ty: Ty<'ctx>) -> V<'ctx> {
        built(self.builder.build_bit_cast(v, ty, ""))
    }

    // Vectors.

    /// A scalar in every lane.
    pub(super) fn splat(&self, v: V<'ctx>, lanes: u32) -> V<'ctx> {
        if v.is_vector_value() {
            return v;
        }
        let constant = match v {
            V::IntValue(i) => i.is_const(),
            V::FloatValue(f) => f.is_const(),
            _ => false,
        };
        let ty = self.wide(v.get_type(), Some(lanes)).into_vector_type();
        if constant {
            return self.spread(v, ty.into());
        }
        let one = built(self.builder.build_insert_element(ty.get_poison(), v, self.i64(0), ""));
        built(self.builder.build_shuffle_vector(one, ty.get_poison(), self.i32_vector((0..lanes).map(|_| 0)), ""))
            .into()
    }

    pub(super) fn extract(&self, v: V<'ctx>, lane: u32) -> V<'ctx> {
        built(self.builder.build_extract_element(v.into_vector_value(), self.i64(lane as i64), ""))
    }

    pub(super) fn insert(&self, v: V<'ctx>, x: V<'ctx>, lane: u32) -> V<'ctx> {
        built(self.builder.build_insert_element(v.into_vector_value(), x, self.i64(lane as i64), "")).into()
    }

    /// Chosen lanes of `a` followed by `b`.
    pub(super) fn shuffle(&self, a: V<'ctx>, b: V<'ctx>, lanes: impl IntoIterator<Item = u32>) -> V<'ctx> {
        let (a, b) = (a.into_vector_value(), b.into_vector_value());
        built(self.builder.build_shuffle_vector(a, b, self.i32_vector(lanes), "")).into()
    }

    /// A vector of unspecified content, to insert elements into.
    pub(super) fn poison(&self, scalar: Ty<'ctx>, lanes: u32) -> V<'ctx> {
        self.wide(scalar, Some(lanes)).into_vector_type().get_poison().into()
    }

    /// The integers `0..lanes` times a step.
    pub(super) fn iota(&self, step: i64, lanes: u32) -> V<'ctx> {
        let values: Vec<_> = (0..lanes as i64).map(|i| self.i64(i.wrapping_mul(step))).collect();
        VectorType::const_vector(&values).into()
    }

    // Memory.

    /// `pointer + index` elements.
    pub(super) fn offset(
        &self,
        ty: Ty<'ctx>,
        pointer: PointerValue<'ctx>,
        index: IntValue<'ctx>,
    ) -> PointerValue<'ctx> {
        // SAFETY: without `inbounds` the address is plain arithmetic; `ty` is the memory's element type.
        built(unsafe { self.builder.build_gep(ty, pointer, &[index], "") })
    }

    /// For each lane of an index, the address of that element.
    pub(super) fn offsets(&self, ty: Ty<'ctx>, pointer: PointerValue<'ctx>, index: VectorValue<'ctx>) -> V<'ctx> {
        let mut index = index.as_value_ref();
        // SAFETY: the builder stands in a block, and all values are of its module; without `inbounds` the addresses are plain arithmetic. inkwell
        // has no vectors of addresses here.
        unsafe {
            let builder = self.builder.as_mut_ptr();
            let v = LLVMBuildGEP2(builder, ty.as_type_ref(), pointer.as_value_ref(), &raw mut index, 1, c"".as_ptr());
            VectorValue::new(v).into()
        }
    }

    /// Loads a value with the alignment of `align` bytes.
    pub(super) fn load(&self, ty: Ty<'ctx>, pointer: PointerValue<'ctx>, align: usize) -> V<'ctx> {
        let v = built(self.builder.build_load(ty, pointer, ""));
        if let Some(inst) = v.as_instruction_value() {
            inst.set_alignment(align as u32).expect("an alignment is a power of two");
        }
        v
    }

    /// Stores a value with the alignment of `align` bytes.
    pub(super) fn store(&self, pointer: PointerValue<'ctx>, v: V<'ctx>, align: usize) {
        built(self.builder.build_store(pointer, v))
            .set_alignment(align as u32)
            .expect("an alignment is a power of two");
    }

    /// Loads the lanes where the mask holds; the others are 0.
    pub(super) fn masked_load(
        &self,
        ty: Ty<'ctx>,
        pointer: PointerValue<'ctx>,
        mask: V<'ctx>,
        align: usize,
    ) -> V<'ctx> {
        let zero = match ty {
            Ty::VectorType(t) => t.const_zero().into(),
            t => t.const_zero(),
        };
        let pointer_type = self.ctx.ptr_type(Default::default()).into();
        let f = Intrinsic::find("llvm.masked.load")
            .and_then(|i| i.get_declaration(self.module, &[ty, pointer_type]))
            .expect("an intrinsic of every LLVM that resat builds with");
        // Since LLVM 22 the alignment is an attribute of the pointer; before, it was an argument.
        let args: Vec<BasicMetadataValueEnum> = match f.count_params() {
            3 => vec![pointer.into(), mask.into(), zero.into()],
            _ => vec![
                pointer.into(),
                self.ctx.i32_type().const_int(align as u64, false).into(),
                mask.into(),
                zero.into(),
            ],
        };
        let call = built(self.builder.build_call(f, &args, ""));
        call.add_attribute(AttributeLoc::Param(0), self.flag("align", align as u64));
        call.try_as_basic_value().basic().expect("a load gives a value")
    }

    /// Loads each lane from a place of its own where the mask holds (everywhere where there is none); the others are 0. By instructions that
    /// gather where LLVM finds that they pay on the processor, else one by one.
    pub(super) fn masked_gather(
        &self,
        ty: Ty<'ctx>,
        pointers: V<'ctx>,
        mask: Option<V<'ctx>>,
        align: usize,
    ) -> V<'ctx> {
        let vector = ty.into_vector_type();
        let all = || self.spread(self.ctx.bool_type().const_all_ones().into(), ty);
        let f = Intrinsic::find("llvm.masked.gather")
            .and_then(|i| i.get_declaration(self.module, &[ty, pointers.get_type()]))
            .expect("an intrinsic of every LLVM that resat builds with");
        let args = [pointers.into(), mask.unwrap_or_else(all).into(), vector.const_zero().into()];
        let call = built(self.builder.build_call(f, &args, ""));
        call.add_attribute(AttributeLoc::Param(0), self.flag("align", align as u64));
        call.try_as_basic_value().basic().expect("a load gives a value")
    }

    /// Asks for a cache line that will be read, into the second cache: what lies in the first is in use now.
    pub(super) fn prefetch(&self, pointer: PointerValue<'ctx>) {
        const READ: u64 = 0;
        const SECOND_CACHE: u64 = 2;
        const DATA: u64 = 1;
        let i32 = |n| self.ctx.i32_type().const_int(n, false).into();
        let prefetch = Intrinsic::find("llvm.prefetch").expect("an intrinsic of every LLVM that resat builds with");
        let pointers = self.ctx.ptr_type(Default::default()).into();
        let f = prefetch.get_declaration(self.module, &[pointers]).expect("overloads of the intrinsic");
        self.call(f, &[pointer.into(), i32(READ), i32(SECOND_CACHE), i32(DATA)]);
    }

    // Calls and control.

    /// Calls an intrinsic; `overloads` are the types that its name depends on.
    pub(super) fn intrinsic(&self, name: &str, overloads: &[Ty<'ctx>], args: &[V<'ctx>]) -> V<'ctx> {
        let intrinsic = Intrinsic::find(name).expect("an intrinsic of every LLVM that resat builds with");
        let f = intrinsic.get_declaration(self.module, overloads).expect("overloads of the intrinsic");
        self.call(f, args).expect("an intrinsic that gives a value")
    }

    /// An intrinsic whose name depends on no types.
    pub(super) fn declared(&self, name: &str) -> FunctionValue<'ctx> {
        let intrinsic = Intrinsic::find(name).expect("an intrinsic of every LLVM that resat builds with");
        intrinsic.get_declaration(self.module, &[]).expect("an intrinsic without overloads")
    }

    pub(super) fn call(&self, f: FunctionValue<'ctx>, args: &[V<'ctx>]) -> Option<V<'ctx>> {
        let args: Vec<BasicMetadataValueEnum> = args.iter().map(|&a| a.into()).collect();
        built(self.builder.build_call(f, &args, "")).try_as_basic_value().basic()
    }

    /// The same vector, of which LLVM is not told what it was computed by: assembly of no instructions. x86.
    pub(super) fn opaque(&self, v: V<'ctx>) -> V<'ctx> {
        let f = v.get_type().fn_type(&[v.get_type().into()], false);
        let same = self.ctx.create_inline_asm(f, String::new(), "=v,0".into(), false, false, None, false);
        let call = built(self.builder.build_indirect_call(f, same, &[v.into()], ""));
        call.try_as_basic_value().basic().expect("assembly that gives a value")
    }

    /// A function of the C library over floats: `float` ones end in `f`. Vectors are taken apart.
    pub(super) fn libm(&self, name: &str, args: &[V<'ctx>]) -> V<'ctx> {
        let scalar = Self::scalar_of(args[0].get_type());
        let symbol = if Self::element_bits(args[0]) == 32 { format!("{name}f") } else { name.to_owned() };
        let f = self.module.get_function(&symbol).unwrap_or_else(|| {
            let params = vec![scalar.into(); args.len()];
            let f = self.module.add_function(&symbol, scalar.fn_type(&params, false), None);
            for attribute in ["nounwind", "willreturn"] {
                f.add_attribute(AttributeLoc::Function, self.flag(attribute, 0));
            }
            // Reads and writes no memory (errno does not matter here).
            f.add_attribute(AttributeLoc::Function, self.flag("memory", 0));
            f
        });
        match Self::lanes(args[0]) {
            None => self.call(f, args).expect("a function that gives a value"),
            Some(n) => (0..n).fold(self.poison(scalar, n), |out, lane| {
                let one: Vec<V> = args.iter().map(|&a| self.extract(a, lane)).collect();
                self.insert(out, self.call(f, &one).expect("a function that gives a value"), lane)
            }),
        }
    }

    pub(super) fn flag(&self, name: &str, value: u64) -> Attribute {
        self.ctx.create_enum_attribute(Attribute::get_named_enum_kind_id(name), value)
    }

    pub(super) fn block(&self, function: FunctionValue<'ctx>, name: &str) -> BasicBlock<'ctx> {
        self.ctx.append_basic_block(function, name)
    }

    pub(super) fn here(&self) -> BasicBlock<'ctx> {
        self.builder.get_insert_block().expect("the builder stands in a block")
    }

    pub(super) fn go_to(&self, block: BasicBlock<'ctx>) {
        self.builder.position_at_end(block);
    }

    pub(super) fn jump(&self, block: BasicBlock<'ctx>) {
        built(self.builder.build_unconditional_branch(block));
    }

    pub(super) fn branch(&self, c: V<'ctx>, yes: BasicBlock<'ctx>, no: BasicBlock<'ctx>) {
        built(self.builder.build_conditional_branch(c.into_int_value(), yes, no));
    }

    /// The branch at the end of a loop's turn, of so many turns where that is said.
    pub(super) fn branch_back(&self, c: V<'ctx>, head: BasicBlock<'ctx>, done: BasicBlock<'ctx>, turns: Option<i64>) {
        let branch = built(self.builder.build_conditional_branch(c.into_int_value(), head, done));
        let Some(turns) = turns else { return };
        let weights =
            [turns - 1, 1].map(|n| self.ctx.i32_type().const_int(n.clamp(1, MOST_TURNS) as u64, false).into());
        let node = self.ctx.metadata_node(&[self.ctx.metadata_string("branch_weights").into(), weights[0], weights[1]]);
        branch.set_metadata(node, self.ctx.get_kind_id("prof")).expect("a branch takes metadata");
    }

    /// A value that depends on which block control came from.
    pub(super) fn phi(&self, incoming: &[(V<'ctx>, BasicBlock<'ctx>)]) -> V<'ctx> {
        let phi = built(self.builder.build_phi(incoming[0].0.get_type(), ""));
        for (v, block) in incoming {
            phi.add_incoming(&[(v, *block)]);
        }
        phi.as_basic_value()
    }

    pub(super) fn ret(&self) {
        built(self.builder.build_return(None));
    }
}
