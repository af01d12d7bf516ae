//! From a typed module to a program.
//!
//! Relay's shared expressions are evaluated once per activation, where first asked for. What every path needs is computed once, what only
//! branches of one `if` need in each of them, and only what is left (shared by closures, or by branches one after another) is delayed in a
//! cell. Passes keep the sharing, and with it the number and order of effects; random programs that leave traces compare them with the
//! interpreter. Loops are tail calls, so that code jumps forward only: one walk backwards finds last uses, and a register's live range is
//! an interval.

mod facts;
mod finish;
mod patterns;
mod plan;
mod walk;

use hashbrown::HashMap;

use self::{
    facts::{Facts, is_kernel, kernel},
    walk::Walk,
};
use super::{
    program::{Function, Instr, Kernel, KernelId, Layout, Operand, Program, Reg},
    value::{Adt, Closure, Fields, Value},
};
use crate::{
    diag::Refused,
    infer::TypedModule,
    ir::{AttrValue, ExprId, Name, Type, reachable},
    tensor::Tensor,
};

/// The program that runs a function of a module, in which every operator's call is part of a primitive function, as fusion
/// leaves it.
///
/// Refuses operators outside of primitive functions.
pub fn compile(typed: &TypedModule, entry: &str) -> Result<Program, Refused> {
    typed.entry(entry)?;
    let facts = Facts::new(typed);
    let mut c = Compiler {
        typed,
        facts: &facts,
        functions: Vec::new(),
        globals: HashMap::new(),
        todo: Vec::new(),
        wrappers: HashMap::new(),
        constants: Vec::new(),
        constant_of: HashMap::new(),
        kernels: Vec::new(),
        kernel_of: HashMap::new(),
    };
    let entry = c.global(&entry.into());
    while let Some((function, name)) = c.todo.pop() {
        let func = typed.function_id(&name).expect("only functions of the module are asked for");
        Walk::new(&mut c, func)?.run(function, name)?;
    }
    let functions = c.functions.into_iter().map(|f| f.expect("what is asked for is compiled")).collect();
    Ok(Program { functions, entry, constants: c.constants, kernels: c.kernels })
}

/// What identifies a constant.
#[derive(Clone, PartialEq, Eq, Hash)]
enum ConstantKey {
    Tensor(ExprId),
    Function(u32),
    Adt(u32),
    Unit,
}

/// What all functions of a program share while it is compiled.
struct Compiler<'a> {
    typed: &'a TypedModule,
    facts: &'a Facts,
    /// None where one has been asked for and is still to be compiled.
    functions: Vec<Option<Function>>,
    globals: HashMap<Name, u32>,
    todo: Vec<(u32, Name)>,
    /// Functions around kernels and constructors that are used as values.
    wrappers: HashMap<ExprId, u32>,
    constants: Vec<Value>,
    constant_of: HashMap<ConstantKey, u32>,
    kernels: Vec<Kernel>,
    kernel_of: HashMap<ExprId, KernelId>,
}

impl<'a> Compiler<'a> {
    /// A place for a function.
    fn reserve(&mut self) -> u32 {
        self.functions.push(None);
        self.functions.len() as u32 - 1
    }

    /// The function of that name, which is compiled in its turn.
    fn global(&mut self, name: &Name) -> u32 {
        if let Some(&known) = self.globals.get(name) {
            return known;
        }
        let function = match self.typed.function_id(name) {
            Some(func) if is_kernel(self.typed.func(func)) => self.kernel_function(func),
            _ => {
                let function = self.reserve();
                self.todo.push((function, name.clone()));
                function
            }
        };
        self.globals.insert(name.clone(), function);
        function
    }

    fn constant(&mut self, key: ConstantKey, value: impl FnOnce() -> Value) -> Operand {
        let n = *self.constant_of.entry(key).or_insert_with(|| {
            self.constants.push(value());
            self.constants.len() as u32 - 1
        });
        Operand::Const(n)
    }

    fn tensor(&mut self, e: ExprId, t: &Tensor) -> Operand {
        self.constant(ConstantKey::Tensor(e), || t.clone().into())
    }

    fn function_value(&mut self, function: u32) -> Operand {
        let captures = Fields::default();
        self.constant(ConstantKey::Function(function), || Value::Closure(Closure { function, captures }))
    }

    /// The value of a constructor without fields.
    fn nullary(&mut self, tag: u32) -> Operand {
        self.constant(ConstantKey::Adt(tag), || Value::Adt(Adt { tag, fields: Fields::default() }))
    }

    fn unit(&mut self) -> Operand {
        self.constant(ConstantKey::Unit, || Value::Tuple(Fields::default()))
    }

    /// A constructor by itself: without fields, it is its only value.
    fn constructor_value(&mut self, e: ExprId, name: &Name) -> Operand {
        let (adt, tag) = self.typed.constructor(name).expect("verified: constructors exist");
        let (tag, params) = (tag as u32, adt.constructors[tag].fields.len() as u32);
        if params == 0 {
            return self.nullary(tag);
        }
        let function = match self.wrappers.get(&e) {
            Some(&known) => known,
            None => {
                let function = self.wrapper(name.clone(), params, |dst, fields| Instr::Adt { dst, tag, fields });
                self.wrappers.insert(e, function);
                function
            }
        };
        self.function_value(function)
    }

    /// The function that calls a kernel.
    fn kernel_function(&mut self, func: ExprId) -> u32 {
        if let Some(&known) = self.wrappers.get(&func) {
            return known;
        }
        let kernel = self.kernel(func);
        let Kernel { name, params, .. } = self.kernels[kernel.index()].clone();
        let function = self.wrapper(name, params as u32, |dst, args| Instr::Invoke { dst, kernel, args });
        self.wrappers.insert(func, function);
        function
    }

    fn wrapper(&mut self, name: Name, params: u32, instr: impl FnOnce(Reg, Box<[Operand]>) -> Instr) -> u32 {
        let dst = Reg(params);
        let make = instr(dst, (0..params).map(|p| Operand::Take(Reg(p))).collect());
        let code = vec![make, Instr::Return(Operand::Take(dst))];
        self.functions.push(Some(Function { name, params, registers: params + 1, code, spans: Vec::new() }));
        self.functions.len() as u32 - 1
    }

    /// The kernel that a function is.
    fn kernel(&mut self, func: ExprId) -> KernelId {
        if let Some(&known) = self.kernel_of.get(&func) {
            return known;
        }
        let m = self.typed.module();
        let f = m.func(func);
        let id = KernelId(self.kernels.len() as u32);
        let symbol = match f.attrs.get("global_symbol") {
            Some(AttrValue::Str(s)) => Some(s.clone()),
            _ => None,
        };
        let global = || m.functions().find(|(_, id)| *id == func).map(|(name, _)| name.clone());
        let name = symbol.or_else(global).unwrap_or_else(|| self.operators(f.body));
        self.kernels.push(Kernel {
            func,
            name,
            params: f.params.len(),
            result: layout(self.typed.ty(f.body)),
            compiler: f.compiler().map(Name::from),
        });
        self.kernel_of.insert(func, id);
        id
    }

    /// The operators in an expression, as a name.
    fn operators(&self, body: ExprId) -> Name {
        const LONGEST: usize = 60;
        let m = self.typed.module();
        let ops = reachable(m, [body]).into_iter().filter_map(|e| m.op_call(e));
        let mut name = ops.map(|(op, _, _)| op.op().name().replace('.', "_")).collect::<Vec<_>>().join("_");
        name.truncate(LONGEST);
        name.into()
    }
}

/// How results of a type are made of tensors.
fn layout(ty: &Type) -> Layout {
    match ty {
        // Inference bounds how deep types are nested.
        Type::Tuple(fields) => Layout::Tuple(fields.iter().map(layout).collect()),
        _ => Layout::Tensor,
    }
}
