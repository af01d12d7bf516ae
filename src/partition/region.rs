//! What a compiler is given: a function of the program, its types, its name, and the machine.

use super::CompilerError;
use crate::{
    codegen::CodegenTarget,
    diag::Refused,
    infer::TypedModule,
    ir::{Attrs, Copier, Expr, ExprId, Function, Module, TensorType},
    pass,
    relay::text,
    target::Target,
};

/// A part of a program that a compiler takes over: a function of operators (and of calls of functions with the attribute
/// `Composite`, where the compiler has [patterns](super::ExternalCompiler::patterns)) on tensors of known extents.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    typed: &'a TypedModule,
    function: ExprId,
    compiler: &'a str,
    symbol: &'a str,
    target: &'a CodegenTarget,
    machine: Option<&'a Target>,
}

impl<'a> Region<'a> {
    /// The region that an expression of a module, a function, is for a compiler.
    pub fn new(
        typed: &'a TypedModule,
        function: ExprId,
        compiler: &'a str,
        symbol: &'a str,
        target: &'a CodegenTarget,
    ) -> Region<'a> {
        Region { typed, function, compiler, symbol, target, machine: None }
    }

    /// The module that the function stands in, with the types of all that it is made of.
    pub fn typed(&self) -> &'a TypedModule {
        self.typed
    }

    /// The same without types.
    pub fn module(&self) -> &'a Module {
        self.typed.module()
    }

    /// The function.
    pub fn function(&self) -> &'a Function {
        self.module().func(self.function)
    }

    /// Its place in the module.
    pub fn id(&self) -> ExprId {
        self.function
    }

    /// The compiler's name.
    pub fn compiler(&self) -> &'a str {
        self.compiler
    }

    /// The name that the compiled function shall have: a C identifier.
    pub fn symbol(&self) -> &'a str {
        self.symbol
    }

    /// The machine that runs it.
    pub fn target(&self) -> &'a CodegenTarget {
        self.target
    }

    /// The same, with what is known of that machine's speed.
    pub fn on(self, machine: &'a Target) -> Region<'a> {
        Region { machine: Some(machine), ..self }
    }

    /// The speed of the machine that runs it, for costs; `None` where nobody has said.
    pub fn machine(&self) -> Option<&'a Target> {
        self.machine
    }

    /// The tensors that it takes, in order, tuples flattened depth first.
    pub fn inputs(&self) -> Vec<TensorType> {
        let types = self.function().params.iter().map(|&p| self.typed.var_ty(p));
        types.flat_map(|t| t.flatten().expect("regions take tensors and tuples of tensors")).collect()
    }

    /// The tensors that it gives, likewise.
    pub fn outputs(&self) -> Vec<TensorType> {
        self.typed.ty(self.function().body).flatten().expect("regions give tensors and tuples of tensors")
    }

    /// The region by itself: a module whose `@main` it is, without the attributes that made it a region.
    pub fn alone(&self) -> Module {
        let mut out = self.module().derive();
        let copied = Copier::new().copy(self.module(), self.function, &mut out);
        let f = Function { attrs: Attrs::empty(), ..out.func(copied).clone() };
        let main = out.add(Expr::Func(Box::new(f)));
        out.define("main", main);
        out
    }

    /// The same with composites dissolved, bindings as sharing: calls of operators.
    ///
    /// Refuses bodies that are no expressions of operators.
    pub fn plain(&self) -> Result<Module, Refused> {
        let alone = self.alone();
        let mut out = alone.derive();
        let main = alone.function_id("main").expect("it is the region");
        let main = Copier::new().copy_with(&alone, main, &mut out, |out, from, e| match e {
            Expr::Func(f) if !f.attrs.is_empty() => {
                let f = Function { attrs: Attrs::empty(), ..(**f).clone() };
                Some(out.add_at(Expr::Func(Box::new(f)), alone.span(from).cloned()))
            }
            _ => None,
        });
        out.define("main", main);
        pass::inline(&out)
    }

    /// The same as Relay text, constants in its metadata section.
    pub fn text(&self) -> String {
        text::print_module(&self.alone())
    }

    /// The error that this compiler can't compile this region.
    pub fn refuse(&self, reason: impl Into<String>) -> CompilerError {
        CompilerError { compiler: self.compiler.into(), region: self.symbol.into(), reason: reason.into() }
    }
}
