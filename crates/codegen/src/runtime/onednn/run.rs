//! Regions that run: plans with memory.

use std::sync::{Arc, Mutex, PoisonError};

use super::{
    execute::{Object, Stream},
    graph::Graph,
    integer::{Job, Rows},
    library::{ExecArg, Library, OneDnnError},
    plan::{Action, IntegerAction, Place, Plan, build},
    primitive::arg,
    tape,
};
use crate::runtime::{
    callable::{Arguments, CallError, Callable, SerializeError, Serialized},
    memory::Block,
};

/// What one call at a time needs.
struct Instance {
    stream: Stream,
    /// By memory of the plan.
    objects: Vec<Object>,
    /// Where each lies now.
    at: Vec<*mut u8>,
    /// The scratchpad of each action.
    scratch: Vec<Option<Object>>,
    args: Vec<Vec<ExecArg>>,
    /// The arena, where the caller's workspace is too small for it.
    own: Option<Block>,
}

// SAFETY: the library's objects may be used by any thread, by one at a time; addresses are written again before each call.
unsafe impl Send for Instance {}

impl Instance {
    fn new(plan: &Plan) -> Result<Instance, String> {
        let lib = plan.library;
        let null = std::ptr::null_mut();
        let at: Vec<*mut u8> =
            plan.memories.iter().map(|m| if let Place::Kept(k) = m.place { plan.kept[k].at() } else { null }).collect();
        let objects = plan.memories.iter().zip(&at).map(|(m, &at)| Object::new(lib, &m.md, at));
        let objects = objects.collect::<Result<Vec<_>, _>>()?;
        let (mut scratch, mut args) = (Vec::new(), Vec::new());
        for action in &plan.actions {
            let (mut list, mut pad) = (Vec::new(), None);
            if let Action::Run { primitive, args, .. } = action {
                list.extend(args.iter().map(|&(arg, m)| ExecArg { arg, memory: objects[m].handle() }));
                if let Some(md) = primitive.scratchpad_md() {
                    let object = Object::new(lib, md, null)?;
                    list.push(ExecArg { arg: arg::SCRATCHPAD, memory: object.handle() });
                    pad = Some(object);
                }
            }
            args.push(list);
            scratch.push(pad);
        }
        Ok(Instance { stream: Stream::new(lib)?, objects, at, scratch, args, own: None })
    }

    fn call(&mut self, plan: &Plan, a: &mut Arguments<'_>) -> Result<(), String> {
        let lib = plan.library;
        let arena = if a.workspace.len() >= plan.arena {
            a.workspace.as_mut_ptr()
        } else {
            self.own.get_or_insert_with(|| Block::new(plan.arena)).at(0)
        };
        for (m, memory) in plan.memories.iter().enumerate() {
            let (at, bytes) = match memory.place {
                Place::Input(i) => (a.inputs[i].as_ptr().cast_mut(), Some(a.inputs[i].len())),
                Place::Output(i) => (a.outputs[i].as_mut_ptr(), Some(a.outputs[i].len())),
                // SAFETY: the arena is as large as the plan says, which gives offsets within it.
                Place::Arena(offset) => (unsafe { arena.add(offset) }, None),
                Place::Kept(_) => continue,
            };
            if at == self.at[m] {
                continue;
            }
            if bytes.is_some_and(|b| b < memory.md.bytes(lib)) {
                return Err(format!("memory of {:?} is too small", memory.md));
            }
            self.at[m] = at;
            self.objects[m].set(at)?;
        }
        for (action, object) in plan.actions.iter().zip(&self.scratch) {
            if let (Action::Run { scratch, .. }, Some(object)) = (action, object) {
                // SAFETY: as above.
                object.set(unsafe { arena.add(*scratch) })?;
            }
        }
        for (action, args) in plan.actions.iter().zip(&self.args) {
            match action {
                // SAFETY: each memory is as large as its layout says: tensors of the caller's by the check above, others by the
                // plan, which gives the same memory to no two tensors that are in use at once.
                Action::Run { primitive, .. } => unsafe { self.stream.execute(primitive, args)? },
                Action::Integer(i) => {
                    self.stream.wait()?;
                    // SAFETY: as above; the library is done with what came before.
                    unsafe { self.job(plan, i).run(a.context) }
                }
            }
        }
        self.stream.wait()
    }

    fn job<'a>(&self, plan: &Plan, i: &'a IntegerAction) -> Job<'a> {
        let rows = |m: usize| Rows { at: self.at[m], dtype: plan.memories[m].md.dtype() };
        Job {
            terms: i.terms.iter().map(|&(m, negative)| (rows(m), negative)).collect(),
            per_channel: &i.per_channel,
            more_per_channel: i.more_per_channel.iter().map(|&m| rows(m)).collect(),
            rescale: i.rescale.as_ref(),
            rescaled: i.rescaled.iter().map(|(m, c)| (rows(*m), c)).collect(),
            offset: i.offset,
            range: i.range,
            out: rows(i.out),
            rows: i.rows,
            channels: i.channels,
        }
    }
}

/// A plan and what calls of it need, which calls that have ended leave to those to come.
struct Variant {
    plan: Plan,
    idle: Mutex<Vec<Instance>>,
}

/// A graph that can be called, by any number of threads at once.
pub struct Region {
    library: &'static Library,
    graph: Graph,
    /// Bytes that calls are given.
    workspace: usize,
    /// For the number of threads of the latest call: layouts and kernels depend on it.
    latest: Mutex<Arc<Variant>>,
}

// SAFETY: plans are not changed once they are made; what they keep is only read.
unsafe impl Send for Plan {}
// SAFETY: as above.
unsafe impl Sync for Plan {}

impl Region {
    /// Plans a graph for so many threads: layouts are chosen, constants are brought into them. `Err` says what the library does not
    /// do.
    pub fn new(library: &'static Library, mut graph: Graph, threads: usize) -> Result<Region, OneDnnError> {
        graph.fuse();
        let plan = build(library, &graph, library.threads(threads)).map_err(OneDnnError::Plan)?;
        let workspace = plan.arena;
        let latest = Mutex::new(Arc::new(Variant { plan, idle: Mutex::new(vec![]) }));
        Ok(Region { library, graph, workspace, latest })
    }

    fn variant(&self, threads: usize) -> Result<Arc<Variant>, String> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.plan.threads != threads {
            let plan = build(self.library, &self.graph, threads)?;
            *latest = Arc::new(Variant { plan, idle: Mutex::new(vec![]) });
        }
        Ok(latest.clone())
    }

    /// Bytes of workspace that a call takes; with other numbers of threads than planned for, a call may take memory of its own.
    pub fn workspace(&self) -> usize {
        self.workspace
    }

    /// What a call does, a line a step: kernels by the library's names for them.
    pub fn describe(&self) -> Vec<String> {
        let variant = self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let line = |a: &Action| match a {
            Action::Run { primitive, .. } => format!("{} -> {:?}", primitive.implementation, primitive.makes),
            Action::Integer(i) => format!("integers: {} rows of {} channels", i.rows, i.channels),
        };
        variant.plan.actions.iter().map(line).collect()
    }
}

impl Callable for Region {
    fn call(&self, arguments: &mut Arguments<'_>) -> Result<(), CallError> {
        let threads = self.library.threads(usize::try_from(arguments.context.threads).unwrap_or(1));
        let variant = self.variant(threads).map_err(OneDnnError::Plan)?;
        let idle = variant.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut instance = match idle {
            Some(i) => i,
            None => Instance::new(&variant.plan).map_err(OneDnnError::Run)?,
        };
        let limit = self.library.limit_threads(threads);
        let done = instance.call(&variant.plan, arguments);
        drop(limit);
        variant.idle.lock().unwrap_or_else(PoisonError::into_inner).push(instance);
        Ok(done.map_err(OneDnnError::Run)?)
    }

    fn serialize(&self, symbol: &str) -> Result<Serialized, SerializeError> {
        let variant = self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (inputs, outputs) = (&self.graph.inputs, &self.graph.outputs);
        Ok(tape::serialized(&variant.plan.recipe, inputs, outputs, self.workspace, symbol)?)
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("library", &self.library).field("steps", &self.graph.steps.len()).finish()
    }
}
