//! Built programs as data, to be kept on disk or run by another process: their calls, their machine code, and their constants beside these.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Built, Origin, Runnable, backend::in_process};
use crate::{
    codegen::{CodegenTarget, ObjectCode},
    runtime::{ConstantRecord, Executable, Pool, Program, ProgramRecord},
    tensor::Tensor,
};

/// What there is of a program beside object code and constants.
#[derive(Serialize, Deserialize)]
pub(super) struct Head {
    /// Triple, processor, features.
    target: (String, String, String),
    program: ProgramRecord,
    /// The symbols of each object, and its bytes.
    objects: Vec<(Vec<String>, usize)>,
    calls: usize,
    parameters: Vec<usize>,
}

impl Head {
    /// The head of a program; `place` says where each constant is going to be.
    pub(super) fn new(
        program: &Program,
        built: &Built,
        target: &CodegenTarget,
        place: impl FnMut(&Tensor) -> usize,
    ) -> Head {
        Head {
            target: (target.triple.clone(), target.cpu.clone(), target.features.clone()),
            program: program.record(place),
            objects: built.objects.iter().map(|o| (o.symbols.clone(), o.bytes.len())).collect(),
            calls: built.calls,
            parameters: built.parameters.clone(),
        }
    }

    /// Bytes of all objects together.
    pub(super) fn code_bytes(&self) -> usize {
        self.objects.iter().map(|o| o.1).sum()
    }

    /// The program, to be run by so many threads. None where the parts contradict each other.
    pub(super) fn link(
        self,
        code: &[u8],
        constant: impl FnMut(&ConstantRecord) -> Option<Tensor>,
        threads: usize,
    ) -> Option<Built> {
        let mut rest = code;
        let mut objects = Vec::new();
        for (symbols, bytes) in self.objects {
            let (object, after) = rest.split_at_checked(bytes)?;
            objects.push(ObjectCode { bytes: object.to_vec(), symbols });
            rest = after;
        }
        let program = Program::from_record(&self.program, constant)?;
        let (triple, cpu, features) = self.target;
        let library = in_process(&objects, &CodegenTarget { triple, cpu, features }).ok()?;
        let executable = Executable::link(program, vec![library], Arc::new(Pool::new(threads))).ok()?;
        Some(Built {
            executable: Runnable::Plain(Box::new(executable)),
            objects,
            calls: self.calls,
            parameters: self.parameters,
            state: Vec::new(),
            origin: Origin::Cache,
            time: Duration::ZERO,
        })
    }
}

/// A built program as data, by which another process runs it without compiling anything.
#[derive(Clone, Debug)]
pub struct Frozen {
    /// Its calls and types, and what its code consists of, as JSON.
    pub head: Vec<u8>,
    /// Its machine code.
    pub code: Vec<u8>,
    /// Its constants, folded and packed as they are used.
    pub constants: Vec<Tensor>,
}

impl Built {
    /// The program as data. None of what lives in this process only: programs for the virtual machine, regions of external compilers, and
    /// programs that keep state.
    pub fn freeze(&self, target: &CodegenTarget) -> Option<Frozen> {
        let program = self.executable.as_plain()?.program();
        if !self.state.is_empty() || self.record().is_none_or(|r| !r.external.is_empty()) {
            return None;
        }
        let mut constants: Vec<Tensor> = Vec::new();
        let head = Head::new(program, self, target, |t| {
            constants.push(t.clone());
            constants.len() - 1
        });
        let code = self.objects.iter().flat_map(|o| o.bytes.iter().copied()).collect();
        Some(Frozen { head: serde_json::to_vec(&head).ok()?, code, constants })
    }
}

impl Frozen {
    /// The program, to be run by so many threads of this process. Code for another machine fails where it is run. None where the data is
    /// not what [`Built::freeze`] gave.
    pub fn thaw(self, threads: usize) -> Option<Built> {
        let head: Head = serde_json::from_slice(&self.head).ok()?;
        head.link(&self.code, |c| self.constants.get(c.at).cloned(), threads)
    }
}
