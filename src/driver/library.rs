//! Built programs as shared libraries.

use std::{borrow::Cow, path::Path};

use hashbrown::HashMap;

use super::{
    BuildError, Built, EmitError, Runnable,
    runnable::{MachineProgram, Parameter},
    sized::{AllSizes, in_form},
    specialize::Code,
    state::StatePair,
};
use crate::{
    codegen::{CodegenTarget, ObjectCode},
    diag::{Diagnostic, Refused},
    ir::{Dim, Type},
    loops::Kernel,
    runtime::{
        NotSized, Program, Sample, SizedProgram,
        export::{
            Exportable, Exported, Form, MachineParts, PortType, SizedFunction, SizedParts, export_linked, export_sized,
        },
    },
    vm,
};

impl Built {
    /// Writes a shared library of the program, and a C header beside it, whose symbols begin with a name: see [`export_linked`] and
    /// [`export_sized`].
    ///
    /// Refuses programs that need a compiler while they run, naming what needs it.
    pub fn export(&self, name: &str, target: &CodegenTarget, path: &Path) -> Result<Exported, EmitError> {
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
        let one = |(number, k): (usize, &vm::Kernel)| self.kernel(number, &k.name);
        let kernels = self.program().kernels().iter().enumerate().map(one).collect::<Result<_, Refused>>();
        let kernels = kernels.map_err(|e| whole.unwrap_or(e))?;
        let mut parameters = Vec::new();
        self.params.iter().for_each(|p| layout(&p.ty, &mut parameters));
        Ok((
            SizedParts::Machine(MachineParts { words: self.program().words(), kernels, inputs, parameters }),
            code,
            None,
        ))
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

    /// A kernel that the machine calls: one of known extents. What extents a kernel meets that are found while the program runs nothing bounds, so
    /// that its numbers could not be checked.
    fn kernel(&self, number: usize, name: &str) -> Result<SizedFunction, Refused> {
        let (all, f) = (&self.kernels, &self.kernels.functions[number]);
        let m = &all.module;
        let refuse = |what: String| -> Refused {
            let d = Diagnostic::new(format!("a shared library can't have {what}")).at(m.span(f.func).cloned());
            d.help("`resat run` and `driver::build` run such programs in process").into()
        };
        if let Some(done) = &f.fixed {
            return fixed(name, done).map_err(|e| refuse(format!("`{name}`: {e}")));
        }
        if let Some((op, _)) = &f.as_is {
            return Err(refuse(format!("`{}`, which no kernel computes", op.op().name())));
        }
        if !f.decisive.is_empty() {
            return Err(refuse(format!("`{name}`: values that are computed decide extents in it")));
        }
        if let Some(compiler) = m.func(f.func).compiler() {
            return Err(refuse(format!("a region of unknown extents for the compiler `{compiler}`")));
        }
        Err(refuse(format!(
            "`{name}`: its extents are found while the program runs, and nothing bounds the sizes at which it would have to be checked"
        )))
    }
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
