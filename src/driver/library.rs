//! Built programs as shared libraries.

use std::{borrow::Cow, path::Path};

use hashbrown::HashMap;

use super::{
    BuildError, Built, EmitError, ExtentRange, Runnable,
    extents::Extents,
    runnable::{MachineProgram, Parameter},
    sized::{AllSizes, in_form},
    specialize::{Code, Primitive},
    state::StatePair,
};
use crate::{
    codegen::{CodegenTarget, ObjectCode},
    diag::{Diagnostic, Refused},
    ir::{Dim, Expr, Module, TensorType, Type, VarId},
    loops::Kernel,
    runtime::{
        NotSized, Program, Sample, SizedProgram,
        export::{
            Exportable, Exported, Form, MachineParts, PortType, SizedFunction, SizedParts, Span, export_linked,
            export_sized,
        },
    },
    tensor::DType,
    vm::{self, Reach},
};

impl Built {
    /// Writes a shared library of the program, and a C header beside it, whose symbols begin with a name: see [`export_linked`] and
    /// [`export_sized`].
    ///
    /// Refuses programs that need a compiler while they run, naming what needs it.
    pub fn export(&self, name: &str, target: &CodegenTarget, path: &Path) -> Result<Exported, EmitError> {
        if let Some(pair) = self.state.iter().find(|p| p.order.is_some()) {
            let message =
                format!("state `{}` lies in another order than the model has, which libraries don't know", pair.name);
            let d = Diagnostic::new(message).help("build it without `reorder_state`");
            return Err(BuildError::from(Refused::from(d)).into());
        }
        let parts = self.exportable(target).map_err(BuildError::from)?;
        match &self.executable {
            Runnable::Plain(exe) if self.state.is_empty() => Ok(export_linked(exe.program(), &parts, path)?),
            Runnable::Plain(exe) => {
                let whole = with_state(name, exe.program(), &self.state).map_err(BuildError::from)?;
                Ok(export_sized(name, &SizedParts::Whole(whole), &parts, path)?)
            }
            Runnable::Machine(m) => m.export(name, parts, &self.objects, path),
        }
    }
}

impl MachineProgram {
    /// `made` is the code of functions of known extents, which `parts` has, too.
    fn export(
        &self,
        name: &str,
        parts: Exportable<'_>,
        made: &[ObjectCode],
        path: &Path,
    ) -> Result<Exported, EmitError> {
        let (program, mut code, unserved) = self.sized_parts(name).map_err(BuildError::from)?;
        code.retain(|name, _| !made.iter().any(|o| o.symbols.contains(name)));
        let more = self.objects(&code)?;
        let objects = parts.objects.iter().cloned().chain(more.iter().map(|o| Cow::Borrowed(&o.bytes[..]))).collect();
        let parts = Exportable { objects, ..parts };
        Ok(Exported { unserved, ..export_sized(name, &program, &parts, path)? })
    }

    /// The program for all sizes, under a name, those of its kernels that were not made with it, and why sizes within bounds are not served,
    /// where some are not.
    pub(super) fn sized_parts(
        &self,
        name: &str,
    ) -> Result<(SizedParts, HashMap<String, Kernel>, Option<String>), Refused> {
        let inputs = self.inputs()?;
        let names: Vec<String> = [name.to_owned()].into_iter().chain(inputs.iter().map(|p| p.name.clone())).collect();
        let mut code: HashMap<String, Kernel> = HashMap::new();
        let whole = match self.kernels.plain_whole(&self.extents) {
            Some(whole) => match self.kernels.sized(whole, &names, &self.dims, &self.extents, &mut code) {
                Ok(AllSizes { function, refused }) => return Ok((SizedParts::Whole(function), code, refused)),
                Err(e) => Some(e),
            },
            None => None,
        };
        if let Some(&(input, _)) = self.kernels.machine.state.first() {
            return Err(whole.unwrap_or_else(|| {
                let message = format!(
                    "state `{}` can't be exported: libraries keep that of plain sequences of calls, and this program is none",
                    inputs[input].name
                );
                Diagnostic::new(message).into()
            }));
        }
        // A plain sequence of calls has the interface of one, or none.
        if let Some(e) = whole.filter(|_| self.kernels.functions.iter().any(|f| f.fixed.is_none())) {
            return Err(e);
        }
        let mut unserved: Vec<String> = Vec::new();
        let reaches = self.reaches();
        // Functions that are the same, and meet the same.
        let mut same: HashMap<(*const (), &Option<Vec<Reach>>), SizedFunction> = HashMap::new();
        let mut one = |(number, k): (usize, &vm::Kernel)| -> Result<SizedFunction, Refused> {
            let alike = (self.kernels.functions[number].shared(), &reaches[number]);
            if let Some(made) = same.get(&alike) {
                return Ok(SizedFunction { name: k.name.to_string(), ..made.clone() });
            }
            let AllSizes { function, refused } = self.kernel(number, &k.name, reaches[number].as_deref(), &mut code)?;
            unserved.extend(refused.map(|why| format!("`{}`: {why}", k.name)));
            same.insert(alike, function.clone());
            Ok(function)
        };
        let kernels = self.program().kernels().iter().enumerate().map(&mut one).collect::<Result<_, Refused>>()?;
        let mut parameters = Vec::new();
        self.params.iter().for_each(|p| layout(&p.ty, &mut parameters));
        let axes = inputs.iter().enumerate().flat_map(|(i, p)| (0..p.shape.len()).map(move |axis| (i, axis)));
        let spans = axes.map(|(i, axis)| self.extents.range(i, axis).map(span)).collect();
        let reshapes = self.kernels.functions.iter().map(|f| reshape(&self.kernels.module, f)).collect();
        let machine = MachineParts { words: self.program().words(), kernels, reshapes, inputs, spans, parameters };
        Ok((SizedParts::Machine(machine), code, (!unserved.is_empty()).then(|| unserved.join("; "))))
    }

    /// The code of kernels that is not made yet.
    fn objects(&self, kernels: &HashMap<String, Kernel>) -> Result<Vec<ObjectCode>, BuildError> {
        let machine = &self.kernels.machine;
        let mut kernels: Vec<&Kernel> = kernels.values().collect();
        kernels.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(machine.backend.compile(&kernels, machine.cache.as_deref(), &machine.cancel)?)
    }

    /// What the program takes. Extents that were inferred are taken as they come.
    fn inputs(&self) -> Result<Vec<PortType>, Refused> {
        let mut all = Vec::new();
        for p in &self.params {
            let Some(tensors) = p.ty.flatten() else {
                let message =
                    format!("input `{}` is {}: exported programs take tensors and tuples of tensors", p.name, p.ty);
                return Err(Diagnostic::new(message).into());
            };
            for (name, t) in names_of(p).into_iter().zip(tensors) {
                let known = |d: &Dim| d.known().filter(|_| p.annotated).map(|n| n as usize);
                all.push(PortType { name, dtype: t.dtype, shape: t.shape.iter().map(known).collect() });
            }
        }
        Ok(all)
    }

    /// A kernel that the machine calls. Those of unknown extents are for all sizes up to what its arguments may become (`reaches`), and what they
    /// call joins `code`.
    fn kernel(
        &self,
        number: usize,
        name: &str,
        reaches: Option<&[Reach]>,
        code: &mut HashMap<String, Kernel>,
    ) -> Result<AllSizes, Refused> {
        let (all, f) = (&self.kernels, &self.kernels.functions[number]);
        let m = &all.module;
        let refuse = |what: String, help: &str| -> Refused {
            Diagnostic::new(format!("a shared library can't have {what}")).at(m.span(f.func).cloned()).help(help).into()
        };
        const IN_PROCESS: &str = "`resat run` and `driver::build` run such programs in process";
        if let Some(done) = &f.fixed {
            let function = fixed(name, done).map_err(|e| refuse(format!("`{name}`: {e}"), IN_PROCESS))?;
            return Ok(AllSizes { function, refused: None });
        }
        if let Some((op, _)) = &f.as_is {
            return Err(refuse(format!("`{}`, which no kernel computes", op.op().name()), IN_PROCESS));
        }
        let params = &m.func(f.func).params;
        let types: Vec<TensorType> = params.iter().filter_map(|&p| m.var(p).ty.as_ref()?.flatten()).flatten().collect();
        if reshape(m, f).is_some() {
            let inputs = types.iter().map(|t| PortType {
                name: String::new(),
                dtype: t.dtype,
                shape: t.shape.iter().map(|d| d.known().map(|n| n as usize)).collect(),
            });
            let inputs = inputs.collect();
            let function =
                SizedFunction { name: name.to_owned(), inputs, output_names: vec![], forms: vec![], state: vec![] };
            return Ok(AllSizes { function, refused: None });
        }
        if !f.decisive.is_empty() {
            return Err(refuse(format!("`{name}`: values that are computed decide extents in it"), IN_PROCESS));
        }
        if let Some(compiler) = m.func(f.func).compiler() {
            let what = format!("a region of unknown extents for the compiler `{compiler}`");
            return Err(refuse(what, IN_PROCESS));
        }
        let params = &m.func(f.func).params;
        let types: Vec<TensorType> = params.iter().filter_map(|&p| m.var(p).ty.as_ref()?.flatten()).flatten().collect();
        let reach = |i: usize, axis: usize| reaches.and_then(|r| *r.get(i)?.get(axis)?);
        let range = |i: usize, axis: usize| match reach(i, axis) {
            Some(most) => Some(ExtentRange::up_to(most.max(1) as usize)),
            None => self.extents.general(),
        };
        let unbounded = |(i, t): (usize, &TensorType)| {
            t.shape.iter().enumerate().any(|(axis, d)| d.known().is_none() && range(i, axis).is_none())
        };
        if types.iter().enumerate().any(unbounded) {
            let what = format!("`{name}`: its extents are found while the program runs, and nothing bounds them");
            let help = "a library takes the sizes that were looked at when it was built: say how great the extents of inputs may be, by `--max \
                        NAME=N` or `Options::bounds`, and how great others may become, by `--max '?=N'`, or `?` in `Options::bounds`";
            return Err(refuse(what, help));
        }
        let within = Extents::within(&types, range);
        let of = |&p: &VarId| {
            let ty = m.var(p).ty.clone().unwrap_or_else(|| Type::tuple([]));
            names_of(&Parameter { name: m.var(p).name.clone(), ty, annotated: true })
        };
        let names: Vec<String> = [name.to_owned()].into_iter().chain(params.iter().flat_map(of)).collect();
        all.sized(f, &names, &[], &within, code)
    }
}

/// Whether a function does nothing but reshape its first argument to the integers that the second one is; whether 0 is then an extent.
fn reshape(m: &Module, f: &Primitive) -> Option<bool> {
    let func = m.func(f.func);
    let (op, args, attrs) = m.op_call(func.body)?;
    let own = args.iter().zip(&func.params).all(|(&a, &p)| matches!(m[a], Expr::Var(v) if v == p));
    let integers = |p: VarId| m.var(p).ty.as_ref()?.as_tensor().map(|t| matches!(t.dtype, DType::I32 | DType::I64));
    let is_one =
        f.fixed.is_none() && own && op.op().name() == "dyn.reshape" && args.len() == 2 && func.params.len() == 2;
    (is_one && integers(func.params[1]) == Some(true)).then(|| attrs.bool("allowzero"))
}

/// What an input's extent may be.
fn span(range: ExtentRange) -> Span {
    let least = if range.least == 0 { 0 } else { range.first() };
    let most = range.most - range.most % range.step;
    Span { least: least as i64, most: most as i64, step: range.step as i64 }
}

/// A function whose extents are known.
fn fixed(name: &str, code: &Code) -> Result<SizedFunction, NotSized> {
    of_one_size(name, code.executable().program(), code.counted(), &[])
}

/// A plain program that keeps state.
pub(super) fn with_state(name: &str, program: &Program, state: &[StatePair]) -> Result<SizedFunction, Refused> {
    let pairs: Vec<(usize, usize)> = state.iter().map(|p| (p.input, p.output)).collect();
    of_one_size(name, program, &[], &pairs)
        .map_err(|e| Diagnostic::new(format!("`{name}` can't be exported with state: {e}")).into())
}

/// What a program of known extents does as a function of one form.
fn of_one_size(
    name: &str,
    program: &Program,
    counted: &[(usize, usize)],
    state: &[(usize, usize)],
) -> Result<SizedFunction, NotSized> {
    let inputs = program.inputs().iter().map(|p| PortType {
        name: p.name.to_string(),
        dtype: p.dtype,
        shape: p.shape.iter().map(|&n| Some(n)).collect(),
    });
    let inputs = inputs.collect();
    let sample =
        [Sample { extents: Vec::new(), program: program.clone(), counted: counted.to_vec(), about: Vec::new() }];
    let in_form = state.iter().map(|&pair| in_form(&sample, pair)).collect();
    let program = SizedProgram::of(&sample, 1)?;
    Ok(SizedFunction {
        name: name.to_owned(),
        inputs,
        // The program's ports have them.
        output_names: vec![],
        forms: vec![Form { extents: vec![], classes: vec![], serves: None, program, state: in_form }],
        state: state.to_vec(),
    })
}

/// How tensors make up a value of a type: see [`MachineParts`].
fn layout(ty: &Type, out: &mut Vec<i32>) {
    match ty {
        Type::Tuple(fields) => {
            out.push(fields.len() as i32);
            // Types bound how deep tuples are nested.
            fields.iter().for_each(|f| layout(f, out));
        }
        _ => out.push(-1),
    }
}

/// The names of the tensors that a parameter is.
fn names_of(p: &Parameter) -> Vec<String> {
    fn add(name: String, ty: &Type, out: &mut Vec<String>) {
        match ty {
            // Types bound how deep tuples are nested.
            Type::Tuple(fields) => fields.iter().enumerate().for_each(|(i, f)| add(format!("{name}.{i}"), f, out)),
            _ => out.push(name),
        }
    }
    let mut out = Vec::new();
    add(p.name.to_string(), &p.ty, &mut out);
    out
}
